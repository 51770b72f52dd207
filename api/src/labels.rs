//! Labels and label selectors.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_kubernetes::labels::{has_all, is_label_key, is_label_value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Invalid, NetworkName};

/// Prefix of the labels of Nodes that say which ClaimNetworks of scope `Cluster` they serve. The rest of the
/// key is the ClaimNetwork's name.
pub const NETWORK_LABELS: &str = "network.netclaim.dev/";
/// The value of these labels.
pub const SERVED: &str = "up";

/// Returns the key of the label that a Node has while pods there can be attached to this ClaimNetwork of
/// scope `Cluster`.
pub fn network_label(network: &NetworkName) -> String {
    format!("{NETWORK_LABELS}{network}")
}

/// Selects objects by their labels, as `metav1.LabelSelector`. An empty selector selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
// As metav1.LabelSelector: two who apply parts of one selector would select what neither of them means.
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LabelSelector {
    /// Labels that an object must have, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that an object must meet, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
}

/// A requirement that the labels of an object must meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// How the label is compared with the values. An object without the label meets `NotIn`.
    pub operator: LabelOperator,
    /// The values of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The relation of a label to values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "Kubernetes' own words")]
pub enum LabelOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl LabelRequirement {
    /// Returns the requirement that labels meet if they do not meet this one.
    fn opposite(self) -> Self {
        let operator = match self.operator {
            LabelOperator::In => LabelOperator::NotIn,
            LabelOperator::NotIn => LabelOperator::In,
            LabelOperator::Exists => LabelOperator::DoesNotExist,
            LabelOperator::DoesNotExist => LabelOperator::Exists,
        };
        Self { operator, ..self }
    }
}

/// Returns in CEL whether the selector at a path, such as `self.selector`, requires anything.
pub(crate) fn requires_something(path: &str) -> String {
    let fields = ["matchLabels", "matchExpressions"];
    fields.map(|field| format!("has({path}.{field}) && size({path}.{field}) > 0")).join(" || ")
}

impl LabelSelector {
    /// Whether it requires nothing, so that it selects everything: it is also what is left of a selector
    /// whose fields are misspelt.
    pub(crate) fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether an object with these labels is selected.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let holds = |requirement: &LabelRequirement| {
            let value = labels.get(&requirement.key);
            let listed = value.is_some_and(|value| requirement.values.contains(value));
            match requirement.operator {
                LabelOperator::In => listed,
                LabelOperator::NotIn => !listed,
                LabelOperator::Exists => value.is_some(),
                LabelOperator::DoesNotExist => value.is_none(),
            }
        };
        has_all(&self.match_labels, labels) && self.match_expressions.iter().all(holds)
    }

    /// Whether every object that is selected has the same value of this label.
    pub fn fixes(&self, label: &str) -> bool {
        let is_one = |requirement: &LabelRequirement| {
            requirement.key == label
                && requirement.operator == LabelOperator::In
                && requirement.values.len() == 1
        };
        self.match_labels.contains_key(label) || self.match_expressions.iter().any(is_one)
    }

    /// Whether no labels can satisfy both selectors.
    pub fn contradicts(&self, other: &Self) -> bool {
        let keys = [self, other].into_iter().flat_map(|selector| {
            let of_expressions = selector.match_expressions.iter().map(|requirement| &requirement.key);
            selector.match_labels.keys().chain(of_expressions)
        });
        // A requirement is about one key, so each key is judged by itself.
        keys.collect::<BTreeSet<_>>().into_iter().any(|key| {
            let mut value = OneLabel::default();
            value.require(self, key);
            value.require(other, key);
            value.is_impossible()
        })
    }

    /// Whether all labels that satisfy this selector satisfy the other one, too.
    pub fn implies(&self, other: &Self) -> bool {
        let of_labels = other.match_labels.iter().map(|(key, value)| LabelRequirement {
            key: key.clone(),
            operator: LabelOperator::In,
            values: vec![value.clone()],
        });
        let mut required = of_labels.chain(other.match_expressions.iter().cloned());
        required.all(|requirement| {
            let opposite = Self { match_expressions: vec![requirement.opposite()], ..Self::default() };
            self.contradicts(&opposite)
        })
    }

    /// Returns every problem of the selector; paths are relative to it.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let mut problems: Vec<Invalid> =
            pair_problems(&self.match_labels).map(|p| Invalid::new("matchLabels", p)).collect();
        for (i, LabelRequirement { key, operator, values }) in self.match_expressions.iter().enumerate() {
            let mut wrong = |field: &str, problem: String| {
                problems.push(Invalid::new(format!("matchExpressions[{i}].{field}"), problem));
            };
            if !is_label_key(key) {
                wrong("key", format!("{key:?} cannot be the key of a label"));
            }
            let takes_values = matches!(operator, LabelOperator::In | LabelOperator::NotIn);
            if takes_values == values.is_empty() {
                let problem =
                    if takes_values { "is empty: In and NotIn need values" } else { "must be left out here" };
                wrong("values", problem.to_owned());
            }
            for (j, value) in values.iter().enumerate() {
                if !is_label_value(value) {
                    wrong(&format!("values[{j}]"), format!("{value:?} cannot be the value of a label"));
                }
            }
        }
        problems
    }
}

