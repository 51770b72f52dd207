//! What a caller publishes: a pool of devices, the nodes that can use it, and the counters that its devices
//! share.

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
    /// The slices are deleted with this object, whose `uid` must be current. For a node's pool, this is the
    /// Node.
    pub owner: Option<OwnerReference>,
    /// The devices in order of preference: the scheduler takes the first that fits. The order holds within a
    /// slice; a device does not move to another slice for it. `timeAdded` of a taint is ignored, because the
    /// server sets it.
    ///
    /// A pool without devices is published as one empty slice, because "no devices" and "not known yet"
    /// differ.
    pub devices: Vec<Device>,
    /// Counters that the devices consume.
    pub counters: Vec<CounterSet>,
}

/// The nodes that can use the devices of a pool.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    /// The node of this name.
    Node(String),
    /// The nodes that match; the API server requires exactly one term.
    NodeSelector(NodeSelector),
    /// Every node.
    AllNodes,
}
