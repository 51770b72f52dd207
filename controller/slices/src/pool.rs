//! What a caller publishes: a pool of devices, where it is reachable from, and the counters its devices share.

use k8s_openapi::{
    api::{
        core::v1::NodeSelector,
        resource::v1::{CounterSet, Device},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

/// One pool of devices. Its name is unique within the driver, across all publishers and nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name of the pool: DNS subdomains separated by `/`, at most 253 bytes.
    pub name: String,
    /// The nodes that can use the devices.
    pub placement: Placement,
    /// The slices disappear with this object, whose `uid` must be that of today: for a node's pool the Node.
    pub owner: Option<OwnerReference>,
    /// The devices, first choice first: the scheduler takes the first that fits. The order holds within a slice; a
    /// device does not change its slice for the sake of the order. `timeAdded` of a taint is the server's, and ignored.
    ///
    /// A pool without devices is published as one empty slice, since "nothing there" and "not yet known" differ.
    pub devices: Vec<Device>,
    /// Counters that the devices consume.
    pub counters: Vec<CounterSet>,
}

/// The nodes that can use the devices of a pool.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    /// The node of this name.
    Node(String),
    /// The nodes that match; the API server wants exactly one term.
    NodeSelector(NodeSelector),
    /// Every node.
    AllNodes,
}
