//! Versions of the CNI specification.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A released version of the specification. Later versions compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SpecVersion {
    /// 0.1.0; also what a configuration or result without a version means.
    V0_1_0,
    /// 0.2.0: adds VERSION.
    V0_2_0,
    /// 0.3.0: chains, results with interfaces and any number of addresses.
    V0_3_0,
    /// 0.3.1.
    V0_3_1,
    /// 0.4.0: adds CHECK, and `prevResult` on DEL.
    V0_4_0,
    /// 1.0.0.
    V1_0_0,
    /// 1.1.0: adds GC and STATUS.
    V1_1_0,
}

/// A `cniVersion` that is not a released version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CNI version {0:?} is not one of 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0")]
pub struct VersionError(pub String);

impl SpecVersion {
    /// Every released version, oldest first.
    pub const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// The newest version this runtime speaks.
    pub const CURRENT: Self = Self::V1_1_0;

    /// As it is written in `cniVersion`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Whether CHECK exists, and DEL gets the ADD's result.
    pub const fn has_check(self) -> bool {
        matches!(self, Self::V0_4_0 | Self::V1_0_0 | Self::V1_1_0)
    }

    /// Whether GC and STATUS exist.
    pub const fn has_gc_and_status(self) -> bool {
        matches!(self, Self::V1_1_0)
    }

    /// Reads a `cniVersion`; the empty one means 0.1.0, as in libcni.
    ///
    /// # Errors
    /// [`VersionError`] if it is not a released version. Plugins compare versions as text, so `1.1` is not
    /// `1.1.0`.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        if text.is_empty() {
            return Ok(Self::V0_1_0);
        }
        Self::ALL.into_iter().find(|v| v.as_str() == text).ok_or_else(|| VersionError(text.to_owned()))
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SpecVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for SpecVersion {
    type Error = VersionError;

    fn try_from(text: String) -> Result<Self, VersionError> {
        Self::parse(&text)
    }
}

impl From<SpecVersion> for String {
    fn from(version: SpecVersion) -> String {
        version.as_str().to_owned()
    }
}

/// Whether `text` is written as a version at all: up to three numbers with dots between them.
///
/// A `cniVersions` entry of that form which is not a released version is one this runtime does not know, and
/// skips; anything else is a mistake in the configuration.
pub fn is_well_formed(text: &str) -> bool {
    text.is_empty()
        || (text.split('.').count() <= 3 && text.split('.').all(|part| part.parse::<u32>().is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_as_they_were_released() {
        assert!(SpecVersion::ALL.is_sorted());
        assert!(SpecVersion::V0_4_0 < SpecVersion::V1_0_0);
        assert_eq!(SpecVersion::ALL.last(), Some(&SpecVersion::CURRENT));
    }

    #[test]
    fn every_version_reads_back_as_written() {
        for version in SpecVersion::ALL {
            assert_eq!(SpecVersion::parse(version.as_str()), Ok(version));
        }
    }

    #[test]
    fn no_version_means_the_first() {
        assert_eq!(SpecVersion::parse(""), Ok(SpecVersion::V0_1_0));
    }

    #[test]
    fn a_shortened_or_unknown_version_is_refused() {
        for text in ["1.1", "2.0.0", "v1.0.0", "1.0.0 ", "0.5.0"] {
            assert!(SpecVersion::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_future_version_is_well_formed_and_nonsense_is_not() {
        assert!(is_well_formed("2.0.0") && is_well_formed("1.2") && is_well_formed("3"));
        assert!(!is_well_formed("1.0.0.0") && !is_well_formed("one") && !is_well_formed("1..0"));
    }
}
