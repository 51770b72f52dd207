//! Watches the directories in which the IPAMs of the node's ClaimNetworks keep their leases.

use std::collections::BTreeSet;
use std::path::PathBuf;

use netclaim_cni::dir_changes::DirChanges;

use super::addresses;
use super::subscription::Subscription;
use crate::addresses::reservations::Lists;
use crate::inventory::Inventory;

const UNWATCHED: &str = "cannot watch the addresses that other programs take, counting them when something else changes: \
                         see sysctl fs.inotify";

pub(super) struct Leases(Subscription<DirChanges>);

impl Default for Leases {
    fn default() -> Self {
        Self(Subscription::new(UNWATCHED))
    }
}

impl Leases {
    /// Watches the directories of these ClaimNetworks, whose attachments were made with the conflists
    /// `lists`.
    pub(super) fn watch(&mut self, inventory: &Inventory, lists: &Lists) {
        let networks = inventory.networks.iter();
        let dirs: BTreeSet<PathBuf> =
            networks.flat_map(|(name, spec)| addresses::dirs(name, spec, lists)).collect();
        let dirs: Vec<PathBuf> = dirs.into_iter().collect();
        if self.0.changes.as_ref().is_none_or(|changes| changes.dirs() != dirs) {
            self.0.renew(DirChanges::subscribe(dirs));
        }
    }

    /// Waits until leases may have changed. Cancel safe.
    pub(super) async fn changed(&mut self) {
        self.0.changed().await;
    }
}
