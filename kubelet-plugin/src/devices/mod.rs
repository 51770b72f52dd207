//! The node's pool: which devices the inventory makes, what excludes what, how much there is, and what is wrong. Pure.
//!
//! | module | what it decides |
//! |---|---|
//! | `counters` | which devices exclude each other on one link |
//! | `bandwidth` | how an uplink's bandwidth is divided among its devices |
//! | `segments` | which segmentation ids each Network has on this node |
//! | `held` | what stays published because claims hold it |
//! | `strays` | what nobody gets because a pod has not given its link back |
//!
//! A device is published as long as its link is there or a claim holds it: a device that is not published any more stops
//! being charged. What cannot serve new pods is tainted.

pub mod addresses;
pub mod availability;
mod bandwidth;
mod candidate;
mod counters;
pub mod health;
mod held;
mod pool;
pub mod publish;
mod segments;
pub mod server_features;
pub(crate) mod strays;

pub use held::{Held, id_of, settled};
pub use pool::{Sources, attributes, pool};
pub use segments::{segments, space};
pub use strays::Stray;
