//! Which ResourceClaims exist and where they are allocated, if leases need it. Hashes of UIDs and node names
//! are enough: a collision only keeps a lease.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{ApiResource, Object, ResourceExt as _};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use netclaim_api::ObjectName;
use serde::Deserialize;
use tokio::time::Instant;

use crate::objects::watches::next;

/// How long a claim counts as allocated where it was: longer than an agent takes from reading it to using an
/// address.
const RECENT: Duration = Duration::from_secs(60);

/// A ResourceClaim with its allocation's nodes only.
pub(super) type ClaimObject = Object<ClaimSpec, ClaimStatus>;

/// Nothing of a claim's spec.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct ClaimSpec {}

/// The part of a claim's status that says where it is allocated.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimStatus {
    allocation: Option<Allocation>,
}

/// The nodes of an allocation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Allocation {
    node_selector: Option<NodeSelector>,
}

impl Allocation {
    /// The one node that it is for; `None` if it is for several, or for nodes that are not named.
    pub(super) fn node(&self) -> Option<&str> {
        let [term] = self.node_selector.as_ref()?.node_selector_terms.as_slice() else { return None };
        let [field] = term.match_fields.as_deref().unwrap_or_default() else { return None };
        let [node] = field.values.as_deref().unwrap_or_default() else { return None };
        (field.key == "metadata.name" && field.operator == "In").then_some(node)
    }
}

/// Returns the API's name of [`ClaimObject`].
pub(super) fn resource() -> ApiResource {
    ApiResource::erase::<ResourceClaim>(&())
}

/// Whether pods of the claim may run on the node.
pub(super) fn may_be_on(claim: &ClaimObject, node: &ObjectName) -> bool {
    Place::of(claim).may_be(digest(node.as_str()))
}

/// Where a claim is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// On nodes that are not named.
    Anywhere,
    On(u64),
}

impl Place {
    fn of(claim: &ClaimObject) -> Self {
        let Some(allocation) = claim.status.as_ref().and_then(|status| status.allocation.as_ref()) else {
            return Self::Nowhere;
        };
        allocation.node().map_or(Self::Anywhere, |node| Self::On(digest(node)))
    }

    fn may_be(self, node: u64) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Anywhere => true,
            Self::On(place) => place == node,
        }
    }
}

/// The state of a claim that is said to have an address on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The claim is allocated there, or was just before.
    Proven,
    /// It is not, or does not exist.
    Refuted,
    /// The watch may have missed it.
    Unknown,
}

type ClaimEvents = Pin<Box<dyn Stream<Item = watcher::Result<watcher::Event<ClaimObject>>> + Send>>;

/// All ResourceClaims.
pub(super) struct Claims {
    client: Client,
    events: Option<ClaimEvents>,
    known: HashMap<u64, Place>,
    listing: HashMap<u64, Place>,
    /// When the last list was complete.
    synced: Option<Instant>,
    /// When claims left a node, by UID and node.
    left: HashMap<(u64, u64), Instant>,
}