/// What selectors require of one label.
#[derive(Default)]
struct OneLabel<'a> {
    /// The values that it may have; `None` without a limit.
    allowed: Option<BTreeSet<&'a str>>,
    excluded: BTreeSet<&'a str>,
    must_exist: bool,
    must_be_absent: bool,
}

impl<'a> OneLabel<'a> {
    fn require(&mut self, selector: &'a LabelSelector, key: &str) {
        if let Some(value) = selector.match_labels.get(key) {
            self.allow([value.as_str()].into());
        }
        for requirement in selector.match_expressions.iter().filter(|requirement| requirement.key == key) {
            let values = requirement.values.iter().map(String::as_str);
            match requirement.operator {
                LabelOperator::In => self.allow(values.collect()),
                LabelOperator::NotIn => self.excluded.extend(values),
                LabelOperator::Exists => self.must_exist = true,
                LabelOperator::DoesNotExist => self.must_be_absent = true,
            }
        }
    }

    fn allow(&mut self, values: BTreeSet<&'a str>) {
        match &mut self.allowed {
            Some(allowed) => allowed.retain(|value| values.contains(value)),
            None => self.allowed = Some(values),
        }
    }

    fn is_impossible(&self) -> bool {
        let has_a_value = self.must_exist || self.allowed.is_some();
        let is_empty = self.allowed.as_ref().is_some_and(|allowed| allowed.is_subset(&self.excluded));
        is_empty || (has_a_value && self.must_be_absent)
    }
}

