//! Addresses that an attachment can ask for.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::names::is_hex;

/// A unicast Ethernet address, written `02:00:5e:10:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(with = "String", extend("pattern" = "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")))]
pub struct MacAddr([u8; 6]);

/// A text that is not a [`MacAddr`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MacAddrError {
    /// Not six bytes.
    #[error("{0:?} is not a MAC address: write six hex bytes such as 02:00:5e:10:00:01")]
    Form(String),
    /// A multicast address, or zero.
    #[error("{0:?} is not a unicast MAC address: clear the lowest bit of its first byte")]
    NotUnicast(String),
}

impl TryFrom<String> for MacAddr {
    type Error = MacAddrError;

    fn try_from(text: String) -> Result<Self, MacAddrError> {
        let Some(bytes) = six_bytes(&text) else { return Err(MacAddrError::Form(text)) };
        if bytes[0] & 1 == 1 || bytes == [0; 6] {
            return Err(MacAddrError::NotUnicast(text));
        }
        Ok(Self(bytes))
    }
}

fn six_bytes(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| is_hex(part, 2))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
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

/// An address, with a prefix length or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(with = "String"))]
pub enum IpRequest {
    /// `10.20.0.5`: the plugin knows the prefix length.
    Address(IpAddr),
    /// `10.20.0.5/24`
    Cidr(IpNet),
}

impl IpRequest {
    /// Returns the address without its prefix length.
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::Address(ip) => *ip,
            Self::Cidr(net) => net.addr(),
        }
    }
}

/// A text that is not an [`IpRequest`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an IP address: write for example 10.20.0.5 or 10.20.0.5/24")]
pub struct IpRequestError(pub String);

impl TryFrom<String> for IpRequest {
    type Error = IpRequestError;

    fn try_from(text: String) -> Result<Self, IpRequestError> {
        let parsed = if text.contains('/') {
            text.parse().map(Self::Cidr).ok()
        } else {
            text.parse().map(Self::Address).ok()
        };
        parsed.ok_or(IpRequestError(text))
    }
}

impl fmt::Display for IpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Cidr(cidr) => cidr.fmt(f),
        }
    }
}

impl From<IpRequest> for String {
    fn from(ip: IpRequest) -> Self {
        ip.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_unicast_and_lower_case() {
        let mac = MacAddr::try_from("02:AB:00:00:00:01".to_owned()).unwrap();
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

    #[test]
    fn an_ip_request_is_an_address_with_or_without_prefix_length() {
        for good in ["10.20.0.5", "10.20.0.5/24", "fd00::5", "fd00::5/64"] {
            assert_eq!(IpRequest::try_from(good.to_owned()).unwrap().to_string(), good);
        }
        for bad in ["", "10.20.0", "10.20.0.5/33", "host", "/24"] {
            assert!(IpRequest::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }
}
