//! Links and uplinks for the tests of this crate.

use netclaim_api::addresses::{AddressBlockSpec, AddressBlockStatus};
use netclaim_api::attribute::DeclaredAttributes;
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::{LinkUse, NetworkName, Quantity};
use netclaim_driver::links::{Link, OperState};
use serde_json::Value;

use super::facts_dir::{Facts as _, Origin, Version};
use super::{NetworkFacts, NodeAddresses, OwnBlock, Port, Uplink};

/// A NIC that is up.
pub(crate) fn link(name: &str) -> Link {
    Link {
        index: 2,
        name: name.into(),
        mac: Some("02:00:00:00:00:01".into()),
        mtu: 1500,
        admin_up: true,
        oper: OperState::Up,
        carrier: true,
        speed: Some(10_000_000_000),
        driver: Some("ixgbe".into()),
        ..Link::default()
    }
}

/// The same as an uplink for which a policy lists all modes.
pub(crate) fn uplink(name: &str) -> Uplink {
    let link = link(name);
    Uplink {
        name: name.parse().expect("a name"),
        modes: [LinkUse::Nic, LinkUse::Macvlan, LinkUse::Ipvlan].into(),
        is_listed: true,
        when_named: None,
        carries: None,
        stacked: Vec::new(),
        bridge: None,
        declared: DeclaredAttributes::new(),
        bandwidth: link.speed.map(Quantity::new),
        states_bandwidth: false,
        port: Port { name: name.to_owned(), bandwidth: link.speed.map(Quantity::new) },
        link,
    }
}

/// What the file `lab.json` states.
pub(crate) fn facts(document: &Value) -> NetworkFacts {
    let origin = Origin { path: "networks.d/lab.json".into(), version: Version::default() };
    NetworkFacts::read(&document.to_string(), &origin).expect("facts")
}

/// A block of the ClaimNetwork's own ranges that the node has leased.
pub(crate) fn own_block(network: &str, cidr: &str) -> OwnBlock {
    let spec = AddressBlockSpec {
        pool: None,
        network: network.parse().expect("a name"),
        node: "n".to_owned(),
        cidr: cidr.parse().expect("a block"),
        ranges: Vec::new(),
    };
    OwnBlock {
        uid: format!("uid-{cidr}"),
        spec,
        status: AddressBlockStatus::default(),
        created: 0,
        is_deleting: false,
        is_retired: false,
        finalizer: Some(0),
    }
}

/// The addresses of a ClaimNetwork without a block on the node.
pub(crate) fn without_blocks(name: &NetworkName, spec: &ClaimNetworkSpec) -> NodeAddresses {
    let addresses = spec.addresses.as_ref().expect("addresses");
    NodeAddresses {
        key: addresses.key(name),
        pool: addresses.inline(),
        blocks: Vec::new(),
        leaving: Vec::new(),
        is_stale: false,
        is_scarce: false,
    }
}
