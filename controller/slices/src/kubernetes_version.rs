//! Kubernetes versions, and the known bugs of their schedulers, which no API reports.

use std::fmt;
use std::str::FromStr;

/// A version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl KubernetesVersion {
    /// The version `major.minor.patch`.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// The first version whose scheduler handles counters on many nodes. On 1.36, it reads the counters of
    /// all nodes for each node that it visits, for every pod with a claim of any driver: minutes per pod on
    /// thousands of nodes (<https://github.com/kubernetes/kubernetes/issues/138917>). Before 1.36.2, it also
    /// forgets what shared devices consume (<https://github.com/kubernetes/kubernetes/issues/139034>). No
    /// 1.36 release will fix the former.
    pub const FIRST_TO_COUNT: Self = Self::new(1, 37, 0);

    /// The first version whose scheduler looks up whether a device is shared. On 1.37, it walks over all
    /// shares of the cluster for every free shared device of each node that it visits, unless it has a record
    /// of consumed capacity (<https://github.com/kubernetes/kubernetes/pull/142014>). Older versions have no
    /// such walk.
    pub const FIRST_TO_LOOK_UP_SHARES: Self = Self::new(1, 38, 0);
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A text that is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version of Kubernetes, such as v1.36.2 or v1.36.2-distribution.1")]
pub struct InvalidVersion(String);

impl FromStr for KubernetesVersion {
    type Err = InvalidVersion;

    /// Parses the `gitVersion` of an API server, and ignores the suffix of a distribution.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: Option<&str>| part?.parse().ok();
        let version = || {
            let numbers = text.strip_prefix('v')?.split(['-', '+']).next()?;
            let mut parts = numbers.split('.');
            let version = Self {
                major: number(parts.next())?,
                minor: number(parts.next())?,
                patch: number(parts.next())?,
            };
            parts.next().is_none().then_some(version)
        };
        version().ok_or_else(|| InvalidVersion(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_the_version_that_it_is_built_from() {
        for text in ["v1.37.0", "v1.37.0-gke.1234", "v1.37.0+k3s1", "v1.37.0-eks-abc"] {
            assert_eq!(text.parse(), Ok(KubernetesVersion::FIRST_TO_COUNT), "{text}");
        }
        for text in ["", "v", "1.36.2", "v1.36", "v1.36.x", "v1.36.2.1", "v-1.36.2", "v1.36.99999999999"] {
            assert_eq!(text.parse::<KubernetesVersion>(), Err(InvalidVersion(text.into())), "{text}");
        }
    }

    #[test]
    fn versions_are_ordered_by_number() {
        let version = |text: &str| text.parse::<KubernetesVersion>().unwrap();
        assert!(version("v1.36.1") < version("v1.36.2"));
        assert!(version("v1.36.2") < version("v1.36.10"));
        assert!(version("v1.9.9") < version("v1.36.0"));
        assert_eq!(version("v1.37.1").to_string(), "1.37.1");
    }
}
