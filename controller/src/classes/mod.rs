//! The DeviceClasses that ClaimNetworks have: which there should be, and what is to be done for that. Pure,
//! but for [`keeper`].
//!
//! ```text
//!   ClaimNetworks ── want ──┐
//!                           ├─> steps ── keeper ──> DeviceClasses
//!   DeviceClasses ── know ──┘      └── noted ──> finding ──> condition `DeviceClassReady`
//! ```
//!
//! A class is a ClaimNetwork's if an owner reference says so, by UID and with `controller: true`, which those
//! that people write hardly have. So Kubernetes deletes it with the ClaimNetwork, and who removes the
//! reference keeps the class. Any other class is never written: a new one is created, which fails where there
//! is one, and is not applied.

pub(crate) mod keeper;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, ResourceExt as _};
use netclaim_api::NetworkName;
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::reasons::ClassReason;
use serde_json::{Map, Value};

use crate::objects::conditions::{CONTROLLER, Finding};
use crate::objects::owner::owned_by;

/// The label that says who keeps a class as it is.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// A class that there should be.
#[derive(Debug, Clone, PartialEq)]
struct Wanted {
    name: String,
    owner: OwnerReference,
    spec: Value,
}

/// What is to be done about one class.
#[derive(Debug)]
pub(crate) enum Step {
    /// There is none of the name.
    Create(DynamicObject),
    /// The ClaimNetwork has changed, or somebody has changed the class, as `by_others` says.
    Replace { class: DynamicObject, by_others: bool },
    /// The ClaimNetwork does not want it any more.
    Delete(Arc<DynamicObject>),
}

/// The DeviceClasses of the cluster, and those that ClaimNetworks want.
#[derive(Debug)]
pub(crate) struct Classes {
    driver: String,
    stored: BTreeMap<String, Arc<DynamicObject>>,
    /// By ClaimNetwork.
    wanted: BTreeMap<String, Vec<Wanted>>,
    /// The UIDs of ClaimNetworks whose classes are known.
    owners: BTreeSet<String>,
    /// The specs by which classes were right, by the name of the class.
    right: BTreeMap<String, Value>,
    /// Why classes could not be written, and what was to be written.
    failed: BTreeMap<String, (Value, String)>,
}

