//! Names that are valid once they are parsed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// Name of a [`Network`](crate::network::Network): a DNS label of at most 58 bytes, because `net-NAME` is the
/// name of its device, and that must be a DNS label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkName(String);

impl NetworkName {
    /// The longest name, in bytes.
    pub const MAX: usize = 58;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NetworkName {
    type Error = Invalid;

    fn try_from(name: String) -> Result<Self, Invalid> {
        if name.len() <= Self::MAX && is_dns_label(&name) {
            return Ok(Self(name));
        }
        let problem = format!(
            "{name:?} cannot name a Network: use at most {} lower-case letters, digits and \"-\", \
             with a letter or digit at both ends",
            Self::MAX
        );
        Err(Invalid::new("", problem))
    }
}

/// Whether `text` is a DNS label (RFC 1123), as Kubernetes checks device names.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let edge = |c: Option<&u8>| c.is_some_and(|c| *c != b'-');
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().all(|c| inner(*c)) && edge(bytes.first()) && edge(bytes.last())
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<NetworkName> for String {
    fn from(name: NetworkName) -> Self {
        name.0
    }
}

impl AsRef<str> for NetworkName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for NetworkName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::try_from(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_name_leaves_room_for_its_device_name() {
        assert!("storage-10".parse::<NetworkName>().is_ok());
        assert!("a".repeat(58).parse::<NetworkName>().is_ok());
        for bad in ["", "-a", "a-", "a.b", "A", &"a".repeat(59)] {
            assert!(bad.parse::<NetworkName>().is_err(), "{bad:?}");
        }
    }
}
