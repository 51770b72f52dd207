//! Pods with claims that are not scheduled yet, and the nodes where they may run. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ApiResource, NotUsed, Object};
use kube::runtime::watcher;
use netclaim_api::labels::has_all;
use serde::Deserialize;

use crate::leasing::Places;
use crate::node_objects::{NodeFacts, Nodes};

/// A pod with little of its spec.
pub(crate) type PodObject = Object<Spec, NotUsed>;

/// The part of a pod's spec that is kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    resource_claims: Vec<serde::de::IgnoredAny>,
    node_selector: BTreeMap<String, String>,
    affinity: Option<Affinity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: Option<NodeAffinity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<Required>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Required {
    node_selector_terms: Vec<Term>,
}

/// What a node must meet, all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    match_expressions: Vec<Requirement>,
    match_fields: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

/// Where one pod may run.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Constraint {
    labels: BTreeMap<String, String>,
    /// One of them is enough; `None` if all nodes are good.
    terms: Option<Vec<Term>>,
}

/// The pods that the watch has shown.
#[derive(Debug, Default)]
pub(crate) struct WaitingPods {
    known: BTreeMap<String, Constraint>,
    /// The list in progress.
    listing: BTreeMap<String, Constraint>,
}

/// Returns the API's name of [`PodObject`].
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<Pod>(&())
}

impl WaitingPods {
    /// Takes in an event of the watch. Returns whether anything changed.
    pub(crate) fn apply(&mut self, event: watcher::Event<PodObject>) -> bool {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                false
            }
            watcher::Event::InitApply(pod) => {
                self.listing.extend(constraint(&pod));
                false
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                std::mem::replace(&mut self.known, listed) != self.known
            }
            watcher::Event::Apply(pod) => constraint(&pod).is_some_and(|(uid, constraint)| {
                self.known.insert(uid, constraint.clone()) != Some(constraint)
            }),
            watcher::Event::Delete(pod) => {
                self.known.remove(pod.metadata.uid.as_deref().unwrap_or_default()).is_some()
            }
        }
    }

    /// Returns where pods may run, once for pods that may run on the same nodes.
    pub(crate) fn places(&self, nodes: &Nodes) -> BTreeSet<Places> {
        let constraints: BTreeSet<&Constraint> = self.known.values().collect();
        constraints.into_iter().map(|constraint| constraint.places(nodes)).collect()
    }
}

/// Returns the UID of a pod with claims, and where it may run.
fn constraint(pod: &PodObject) -> Option<(String, Constraint)> {
    let spec = &pod.spec;
    if spec.resource_claims.is_empty() || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let affinity = spec.affinity.clone().and_then(|affinity| affinity.node_affinity);
    let terms = affinity.and_then(|affinity| affinity.required).map(|required| required.node_selector_terms);
    Some((pod.uid()?, Constraint { labels: spec.node_selector.clone(), terms }))
}

impl Constraint {
    fn places(&self, nodes: &Nodes) -> Places {
        let schedulable = |facts: &NodeFacts| !facts.is_unschedulable;
        if *self == Self::default() && nodes.values().all(schedulable) {
            return Places::Any;
        }
        let fits = |(name, facts): &(&String, &NodeFacts)| schedulable(facts) && self.allows(name, facts);
        // A DaemonSet's pod names its node: there may be one for each of thousands of nodes.
        let named: Option<Vec<&String>> =
            self.terms.as_ref().and_then(|terms| terms.iter().map(Term::node).collect());
        let fitting: BTreeSet<String> = match named {
            Some(names) => {
                let known = names.into_iter().filter_map(|name| nodes.get_key_value(name));
                known.filter(fits).map(|(name, _)| name.clone()).collect()
            }
            None => nodes.iter().filter(fits).map(|(name, _)| name.clone()).collect(),
        };
        Places::Nodes(fitting)
    }

    fn allows(&self, name: &str, facts: &NodeFacts) -> bool {
        let by_term =
            self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.allows(name, facts)));
        has_all(&self.labels, &facts.labels) && by_term
    }
}