impl Classes {
    /// Knows no classes yet. They select devices of `driver`.
    pub(crate) fn new(driver: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            stored: BTreeMap::new(),
            wanted: BTreeMap::new(),
            owners: BTreeSet::new(),
            right: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Takes in all classes that there are.
    pub(crate) fn know(&mut self, classes: Vec<Arc<DynamicObject>>) {
        self.stored = classes.into_iter().map(|class| (class.name_any(), class)).collect();
    }

    /// Takes in all accepted ClaimNetworks with their UIDs. The classes of others stay as they are.
    pub(crate) fn want<'a>(
        &mut self,
        networks: impl Iterator<Item = (&'a NetworkName, &'a ClaimNetworkSpec, &'a str)>,
    ) {
        (self.wanted, self.owners) = Default::default();
        for (network, spec, uid) in networks {
            let classes = spec.classes(network).into_iter().map(|class| Wanted {
                owner: owned_by(network, uid),
                spec: Value::Object(class.device_class_spec(network, &self.driver)),
                name: class.name.as_str().to_owned(),
            });
            self.wanted.insert(network.to_string(), classes.collect());
            self.owners.insert(uid.to_owned());
        }
        let wanted: BTreeSet<&String> = self.wanted.values().flatten().map(|class| &class.name).collect();
        self.right.retain(|name, _| wanted.contains(name));
        // What is wanted now may be written.
        self.failed.clear();
    }

    /// Returns what is to be done. Of two ClaimNetworks that want a class of one name, the one of this name
    /// goes first.
    pub(crate) fn steps(&mut self) -> Vec<Step> {
        let mut wanted: Vec<(&String, &Wanted)> = Vec::new();
        for (network, classes) in &self.wanted {
            wanted.extend(classes.iter().map(|class| (network, class)));
        }
        wanted.sort_by_key(|(network, class)| **network != class.name);
        let (mut steps, mut kept) = (Vec::new(), BTreeSet::new());
        for (_, class) in wanted {
            match self.stored.get(&class.name) {
                None if kept.contains(&class.name) => {}
                None => steps.push(Step::Create(class.object(None))),
                Some(stored) if !class.is_owner_of(stored) => continue,
                Some(stored) if class.is_right(stored) => {
                    self.right.insert(class.name.clone(), class.spec.clone());
                    self.failed.remove(&class.name);
                }
                Some(stored) if stored.metadata.deletion_timestamp.is_some() => {}
                // The API server has not stored all of it: it would not do so this time either.
                Some(stored)
                    if self.failed.get(&class.name).is_some_and(|(spec, _)| spec == &stored.data["spec"]) => {
                }
                Some(stored) => steps.push(Step::Replace {
                    class: class.object(Some(stored)),
                    by_others: self.right.get(&class.name) == Some(&class.spec),
                }),
            }
            kept.insert(class.name.clone());
        }
        let is_left = |class: &&Arc<DynamicObject>| {
            let is_ours = owners(class).any(|owner| self.owners.contains(&owner.uid));
            is_ours && !kept.contains(&class.name_any()) && class.metadata.deletion_timestamp.is_none()
        };
        steps.extend(self.stored.values().filter(is_left).cloned().map(Step::Delete));
        steps
    }

    /// Notes what became of a step: the class as the API server has it now, or why that is not known.
    pub(crate) fn noted(&mut self, step: &Step, result: Result<Option<DynamicObject>, String>) {
        let name = step.class().name_any();
        match result {
            Ok(Some(class)) => {
                let lacks = class.data["spec"] != step.class().data["spec"];
                let problem = lacks.then(|| {
                    let problem = "the API server has not stored all of it: see whether the feature gate DRAExtendedResource is on";
                    (class.data["spec"].clone(), problem.to_owned())
                });
                self.failed.remove(&name);
                self.failed.extend(problem.map(|problem| (name.clone(), problem)));
                self.stored.insert(name, Arc::new(class));
            }
            Ok(None) => drop(self.stored.remove(&name)),
            Err(problem) => drop(self.failed.insert(name, (Value::Null, problem))),
        }
    }

    /// Returns whether a ClaimNetwork has its classes; `None` if it wants none.
    pub(crate) fn finding(&self, network: &str) -> Option<Finding<ClassReason>> {
        let wanted = self.wanted.get(network).filter(|wanted| !wanted.is_empty())?;
        let names = |classes: &[&Wanted]| {
            classes.iter().map(|class| class.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let is_foreign =
            |class: &&Wanted| self.stored.get(&class.name).is_some_and(|stored| !class.is_owner_of(stored));
        let foreign: Vec<&Wanted> = wanted.iter().filter(is_foreign).collect();
        if !foreign.is_empty() {
            let message = format!(
                "DeviceClass {} was not made for this ClaimNetwork, and is left alone: keep it and write spec.deviceClass: None, or \
                 another name in spec.deviceClasses; or delete it to have one made",
                names(&foreign)
            );
            return Some(Finding::new(ClassReason::NotOurs, message));
        }
        let failures: Vec<String> = wanted
            .iter()
            .filter_map(|class| match self.failed.get(&class.name) {
                Some((_, problem)) => Some(format!("DeviceClass {}: {problem}", class.name)),
                None => (!self.stored.contains_key(&class.name))
                    .then(|| format!("DeviceClass {} is not there yet", class.name)),
            })
            .collect();
        if !failures.is_empty() {
            return Some(Finding::new(ClassReason::NotWritten, failures.join("; ")));
        }
        let all: Vec<&Wanted> = wanted.iter().collect();
        Some(Finding::new(ClassReason::Made, format!("pods can ask by DeviceClass {}", names(&all))))
    }
}

impl Wanted {
    fn is_owner_of(&self, class: &DynamicObject) -> bool {
        owners(class).any(|owner| owner.uid == self.owner.uid)
    }

    fn is_right(&self, class: &DynamicObject) -> bool {
        let label = class.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY));
        class.data["spec"] == self.spec && label.is_some_and(|manager| manager == CONTROLLER)
    }

    /// Returns the class as it should be. It keeps labels and annotations that it has.
    fn object(&self, stored: Option<&DynamicObject>) -> DynamicObject {
        let new = DynamicObject::new(&self.name, &resource());
        let mut class = stored.unwrap_or(&new).clone();
        // Objects of a list lack it.
        class.types = new.types;
        class.metadata.owner_references.get_or_insert_with(|| vec![self.owner.clone()]);
        class.labels_mut().insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
        class.data = Value::Object(Map::from_iter([("spec".to_owned(), self.spec.clone())]));
        class
    }
}

impl Step {
    /// Returns the class as it should be, or is.
    pub(crate) fn class(&self) -> &DynamicObject {
        match self {
            Self::Create(class) | Self::Replace { class, .. } => class,
            Self::Delete(class) => class,
        }
    }
}

/// Returns the owner for which the controller keeps the class.
fn owners(class: &DynamicObject) -> impl Iterator<Item = &OwnerReference> {
    let owners = class.metadata.owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true) && owner.kind == "ClaimNetwork")
}

