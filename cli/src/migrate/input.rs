//! What a migration reads, sorted by kind.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::DynamicObject;
use netclaim_whereabouts::{self as whereabouts, IpPool, NodeSlicePool, ObjectRef, Reservation};
use serde_json::Value;

use super::existing::Existing;
use super::nad_name::{NAD, NadName};
use super::report::Finding;

/// The annotation of a pod that names its networks.
pub(super) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The annotation of a pod that replaces the network of `eth0`.
pub(super) const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// The annotation of a NetworkAttachmentDefinition that names a resource of a device plugin.
const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";
/// The annotation of a NetworkAttachmentDefinition that the SR-IOV operator makes.
const SRIOV_OWNER: &str = "sriovnetwork.openshift.io/owner-ref";
/// The annotation with which Multus says what a pod got.
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// A NetworkAttachmentDefinition.
#[derive(Debug)]
pub(super) struct Nad {
    /// The text of `spec.config`; empty if the configuration is on the nodes.
    pub(super) config: String,
    /// The resource of a device plugin whose devices its pods get.
    pub(super) resource: Option<String>,
    /// The object of the SR-IOV operator that it is made from.
    pub(super) sriov_owner: Option<String>,
    /// The whole object, which the takeover of whereabouts reads.
    pub(super) object: DynamicObject,
}

/// The kinds of workloads that can be translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Deployment,
    StatefulSet,
    DaemonSet,
    ReplicaSet,
    CronJob,
    Job,
    Pod,
}

impl Kind {
    pub(super) const ALL: [Self; 7] = [
        Self::Deployment,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::ReplicaSet,
        Self::CronJob,
        Self::Job,
        Self::Pod,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::ReplicaSet => "ReplicaSet",
            Self::CronJob => "CronJob",
            Self::Job => "Job",
            Self::Pod => "Pod",
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet | Self::DaemonSet | Self::ReplicaSet => "apps",
            Self::CronJob | Self::Job => "batch",
            Self::Pod => "",
        }
    }

    /// The field that has the metadata and spec of pods.
    pub(super) const fn template(self) -> &'static [&'static str] {
        match self {
            Self::Pod => &[],
            Self::CronJob => &["spec", "jobTemplate", "spec", "template"],
            _ => &["spec", "template"],
        }
    }

    /// Whether what it says of pods can be changed.
    pub(super) const fn can_change(self) -> bool {
        !matches!(self, Self::Job | Self::Pod)
    }

    /// Returns how many pods of the object may exist at once; `None` if that follows from the nodes.
    fn copies(self, object: &Value) -> Option<u64> {
        let field = match self {
            Self::Deployment | Self::StatefulSet | Self::ReplicaSet => "/spec/replicas",
            Self::Job => "/spec/parallelism",
            Self::CronJob => "/spec/jobTemplate/spec/parallelism",
            Self::Pod => return Some(1),
            Self::DaemonSet => return None,
        };
        Some(object.pointer(field).and_then(Value::as_u64).unwrap_or(1))
    }
}

/// An object whose pods name networks.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) kind: Kind,
    pub(super) object: ObjectRef,
    /// The annotation with the networks.
    pub(super) networks: String,
    /// Whether another network is asked for `eth0`.
    pub(super) replaces_default: bool,
    pub(super) host_network: bool,
    /// How many pods there may be at once; `None` if that follows from the nodes.
    pub(super) copies: Option<u64>,
    /// Whether a new pod may start before the old one has ended.
    pub(super) overlaps: bool,
    /// The names of the claims that the pods have.
    pub(super) claims: Vec<String>,
    /// The containers by field, each with the claims that it names.
    pub(super) containers: Vec<(&'static str, Vec<Container>)>,
    /// What makes the object, if that is none of the kinds here.
    pub(super) maker: Option<String>,
}

/// A container of a workload.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) claims: Vec<Value>,
}

/// API group, kind, namespace and name of an object.
type Key = (String, String, String, String);

/// Everything that a translation depends on.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) nads: BTreeMap<NadName, Nad>,
    pub(super) workloads: Vec<Workload>,
    pub(super) pools: Vec<IpPool>,
    pub(super) reservations: Vec<Reservation>,
    pub(super) slices: Vec<NodeSlicePool>,
    pub(super) pods: Vec<whereabouts::Pod>,
    /// The names of the AddressLeases.
    pub(super) leases: BTreeSet<String>,
    /// The ClaimNetworks and DeviceClasses that are there.
    pub(super) existing: Existing,
    /// Whether all of the cluster's objects are there, so that what is missing does not exist.
    pub(super) is_cluster: bool,
    /// Objects that cannot be read.
    pub(super) refused: Vec<Finding>,
    /// Objects of whereabouts that cannot be read.
    pub(super) unreadable: Vec<whereabouts::DecodeError>,
}