impl Term {
    /// Returns the only node that the term allows by its name.
    fn node(&self) -> Option<&String> {
        match self.match_fields.as_slice() {
            [Requirement { key, operator, values }] if key == "metadata.name" && operator == "In" => {
                <&[String; 1]>::try_from(values.as_slice()).ok().map(|[name]| name)
            }
            _ => None,
        }
    }

    fn allows(&self, name: &str, facts: &NodeFacts) -> bool {
        let is_empty = self.match_expressions.is_empty() && self.match_fields.is_empty();
        let of_label = |requirement: &Requirement| {
            requirement.holds(facts.labels.get(&requirement.key).map(String::as_str))
        };
        let of_field =
            |requirement: &Requirement| requirement.key == "metadata.name" && requirement.holds(Some(name));
        // A term without requirements selects nothing.
        !is_empty && self.match_expressions.iter().all(of_label) && self.match_fields.iter().all(of_field)
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_listed = value.is_some_and(|value| self.values.iter().any(|listed| listed == value));
        let compared = || {
            let bound = self.values.first()?.parse::<i64>().ok()?;
            Some(value?.parse::<i64>().ok()?.cmp(&bound))
        };
        match self.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
            "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, spec: Value) -> PodObject {
        let metadata = json!({"name": uid, "uid": uid});
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
            .unwrap()
    }

    fn nodes() -> Nodes {
        let node = |name: &str, rack: &str| {
            let labels = BTreeMap::from([("rack".to_owned(), rack.to_owned())]);
            (name.to_owned(), NodeFacts { labels, ..NodeFacts::default() })
        };
        [node("a", "7"), node("b", "8"), node("c", "9")].into()
    }

    fn places(spec: Value) -> Vec<Vec<String>> {
        let mut pods = WaitingPods::default();
        pods.apply(watcher::Event::Apply(pod("u1", spec)));
        let nodes = nodes();
        let names = |places: Places| match places {
            Places::Any => nodes.keys().cloned().collect(),
            Places::Nodes(nodes) => nodes.into_iter().collect(),
        };
        pods.places(&nodes).into_iter().map(names).collect()
    }

    #[test]
    fn a_pod_waits_for_the_nodes_that_it_selects() {
        let with = |key: &str, value: Value| json!({"resourceClaims": [{"name": "c"}], key: value});
        let affinity = |terms: Value| {
            let required =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            with("affinity", json!({"nodeAffinity": required}))
        };
        assert_eq!(places(json!({})), [[""; 0]; 0], "without a claim");
        assert_eq!(places(with("x", json!(1))), [["a", "b", "c"]]);
        assert_eq!(places(with("nodeSelector", json!({"rack": "8"}))), [["b"]]);
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["c"]});
        assert_eq!(places(affinity(json!([{"matchFields": [field]}]))), [["c"]]);
        let some = json!({"key": "rack", "operator": "Gt", "values": ["7"]});
        assert_eq!(places(affinity(json!([{"matchExpressions": [some]}]))), [["b", "c"]]);
        assert_eq!(places(affinity(json!([{}]))), [[""; 0]]);
    }

    #[test]
    fn a_cordoned_node_is_no_place() {
        let mut pods = WaitingPods::default();
        let any = json!({"resourceClaims": [{"name": "c"}]});
        assert!(pods.apply(watcher::Event::Apply(pod("u1", any.clone()))));
        assert!(!pods.apply(watcher::Event::Apply(pod("u1", any.clone()))), "the same");
        let mut nodes = nodes();
        assert_eq!(pods.places(&nodes), BTreeSet::from([Places::Any]));
        nodes.get_mut("a").unwrap().is_unschedulable = true;
        assert_eq!(
            pods.places(&nodes),
            BTreeSet::from([Places::Nodes(BTreeSet::from(["b".to_owned(), "c".to_owned()]))])
        );
        assert!(pods.apply(watcher::Event::Delete(pod("u1", any))));
        assert!(pods.places(&nodes).is_empty());
    }
}
