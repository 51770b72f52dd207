//! What needs addresses: ClaimNetworks with their pools, and pods that wait. Pure.
//!
//! The reconciler and `pods` derive it, and `addresses` leases blocks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceTaintRule;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressPoolSpec, PoolKey};
use netclaim_api::network::ClaimNetworkSpec;

use crate::objects::nodes::Nodes;

/// What needs addresses, as the reconciler derives it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Demand {
    pub(crate) networks: BTreeMap<NetworkName, Draw>,
    /// The ClaimNetworks whose specs are not those that they were created with.
    pub(crate) revised: BTreeSet<NetworkName>,
    /// The accepted pools.
    pub(crate) pools: BTreeMap<PoolKey, AddressPoolSpec>,
    /// With which ranges and ClaimNetworks each pool was looked through last, as its status says.
    pub(crate) surveyed: BTreeMap<PoolKey, i64>,
    pub(crate) nodes: Arc<Nodes>,
    /// For those who explain why pods wait.
    pub(crate) rules: Vec<DeviceTaintRule>,
}

impl Demand {
    /// Derives what ClaimNetworks draw from. `pools` are the accepted AddressPools; a ClaimNetwork that is
    /// not accepted has no spec. `nodes_of` returns the nodes that publish a ClaimNetwork, and those that it
    /// selects.
    pub(crate) fn of<'a>(
        pools: impl IntoIterator<Item = (&'a String, &'a AddressPoolSpec)>,
        networks: impl IntoIterator<Item = (NetworkName, Option<&'a ClaimNetworkSpec>)>,
        nodes_of: impl Fn(&NetworkName) -> (BTreeSet<String>, BTreeSet<String>),
    ) -> Self {
        let pools = pools.into_iter().map(|(name, spec)| (PoolKey::Pool(name.clone()), spec.clone()));
        let mut demand = Self { pools: pools.collect(), ..Self::default() };
        for (name, spec) in networks {
            let draw = match spec.map(|spec| &spec.addresses) {
                None => Draw::Unknown,
                Some(None) => Draw::Nothing,
                Some(Some(addresses)) => {
                    let pool = addresses.key(&name);
                    demand.pools.extend(addresses.inline().map(|spec| (pool.clone(), spec)));
                    let (nodes, selected) = nodes_of(&name);
                    Draw::From { pool, nodes, selected }
                }
            };
            demand.networks.insert(name, draw);
        }
        demand
    }
}

/// The source of a ClaimNetwork's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Unknown, because the ClaimNetwork is not accepted: it keeps the blocks that it has.
    Unknown,
    /// Nothing: its conflist has an IPAM of its own.
    Nothing,
    /// A pool.
    From {
        pool: PoolKey,
        /// The nodes that get blocks.
        nodes: BTreeSet<String>,
        /// The nodes that the ClaimNetwork selects, which keep their blocks.
        selected: BTreeSet<String>,
    },
}

impl Draw {
    /// Whether the node neither has the ClaimNetwork nor could have it.
    pub(crate) fn is_without(&self, node: &str) -> bool {
        match self {
            Self::From { nodes, selected, .. } => !nodes.contains(node) && !selected.contains(node),
            Self::Unknown | Self::Nothing => false,
        }
    }
}

/// For each ClaimNetwork, where the pods may run that ask for it and wait for a node or on their node.
pub(crate) type Waiting = BTreeMap<NetworkName, BTreeSet<Places>>;

/// What pods need that wait for more addresses than their nodes have free, by ClaimNetwork and node.
pub(crate) type Needs = BTreeMap<(NetworkName, String), Need>;

/// Addresses of each family that a node needs for one ClaimNetwork.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Those that claims have.
    pub(crate) used: u128,
    /// Those that pods wait for, all at once.
    pub(crate) wanted: u128,
}

/// The nodes where a pod may run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Places {
    /// All nodes.
    Any,
    /// The nodes of these names.
    Nodes(BTreeSet<String>),
}
