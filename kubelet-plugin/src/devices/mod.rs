//! The node's devices: what the inventory offers, what excludes what, how much there is, and what is wrong.
//!
//! | module | what it does |
//! |---|---|
//! | `pool` | makes the pools of the inventory; pure, as are the modules down to `server_features` |
//! | `offer` | says in which ways a link is offered by itself |
//! | `places` | says which pool a device is in, and which devices of a link are offered together |
//! | `counters` | tells the scheduler which devices exclude each other on one link |
//! | `bandwidth` | divides an uplink's bandwidth among its devices |
//! | `segments` | assigns the segmentation ids of this node to its ClaimNetworks |
//! | `held` | keeps devices published that claims hold |
//! | `moved_links` | taints links that are not back from a pod |
//! | `server_features` | says what the API server does not store and the scheduler cannot do |
//! | `addresses` | counts the addresses that IPAMs have left; reads their leases |
//! | `availability` | finds ClaimNetworks whose plugins cannot serve an ADD |
//! | `publish` | writes ResourceSlices, and hands on the devices' health |
//! | `node_labels` | labels the Node for the ClaimNetworks of the whole cluster that it can serve |
//!
//! A device is published while it is offered or a claim holds it: the scheduler does not charge a device that
//! is not published. A device that cannot serve new pods is tainted.

pub(crate) mod addresses;
pub(crate) mod availability;
mod bandwidth;
mod candidate;
mod counters;
mod held;
mod leases;
pub(crate) mod metrics;
mod moved_links;
pub(crate) mod node_labels;
mod offer;
mod places;
mod pool;
pub(crate) mod publish;
mod report;
mod segments;
mod server_features;
mod subscription;

pub(crate) use held::{Held, id_of, settled};
pub(crate) use pool::attributes;
pub(crate) use pool::link_unhealthy;
pub(crate) use segments::{segments, space};