impl Input {
    /// Sorts objects by kind; `List`s are taken apart, and of equal names the last one counts. Objects
    /// without a namespace are in `namespace`.
    pub(super) fn of(objects: Vec<Value>, namespace: &str, is_cluster: bool) -> Self {
        let mut input = Self { is_cluster, ..Self::default() };
        let mut known = BTreeMap::new();
        let mut left = objects;
        left.reverse();
        while let Some(mut object) = left.pop() {
            let items = object.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
            if let Some(items) = items {
                left.extend(items.into_iter().rev().map(|item| of_list(item, &object)));
                continue;
            }
            let text = |field: &str| object.pointer(field).and_then(Value::as_str).unwrap_or_default();
            let api = text("/apiVersion");
            let group = api.split_once('/').map_or("", |(group, _)| group).to_owned();
            let kind = text("/kind").to_owned();
            let of = text("/metadata/namespace");
            let of = if of.is_empty() { namespace } else { of }.to_owned();
            let name = text("/metadata/name").to_owned();
            known.insert((group, kind, of, name), object);
        }
        let present: BTreeSet<Key> = known.keys().cloned().collect();
        for ((group, kind, namespace, name), mut object) in known {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert("namespace".to_owned(), Value::String(namespace.clone()));
            }
            let of = ObjectRef { kind, namespace, name };
            input.add(&group, of, object, &present);
        }
        input
    }

    fn add(&mut self, group: &str, of: ObjectRef, object: Value, present: &BTreeSet<Key>) {
        match (group, of.kind.as_str()) {
            ("k8s.cni.cncf.io", NAD) => self.add_nad(&of, object),
            ("whereabouts.cni.cncf.io", kind) => self.add_whereabouts(kind, object),
            ("netclaim.dev", "AddressLease") => drop(self.leases.insert(of.name)),
            ("netclaim.dev", "ClaimNetwork") => self.existing.add_network(of.name, &object),
            ("resource.k8s.io", "DeviceClass") => self.existing.add_class(of.name, &object),
            (group, kind) => {
                let known = Kind::ALL.into_iter().find(|known| known.as_str() == kind);
                match known.filter(|kind| kind.group() == group) {
                    Some(kind) => self.add_workload(kind, of, &object, present),
                    None => self.refuse_unknown(of, &object),
                }
            }
        }
    }

    fn add_nad(&mut self, of: &ObjectRef, object: Value) {
        let annotation =
            |name: &str| object.get("metadata")?.get("annotations")?.get(name)?.as_str().map(str::to_owned);
        let config = object.pointer("/spec/config").and_then(Value::as_str).unwrap_or_default().trim();
        let config = config.to_owned();
        let (resource, sriov_owner) = (annotation(RESOURCE), annotation(SRIOV_OWNER));
        match serde_json::from_value::<DynamicObject>(object) {
            Ok(object) => {
                let name = NadName { namespace: of.namespace.clone(), name: of.name.clone() };
                self.nads.insert(name, Nad { config, resource, sriov_owner, object });
            }
            Err(error) => {
                self.refused.push(Finding::new(of.clone(), "metadata", format!("cannot be read: {error}")))
            }
        }
    }

    fn add_whereabouts(&mut self, kind: &str, object: Value) {
        fn keep<T>(
            decoded: Result<T, whereabouts::DecodeError>,
            good: &mut Vec<T>,
            bad: &mut Vec<whereabouts::DecodeError>,
        ) {
            match decoded {
                Ok(object) => good.push(object),
                Err(error) => bad.push(error),
            }
        }
        let Ok(object) = serde_json::from_value::<DynamicObject>(object) else { return };
        match kind {
            "IPPool" => keep(IpPool::decode(&object), &mut self.pools, &mut self.unreadable),
            "OverlappingRangeIPReservation" => {
                keep(Reservation::decode(&object), &mut self.reservations, &mut self.unreadable);
            }
            "NodeSlicePool" => keep(NodeSlicePool::decode(&object), &mut self.slices, &mut self.unreadable),
            _ => {}
        }
    }

    fn add_workload(&mut self, kind: Kind, of: ObjectRef, object: &Value, present: &BTreeSet<Key>) {
        if kind == Kind::Pod {
            self.pods.extend(pod(object));
        }
        let template = kind.template().iter().try_fold(object, |at, key| at.get(key));
        let Some(template) = template else { return };
        let annotation = |name: &str| {
            let text = template.get("metadata")?.get("annotations")?.get(name)?.as_str()?.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        let (networks, replaces_default) = (annotation(NETWORKS), annotation(DEFAULT_NETWORK).is_some());
        let has_ended = matches!(kind, Kind::Pod | Kind::Job) && ended(object);
        if (networks.is_none() && !replaces_default) || has_ended {
            return;
        }
        let maker = match controller(object) {
            // The owner's template is translated instead.
            Some((group, owner, name))
                if Kind::ALL.iter().any(|kind| (kind.group(), kind.as_str()) == (group, owner)) =>
            {
                let key = (group.to_owned(), owner.to_owned(), of.namespace.clone(), name.to_owned());
                // In a cluster, such an owner has just been made or deleted.
                if !self.is_cluster && !present.contains(&key) {
                    let problem = format!(
                        "its networks are those of its owner: add {owner} {}/{name} to the input",
                        of.namespace
                    );
                    self.refused.push(Finding::new(of, "metadata.ownerReferences", problem));
                }
                return;
            }
            Some((_, owner, name)) => Some(format!("{owner} {name}")),
            None => None,
        };
        if of.name.is_empty() {
            let problem = "is not set: give the object a name, and run this again";
            self.refused.push(Finding::new(of, "metadata.name", problem));
            return;
        }
        let spec = template.get("spec").unwrap_or(&Value::Null);
        let strategy = object.pointer("/spec/strategy/type").and_then(Value::as_str);
        self.workloads.push(Workload {
            kind,
            object: of,
            networks: networks.unwrap_or_default(),
            replaces_default,
            host_network: spec.get("hostNetwork").and_then(Value::as_bool) == Some(true),
            copies: kind.copies(object),
            overlaps: kind == Kind::Deployment && strategy != Some("Recreate"),
            claims: list(spec, "resourceClaims").filter_map(name_of).collect(),
            containers: [
                ("initContainers", containers(spec, "initContainers")),
                ("containers", containers(spec, "containers")),
            ]
            .into_iter()
            .filter(|(_, containers)| !containers.is_empty())
            .collect(),
            maker,
        });
    }

    /// Refuses an object of another kind that has pods with networks.
    fn refuse_unknown(&mut self, of: ObjectRef, object: &Value) {
        let annotations = object.pointer("/spec/template/metadata/annotations");
        if annotations.and_then(|annotations| annotations.get(NETWORKS)).is_none() {
            return;
        }
        let reason = format!(
            "{} is a kind that this command does not know: name the claims in its pod template by hand, as the \
             patches of other workloads show",
            of.kind
        );
        let field = format!("spec.template.metadata.annotations[{NETWORKS}]");
        self.refused.push(Finding::new(of, field, reason));
    }
}

