//! A model of the whole: controllers, agents, the kubelet, users and admins, on an API server whose watches
//! lag.
//!
//! What decides is the code itself, through a door of each crate: the controller's leasing with its stores of
//! blocks and leases, the agent's view of its blocks, its choice of addresses and its reports. The model has
//! only what is around it: the API server, `host-local`'s files, the kubelet, and the order in which things
//! happen.
//!
//! * Invariant: no address is in two pods.
//! * Promise: if nothing goes wrong any more, no pod waits while an address is free.
//!
//! `small` explores every order of events in small worlds, `big` takes random steps in big ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod big;
mod controller;
mod machine;
mod server;
mod small;
mod world;

use std::collections::BTreeMap;

use netclaim_api::NetworkName;
use netclaim_api::network::ClaimNetworkSpec;
use serde_json::{Value, json};

use crate::server::Config;

/// A ClaimNetwork with these addresses, and with `cni.name` if it is set.
fn network(addresses: Option<Value>, list: Option<&str>) -> (ClaimNetworkSpec, bool) {
    let mut spec = json!({"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan"}]}});
    if let Some(addresses) = addresses {
        spec["addresses"] = addresses;
    }
    if let Some(list) = list {
        spec["cni"]["name"] = json!(list);
    }
    (serde_json::from_value(spec).expect("a ClaimNetwork"), true)
}

fn name(text: &str) -> NetworkName {
    text.parse().expect("a name")
}

/// The ClaimNetworks and AddressPools after so many edits.
fn config(version: u32, networks: &[(&str, (ClaimNetworkSpec, bool))], pools: &[(&str, Value)]) -> Config {
    let networks = networks.iter().map(|(of, network)| (name(of), network.clone()));
    let pools = pools.iter().map(|(name, spec)| {
        let spec: netclaim_api::addresses::AddressPoolSpec =
            serde_json::from_value(spec.clone()).expect("an AddressPool");
        assert!(spec.problems().is_empty(), "{:?}", spec.problems());
        ((*name).to_owned(), spec)
    });
    let config = Config { version, networks: networks.collect(), pools: pools.collect() };
    for (name, (spec, _)) in &config.networks {
        let problems: BTreeMap<_, _> =
            spec.addresses.iter().map(|addresses| (name, addresses.problems())).collect();
        assert!(problems.values().all(Vec::is_empty), "{problems:?}");
    }
    config
}