/// Returns the API's name of DeviceClasses.
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<DeviceClass>(&())
}

#[cfg(test)]
mod tests {
    use netclaim_api::reasons::Reason as _;
    use serde_json::json;

    use super::*;

    /// A cluster whose API server stores what it is told.
    struct World {
        classes: Classes,
        stored: Vec<Value>,
    }

    fn spec(change: Value) -> ClaimNetworkSpec {
        let mut spec = json!({"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}});
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn class(name: &str, owner: Option<&str>) -> Value {
        let owners: Vec<Value> = owner
            .map(|uid| json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "name": "storage", "uid": uid,
                "controller": true}))
            .into_iter()
            .collect();
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": name, "ownerReferences": owners}, "spec": {"selectors": []}})
    }

    impl World {
        fn new(stored: &[Value]) -> Self {
            Self { classes: Classes::new("netclaim.dev"), stored: stored.to_vec() }
        }

        /// The ClaimNetworks, each with its name as the UID.
        fn want(&mut self, networks: &[(&str, Value)]) {
            let networks: Vec<(NetworkName, ClaimNetworkSpec)> =
                networks.iter().map(|(name, change)| (name.parse().unwrap(), spec(change.clone()))).collect();
            self.classes.want(networks.iter().map(|(name, spec)| (name, spec, name.as_str())));
        }

        /// Does what is to be done, and returns it as text.
        fn work(&mut self) -> Vec<String> {
            let known =
                self.stored.iter().map(|class| Arc::new(serde_json::from_value(class.clone()).unwrap()));
            self.classes.know(known.collect());
            let mut done = Vec::new();
            for step in self.classes.steps() {
                let name = step.class().name_any();
                self.stored.retain(|class| class["metadata"]["name"] != name.as_str());
                let (text, left) = match &step {
                    Step::Create(class) => ("create", Some(class.clone())),
                    Step::Replace { class, by_others: false } => ("replace", Some(class.clone())),
                    Step::Replace { class, by_others: true } => ("put back", Some(class.clone())),
                    Step::Delete(_) => ("delete", None),
                };
                self.stored.extend(left.iter().map(|class| json!(class)));
                self.classes.noted(&step, Ok(left));
                done.push(format!("{text} {name}"));
            }
            done
        }

        fn reason(&self, network: &str) -> Option<&'static str> {
            self.classes.finding(network).map(|finding| finding.reason.as_str())
        }

        fn stored(&mut self, name: &str) -> &mut Value {
            self.stored.iter_mut().find(|class| class["metadata"]["name"] == name).unwrap()
        }
    }

    #[test]
    fn a_network_gets_a_class_that_is_deleted_with_it() {
        let mut world = World::new(&[]);
        world.want(&[("storage", json!({}))]);
        assert_eq!(world.reason("storage"), Some("NotWritten"), "before");
        assert_eq!(world.work(), ["create storage"]);
        assert_eq!(world.work(), [""; 0]);
        assert_eq!(world.reason("storage"), Some("Made"));
        let owner = json!([{"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "name": "storage",
            "uid": "storage", "controller": true}]);
        let made = world.stored("storage");
        assert_eq!(made["metadata"]["ownerReferences"], owner);
        assert_eq!(
            made["metadata"]["labels"],
            json!({"app.kubernetes.io/managed-by": "netclaim-controller"})
        );
        world.want(&[]);
        assert_eq!(world.work(), [""; 0], "Kubernetes deletes it");
    }

    #[test]
    fn a_class_of_another_owner_is_left_alone_and_named() {
        for other in [class("storage", None), class("storage", Some("other"))] {
            let mut world = World::new(std::slice::from_ref(&other));
            world.want(&[("storage", json!({}))]);
            assert_eq!(world.work(), [""; 0]);
            assert_eq!(world.stored, [other]);
            let finding = world.classes.finding("storage").unwrap();
            assert_eq!(finding.reason, ClassReason::NotOurs);
            assert!(finding.message.starts_with("DeviceClass storage was not made"), "{}", finding.message);
            world.want(&[("storage", json!({"deviceClass": "None"}))]);
            assert_eq!((world.work(), world.reason("storage")), (Vec::new(), None));
            world.stored.clear();
            world.want(&[("storage", json!({}))]);
            assert_eq!(world.work(), ["create storage"], "after it is deleted");
        }
    }

