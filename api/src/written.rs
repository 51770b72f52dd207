//! Reads addresses and networks as people write them. An error names the text and says what to write.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Ip(IpAddr);

impl TryFrom<String> for Ip {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = |_| format!("{text:?} is not an IP address: write for example 10.20.0.5 or fd00::5");
        text.parse().map(Self).map_err(wrong)
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Net(IpNet);

impl TryFrom<String> for Net {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = |_| {
            format!("{text:?} is not a network in CIDR notation: write for example 10.20.0.0/22 or fd00::/64")
        };
        text.parse().map(Self).map_err(wrong)
    }
}

pub(crate) fn ip<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    Ok(Option::<Ip>::deserialize(deserializer)?.map(|Ip(ip)| ip))
}

pub(crate) fn ips<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    Ok(Vec::<Ip>::deserialize(deserializer)?.into_iter().map(|Ip(ip)| ip).collect())
}

pub(crate) fn net<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
    Net::deserialize(deserializer).map(|Net(net)| net)
}

pub(crate) fn nets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    Ok(Vec::<Net>::deserialize(deserializer)?.into_iter().map(|Net(net)| net).collect())
}
