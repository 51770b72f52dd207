//! What agents probe between nodes or pods, and what they have heard of each other, for `netclaimctl ping`.
//!
//! Agent and command may be of different versions: a field that one of them does not know is left out.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::NetworkName;
use crate::history::{InvalidSubject, Subject};

/// The most that take part in a run: an agent hears all of them at once, and the command asks all of their
/// agents at once.
pub const MAX_ENDPOINTS: usize = 8;

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ping {
    /// The ClaimNetwork.
    pub network: NetworkName,
    /// Tells the frames of the run from those of others.
    pub run: u64,
    /// The VLAN id on uplinks. `None`: the one of the ClaimNetwork, the lowest if it has several.
    pub vlan: Option<u16>,
    /// All that take part, at most [`MAX_ENDPOINTS`]. Frames name their sender by its place here.
    pub endpoints: Vec<Endpoint>,
}

/// A node or a pod that takes part, written as `NODE` or `NODE:NAMESPACE/POD`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Endpoint {
    /// The node.
    pub node: String,
    /// Namespace and name of the pod on it; `None` for the uplink of the node.
    pub pod: Option<(String, String)>,
}

impl FromStr for Endpoint {
    type Err = InvalidSubject;

    fn from_str(text: &str) -> Result<Self, InvalidSubject> {
        let Some((node, pod)) = text.split_once(':') else {
            return Ok(Self { node: text.to_owned(), pod: None });
        };
        match pod.parse()? {
            Subject::Pod { namespace, name } => {
                Ok(Self { node: node.to_owned(), pod: Some((namespace, name)) })
            }
            _ => Err(InvalidSubject(pod.to_owned())),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = InvalidSubject;

    fn try_from(text: String) -> Result<Self, InvalidSubject> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some((namespace, pod)) => write!(f, "{}:{namespace}/{pod}", self.node),
            None => f.write_str(&self.node),
        }
    }
}

/// What one that takes part has sent and heard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probed {
    /// Its place in the run.
    pub place: usize,
    /// Why it did not take part.
    pub problem: Option<String>,
    /// Whether that is because the node has no link for the ClaimNetwork.
    pub is_not_offered: bool,
    /// The link: the uplink, or the interface in the pod.
    pub link: String,
    /// Its MAC address.
    pub mac: String,
    /// The second MAC address that frames came from, where pods of the ClaimNetwork have addresses of their
    /// own.
    pub second_mac: Option<String>,
    /// The VLAN id with which frames were sent.
    pub vlan: Option<u16>,
    /// The length of the longest frames, in bytes of payload: the MTU that pods have.
    pub mtu: u32,
    /// Whether frames to its MAC address alone reach it: those to an `ipvlan` do only as IP.
    pub hears_unicast: bool,
    /// How long it has listened, in milliseconds.
    pub listened: u64,
    /// What it has heard of each that takes part, by place.
    pub heard: Vec<Heard>,
    /// Addresses of the pod that another host has, too.
    pub used_twice: Vec<UsedTwice>,
}

/// How many frames of one that takes part were heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Heard {
    /// Frames without a tag, where the network has a VLAN.
    pub untagged: u32,
    /// Frames to all, of the VLAN if there is one.
    pub broadcast: u32,
    /// Frames from its second MAC address.
    pub second_mac: u32,
    /// Frames to this one alone.
    pub unicast: u32,
    /// Frames to its second MAC address.
    pub to_second_mac: u32,
    /// The length of the longest frame, in bytes of payload.
    pub longest: u16,
    /// Frames that were sent with the VLAN's tag, and came without it.
    pub lost_tag: u32,
}

/// An address that another host has, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsedTwice {
    /// The address.
    pub ip: IpAddr,
    /// MAC address of the other host, if it has said so.
    pub mac: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_node_or_a_pod_on_one() {
        for text in ["node1", "node1.example.com", "node1:shop/web-0"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
            assert_eq!(serde_json::from_value::<Endpoint>(serde_json::json!(text)).unwrap(), endpoint);
        }
        for text in ["node1:web", "node1:", "node1:10.0.0.7", "node1:shop/Web"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
