//! `AddressLease`: one address that a holder has for as long as it lives.
//!
//! The agent creates it when it prepares a claim that asks for an address; the name is the lock. It is the
//! claim's until the claim is deleted, on whatever node its pod runs. The importer of whereabouts' pools
//! creates it for pods that have an address of another program.
//!
//! It has the finalizer [`BLOCK_FINALIZER`](super::BLOCK_FINALIZER). The agent of `status.nodeName` clears
//! that field when no pod has the address; then the controller removes the finalizer of a lease that is being
//! deleted.

use std::fmt;
use std::net::IpAddr;

use netclaim_cni::MacAddr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::block::address_label;
use super::pool::PoolKey;
use crate::{NetworkName, ObjectName};

/// Label of a lease that holds its address even if nodes hand it out. The controller sets it when it finds
/// that the address is reserved and the claim exists, and agents cannot: so no agent can take the addresses
/// of other nodes away.
pub const CONFIRMED_LABEL: &str = "netclaim.dev/confirmed";

/// One address that a claim or a pod has for as long as it lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(
    feature = "crd",
    derive(kube::CustomResource),
    kube(
        group = "netclaim.dev",
        version = "v1alpha1",
        kind = "AddressLease",
        plural = "addressleases",
        shortname = "addrlease",
        category = "netclaim",
        status = "AddressLeaseStatus",
        doc = "Internal to netclaim, without a promise for its fields. One address that a claim or a pod has for as long as it lives. Nodes make it, \
               the controller removes it.",
        selectable = ".spec.networkName",
        selectable = ".status.nodeName",
        printcolumn = r#"{"name":"Address","type":"string","jsonPath":".spec.address"}"#,
        printcolumn = r#"{"name":"MAC","type":"string","jsonPath":".spec.mac"}"#,
        printcolumn = r#"{"name":"Network","type":"string","jsonPath":".spec.networkName"}"#,
        printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.poolName","description":"AddressPool of the address; empty if the ClaimNetwork has ranges of its own","priority":1}"#,
        printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.holder.namespace"}"#,
        printcolumn = r#"{"name":"Holder","type":"string","jsonPath":".spec.holder.name"}"#,
        printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.nodeName","description":"node on which the address is in use"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([
    {"rule": "self == oldSelf", "message": "a lease cannot be changed: delete it when its holder is gone"},
    {"rule": "has(self.address) != has(self.mac)", "message": "set either address or mac"}])))]
pub struct AddressLeaseSpec {
    /// Name of the AddressPool that the address is of; not set if it is of the ClaimNetwork's own ranges.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "poolName")]
    #[schemars(with = "Option<ObjectName>")]
    pub pool: Option<String>,
    /// Name of the ClaimNetwork for which the address was asked.
    #[serde(rename = "networkName")]
    pub network: NetworkName,
    /// The IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 45))]
    pub address: Option<IpAddr>,
    /// The MAC address, instead of an IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Who has it.
    pub holder: Holder,
}

/// Who has an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The kind of holder.
    pub kind: HolderKind,
    /// Its namespace.
    pub namespace: ObjectName,
    /// Its name.
    pub name: ObjectName,
    /// Its UID; not set for a pod that another program knew only by name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64), regex(pattern = "^[0-9A-Za-z-]*$"))]
    pub uid: String,
}

/// What has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "the names say it")]
pub enum HolderKind {
    ResourceClaim,
    Pod,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Where an address is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressLeaseStatus {
    /// Name of the Node where a pod may have the address; not set if no pod has it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "nodeName")]
    #[schemars(with = "Option<ObjectName>")]
    pub node: Option<String>,
}

/// What is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    /// An IP address of a pool.
    Address(IpAddr),
    /// A MAC address of a ClaimNetwork.
    Mac(MacAddr),
}

impl fmt::Display for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
        }
    }
}

/// Returns the name of the object for an address of a pool, such as `storage.10.20.0.200` or
/// `storage.02-00-5e-10-00-01`.
pub fn lease_name(pool: &PoolKey, leased: Leased) -> String {
    match leased {
        Leased::Address(ip) => format!("{pool}.{}", address_label(ip)),
        Leased::Mac(mac) => format!("{pool}.{}", mac.to_string().replace(':', "-")),
    }
}

impl AddressLeaseSpec {
    /// Returns the pool that the address is of. A MAC address is always its ClaimNetwork's.
    pub fn key(&self) -> PoolKey {
        let pool = self.pool.clone().filter(|_| self.mac.is_none());
        pool.map_or_else(|| PoolKey::Network(self.network.clone()), PoolKey::Pool)
    }

    /// Returns what is leased; `None` for an object that says neither.
    pub fn leased(&self) -> Option<Leased> {
        self.address.map(Leased::Address).or_else(|| self.mac.map(Leased::Mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_lease_is_made_from_its_pool_and_address() {
        let storage = PoolKey::Network("storage".parse().expect("a name"));
        let ip = |text: &str| Leased::Address(text.parse().expect("an address"));
        assert_eq!(lease_name(&storage, ip("10.20.0.200")), "storage.10.20.0.200");
        assert_eq!(lease_name(&storage, ip("fd00::f")), "storage.fd00-0-0-0-0-0-0-f");
        let mac = MacAddr::try_from("02:AB:00:00:00:01".to_owned()).expect("a MAC address");
        assert_eq!(lease_name(&storage, Leased::Mac(mac)), "storage.02-ab-00-00-00-01");
        assert_eq!(lease_name(&PoolKey::Pool("lan".into()), ip("10.0.0.1")), "pool.lan.10.0.0.1");
    }
}
