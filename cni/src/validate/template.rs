//! Placeholders of a template, as the checks see them.

use std::collections::BTreeMap;

use super::finding::Report;
use super::node::{Node, Open};
use crate::placeholder::{self, Part, PlaceholderValue};

/// A placeholder that gets no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPlaceholder {
    /// The fault.
    pub problem: String,
    /// The way to correct it.
    pub advice: String,
}

/// The possible values of placeholders, found once for each name: a list of values may be long.
pub(super) struct KnownValues<'a> {
    find: &'a dyn Fn(&str) -> Result<PlaceholderValue, UnknownPlaceholder>,
    found: BTreeMap<String, Result<PlaceholderValue, UnknownPlaceholder>>,
}

impl<'a> KnownValues<'a> {
    pub(super) fn new(find: &'a dyn Fn(&str) -> Result<PlaceholderValue, UnknownPlaceholder>) -> Self {
        Self { find, found: BTreeMap::new() }
    }

    fn get(&mut self, name: &str) -> Result<PlaceholderValue, UnknownPlaceholder> {
        if let Some(found) = self.found.get(name) {
            return found.clone();
        }
        let found = (self.find)(name);
        self.found.insert(name.to_owned(), found.clone());
        found
    }
}

/// Replaces a text with placeholders by its possible values; `known` has those of each placeholder.
pub(super) fn open(text: String, at: &str, known: &mut KnownValues<'_>, report: &mut Report) -> Node {
    let parts = match placeholder::parse(&text) {
        Ok(parts) => parts,
        Err(problem) => {
            report.error(at, problem.to_string(), "close the brace");
            return Node::Open(Open { text, value: PlaceholderValue::Any });
        }
    };
    let alone = parts.len() == 1;
    let mut value = None;
    for part in &parts {
        let Part::Placeholder(name) = part else { continue };
        let found = known.get(name).unwrap_or_else(|UnknownPlaceholder { problem, advice }| {
            report.error(at, problem, advice);
            PlaceholderValue::Any
        });
        if !alone && matches!(found, PlaceholderValue::List(_)) {
            let problem = format!("${{{name}}} is a list and cannot stand inside a text");
            report.error(at, problem, "write nothing else into the string");
        }
        value = Some(if alone { found } else { PlaceholderValue::Text });
    }
    match value {
        Some(value) => Node::Open(Open { text, value }),
        None => Node::Text(
            parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) | Part::Placeholder(text) => *text,
                })
                .collect(),
        ),
    }
}
