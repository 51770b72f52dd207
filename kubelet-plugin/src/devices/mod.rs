//! The node's devices: what the inventory offers, what excludes what, how much there is, and what is wrong.
//!
//! | module | what it does |
//! |---|---|
//! | `pool` | makes the pool of the inventory; pure, as are the modules down to `server_features` |
//! | `offer` | says in which ways a link is offered by itself |
//! | `sharing` | divides links among their devices: bandwidth, segmentation ids, who excludes whom |
//! | `held` | keeps devices published that claims hold |
//! | `moved_links` | taints links that are not back from a pod |
//! | `server_features` | says what the API server does not store and the scheduler cannot do |
//! | `holdings` | what all claims of the node hold, by kinds |
//! | `settling` | has taints wait until what they say has lasted |
//! | `followers` | counts the links that follow each UplinkPolicy |
//! | `older` | finds pods that run an older configuration of their ClaimNetwork |
//! | `addresses` | counts the addresses that IPAMs have left; reads their leases |
//! | `availability` | finds ClaimNetworks whose plugins cannot serve an ADD |
//! | `publish` | writes ResourceSlices, and hands on the devices' health |
//! | `node_labels` | labels the Node for the ClaimNetworks of the whole cluster that it can serve |
//!
//! A device is published while it is offered or a claim holds it: the scheduler does not charge a device that
//! is not published. A device that cannot serve new pods is tainted.

pub(crate) mod addresses;
pub(crate) mod availability;
mod candidate;
mod followers;
mod held;
mod holdings;
mod leases;
pub(crate) mod metrics;
mod moved_links;
pub(crate) mod node_labels;
mod offer;
mod older;
mod pool;
pub(crate) mod publish;
mod report;
mod server_features;
mod settling;
mod sharing;
mod subscription;

pub(crate) use held::{HeldDevice, id_of, link_and_port, settled, stays_on_node};
pub(crate) use holdings::{Kind, held_on};
pub(crate) use pool::attributes;
pub(crate) use pool::link_unhealthy;
pub(crate) use sharing::{segments, space};
