//! The AddressBlocks and AddressLeases that the watches have shown, and the blocks that are being created. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::watcher;
use netclaim_api::addresses::{
    AddressBlockSpec, AddressBlockStatus, AddressLeaseSpec, AddressLeaseStatus, BLOCK_FINALIZER, Holder,
    Leased, lease_name,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::leasing::{Block, HeldAddress, Phase};

/// How long a block that was created may be missing from the watch.
const UNSEEN: Duration = Duration::from_secs(30);

/// All AddressBlocks by name.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    known: BTreeMap<String, Block>,
    /// The list in progress.
    listing: BTreeMap<String, Block>,
}

impl Blocks {
    /// Takes in an event of the watch. Returns whether the blocks may have changed.
    pub(super) fn apply(&mut self, event: watcher::Event<DynamicObject>, now: Instant) -> bool {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                false
            }
            watcher::Event::InitApply(object) => {
                let block = self.read(&object, now);
                self.listing.extend(block);
                false
            }
            watcher::Event::InitDone => {
                let before = std::mem::take(&mut self.known);
                self.known = std::mem::take(&mut self.listing);
                for (name, block) in before {
                    if block.phase == Phase::Pending {
                        self.known.entry(name).or_insert(block);
                    }
                }
                true
            }
            watcher::Event::Apply(object) => {
                let Some((name, block)) = self.read(&object, now) else { return false };
                self.known.get(&name) != Some(&block) && {
                    self.known.insert(name, block);
                    true
                }
            }
            watcher::Event::Delete(object) => self.known.remove(&object.name_any()).is_some(),
        }
    }

    fn read(&self, object: &DynamicObject, now: Instant) -> Option<(String, Block)> {
        let name = object.name_any();
        let Some(spec) = decode::<AddressBlockSpec>(object, "spec") else {
            tracing::warn!(
                block = name,
                "ignoring an AddressBlock whose spec this version cannot read: delete it"
            );
            return None;
        };
        let status: AddressBlockStatus = decode(object, "status").unwrap_or_default();
        let is_deleting = object.metadata.deletion_timestamp.is_some();
        let mut block = Block {
            uid: object.uid().unwrap_or_default(),
            spec,
            phase: if is_deleting { Phase::Deleting } else { Phase::Live },
            has_finalizer: object.finalizers().iter().any(|finalizer| finalizer == BLOCK_FINALIZER),
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            used: status.used,
            wanted: status.wanted,
            reported: now,
            holders: status.holders.iter().map(ToString::to_string).collect(),
        };
        if let Some(before) = self.known.get(&name)
            && (before.used, before.wanted, &before.holders) == (block.used, block.wanted, &block.holders)
        {
            block.reported = before.reported;
        }
        Some((name, block))
    }

    /// Adds a block that the API server is asked for, so that its addresses are not given away again.
    pub(super) fn add_pending(&mut self, spec: AddressBlockSpec, now: Instant) {
        let block = Block {
            uid: String::new(),
            phase: Phase::Pending,
            has_finalizer: true,
            created: None,
            used: None,
            wanted: None,
            reported: now,
            holders: Vec::new(),
            spec,
        };
        self.known.entry(block.spec.name()).or_insert(block);
    }

    /// Removes a block that the API server did not create.
    pub(super) fn remove_pending(&mut self, name: &str) {
        if self.known.get(name).is_some_and(|block| block.phase == Phase::Pending) {
            self.known.remove(name);
        }
    }

    /// Removes and returns blocks that were created long ago and did not appear.
    pub(super) fn expire_pending(&mut self, now: Instant) -> Vec<AddressBlockSpec> {
        let is_over = |_: &String, block: &mut Block| {
            block.phase == Phase::Pending && now.saturating_duration_since(block.reported) >= UNSEEN
        };
        self.known.extract_if(.., is_over).map(|(_, block)| block.spec).collect()
    }

    /// Whether there are blocks to wait for.
    pub(super) fn any_pending(&self) -> bool {
        self.known.values().any(|block| block.phase == Phase::Pending)
    }

    /// Whether there is a block of this pool and cidr, or may be one soon.
    pub(super) fn has(&self, spec: &AddressBlockSpec) -> bool {
        let is_same = |block: &Block| (block.spec.key(), block.spec.cidr) == (spec.key(), spec.cidr);
        self.known.get(&spec.name()).is_some_and(is_same)
    }

    /// Remembers that a block is deleted before the watch shows it.
    pub(super) fn set_deleting(&mut self, name: &str, uid: &str) {
        if let Some(block) = self.known.get_mut(name).filter(|block| block.uid == uid) {
            block.phase = Phase::Deleting;
        }
    }

    pub(super) fn all(&self) -> &BTreeMap<String, Block> {
        &self.known
    }
}

