//! What Kubernetes cannot express of one link yet, put into what its scheduler counts today. Pure.
//!
//! ```text
//!   what links are asked for:          ┌─> bandwidth: parts of what the link has ──┐
//!   inventory, what claims hold ───────┼─> segments: ids that are this node's ─────┼─> amounts of each device
//!                                      └─> exclusion: counters, withheld devices ──┴─> devices that exclude others
//! ```
//!
//! Kubernetes builds each of the three: counters that consumable capacity takes from (KEP-5941), groups of
//! devices that are compatible (KEP-5963) and sharing of one attribute by all who share a device (KEP-5981).
//! Each will be another output of this module: what it is given stays, and so does what the rest of the
//! agent does. See [decision 25](../../../docs/decisions/0025-one-seam-for-upstream.md).

mod bandwidth;
mod counters;
mod exclusion;
mod segments;

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::NetworkName;

use super::held::HeldDevice;
use crate::inventory::Inventory;

pub(super) use bandwidth::Shares;
pub(super) use exclusion::keep_apart;
pub(crate) use segments::{segments, space};

/// The part of its shared link that each device gets.
#[derive(Debug, Default)]
pub(super) struct Amounts {
    /// Bandwidth of ClaimNetworks, and of links by themselves.
    pub(super) bandwidth: Shares,
    /// Segmentation ids of each ClaimNetwork that hands out some.
    pub(super) segments: BTreeMap<NetworkName, BTreeSet<u32>>,
}

impl Amounts {
    /// Divides what the node's links have among those that ask for it. Claims keep what they hold.
    pub(super) fn of(inventory: &Inventory, held: &[HeldDevice]) -> Self {
        Self { bandwidth: bandwidth::shares(inventory, held), segments: segments(inventory, held) }
    }
}
