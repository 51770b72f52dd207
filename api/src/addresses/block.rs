//! `AddressBlock`: a block of addresses that one node has leased for one ClaimNetwork.
//!
//! The controller creates it; the name is the lock. The node's agent holds the finalizer [`BLOCK_FINALIZER`]:
//! it hands out no address of a block that is being deleted, and removes the finalizer when no pod has one.
//! When a node is gone, the controller removes it.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::pool::{AddressPoolSpec, PoolKey};
use super::span::Span;
use crate::{NetworkName, ObjectName};

/// The finalizer by which a node keeps its blocks until no pod has an address of them.
pub const BLOCK_FINALIZER: &str = "netclaim.dev/addresses";

/// A block of addresses that one node has leased for one ClaimNetwork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(
    feature = "crd",
    derive(kube::CustomResource),
    kube(
        group = "netclaim.dev",
        version = "v1alpha1",
        kind = "AddressBlock",
        plural = "addressblocks",
        shortname = "addrblock",
        category = "netclaim",
        status = "AddressBlockStatus",
        selectable = ".spec.nodeName",
        selectable = ".spec.networkName",
        doc = "Internal to netclaim, without a promise for its fields. A block of addresses that one node has leased for one ClaimNetwork. The controller \
               makes and removes it.",
        printcolumn = r#"{"name":"Network","type":"string","jsonPath":".spec.networkName"}"#,
        printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
        printcolumn = r#"{"name":"Block","type":"string","jsonPath":".spec.cidr"}"#,
        printcolumn = r#"{"name":"Used","type":"integer","jsonPath":".status.used","description":"addresses that pods have, as the node reported last"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([{"rule": "self == oldSelf", "message": "a block cannot be changed: delete it, and the controller leases another one"}])))]
pub struct AddressBlockSpec {
    /// Name of the AddressPool that the block is of; not set if it is of the ClaimNetwork's own ranges.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "poolName")]
    #[schemars(with = "Option<ObjectName>")]
    pub pool: Option<String>,
    /// Name of the ClaimNetwork whose pods get the addresses.
    #[serde(rename = "networkName")]
    pub network: NetworkName,
    /// Name of the Node that hands out the addresses.
    #[serde(rename = "nodeName")]
    #[schemars(with = "ObjectName")]
    pub node: String,
    /// The block, such as `10.20.0.16/28`.
    #[schemars(with = "String", length(max = 49))]
    pub cidr: IpNet,
    /// Addresses of the block that the node may hand out: those that were neither reserved nor excluded nor
    /// held by others when the block was leased. What becomes usable later is not the node's. By default,
    /// all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = MAX_BLOCK_RANGES))]
    pub ranges: Vec<Span>,
}

/// The most ranges of a block: with more, the object would not fit into etcd.
pub const MAX_BLOCK_RANGES: usize = 4096;

/// The most addresses that a node may want: more than pods fit on one.
pub const MAX_WANTED: i64 = 65536;

/// The node's report about a block.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressBlockStatus {
    /// Addresses of the block that attachments have or are about to get. The node reports it when it needs
    /// another block, and some minutes after the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<i64>,
    /// Number of addresses of the block's family that the node wants to have for the ClaimNetwork, in all of
    /// its blocks. It is written to one block of each family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_WANTED))]
    pub wanted: Option<i64>,
    /// Attachments that still have addresses, of a block that is being deleted: at most 16, and first those
    /// with addresses that are not for pods any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub holders: Vec<BlockHolder>,
}

/// Who has an address of a block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockHolder {
    /// The pod, as NAMESPACE/NAME.
    #[schemars(length(max = 512), regex(pattern = "^[ -~]*$"))]
    pub pod: String,
    /// The address that it has of the block; not set while it is about to get one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub address: Option<IpAddr>,
}

impl fmt::Display for BlockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{} with {address}", self.pod),
            None => f.write_str(&self.pod),
        }
    }
}

impl AddressBlockSpec {
    /// Returns the pool that the block is of.
    pub fn key(&self) -> PoolKey {
        self.pool.clone().map_or_else(|| PoolKey::Network(self.network.clone()), PoolKey::Pool)
    }

    /// Returns the addresses that the node may hand out: those that it got with the block and that the pool
    /// still has for pods.
    pub fn usable(&self, pool: &AddressPoolSpec) -> Vec<Span> {
        let now = pool.usable_in(self.cidr);
        if self.ranges.is_empty() {
            return now;
        }
        let of = |span: Span| {
            self.ranges.iter().filter_map(move |range| range.intersection(span)).collect::<Vec<_>>()
        };
        now.into_iter().flat_map(of).collect()
    }

    /// Whether the node got the address with the block.
    pub fn hands_out(&self, ip: IpAddr) -> bool {
        self.cidr.contains(&ip)
            && (self.ranges.is_empty() || self.ranges.iter().any(|span| span.contains(ip)))
    }

    /// Returns the only name that the block's object may have.
    pub fn name(&self) -> String {
        block_name(&self.key(), self.cidr)
    }
}

/// Returns the name of the object for a block of a pool, such as `storage.10.20.0.16-28` or
/// `storage.fd00-0-0-0-0-0-0-40-122`.
pub fn block_name(pool: &PoolKey, block: IpNet) -> String {
    format!("{pool}.{}-{}", address_label(block.network()), block.prefix_len())
}

/// Returns an address as part of an object's name: every address has one form, of characters that a name may
/// have.
pub(super) fn address_label(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => ip.segments().iter().enumerate().fold(String::new(), |mut text, (i, segment)| {
            // Writing to a String does not fail.
            let _ = write!(text, "{}{segment:x}", if i == 0 { "" } else { "-" });
            text
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_block_is_made_from_its_pool_and_addresses() {
        let name = |pool: Option<&str>, cidr: &str| {
            let spec = AddressBlockSpec {
                pool: pool.map(str::to_owned),
                network: "storage".parse().expect("a name"),
                node: "n".to_owned(),
                cidr: cidr.parse().expect("a block"),
                ranges: Vec::new(),
            };
            spec.name()
        };
        assert_eq!(name(None, "10.20.0.16/28"), "storage.10.20.0.16-28");
        assert_eq!(name(Some("lan"), "10.20.0.16/28"), "pool.lan.10.20.0.16-28");
        assert_eq!(name(None, "fd00::40/122"), "storage.fd00-0-0-0-0-0-0-40-122");
    }

    #[test]
    fn a_node_hands_out_what_it_got_and_what_the_pool_still_has() {
        let pool = |reserved: serde_json::Value| -> AddressPoolSpec {
            serde_json::from_value(json!({"ranges": [{"subnet": "10.20.0.0/24"}], "reserved": reserved}))
                .expect("a pool")
        };
        let mut spec = AddressBlockSpec {
            pool: None,
            network: "storage".parse().expect("a name"),
            node: "n".to_owned(),
            cidr: "10.20.0.16/28".parse().expect("a block"),
            ranges: vec!["10.20.0.16-10.20.0.23".parse().expect("a span")],
        };
        let texts = |spans: Vec<Span>| spans.iter().map(Span::to_string).collect::<Vec<_>>();
        assert_eq!(texts(spec.usable(&pool(json!([])))), ["10.20.0.16/29"], "the rest was reserved then");
        assert_eq!(texts(spec.usable(&pool(json!(["10.20.0.16/30"])))), ["10.20.0.20/30"]);
        spec.ranges.clear();
        assert_eq!(texts(spec.usable(&pool(json!([])))), ["10.20.0.16/28"]);
    }
}
