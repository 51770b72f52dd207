//! What a caller publishes: a pool of devices, the nodes that can use it, and the counters that its devices
//! share.

use std::collections::BTreeMap;

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
    /// A pool without devices is one empty slice.
    pub devices: Vec<Device>,
    /// Counters that the devices consume.
    pub counters: Vec<CounterSet>,
    /// Annotations of each of its slices. Their names begin with the driver and `/`; others are not written,
    /// and stay as another program writes them.
    pub annotations: BTreeMap<String, String>,
    /// What is done while there is nothing in it.
    pub empty: EmptyPool,
}

impl Pool {
    /// Returns a pool of these devices, which is published with and without any, and has neither an owner nor
    /// counters nor annotations.
    #[must_use]
    pub fn new(name: impl Into<String>, placement: Placement, devices: Vec<Device>) -> Self {
        Self {
            name: name.into(),
            placement,
            owner: None,
            devices,
            counters: Vec::new(),
            annotations: BTreeMap::new(),
            empty: EmptyPool::Publish,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.counters.is_empty()
    }
}

/// What is done with a pool without devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyPool {
    /// It is published: "no devices" and "not known yet" differ.
    Publish,
    /// It stays if it is there, so that pools do not come and go; it is not created. Node autoscalers treat a
    /// node with a slice in another way than one without, even if the slice has no device.
    Keep,
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
