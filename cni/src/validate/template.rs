//! Placeholders of a template, as the checks see them.

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

/// Replaces a text with placeholders by its possible values; `known` returns those of each placeholder.
pub(super) fn open(
    text: String,
    at: &str,
    known: &dyn Fn(&str) -> Result<PlaceholderValue, UnknownPlaceholder>,
    report: &mut Report,
) -> Node {
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
        let found = known(name).unwrap_or_else(|UnknownPlaceholder { problem, advice }| {
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