fn pair_problems(labels: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    let wrong = labels.iter().filter(|(key, value)| !is_label_key(key) || !is_label_value(value));
    wrong.map(|(key, value)| format!("{key}={value} cannot be a label"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selector(value: Value) -> LabelSelector {
        serde_json::from_value(value).expect("a selector")
    }

    #[test]
    fn every_label_and_requirement_must_hold() {
        let labels = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let prod = labels(&[("env", "prod"), ("team", "a")]);
        let selects = |value| selector(value).selects(&prod);
        assert!(selects(json!({})));
        assert!(selects(json!({"matchLabels": {"env": "prod"}})));
        assert!(selects(json!({"matchExpressions": [
            {"key": "team", "operator": "In", "values": ["a", "b"]},
            {"key": "team", "operator": "NotIn", "values": ["c"]},
            {"key": "env", "operator": "Exists"},
            {"key": "gone", "operator": "DoesNotExist"}]})));
        assert!(!selects(json!({"matchLabels": {"env": "test"}})));
        assert!(!selects(json!({"matchExpressions": [{"key": "gone", "operator": "In", "values": [""]}]})));
        assert!(selects(
            json!({"matchExpressions": [{"key": "gone", "operator": "NotIn", "values": ["x"]}]})
        ));
    }

    #[test]
    fn selectors_contradict_each_other_only_if_no_labels_satisfy_both() {
        let one = |key: &str, operator: &str, values: &[&str]| {
            selector(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        let rack = |value: &str| selector(json!({"matchLabels": {"rack": value}}));
        let contradict = |a: &LabelSelector, b: &LabelSelector| {
            assert_eq!(a.contradicts(b), b.contradicts(a), "{a:?} {b:?}");
            a.contradicts(b)
        };
        assert!(contradict(&rack("a"), &rack("b")));
        assert!(contradict(&rack("a"), &one("rack", "In", &["b", "c"])));
        assert!(contradict(&rack("a"), &one("rack", "NotIn", &["a", "b"])));
        assert!(contradict(&rack("a"), &one("rack", "DoesNotExist", &[])));
        assert!(contradict(&one("rack", "Exists", &[]), &one("rack", "DoesNotExist", &[])));
        assert!(contradict(&one("rack", "In", &["a", "b"]), &one("rack", "NotIn", &["a", "b"])));
        assert!(contradict(&one("rack", "In", &["a", "b"]), &one("rack", "In", &["c"])));
        for (a, b) in [
            (rack("a"), rack("a")),
            (rack("a"), LabelSelector::default()),
            (rack("a"), one("zone", "In", &["b"])),
            (rack("a"), one("rack", "In", &["a", "b"])),
            (rack("a"), one("rack", "NotIn", &["b"])),
            (rack("a"), one("rack", "Exists", &[])),
            (one("rack", "In", &["a", "b"]), one("rack", "NotIn", &["a"])),
            (one("rack", "NotIn", &["a"]), one("rack", "DoesNotExist", &[])),
            (one("rack", "NotIn", &["a"]), one("rack", "Exists", &[])),
        ] {
            assert!(!contradict(&a, &b), "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_selector_implies_another_if_its_labels_satisfy_that_one_too() {
        let one = |key: &str, operator: &str, values: &[&str]| {
            selector(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        let rack = |value: &str| selector(json!({"matchLabels": {"rack": value}}));
        let both = selector(json!({"matchLabels": {"rack": "a", "team": "net"}}));
        for (narrow, wide, implies) in [
            (rack("a"), rack("a"), true),
            (both.clone(), rack("a"), true),
            (rack("a"), both, false),
            (rack("a"), rack("b"), false),
            (rack("a"), LabelSelector::default(), true),
            (LabelSelector::default(), rack("a"), false),
            (rack("a"), one("rack", "In", &["a", "b"]), true),
            (one("rack", "In", &["a", "b"]), rack("a"), false),
            (rack("a"), one("rack", "NotIn", &["b"]), true),
            (rack("a"), one("rack", "Exists", &[]), true),
            (one("rack", "Exists", &[]), one("rack", "NotIn", &["b"]), false),
            (one("rack", "DoesNotExist", &[]), one("rack", "NotIn", &["b"]), true),
            (rack("a"), one("zone", "DoesNotExist", &[]), false),
        ] {
            assert_eq!(narrow.implies(&wide), implies, "{narrow:?} {wide:?}");
        }
    }

    #[test]
    fn a_selector_fixes_a_label_that_has_one_value() {
        let fixes = |value| selector(value).fixes("rack");
        let one = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "rack", "operator": operator, "values": values}]});
        assert!(fixes(json!({"matchLabels": {"rack": "a"}})) && fixes(one("In", &["a"])));
        assert!(!fixes(one("In", &["a", "b"])) && !fixes(one("NotIn", &["a"])) && !fixes(one("Exists", &[])));
        assert!(!fixes(json!({"matchLabels": {"zone": "a"}})));
    }

    #[test]
    fn a_selector_that_selects_nothing_is_refused() {
        let fields = |value| selector(value).problems().into_iter().map(|p| p.field).collect::<Vec<_>>();
        assert_eq!(fields(json!({"matchLabels": {"a b": "c"}})), ["matchLabels"]);
        assert_eq!(
            fields(
                json!({"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "b", "operator": "Exists", "values": ["x"]}]})
            ),
            ["matchExpressions[0].values", "matchExpressions[1].values"]
        );
    }
}
