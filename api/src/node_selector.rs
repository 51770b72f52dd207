//! `spec.nodeSelector` of ClaimNetworks and UplinkPolicies.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Invalid;
use crate::labels::{LabelSelector, requires_something};

/// Selects nodes by their labels: a [`LabelSelector`] that is not empty. An empty one selects no node: it is
/// what is left of a selector whose fields are misspelt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeSelector(pub LabelSelector);

impl JsonSchema for NodeSelector {
    fn schema_name() -> Cow<'static, str> {
        "NodeSelector".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = LabelSelector::json_schema(generator);
        let rules = json!([{"rule": requires_something("self"), "message": EVERY_NODE}]);
        schema.insert("x-kubernetes-validations".to_owned(), rules);
        schema
    }
}

impl NodeSelector {
    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.0.is_empty() && self.0.selects(labels)
    }

    /// Returns every problem of the selector; paths are relative to it.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let every_node = self.0.is_empty().then(|| Invalid::new("", EVERY_NODE));
        every_node.into_iter().chain(self.0.problems()).collect()
    }
}

const EVERY_NODE: &str = "has neither matchLabels nor matchExpressions: write labels as matchLabels, such as matchLabels: \
                          {rack: a}, or leave nodeSelector out for every node";

/// Whether a node with these labels is selected. Without a selector, every node is.
pub fn selects_node(selector: Option<&NodeSelector>, labels: &BTreeMap<String, String>) -> bool {
    selector.is_none_or(|selector| selector.selects(labels))
}

/// Returns every problem of `spec.nodeSelector`.
pub(crate) fn problems(selector: Option<&NodeSelector>) -> impl Iterator<Item = Invalid> {
    let problems = selector.into_iter().flat_map(NodeSelector::problems);
    problems.map(|problem| problem.within("spec.nodeSelector"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_selector_every_node_is_selected_and_by_an_empty_one_none() {
        let nodes = [BTreeMap::new(), BTreeMap::from([("rack".to_owned(), "a".to_owned())])];
        let selected =
            |selector: Option<&NodeSelector>| nodes.each_ref().map(|labels| selects_node(selector, labels));
        let read = |value| serde_json::from_value::<NodeSelector>(value);
        assert_eq!(selected(None), [true, true]);
        let rack = read(json!({"matchLabels": {"rack": "a"}})).expect("a selector");
        assert_eq!(selected(Some(&rack)), [false, true]);
        for empty in [json!({}), json!({"matchLabels": {}, "matchExpressions": []})] {
            let empty = read(empty).expect("a selector");
            assert_eq!(selected(Some(&empty)), [false, false]);
            assert_eq!(empty.problems().iter().map(Invalid::to_string).collect::<Vec<_>>(), [EVERY_NODE]);
        }
        for map in [json!({"rack": "a"}), json!({"rack": "a", "matchLabels": {"rack": "a"}})] {
            let error = read(map).expect_err("a label beside the fields").to_string();
            assert!(
                error.starts_with("unknown field `rack`, expected `matchLabels` or `matchExpressions`"),
                "{error}"
            );
        }
    }
}
