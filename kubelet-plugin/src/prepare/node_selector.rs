//! Whether an allocation is for this node: Kubernetes' `NodeSelector`. Pure.
//!
//! Source: `component-helpers/scheduling/corev1/nodeaffinity`. A requirement that
//! Kubernetes rejects as invalid matches no node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use netclaim_kubernetes::labels::meets_node_requirement;

/// Whether `selector` selects the node with this name and these labels: one of its terms has to.
pub(crate) fn selects(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let by_label = |requirement: &NodeSelectorRequirement| {
        holds(requirement, labels.get(&requirement.key).map(String::as_str))
    };
    // The API has no other field.
    let by_field = |requirement: &NodeSelectorRequirement| {
        requirement.key == "metadata.name" && holds(requirement, Some(name))
    };
    let fits = |term: &NodeSelectorTerm| {
        let (labels, fields) = (term.match_expressions.as_deref(), term.match_fields.as_deref());
        let (labels, fields) = (labels.unwrap_or_default(), fields.unwrap_or_default());
        // An empty term selects nothing.
        labels.len() + fields.len() > 0 && labels.iter().all(by_label) && fields.iter().all(by_field)
    };
    selector.node_selector_terms.iter().any(fits)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    meets_node_requirement(&requirement.operator, requirement.values.as_deref().unwrap_or_default(), value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selected(terms: Value) -> bool {
        let selector = serde_json::from_value(json!({"nodeSelectorTerms": terms})).expect("a selector");
        let labels = [("rack", "7"), ("net", "fast")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        selects(&selector, "node0", &labels.into())
    }

    #[test]
    fn the_terms_select_as_the_schedulers_do() {
        let name = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
        let label = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let (node0, node1) =
            (json!({"matchFields": [name("node0")]}), json!({"matchFields": [name("node1")]}));
        assert!(selected(json!([node0])) && selected(json!([node1, node0])));
        assert!(!selected(json!([node1])) && !selected(json!([])) && !selected(json!([{}])));
        for (fits, requirement) in [
            (true, label("rack", "In", &["6", "7"])),
            (false, label("rack", "In", &["8"])),
            (true, label("rack", "NotIn", &["8"])),
            (true, label("zone", "NotIn", &["a"])),
            (true, label("net", "Exists", &[])),
            (false, label("net", "DoesNotExist", &[])),
            (true, label("zone", "DoesNotExist", &[])),
            (true, label("rack", "Gt", &["6"])),
            (false, label("rack", "Lt", &["7"])),
            (false, label("net", "Gt", &["1"])),
            (false, label("rack", "Resembles", &["7"])),
        ] {
            assert_eq!(selected(json!([{"matchExpressions": [requirement]}])), fits, "{requirement}");
            let other = json!({"matchExpressions": [requirement], "matchFields": [name("node1")]});
            assert!(!selected(json!([other])), "a term wants all of its requirements");
        }
        assert!(!selected(json!([{"matchFields": [label("metadata.uid", "Exists", &[])]}])));
    }
}