/// All AddressLeases by name.
#[derive(Debug, Default)]
pub(super) struct Leases {
    known: BTreeMap<String, Lease>,
    /// The list in progress.
    listing: BTreeMap<String, Lease>,
}

/// An AddressLease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// The address, if it is an IP address.
    pub(super) held: Option<HeldAddress>,
    /// Whether it has the name that its spec makes. The name is the lock, so that any other lease holds nothing.
    pub(super) has_own_name: bool,
    pub(super) holder: Holder,
    /// Where a pod may have the address.
    pub(super) node: Option<String>,
    pub(super) is_deleting: bool,
}

impl Leases {
    /// Takes in an event of the watch. Returns whether the leases may have changed.
    pub(super) fn apply(&mut self, event: watcher::Event<DynamicObject>) -> bool {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                false
            }
            watcher::Event::InitApply(object) => {
                self.listing.extend(read_lease(&object));
                false
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                std::mem::replace(&mut self.known, listed) != self.known
            }
            watcher::Event::Apply(object) => read_lease(&object)
                .is_some_and(|(name, lease)| self.known.insert(name, lease.clone()) != Some(lease)),
            watcher::Event::Delete(object) => self.known.remove(&object.name_any()).is_some(),
        }
    }

    pub(super) fn all(&self) -> &BTreeMap<String, Lease> {
        &self.known
    }

    /// Returns the addresses that leases hold.
    pub(super) fn held(&self) -> BTreeSet<HeldAddress> {
        let leases = self.known.values().filter(|lease| lease.has_own_name);
        leases.filter_map(|lease| lease.held.clone()).collect()
    }

    /// Returns the nodes where leased addresses may be in use.
    pub(super) fn nodes(&self) -> BTreeSet<String> {
        self.known.values().filter_map(|lease| lease.node.clone()).collect()
    }
}

fn read_lease(object: &DynamicObject) -> Option<(String, Lease)> {
    let name = object.name_any();
    let Some(spec) = decode::<AddressLeaseSpec>(object, "spec") else {
        tracing::warn!(
            lease = name,
            "ignoring an AddressLease whose spec this version cannot read: delete it"
        );
        return None;
    };
    let status: AddressLeaseStatus = decode(object, "status").unwrap_or_default();
    let (pool, leased) = (spec.key(), spec.leased());
    let has_own_name = leased.is_some_and(|leased| lease_name(&pool, leased) == name);
    let held = match leased {
        Some(Leased::Address(address)) => {
            let holder = spec.holder.to_string();
            Some(HeldAddress { pool, network: spec.network, address, holder })
        }
        _ => None,
    };
    let lease = Lease {
        uid: object.uid().unwrap_or_default(),
        resource_version: object.resource_version().unwrap_or_default(),
        held,
        has_own_name,
        holder: spec.holder,
        node: status.node.filter(|node| !node.is_empty()),
        is_deleting: object.metadata.deletion_timestamp.is_some(),
    };
    Some((name, lease))
}

