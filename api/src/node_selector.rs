//! `spec.nodeSelector` of Networks and UplinkPolicies.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Invalid;
use crate::labels::LabelSelector;

/// Selects nodes by their labels: a [`LabelSelector`] that is not empty. An empty one, or one with unknown fields, selects no
/// node.
///
/// Early builds had a map of labels here. A key that is no field is kept: without it, such a map would select every node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeSelector {
    /// The selector.
    #[serde(flatten)]
    pub selector: LabelSelector,
    /// What stands beside its fields, which is a problem.
    #[serde(flatten)]
    other: Map<String, Value>,
}

impl JsonSchema for NodeSelector {
    fn schema_name() -> Cow<'static, str> {
        "NodeSelector".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = LabelSelector::json_schema(generator);
        schema.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
        schema.insert("x-kubernetes-validations".to_owned(), admission_rules());
        schema
    }
}

impl<'de> Deserialize<'de> for NodeSelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = NodeSelector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("struct NodeSelector")
            }

            // Not derived with `flatten`, which would lose the paths of errors.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NodeSelector, A::Error> {
                let mut read = NodeSelector::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "matchLabels" => read.selector.match_labels = map.next_value()?,
                        "matchExpressions" => read.selector.match_expressions = map.next_value()?,
                        _ => {
                            read.other.insert(key, map.next_value()?);
                        }
                    }
                }
                Ok(read)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

impl NodeSelector {
    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.other.is_empty() && !self.is_empty() && self.selector.selects(labels)
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns a selector of at least the nodes that were meant. A label in the place of a field is required, and other unknown
    /// fields are left out.
    pub(crate) fn meant(mut self) -> Self {
        let label = |(key, value): (String, Value)| Some((key, value.as_str()?.to_owned()));
        self.selector.match_labels.extend(std::mem::take(&mut self.other).into_iter().filter_map(label));
        self
    }

    /// Returns every problem of the selector; paths are relative to it.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let problem = |(key, value): (&String, &Value)| {
            let problem = match value.as_str() {
                Some(value) => format!("is a label: write it as matchLabels: {{{key:?}: {value:?}}}"),
                None => format!("unknown field `{key}`, expected `matchLabels` or `matchExpressions`"),
            };
            Invalid::new(key.as_str(), problem)
        };
        let every_node = self.is_empty().then(|| Invalid::new("", EVERY_NODE));
        self.other.iter().map(problem).chain(every_node).chain(self.selector.problems()).collect()
    }
}

const EVERY_NODE: &str = "has neither matchLabels nor matchExpressions: write labels as matchLabels, such as matchLabels: \
                          {rack: a}, or leave nodeSelector out for every node";

/// Rules by which the API server refuses a [`NodeSelector`]. They do not see fields that the schema lacks, so a map of labels is
/// an empty selector for them. One that is stored is let through: the controller could not write a status that names it.
fn admission_rules() -> Value {
    let selects = |of: &str| {
        ["matchLabels", "matchExpressions"]
            .map(|field| format!("has({of}.{field}) && size({of}.{field}) > 0"))
            .join(" || ")
    };
    let (now, before) = (selects("self"), selects("oldSelf.value()"));
    json!([{
        "rule": format!("{now} || oldSelf.hasValue() && !({before})"),
        "optionalOldSelf": true,
        "message": EVERY_NODE,
    }])
}

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

    fn node_selector(value: Value) -> NodeSelector {
        serde_json::from_value(value).expect("a selector of nodes")
    }

    #[test]
    fn a_map_of_labels_selects_no_node_and_says_how_to_write_it() {
        let nodes = [BTreeMap::new(), BTreeMap::from([("rack".to_owned(), "a".to_owned())])];
        let selected =
            |selector: Option<&NodeSelector>| nodes.each_ref().map(|labels| selects_node(selector, labels));
        assert_eq!(selected(None), [true, true]);
        assert_eq!(selected(Some(&node_selector(json!({"matchLabels": {"rack": "a"}})))), [false, true]);
        for map in [
            json!({"rack": "a"}),
            json!({"rack": "a", "matchLabels": {"rack": "a"}}),
            json!({"matchFields": [], "matchLabels": {"rack": "a"}}),
        ] {
            let read = node_selector(map.clone());
            assert_eq!(selected(Some(&read)), [false, false], "{map}");
            assert_eq!(serde_json::to_value(&read).expect("JSON"), map, "nothing is lost");
        }
        let problems =
            |value| node_selector(value).problems().iter().map(Invalid::to_string).collect::<Vec<_>>();
        assert_eq!(
            problems(json!({"example.org/on": "yes"})),
            ["example.org/on: is a label: write it as matchLabels: {\"example.org/on\": \"yes\"}"]
        );
        assert_eq!(
            problems(json!({"matchLabel": {"rack": "a"}})),
            ["matchLabel: unknown field `matchLabel`, expected `matchLabels` or `matchExpressions`"]
        );
        for empty in [json!({}), json!({"matchLabels": {}, "matchExpressions": []})] {
            assert_eq!(selected(Some(&node_selector(empty.clone()))), [false, false]);
            assert_eq!(problems(empty), [EVERY_NODE]);
        }
    }

    #[test]
    fn what_was_meant_by_a_map_of_labels_is_at_least_its_labels() {
        let meant = |value| serde_json::to_value(node_selector(value).meant()).expect("JSON");
        assert_eq!(meant(json!({"rack": "a"})), json!({"matchLabels": {"rack": "a"}}));
        assert_eq!(
            meant(json!({"rack": "a", "matchFields": [], "matchLabels": {"zone": "b"}})),
            json!({"matchLabels": {"rack": "a", "zone": "b"}})
        );
    }
}
