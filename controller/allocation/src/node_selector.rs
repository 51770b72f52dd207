//! Which nodes a node selector selects, and whether a node takes a pod
//! (`k8s.io/component-helpers/scheduling`).

use std::fmt;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, PodSpec, Taint, Toleration};
use netclaim_kubernetes::labels::meets_node_requirement;
use serde::Serialize;

/// A node, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub enum KnownNode<'a> {
    /// The whole Node.
    Whole(&'a Node),
    /// Its name. The Node could not be read, so its labels are not known.
    Named(&'a str),
}

impl<'a> From<&'a Node> for KnownNode<'a> {
    fn from(node: &'a Node) -> Self {
        Self::Whole(node)
    }
}

impl<'a> KnownNode<'a> {
    /// The node's name.
    pub fn name(self) -> Option<&'a str> {
        match self {
            Self::Whole(node) => node.metadata.name.as_deref(),
            Self::Named(name) => Some(name),
        }
    }

    /// Whether a device plugin of the node has a resource; `None` if that is not known.
    pub(crate) fn has_plugin(self, resource: &str) -> Option<bool> {
        let Self::Whole(node) = self else { return None };
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        Some(allocatable.and_then(|all| all.get(resource)).is_some_and(|amount| amount.0 != "0"))
    }

    /// Whether a requirement for the node's labels holds; `None` if that is not known.
    fn has_label(self, requirement: &NodeSelectorRequirement) -> Option<bool> {
        let Self::Whole(node) = self else { return None };
        let value = node.metadata.labels.as_ref().and_then(|labels| labels.get(&requirement.key));
        Some(holds(requirement, value.map(String::as_str)))
    }

    fn has_field(self, requirement: &NodeSelectorRequirement) -> bool {
        // The API has no other field.
        requirement.key == "metadata.name" && holds(requirement, self.name())
    }
}

/// Whether the selector selects the node: one of its terms must hold. A term without requirements selects
/// nothing. `None` if that depends on unknown facts about the node.
pub(crate) fn selects(selector: &NodeSelector, node: KnownNode<'_>) -> Option<bool> {
    let terms = selector.node_selector_terms.iter().map(|term| {
        let fields = term.match_fields.iter().flatten().map(|field| Some(node.has_field(field)));
        let labels = term.match_expressions.iter().flatten().map(|label| node.has_label(label));
        let requirements: Vec<Option<bool>> = fields.chain(labels).collect();
        if requirements.is_empty() || requirements.contains(&Some(false)) {
            Some(false)
        } else {
            (!requirements.contains(&None)).then_some(true)
        }
    });
    let terms: Vec<Option<bool>> = terms.collect();
    if terms.contains(&Some(true)) { Some(true) } else { (!terms.contains(&None)).then_some(false) }
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    meets_node_requirement(&requirement.operator, requirement.values.as_deref().unwrap_or_default(), value)
}

/// Returns the selected nodes in words.
pub(crate) fn words(selector: &NodeSelector) -> String {
    let terms = selector.node_selector_terms.iter().map(|term| {
        let fields = term.match_fields.iter().flatten();
        let requirements: Vec<String> =
            fields.chain(term.match_expressions.iter().flatten()).map(requirement_words).collect();
        requirements.join(" and ")
    });
    terms.collect::<Vec<_>>().join(", or ")
}

fn requirement_words(requirement: &NodeSelectorRequirement) -> String {
    let NodeSelectorRequirement { key, operator, values } = requirement;
    let values = values.as_deref().unwrap_or_default();
    match (key.as_str(), operator.as_str(), values) {
        ("metadata.name", "In", [name]) => format!("node {name}"),
        ("metadata.name", "In", names) => format!("nodes {}", names.join(", ")),
        (key, "Exists" | "DoesNotExist", _) => format!("nodes with {key} {operator}"),
        (key, operator, values) => format!("nodes with {key} {operator} [{}]", values.join(", ")),
    }
}

/// Why a node does not take a pod, whatever its claims.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Unfit {
    /// The node is cordoned.
    Cordoned,
    /// The pod's `nodeSelector` or required node affinity selects other nodes.
    NotSelected,
    /// The node has a taint that the pod does not tolerate.
    Tainted {
        /// The taint's key.
        key: String,
        /// The taint's value, or nothing.
        value: String,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cordoned => f.write_str("cordoned"),
            Self::NotSelected => f.write_str("not selected by the pod's nodeSelector or affinity"),
            Self::Tainted { key, value } if value.is_empty() => {
                write!(f, "the pod does not tolerate taint {key}")
            }
            Self::Tainted { key, value } => write!(f, "the pod does not tolerate taint {key}={value}"),
        }
    }
}

/// The taint of a cordoned node, which is `unschedulable`, too.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Returns why the node does not take the pod. Resources such as CPU are not looked at.
pub fn unfit(pod: &PodSpec, node: &Node) -> Vec<Unfit> {
    let mut unfit = Vec::new();
    let tolerations = pod.tolerations.as_deref().unwrap_or_default();
    let spec = node.spec.as_ref();
    let cordon = Taint { key: UNSCHEDULABLE.to_owned(), effect: NO_SCHEDULE.to_owned(), ..Taint::default() };
    let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
    if is_cordoned && !tolerations.iter().any(|toleration| tolerates(toleration, &cordon)) {
        unfit.push(Unfit::Cordoned);
    }
    if !is_selected(pod, node) {
        unfit.push(Unfit::NotSelected);
    }
    let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let closing = taints.iter().filter(|taint| {
        [NO_SCHEDULE, NO_EXECUTE].contains(&taint.effect.as_str()) && taint.key != UNSCHEDULABLE
    });
    let untolerated =
        closing.filter(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)));
    unfit.extend(untolerated.map(|taint| Unfit::Tainted {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
    }));
    unfit
}

pub(crate) const NO_SCHEDULE: &str = "NoSchedule";
/// Effect of a taint that whoever has the device has to leave it.
pub const NO_EXECUTE: &str = "NoExecute";

fn is_selected(pod: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let mut wanted = pod.node_selector.iter().flatten();
    let required = pod
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    wanted.all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
        && required.is_none_or(|selector| selects(selector, node.into()) == Some(true))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    let same = |text: &Option<String>, other: &str| text.as_deref() == Some(other);
    (empty(&toleration.effect) || same(&toleration.effect, &taint.effect))
        && (empty(&toleration.key) || same(&toleration.key, &taint.key))
        && match toleration.operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            "" | "Equal" => {
                toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            _ => false,
        }
}
