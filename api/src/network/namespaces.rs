//! `spec.namespaces` of a ClaimNetwork: whose claims may use it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Invalid;
use crate::labels::{LabelSelector, requires_something};

/// The namespaces whose claims may use a ClaimNetwork. By default, those of every namespace may.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct Namespaces {
    /// `All`: every namespace. `Selector`: those with the labels of `selector`.
    pub from: NamespacesFrom,
    /// Labels that a namespace must have. Set it if `from` is `Selector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Where the claims of a ClaimNetwork come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum NamespacesFrom {
    #[default]
    All,
    Selector,
}

fn rules() -> Value {
    json!([{
        "rule": "(self.from == 'Selector') == has(self.selector)",
        "message": "set selector if from is Selector, and leave it out otherwise",
    }, {
        "rule": format!("!has(self.selector) || {}", requires_something("self.selector")),
        "message": EVERY_NAMESPACE,
        "fieldPath": ".selector",
    }])
}

const EVERY_NAMESPACE: &str = "has neither matchLabels nor matchExpressions: write labels as matchLabels, such as \
                               matchLabels: {team: a}, or from: All";

impl Namespaces {
    /// Returns the namespaces with these labels.
    pub const fn with(selector: LabelSelector) -> Self {
        Self { from: NamespacesFrom::Selector, selector: Some(selector) }
    }

    /// Whether every namespace is one of them, whatever its labels are.
    pub fn is_all(&self) -> bool {
        self.from == NamespacesFrom::All
    }

    /// Whether a namespace with these labels is one of them. A selector that is missing or empty selects
    /// none: it is what is left of one whose fields are misspelt.
    pub fn include(&self, labels: &BTreeMap<String, String>) -> bool {
        let chosen = self.selector.as_ref().filter(|selector| !selector.is_empty());
        self.is_all() || chosen.is_some_and(|selector| selector.selects(labels))
    }

    /// Returns every problem; paths are relative to the object.
    pub(super) fn problems(&self) -> Vec<Invalid> {
        match (&self.selector, self.from) {
            (None, NamespacesFrom::All) => Vec::new(),
            (Some(_), NamespacesFrom::All) => {
                vec![Invalid::new("selector", "has no effect with from: All: write from: Selector")]
            }
            (None, NamespacesFrom::Selector) => {
                vec![Invalid::new("selector", "is missing: write the labels of the namespaces, or from: All")]
            }
            (Some(selector), NamespacesFrom::Selector) => {
                let every = selector.is_empty().then(|| Invalid::new("", EVERY_NAMESPACE));
                let problems = every.into_iter().chain(selector.problems());
                problems.map(|problem| problem.within("selector")).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_that_is_missing_or_empty_includes_no_namespace() {
        let namespaces = |value: Value| -> Namespaces { serde_json::from_value(value).expect("namespaces") };
        let of_team = || [("team".to_owned(), "a".to_owned())].into();
        for (value, included, fields) in [
            (json!({}), true, &[][..]),
            (json!({"from": "All"}), true, &[]),
            (json!({"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}), true, &[]),
            (json!({"from": "Selector", "selector": {"matchLabels": {"team": "b"}}}), false, &[]),
            (json!({"from": "Selector", "selector": {}}), false, &["selector"]),
            (json!({"from": "Selector"}), false, &["selector"]),
            (json!({"selector": {"matchLabels": {"team": "b"}}}), true, &["selector"]),
        ] {
            let namespaces = namespaces(value);
            assert_eq!(namespaces.include(&of_team()), included, "{namespaces:?}");
            let problems = namespaces.problems();
            let found: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(found, fields, "{namespaces:?}");
        }
    }
}
