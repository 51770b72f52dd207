//! Which NetworkAttachmentDefinitions are translated, and whose workloads.
//!
//! Invariants:
//! * A choice takes nothing out of the input: names, and addresses of whereabouts, depend on what is not
//!   chosen, too.
//! * A workload with a network that is not chosen is not translated. One without any that is chosen is not
//!   looked at.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::labels::{LabelOperator, LabelRequirement, LabelSelector};

use super::input::Nad;
use super::nad_name::NadName;

/// The choice of a user.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    /// The namespace that is translated; all of them without one.
    pub(super) namespace: Option<String>,
    /// The namespaces whose NetworkAttachmentDefinitions may be translated; all of them if it is empty.
    pub(super) from: BTreeSet<String>,
    /// The labels of NetworkAttachmentDefinitions that may be translated.
    pub(super) selector: LabelSelector,
    /// Whether the workloads that are translated may open every ClaimNetwork.
    pub(super) widen: bool,
}

impl Choice {
    /// Whether objects of this namespace are translated.
    pub(super) fn has_namespace(&self, namespace: &str) -> bool {
        self.namespace.as_ref().is_none_or(|chosen| chosen == namespace)
    }

    /// Whether NetworkAttachmentDefinitions of this namespace may be translated.
    pub(super) fn takes_from(&self, namespace: &str) -> bool {
        self.from.is_empty() || self.from.contains(namespace)
    }

    /// Whether workloads of this namespace may open a ClaimNetwork; `exists` says whether an earlier run has
    /// made it.
    pub(super) fn may_open(&self, namespace: &str, exists: bool) -> bool {
        // Who names definitions by `--from` does not name whose workloads use them, unless by `--namespace`.
        let is_named = self.namespace.is_some() || self.takes_from(namespace);
        self.has_namespace(namespace) && (self.widen || (is_named && !exists))
    }

    /// Whether a NetworkAttachmentDefinition may be translated.
    pub(super) fn takes(&self, of: &NadName, nad: &Nad) -> bool {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let labels = nad.object.metadata.labels.as_ref().unwrap_or(&NONE);
        self.takes_from(&of.namespace) && self.selector.selects(labels)
    }

    /// Whether every NetworkAttachmentDefinition may be translated.
    pub(super) fn takes_everything(&self) -> bool {
        self.from.is_empty() && self.selector == LabelSelector::default()
    }
}

/// Reads a selector as kubectl does: `a=b`, `a==b`, `a!=b`, `a in (b, c)`, `a notin (b, c)`, `a`, `!a`, with
/// commas between.
///
/// # Errors
/// What is not a selector, and what one looks like.
pub(super) fn selector(text: &str) -> Result<LabelSelector, String> {
    let match_expressions =
        requirements(text).map(|text| requirement(text.trim())).collect::<Result<_, String>>()?;
    Ok(LabelSelector { match_expressions, ..LabelSelector::default() })
}

/// Splits a selector at the commas that are in no parentheses.
fn requirements(text: &str) -> impl Iterator<Item = &str> {
    let mut is_in_list = false;
    text.split(move |c: char| {
        is_in_list = (is_in_list || c == '(') && c != ')';
        c == ',' && !is_in_list
    })
}

fn requirement(text: &str) -> Result<LabelRequirement, String> {
    let wrong = || {
        format!(
            "{text:?} selects no labels: write KEY=VALUE, KEY!=VALUE, KEY, !KEY, or KEY in (VALUE, VALUE)"
        )
    };
    let of = |key: &str, operator: LabelOperator, values: &[&str]| {
        let is_label = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        let key = key.trim();
        let values: Vec<String> = values.iter().map(|value| value.trim().to_owned()).collect();
        if key.is_empty() || !is_label(key) || !values.iter().all(|value| is_label(value)) {
            return Err(wrong());
        }
        Ok(LabelRequirement { key: key.to_owned(), operator, values })
    };
    if let Some(list) = text.strip_suffix(')') {
        let (left, list) = list.split_once('(').ok_or_else(wrong)?;
        let (key, operator) = left.trim().rsplit_once(char::is_whitespace).ok_or_else(wrong)?;
        let operator = match operator {
            "in" => LabelOperator::In,
            "notin" => LabelOperator::NotIn,
            _ => return Err(wrong()),
        };
        return of(key, operator, &list.split(',').collect::<Vec<_>>());
    }
    if let Some((key, value)) = text.split_once("!=") {
        return of(key, LabelOperator::NotIn, &[value]);
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return of(key, LabelOperator::In, &[value]);
    }
    match text.strip_prefix('!') {
        Some(key) => of(key, LabelOperator::DoesNotExist, &[]),
        None => of(text, LabelOperator::Exists, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(text: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        selector(text).expect(text).selects(&labels)
    }

    #[test]
    fn selectors_mean_what_they_mean_to_kubectl() {
        let labels = [("team", "shop"), ("example.com/import", "yes")];
        for text in [
            "team=shop",
            "team == shop",
            "team!=bank",
            "gone!=x",
            "team",
            "!gone",
            "team in (bank, shop)",
            "team in (shop),example.com/import=yes",
            "team notin (bank,none), gone notin (x)",
        ] {
            assert!(selects(text, &labels), "{text}");
        }
        for text in ["team=bank", "team!=shop", "gone", "!team", "team notin (a,shop)", "team=shop,gone=x"] {
            assert!(!selects(text, &labels), "{text}");
        }
        assert!(selects("empty=", &[("empty", "")]), "an empty value is a value");
    }

    #[test]
    fn a_text_that_is_not_a_selector_is_refused_with_an_example() {
        for text in [
            "",
            "a,",
            "a b",
            "=b",
            "a in b",
            "a in (b",
            "a of (b)",
            "in (b)",
            "a=b=c",
            "!",
            "a>1",
            "a in (b))",
        ] {
            let error = selector(text).expect_err(text);
            assert!(error.contains("KEY=VALUE"), "{text}: {error}");
        }
    }
}
