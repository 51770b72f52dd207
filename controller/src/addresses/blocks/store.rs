//! The AddressBlocks and AddressLeases that the watches have shown, and the blocks that are being created.
//! Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::watcher;
use netclaim_api::ObjectName;
use netclaim_api::addresses::{
    AddressBlockSpec, AddressBlockStatus, AddressLeaseSpec, AddressPoolSpec, BLOCK_FINALIZER,
    CONFIRMED_LABEL, Holder, HolderKind, Leased, PoolKey, lease_name,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::addresses::leasing::{Block, HeldAddress, Phase};
use crate::objects::nodes::Nodes;

/// How long a block that was created may be missing from the watch.
const UNSEEN: Duration = Duration::from_secs(30);

/// All AddressBlocks by name.
#[derive(Debug, Default, Clone)]
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
        let spec = decode::<AddressBlockSpec>(object, "spec");
        let Some(spec) = spec.filter(|spec| spec.node.parse::<ObjectName>().is_ok()) else {
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

    /// Returns all blocks, none of which wants more addresses than the pods of its node can have. A node
    /// reports what it wants.
    pub(super) fn within_reason(&self, nodes: &Nodes) -> Cow<'_, BTreeMap<String, Block>> {
        let most = |block: &Block| nodes.get(&block.spec.node).and_then(|facts| facts.most_addresses());
        let excess = |block: &Block| most(block).filter(|most| block.wanted.is_some_and(|it| it > *most));
        let over: Vec<(&String, i64)> =
            self.known.iter().filter_map(|(name, block)| Some((name, excess(block)?))).collect();
        if over.is_empty() {
            return Cow::Borrowed(&self.known);
        }
        let mut bounded = self.known.clone();
        for (name, most) in over {
            if let Some(block) = bounded.get_mut(name) {
                block.wanted = Some(most);
            }
        }
        Cow::Owned(bounded)
    }
}

/// All AddressLeases by name.
#[derive(Debug, Default, Clone)]
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
    /// Whether it has the name that its spec makes. The name is the lock, so that any other lease holds
    /// nothing.
    pub(super) has_own_name: bool,
    pub(super) holder: Holder,
    /// Where a pod may have the address.
    pub(super) node: Option<ObjectName>,
    pub(super) is_deleting: bool,
    pub(super) has_finalizer: bool,
    /// Whether the controller has found that the claim exists and that its address is reserved. No agent can
    /// say so.
    pub(super) is_confirmed: bool,
    /// Since when the node is said to use it, if the watch has shown that and nothing has shown that the
    /// claim is there.
    pub(super) unproven: Option<Instant>,
}

impl Lease {
    /// Whether its address is one that claims can ask for.
    pub(super) fn is_reserved(&self, pools: &BTreeMap<PoolKey, AddressPoolSpec>) -> bool {
        self.held.as_ref().is_some_and(|held| {
            let pool = pools.get(&held.pool);
            pool.is_some_and(|pool| pool.reserved.iter().any(|span| span.contains(held.address)))
        })
    }

    /// Whether an agent may have made it. It is refused without the finalizer, and for pods.
    fn may_be_of_an_agent(&self) -> bool {
        self.has_finalizer && !self.is_confirmed && self.holder.kind == HolderKind::ResourceClaim
    }
}

