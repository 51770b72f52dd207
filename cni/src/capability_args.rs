//! Capability arguments: what a runtime tells plugins about one attachment, in `runtimeConfig`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::address::{IpRequest, MacAddr};

macro_rules! capability_args {
    ($($(#[$doc:meta])* $name:literal => $field:ident: $type:ty,)*) => {
        /// The arguments of one attachment by capability. A plugin gets those it declares in `capabilities`.
        ///
        /// The fields are the capabilities of CNI's
        /// [conventions](https://www.cni.dev/docs/conventions/#dynamic-plugin-specific-fields-capabilities--runtime-configuration);
        /// [`other`](Self::other) holds all others. A value from JSON is typed only if the type writes the
        /// same JSON again: a malformed one, or one with more members, stays in `other` and reaches the
        /// plugin unchanged.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(from = "Map<String, Value>", into = "Map<String, Value>")]
        pub struct CapabilityArgs {
            $($(#[$doc])* pub $field: Option<$type>,)*
            /// Arguments by capability that the fields do not express. A field counts before its key in here.
            pub other: Map<String, Value>,
        }

        impl From<Map<String, Value>> for CapabilityArgs {
            fn from(mut args: Map<String, Value>) -> Self {
                Self { $($field: take(&mut args, $name),)* other: args }
            }
        }

        impl From<CapabilityArgs> for Map<String, Value> {
            fn from(args: CapabilityArgs) -> Self {
                let mut map = args.other;
                $(put(&mut map, $name, args.$field);)*
                map
            }
        }
    };
}

capability_args! {
    /// More names for the container on this network.
    "aliases" => aliases: Vec<String>,
    /// Limits of the traffic.
    "bandwidth" => bandwidth: BandwidthArg,
    /// The device to use, such as a PCI address.
    "deviceID" => device_id: String,
    /// Name resolution.
    "dns" => dns: DnsArg,
    /// The InfiniBand GUID of the interface.
    "infinibandGUID" => infiniband_guid: String,
    /// The ranges to choose addresses from: one address of each inner list.
    "ipRanges" => ip_ranges: Vec<Vec<IpRangeArg>>,
    /// The addresses of the interface.
    "ips" => ips: Vec<IpRequest>,
    /// The hardware address of the interface.
    "mac" => mac: MacAddr,
    /// Ports of the host that lead to the container.
    "portMappings" => port_mappings: Vec<PortMappingArg>,
}

/// The capability `bandwidth`: rates in bits per second, bursts in bits, seen from the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BandwidthArg {
    /// Rate towards the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_rate: Option<u64>,
    /// Burst towards the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_burst: Option<u64>,
    /// Rate from the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_rate: Option<u64>,
    /// Burst from the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_burst: Option<u64>,
}

/// The capability `dns`. Results call the same things differently: [`Dns`](crate::Dns).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsArg {
    /// Name servers, the preferred one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<IpAddr>,
    /// Search list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<String>,
    /// Resolver options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// A range of the capability `ipRanges`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpRangeArg {
    /// The subnet.
    pub subnet: IpNet,
    /// First address to hand out; by default the subnet's second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_start: Option<IpAddr>,
    /// Last address to hand out; by default the subnet's last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_end: Option<IpAddr>,
    /// The default gateway; by default the subnet's first address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// An element of the capability `portMappings`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMappingArg {
    /// Port on the host.
    pub host_port: u16,
    /// Port in the container.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`; plugins take capital letters, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Address of the host to listen on; all by default.
    #[serde(default, rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

impl CapabilityArgs {
    /// Whether there is no argument at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets the argument of a capability by its JSON, and returns the one before.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let mut args = Map::from(std::mem::take(self));
        let before = args.insert(name.into(), value.into());
        *self = args.into();
        before
    }
}

impl IntoIterator for CapabilityArgs {
    type Item = (String, Value);
    type IntoIter = serde_json::map::IntoIter;

    /// The JSON of all arguments, in the order of their names.
    fn into_iter(self) -> Self::IntoIter {
        Map::from(self).into_iter()
    }
}

/// Takes a value whose type writes the same JSON; others stay.
fn take<T: Serialize + DeserializeOwned>(args: &mut Map<String, Value>, name: &str) -> Option<T> {
    let value = args.get(name)?;
    let typed = T::deserialize(value).ok()?;
    if serde_json::to_value(&typed).ok()? != *value {
        return None;
    }
    args.remove(name);
    Some(typed)
}

fn put<T: Serialize>(args: &mut Map<String, Value>, name: &str, value: Option<T>) {
    // Numbers, texts and lists of them: writing them as JSON cannot fail.
    if let Some(value) = value.and_then(|value| serde_json::to_value(value).ok()) {
        args.insert(name.to_owned(), value);
    }
}