    #[test]
    fn a_class_that_somebody_edits_is_put_back_and_keeps_foreign_annotations() {
        let mut world = World::new(&[]);
        world.want(&[("storage", json!({}))]);
        world.work();
        world.work();
        let edited = world.stored("storage");
        edited["spec"]["extendedResourceName"] = json!("example.com/mine");
        edited["metadata"]["annotations"] = json!({"team": "a"});
        assert_eq!(world.work(), ["put back storage"]);
        let made = world.stored("storage");
        assert_eq!(made["metadata"]["annotations"], json!({"team": "a"}));
        assert!(made["spec"].get("extendedResourceName").is_none(), "{made}");
        world.stored("storage")["metadata"]["labels"] = json!({});
        assert_eq!(world.work(), ["put back storage"]);
        world.want(&[(
            "storage",
            json!({"deviceClasses": [{"name": "storage", "extendedResourceName": "example.com/a"}]}),
        )]);
        assert_eq!(world.work(), ["replace storage"], "the ClaimNetwork has changed");
    }

    #[test]
    fn who_removes_the_owner_keeps_the_class() {
        let mut world = World::new(&[]);
        world.want(&[("storage", json!({}))]);
        world.work();
        world.stored("storage")["metadata"]["ownerReferences"] = json!([]);
        assert_eq!((world.work(), world.reason("storage")), (Vec::new(), Some("NotOurs")));
    }

    #[test]
    fn a_class_to_which_somebody_has_given_the_network_as_an_owner_is_left_alone() {
        let [mut own, mut more] = ["storage", "storage-private"].map(|name| class(name, Some("storage")));
        for class in [&mut own, &mut more] {
            class["metadata"]["ownerReferences"][0].as_object_mut().unwrap().remove("controller");
        }
        let before = [own, more];
        let mut world = World::new(&before);
        world.want(&[("storage", json!({}))]);
        assert_eq!((world.work(), world.reason("storage")), (Vec::new(), Some("NotOurs")));
        assert_eq!(world.stored, before);
    }

    #[test]
    fn classes_follow_the_list_and_those_that_are_not_in_it_go() {
        let mut world = World::new(&[class("foreign", None)]);
        let fast = json!({"name": "fast", "defaults": {"interfaceName": "data0"}});
        world.want(&[("storage", json!({"deviceClasses": [fast]}))]);
        assert_eq!(world.work(), ["create storage", "create fast"]);
        assert_eq!(
            world.stored("fast")["spec"]["config"][0]["opaque"]["parameters"]["interfaceName"],
            "data0"
        );
        world.want(&[("storage", json!({"deviceClass": "None", "deviceClasses": [{"name": "fast"}]}))]);
        assert_eq!(world.work(), ["replace fast", "delete storage"]);
        world.want(&[("storage", json!({"deviceClass": "None"}))]);
        assert_eq!(world.work(), ["delete fast"]);
    }

    #[test]
    fn a_network_that_is_not_accepted_keeps_its_classes() {
        let mut world = World::new(&[class("storage", Some("storage"))]);
        world.want(&[]);
        assert_eq!(world.work(), [""; 0]);
    }

    #[test]
    fn of_two_networks_that_want_one_class_that_of_the_name_gets_it() {
        let mut world = World::new(&[]);
        world.want(&[
            ("a", json!({"deviceClass": "None", "deviceClasses": [{"name": "b"}]})),
            ("b", json!({})),
        ]);
        assert_eq!(world.work(), ["create b"]);
        assert_eq!(world.work(), [""; 0]);
        assert_eq!((world.reason("a"), world.reason("b")), (Some("NotOurs"), Some("Made")));
    }

    #[test]
    fn a_class_that_the_api_server_does_not_store_whole_is_written_once() {
        let mut world = World::new(&[]);
        let listed = json!({"deviceClasses": [{"name": "storage", "extendedResourceName": "example.com/a"}]});
        world.want(&[("storage", listed)]);
        let steps = world.classes.steps();
        let mut stored = steps[0].class().clone();
        stored.data["spec"].as_object_mut().unwrap().remove("extendedResourceName");
        world.classes.noted(&steps[0], Ok(Some(stored.clone())));
        world.stored = vec![json!(stored)];
        assert_eq!((world.work(), world.reason("storage")), (Vec::new(), Some("NotWritten")));
    }

    #[test]
    fn a_class_that_is_refused_says_why_until_it_is_written() {
        let mut world = World::new(&[]);
        world.want(&[("storage", json!({}))]);
        let steps = world.classes.steps();
        world.classes.noted(&steps[0], Err("no".to_owned()));
        assert_eq!(world.classes.finding("storage").unwrap().message, "DeviceClass storage: no");
        assert_eq!(
            (world.work(), world.reason("storage")),
            (vec!["create storage".to_owned()], Some("Made"))
        );
    }
}
