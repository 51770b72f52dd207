//! Objects of one kind, each with what the controller says of it. Pure.
//!
//! An object is reviewed again when its spec changes, and not when a status is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::DynamicObject;
use kube::{Resource, ResourceExt as _};
use netclaim_api::reasons::{AcceptedReason, Reason as _};

use super::conditions::{Status, stored_status};

/// The controller's review of an object.
pub(crate) trait Review {
    type Kind: Resource<DynamicType = ()>;
    type Status: Status;

    /// Judges an object as the API server stores it.
    fn of(object: &DynamicObject) -> Self;

    /// Returns the status in the API server, which changes while the spec is the same.
    fn before(&mut self) -> &mut Self::Status;

    /// Whether people have to act on a condition `Accepted`.
    fn is_for_people(accepted: &Condition) -> bool {
        accepted.status == "False" || accepted.reason == AcceptedReason::AcceptedWithWarnings.as_str()
    }
}

/// An object with what the controller says of it.
#[derive(Debug)]
pub(crate) struct Reviewed<J> {
    pub(crate) object: Arc<DynamicObject>,
    pub(crate) review: J,
}

/// The objects by name.
#[derive(Debug)]
pub(crate) struct Catalog<J>(BTreeMap<String, Reviewed<J>>);

impl<J> Default for Catalog<J> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// The changes of an update.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Updated {
    /// Objects have come or gone, or their specs have changed.
    pub(crate) specs: bool,
    /// Names of objects that were written with the same spec.
    pub(crate) statuses: Vec<String>,
}

impl<J: Review> Catalog<J> {
    /// Replaces the objects.
    pub(crate) fn update(&mut self, objects: Vec<Arc<DynamicObject>>) -> Updated {
        let mut updated = Updated::default();
        let mut before = std::mem::take(&mut self.0);
        for object in objects {
            let name = object.name_any();
            let reviewed = match before.remove(&name) {
                Some(reviewed) if Arc::ptr_eq(&reviewed.object, &object) => reviewed,
                Some(mut reviewed) if is_same(&reviewed.object, &object) => {
                    *reviewed.review.before() = stored_status(&object);
                    reviewed.object = object;
                    updated.statuses.push(name.clone());
                    reviewed
                }
                _ => {
                    updated.specs = true;
                    Reviewed { review: J::of(&object), object }
                }
            };
            self.0.insert(name, reviewed);
        }
        updated.specs |= !before.is_empty();
        updated
    }
}

impl<J> Catalog<J> {
    /// Returns one object.
    pub(crate) fn get(&self, name: &str) -> Option<&Reviewed<J>> {
        self.0.get(name)
    }

    /// Returns one object.
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Reviewed<J>> {
        self.0.get_mut(name)
    }

    /// Returns all objects, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Reviewed<J>> {
        self.0.values()
    }

    /// Returns the names of all objects.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Whether there is such an object.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Whether both are versions of one object with the same spec.
fn is_same(before: &DynamicObject, now: &DynamicObject) -> bool {
    before.metadata.uid == now.metadata.uid
        && before.metadata.generation == now.metadata.generation
        && before.data.get("spec") == now.data.get("spec")
}

#[cfg(test)]
mod tests {
    use netclaim_api::network::{ClaimNetwork, ClaimNetworkStatus};
    use serde_json::json;

    use super::*;

    /// Counts how often an object was reviewed, and knows its status.
    struct Counted {
        reviewed: usize,
        status: ClaimNetworkStatus,
    }

    impl Review for Counted {
        type Kind = ClaimNetwork;
        type Status = ClaimNetworkStatus;

        fn of(object: &DynamicObject) -> Self {
            Self { reviewed: 1, status: stored_status(object) }
        }

        fn before(&mut self) -> &mut ClaimNetworkStatus {
            &mut self.status
        }
    }

    fn object(name: &str, generation: i64, status: i64) -> Arc<DynamicObject> {
        let object = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork",
            "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": generation},
            "spec": {"of": generation}, "status": {"nodes": {"publishing": status}},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn an_object_is_judged_again_only_for_a_new_spec() {
        let mut catalog: Catalog<Counted> = Catalog::default();
        let (first, other) = (object("a", 1, 0), object("b", 1, 0));
        assert!(catalog.update(vec![Arc::clone(&first), Arc::clone(&other)]).specs);
        catalog.get_mut("a").unwrap().review.reviewed = 7;
        let same = catalog.update(vec![first, Arc::clone(&other)]);
        assert_eq!(same, Updated::default());
        let written = catalog.update(vec![object("a", 1, 5), Arc::clone(&other)]);
        assert_eq!(written, Updated { specs: false, statuses: vec!["a".to_owned()] });
        let known = &catalog.get("a").unwrap().review;
        assert_eq!((known.reviewed, known.status.nodes.map(|nodes| nodes.publishing)), (7, Some(5)));
        assert!(catalog.update(vec![object("a", 2, 5), Arc::clone(&other)]).specs);
        assert_eq!(catalog.get("a").unwrap().review.reviewed, 1);
        assert!(catalog.update(vec![other]).specs, "one is gone");
        assert!(!catalog.has("a"));
    }
}