impl Claims {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            events: None,
            known: HashMap::new(),
            listing: HashMap::new(),
            synced: None,
            left: HashMap::new(),
        }
    }

    /// Begins or ends to watch claims.
    pub(super) fn watch(&mut self, is_needed: bool) {
        if is_needed == self.events.is_some() {
            return;
        }
        *self = Self::new(self.client.clone());
        let api: Api<ClaimObject> = Api::all_with(self.client.clone(), &resource());
        self.events = is_needed
            .then(|| -> ClaimEvents { Box::pin(watcher(api, watcher::Config::default()).default_backoff()) });
    }

    /// Waits until a claim is gone.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(events) = &mut self.events else { return std::future::pending().await };
            let event = next(events, "resource claims").await;
            if self.apply(event, Instant::now()) {
                return;
            }
        }
    }

    /// Takes in an event of the watch. Returns whether a claim may be gone.
    fn apply(&mut self, event: watcher::Event<ClaimObject>, now: Instant) -> bool {
        let uid = |claim: &ClaimObject| digest(&claim.uid().unwrap_or_default());
        match event {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(claim) => {
                self.listing.insert(uid(&claim), Place::of(&claim));
            }
            watcher::Event::InitDone => {
                self.known = std::mem::take(&mut self.listing);
                self.synced = Some(now);
                return true;
            }
            watcher::Event::Apply(claim) => {
                let (uid, place) = (uid(&claim), Place::of(&claim));
                if let Some(before) = self.known.insert(uid, place).filter(|before| *before != place) {
                    self.leave(uid, before, now);
                }
            }
            watcher::Event::Delete(claim) => {
                let uid = uid(&claim);
                if let Some(before) = self.known.remove(&uid) {
                    self.leave(uid, before, now);
                }
                return true;
            }
        }
        false
    }

    fn leave(&mut self, uid: u64, before: Place, now: Instant) {
        if let Place::On(node) = before {
            self.left.retain(|_, since| now.saturating_duration_since(*since) < RECENT);
            self.left.insert((uid, node), now);
        }
    }

    /// Whether the claim of this UID exists, as far as is known.
    pub(super) fn may_exist(&self, uid: &str) -> bool {
        self.synced.is_none() || self.known.contains_key(&digest(uid))
    }

    /// Whether the watch shows the claim of this UID.
    pub(super) fn exists(&self, uid: &str) -> bool {
        self.known.contains_key(&digest(uid))
    }

    /// Returns the state of a claim that is said since `since` to have an address on the node. `grace` is
    /// how late the watch may be.
    pub(super) fn standing(
        &self,
        uid: &str,
        node: &ObjectName,
        since: Instant,
        grace: Duration,
        now: Instant,
    ) -> Standing {
        let (uid, node) = (digest(uid), digest(node.as_str()));
        let is_recent = |left: &Instant| now.saturating_duration_since(*left) < RECENT;
        if self.known.get(&uid).is_some_and(|place| place.may_be(node))
            || self.left.get(&(uid, node)).is_some_and(is_recent)
        {
            return Standing::Proven;
        }
        match self.synced {
            Some(synced) if synced <= since + grace => Standing::Refuted,
            // Between two lists, a claim may have come and gone.
            _ => Standing::Unknown,
        }
    }

    /// Whether the last list is younger than `time`.
    pub(super) fn is_listed_since(&self, time: Instant) -> bool {
        self.synced.is_some_and(|synced| synced > time)
    }
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
pub(super) mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower_test::mock;
    use watcher::Event::{Apply, Delete, Init, InitDone};

    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn claim(uid: &str, nodes: Option<&[&str]>) -> ClaimObject {
        let allocation = nodes.map(|nodes| {
            json!({"devices": {}, "nodeSelector": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": nodes}]}]}})
        });
        serde_json::from_value(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "shop", "uid": uid}, "spec": {"devices": {}},
            "status": {"allocation": allocation}}))
        .unwrap()
    }

    fn empty() -> Claims {
        let (service, _) = mock::pair::<Request<Body>, Response<Body>>();
        Claims::new(Client::new(service, "default"))
    }

    /// Claims by UID and node whose list is complete.
    pub(crate) fn listed(allocated: &[(&str, &str)]) -> Claims {
        let mut claims = empty();
        claims.apply(Init, Instant::now());
        claims.apply(InitDone, Instant::now());
        allocated.iter().for_each(|(uid, node)| show(&mut claims, uid, node));
        claims
    }

    /// The watch shows a claim that is allocated on a node.
    pub(crate) fn show(claims: &mut Claims, uid: &str, node: &str) {
        claims.apply(Apply(claim(uid, Some(&[node]))), Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_stands_for_the_node_of_its_allocation_and_for_the_one_it_has_just_left() {
        let mut claims = empty();
        let [a, b]: [ObjectName; 2] = ["a", "b"].map(|node| node.parse().unwrap());
        let start = Instant::now();
        let standing = |claims: &Claims, uid: &str, node: &ObjectName, now: Instant| {
            claims.standing(uid, node, start, GRACE, now)
        };
        assert_eq!(standing(&claims, "u", &a, start), Standing::Unknown);
        claims.apply(Init, start);
        claims.apply(InitDone, start);
        assert_eq!(standing(&claims, "u", &a, start), Standing::Refuted, "there is no such claim");
        claims.apply(Apply(claim("u", None)), start);
        assert_eq!(standing(&claims, "u", &a, start), Standing::Refuted, "it is allocated nowhere");
        claims.apply(Apply(claim("u", Some(&["a"]))), start);
        assert_eq!(standing(&claims, "u", &a, start), Standing::Proven);
        assert_eq!(standing(&claims, "u", &b, start), Standing::Refuted);
        claims.apply(Apply(claim("u", Some(&["b"]))), start);
        assert_eq!(standing(&claims, "u", &b, start), Standing::Proven);
        assert_eq!(standing(&claims, "u", &a, start + RECENT / 2), Standing::Proven, "it has just left");
        assert_eq!(standing(&claims, "u", &a, start + RECENT), Standing::Refuted);
        claims.apply(Delete(claim("u", None)), start + RECENT);
        assert_eq!(standing(&claims, "u", &b, start + RECENT), Standing::Proven, "it is just gone");
        assert_eq!(standing(&claims, "u", &b, start + 2 * RECENT), Standing::Refuted);
        claims.apply(Init, start + 2 * RECENT);
        claims.apply(InitDone, start + 2 * RECENT);
        assert_eq!(standing(&claims, "u", &b, start + 2 * RECENT), Standing::Unknown, "between two lists");
        for anywhere in [claim("v", Some(&["a", "b"])), claim("v", Some(&[]))] {
            assert!(may_be_on(&anywhere, &a));
        }
    }
}
