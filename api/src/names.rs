//! Names and addresses that are right once they are parsed.

use std::fmt;
use std::str::FromStr;

use netclaim_cni::names::is_hex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name.len() <= Self::MAX && is_dns_label(&name) {
            Ok(Self(name))
        } else {
            Err(format!(
                "{name:?} cannot name a Network: use at most {} lower-case letters, digits and \"-\", \
                 with a letter or digit at both ends",
                Self::MAX
            ))
        }
    }
}

/// RFC 1123 label, as Kubernetes checks device names.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let edge = |c: Option<&u8>| c.is_some_and(|c| *c != b'-');
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().all(|c| inner(*c)) && edge(bytes.first()) && edge(bytes.last())
}

/// A unicast Ethernet address, written `02:00:5e:10:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("pattern" = "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$"))]
pub struct MacAddr([u8; 6]);

impl TryFrom<String> for MacAddr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a MAC address: write six hex bytes such as 02:00:5e:10:00:01");
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| is_hex(part, 2)).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        if bytes[0] & 1 == 1 || bytes == [0; 6] {
            return Err(format!(
                "{text:?} is not a unicast MAC address: clear the lowest bit of its first byte"
            ));
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> Self {
        mac.to_string()
    }
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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

    #[test]
    fn mac_addresses_are_unicast_and_lower_case() {
        let mac = MacAddr::try_from("02:AB:00:00:00:01".to_owned()).expect("valid");
        assert_eq!(mac.to_string(), "02:ab:00:00:00:01");
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "01:00:00:00:00:01",
            "2:0:0:0:0:1",
            "02:00:00:00:00:+1",
            "00:00:00:00:00:00",
        ] {
            assert!(MacAddr::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }
}