/// Returns what makes an object: API group, kind and name.
fn controller(object: &Value) -> Option<(&str, &str, &str)> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))?;
    let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    Some((group, text("kind"), text("name")))
}

/// Returns the item of a list. The API server names the kind of items only by the kind of the list.
fn of_list(mut item: Value, list: &Value) -> Value {
    let kind = list.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"));
    if let (Some(fields), Some(kind)) = (item.as_object_mut(), kind.filter(|kind| !kind.is_empty())) {
        fields.entry("kind").or_insert_with(|| kind.into());
        fields.entry("apiVersion").or_insert_with(|| list.get("apiVersion").cloned().unwrap_or_default());
    }
    item
}

/// Whether a pod or Job makes no more sandboxes.
fn ended(object: &Value) -> bool {
    let is_true = |condition: &Value| {
        let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
        matches!(text("type"), "Complete" | "Failed") && text("status") == "True"
    };
    matches!(object.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"))
        || object.get("status").is_some_and(|status| list(status, "conditions").any(is_true))
}

/// Returns the pod, which has names if it is of a cluster.
fn pod(object: &Value) -> Option<whereabouts::Pod> {
    let text =
        |field: &str| object.pointer(field).and_then(Value::as_str).map(str::to_owned).unwrap_or_default();
    let annotations = object.pointer("/metadata/annotations");
    Some(whereabouts::Pod {
        namespace: text("/metadata/namespace").parse().ok()?,
        name: text("/metadata/name").parse().ok()?,
        uid: text("/metadata/uid"),
        has_ended: ended(object),
        network_status: annotations
            .and_then(|annotations| annotations.get(NETWORK_STATUS)?.as_str())
            .map(str::to_owned),
    })
}

fn list<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn name_of(object: &Value) -> Option<String> {
    object.get("name")?.as_str().map(str::to_owned)
}

fn containers(spec: &Value, field: &str) -> Vec<Container> {
    let container = |container: &Value| {
        let claims = container.pointer("/resources/claims").and_then(Value::as_array);
        Some(Container { name: name_of(container)?, claims: claims.cloned().unwrap_or_default() })
    };
    list(spec, field).filter_map(container).collect()
}
