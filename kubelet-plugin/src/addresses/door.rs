//! The door for the model of the whole (`tests/model`): what one agent decides about addresses, without its
//! requests, plugins and files. Nothing else uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netclaim_api::NetworkName;
use netclaim_api::addresses::AddressPoolSpec;
use netclaim_api::merge::{Asked, Base, merge};
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_cni::{IpRequest, NetworkList};
use netclaim_driver::attach::Spec;
use serde_json::{Map, json};

use super::plan::Now;
pub use super::plan::{Book, TakenAddresses, blocks_of};
pub use crate::inventory::{NodeAddresses, OwnBlock, OwnBlocks};
pub use crate::pods::owner::Plan;
use crate::pods::owner::{DeviceRef, ObjectRef, Owner};

/// Returns the addresses of each ClaimNetwork that has any, as the node's inventory has them.
pub fn addresses(
    networks: &BTreeMap<NetworkName, ClaimNetworkSpec>,
    scarce: &BTreeSet<NetworkName>,
    pools: &BTreeMap<String, AddressPoolSpec>,
    own: &OwnBlocks,
) -> BTreeMap<NetworkName, NodeAddresses> {
    crate::inventory::addresses_of(networks, scarce, pools, own)
}

/// Plans the one attachment of the claim of pod `pod`, which may ask for an address.
///
/// # Errors
/// Why it gets none.
pub fn plan(
    pod: &str,
    (network, spec): (&NetworkName, &ClaimNetworkSpec),
    of_node: &NodeAddresses,
    asked: Option<IpAddr>,
    taken: &TakenAddresses,
) -> Result<Plan, String> {
    let mut merged = merge(Base::Network(network, spec), &[], None).map_err(|error| error.to_string())?;
    if let Some(ip) = asked {
        merged.asked = Asked::Addresses(vec![IpRequest::Address(ip)]);
    }
    let found = super::plan::ipam(network, of_node, &merged, pod, "node", taken);
    let (ipam, addresses) = found.map_err(|error| error.to_string())?;
    let conflist = json!({"cniVersion": "1.1.0", "name": spec.list_name(network),
        "plugins": [{"type": "macvlan", "ipam": ipam}]});
    let conflist = NetworkList::parse(conflist.to_string().as_bytes()).map_err(|error| error.to_string())?;
    let object = |kind: &str| ObjectRef {
        namespace: "default".to_owned(),
        name: format!("{kind}-{pod}"),
        uid: format!("{kind}-{pod}"),
    };
    let device = DeviceRef {
        request: "net".to_owned(),
        pool: "node".to_owned(),
        device: network.to_string(),
        share_id: None,
    };
    let owner = Owner {
        claim: object("claim"),
        pod: object("pod"),
        pod_claim_name: None,
        network_attachment: None,
        device,
        bandwidth: None,
        segment: None,
        addresses: Some(addresses),
        takes_no_address: asked.is_some(),
        needs_node_network: false,
        configuration: None,
        link: None,
        attributes: Map::new(),
    };
    let spec = Spec {
        tenant: "default".to_owned(),
        if_name: "net1".parse().map_err(|_| "net1".to_owned())?,
        conflist,
        args: BTreeMap::new(),
        capability_args: Default::default(),
        wire: Default::default(),
    };
    Ok(Plan { owner, index: 0, of: 1, finalizes: None, network: network.to_string(), spec })
}

/// Returns the plan by which to attach now, if it is another one than `plan`.
///
/// # Errors
/// Why it cannot be carried out now.
pub fn revised(
    plan: &Plan,
    (network, spec): (&NetworkName, Option<&ClaimNetworkSpec>),
    of_node: Option<&NodeAddresses>,
    own: &OwnBlocks,
    taken: &TakenAddresses,
) -> Result<Option<Plan>, String> {
    let now = Now { network, spec, of_node, own, node: "node" };
    super::plan::revised(plan, now, taken).map_err(|error| error.to_string())
}