fn decode<T: DeserializeOwned>(object: &DynamicObject, field: &str) -> Option<T> {
    serde_json::from_value(object.data.get(field).cloned().unwrap_or(Value::Null)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    use super::*;

    fn object(name: &str, change: impl FnOnce(&mut Value)) -> DynamicObject {
        let mut object = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": name, "uid": "u"},
            "spec": {"network": "storage", "node": "a", "cidr": "10.20.0.0/28"}, "status": {"used": 3},
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_pending_block_is_kept_until_the_watch_shows_it_or_its_time_is_over() {
        let mut blocks = Blocks::default();
        let now = Instant::now();
        let spec: AddressBlockSpec =
            serde_json::from_value(json!({"network": "storage", "node": "a", "cidr": "10.20.0.0/28"}))
                .unwrap();
        let name = spec.name();
        blocks.add_pending(spec.clone(), now);
        blocks.apply(Init, now);
        assert!(blocks.apply(InitDone, now));
        assert_eq!(blocks.all()[&name].phase, Phase::Pending, "a list from before it was created");
        assert!(blocks.apply(Apply(object(&name, |_| {})), now));
        assert_eq!((blocks.all()[&name].phase, blocks.all()[&name].used), (Phase::Live, Some(3)));
        blocks.remove_pending(&name);
        assert_eq!(blocks.all().len(), 1, "it is not pending");
        assert!(blocks.apply(Delete(object(&name, |_| {})), now));
        blocks.add_pending(spec.clone(), now);
        assert!(blocks.expire_pending(now).is_empty() && blocks.any_pending());
        assert_eq!(blocks.expire_pending(now + UNSEEN), [spec]);
        assert!(blocks.all().is_empty());
    }

    #[test]
    fn a_report_has_the_time_of_its_last_change() {
        let mut blocks = Blocks::default();
        let (first, later) = (Instant::now(), Instant::now() + UNSEEN);
        blocks.apply(Apply(object("b", |_| {})), first);
        assert!(!blocks.apply(Apply(object("b", |_| {})), later), "nothing that counts has changed");
        blocks.apply(
            Apply(object("b", |block| block["metadata"]["finalizers"] = json!([BLOCK_FINALIZER]))),
            later,
        );
        assert!(blocks.all()["b"].has_finalizer);
        assert_eq!(blocks.all()["b"].reported, first);
        blocks.apply(Apply(object("b", |block| block["status"]["used"] = json!(4))), later);
        assert_eq!(blocks.all()["b"].reported, later);
    }

    #[test]
    fn an_object_that_cannot_be_read_stops_nothing() {
        let mut blocks = Blocks::default();
        let now = Instant::now();
        blocks.apply(InitApply(object("bad", |block| block["spec"]["cidr"] = json!("none"))), now);
        blocks.apply(InitApply(object("good", |block| block["status"] = json!({"used": "x"}))), now);
        blocks.apply(InitDone, now);
        assert_eq!(blocks.all().keys().collect::<Vec<_>>(), ["good"]);
    }

    #[test]
    fn the_held_addresses_are_those_of_the_leases() {
        let mut leases = Leases::default();
        let lease = |object: &mut Value| {
            object["spec"] = json!({"network": "storage", "address": "10.20.0.200",
                "holder": {"kind": "ResourceClaim", "namespace": "shop", "name": "c", "uid": "u7"}});
            object["status"] = json!({"node": "a"});
        };
        for name in ["storage.10.20.0.200", "copy"] {
            assert!(leases.apply(Apply(object(name, lease))));
            assert!(!leases.apply(Apply(object(name, lease))));
        }
        leases.known.get_mut("copy").unwrap().held.as_mut().unwrap().address = "10.20.0.7".parse().unwrap();
        let held: Vec<String> = leases.held().iter().map(|held| held.address.to_string()).collect();
        assert_eq!(held, ["10.20.0.200"], "not that of a lease with another name");
        assert_eq!(leases.nodes(), BTreeSet::from(["a".to_owned()]));
    }
}