impl Leases {
    /// Takes in an event of the watch. Returns whether the leases may have changed.
    pub(super) fn apply(&mut self, event: watcher::Event<DynamicObject>, now: Instant) -> bool {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                false
            }
            // What was there before the list has been judged by the last leader, if anybody could.
            watcher::Event::InitApply(object) => {
                self.listing.extend(self.read(&object, None));
                false
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                std::mem::replace(&mut self.known, listed) != self.known
            }
            watcher::Event::Apply(object) => self
                .read(&object, Some(now))
                .is_some_and(|(name, lease)| self.known.insert(name, lease.clone()) != Some(lease)),
            watcher::Event::Delete(object) => self.known.remove(&object.name_any()).is_some(),
        }
    }

    pub(super) fn all(&self) -> &BTreeMap<String, Lease> {
        &self.known
    }

    /// Returns the addresses that leases hold. A lease that an agent has made holds no address that nodes
    /// hand out, unless it is confirmed: otherwise, one node could take all addresses.
    pub(super) fn held(&self, pools: &BTreeMap<PoolKey, AddressPoolSpec>) -> BTreeSet<HeldAddress> {
        let counts =
            |lease: &&Lease| lease.has_own_name && (!lease.may_be_of_an_agent() || lease.is_reserved(pools));
        self.known.values().filter(counts).filter_map(|lease| lease.held.clone()).collect()
    }

    /// Returns the nodes where leased addresses may be in use.
    pub(super) fn nodes(&self) -> BTreeSet<String> {
        self.known.values().filter_map(|lease| lease.node.clone()).map(String::from).collect()
    }

    /// Remembers that what a lease says about its node is true, or cannot be checked.
    pub(super) fn set_proven(&mut self, name: &str) {
        if let Some(lease) = self.known.get_mut(name) {
            lease.unproven = None;
        }
    }

    /// Reads a lease. `shown` is when the watch has shown it, outside of a list.
    fn read(&self, object: &DynamicObject, shown: Option<Instant>) -> Option<(String, Lease)> {
        let (name, mut lease) = read_lease(object)?;
        let before = self.known.get(&name);
        lease.unproven = match before.filter(|before| before.uid == lease.uid && before.node == lease.node) {
            Some(before) => before.unproven,
            None => shown.filter(|_| lease.node.is_some()),
        };
        Some((name, lease))
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
    let node = object.data.pointer("/status/nodeName").and_then(Value::as_str);
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
        // A node of another name cannot exist.
        node: node.and_then(|node| node.parse().ok()),
        is_deleting: object.metadata.deletion_timestamp.is_some(),
        has_finalizer: object.finalizers().iter().any(|finalizer| finalizer == BLOCK_FINALIZER),
        is_confirmed: object.labels().contains_key(CONFIRMED_LABEL),
        unproven: None,
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
            "spec": {"networkName": "storage", "nodeName": "a", "cidr": "10.20.0.0/28"}, "status": {"used": 3},
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_pending_block_is_kept_until_the_watch_shows_it_or_its_time_is_over() {
        let mut blocks = Blocks::default();
        let now = Instant::now();
        let spec: AddressBlockSpec = serde_json::from_value(
            json!({"networkName": "storage", "nodeName": "a", "cidr": "10.20.0.0/28"}),
        )
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
            object["spec"] = json!({"networkName": "storage", "address": "10.20.0.200",
                "holder": {"kind": "ResourceClaim", "namespace": "shop", "name": "c", "uid": "u7"}});
            object["status"] = json!({"nodeName": "a"});
        };
        let now = Instant::now();
        for name in ["storage.10.20.0.200", "copy"] {
            assert!(leases.apply(Apply(object(name, lease)), now));
            assert!(!leases.apply(Apply(object(name, lease)), now));
        }
        leases.known.get_mut("copy").unwrap().held.as_mut().unwrap().address = "10.20.0.7".parse().unwrap();
        let held = leases.held(&BTreeMap::new());
        let held: Vec<String> = held.iter().map(|held| held.address.to_string()).collect();
        assert_eq!(held, ["10.20.0.200"], "not that of a lease with another name");
        assert_eq!(leases.nodes(), BTreeSet::from(["a".to_owned()]));
    }

    #[test]
    fn a_lease_of_an_agent_holds_a_reserved_address_or_a_confirmed_one() {
        let pool = |reserved: &str| {
            let spec = json!({"ranges": [{"subnet": "10.20.0.0/24"}], "reserved": [reserved]});
            let key = PoolKey::Network("storage".parse().unwrap());
            BTreeMap::from([(key, serde_json::from_value::<AddressPoolSpec>(spec).unwrap())])
        };
        let held = |metadata: Value, kind: &str, reserved: &str| {
            let mut leases = Leases::default();
            let mut lease = object("storage.10.20.0.200", |object| {
                object["spec"] = json!({"networkName": "storage", "address": "10.20.0.200",
                    "holder": {"kind": kind, "namespace": "shop", "name": "c", "uid": "u7"}});
            });
            lease.metadata.finalizers = serde_json::from_value(metadata["finalizers"].clone()).unwrap();
            lease.metadata.labels = serde_json::from_value(metadata["labels"].clone()).unwrap();
            leases.apply(Apply(lease), Instant::now());
            leases.held(&pool(reserved)).len()
        };
        let of_agent = json!({"finalizers": [BLOCK_FINALIZER]});
        let confirmed = json!({"finalizers": [BLOCK_FINALIZER], "labels": {CONFIRMED_LABEL: "true"}});
        let (here, elsewhere) = ("10.20.0.192/26", "10.20.0.128/26");
        assert_eq!(held(of_agent.clone(), "ResourceClaim", here), 1);
        assert_eq!(held(of_agent.clone(), "ResourceClaim", elsewhere), 0, "nodes hand it out");
        assert_eq!(held(confirmed, "ResourceClaim", elsewhere), 1, "it was reserved, and is in use");
        assert_eq!(held(json!({}), "ResourceClaim", elsewhere), 1, "an agent cannot have made it");
        assert_eq!(held(of_agent, "Pod", elsewhere), 1, "an agent cannot have made it");
    }

    #[test]
    fn names_that_are_paths_are_not_read() {
        let mut leases = Leases::default();
        let path = "shop/resourceclaims?watch=1&timeoutSeconds=2147483647&x=";
        for (namespace, name) in [(path, "c"), ("shop", path), ("..", "c"), ("shop", "a/../b")] {
            let lease = object("storage.10.20.0.200", |object| {
                object["spec"] = json!({"networkName": "storage", "address": "10.20.0.200",
                    "holder": {"kind": "ResourceClaim", "namespace": namespace, "name": name, "uid": "u7"}});
            });
            leases.apply(Apply(lease), Instant::now());
            assert!(leases.all().is_empty(), "{namespace} {name}");
        }
        let mut blocks = Blocks::default();
        blocks.apply(Apply(object("b", |block| block["spec"]["nodeName"] = json!("a/../b"))), Instant::now());
        assert!(blocks.all().is_empty());
    }

    #[test]
    fn a_node_wants_no_more_addresses_than_its_pods_can_have() {
        let mut blocks = Blocks::default();
        blocks.apply(Apply(object("b", |block| block["status"]["wanted"] = json!(65536))), Instant::now());
        let nodes = |pods: Option<i64>| {
            let facts = crate::objects::nodes::NodeFacts { pods, ..Default::default() };
            Nodes::from([("a".to_owned(), facts)])
        };
        let wanted = |pods| blocks.within_reason(&nodes(pods))["b"].wanted;
        assert_eq!(wanted(None), Some(65536), "its Node does not say");
        assert_eq!(wanted(Some(110)), Some(880));
        assert!(matches!(blocks.within_reason(&Nodes::new()), Cow::Borrowed(_)));
    }
}
