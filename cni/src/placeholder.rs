//! Placeholders (`${NAME}`) in a configuration that is completed later.
//!
//! `$${` stands for a literal `${`. Keys have no placeholders.

use serde_json::Value;

/// The values that a placeholder may get.
#[derive(Debug, Clone, PartialEq)]
pub enum PlaceholderValue {
    /// Nothing.
    Any,
    /// It is a text.
    Text,
    /// It is a whole number from one to the other, both included.
    Between(i64, i64),
    /// It is one of these.
    OneOf(Vec<Value>),
    /// It is a text of the form of this example.
    Like {
        /// A text that it may be.
        example: &'static str,
        /// Whether a plugin that refuses the example refuses every other.
        stands_for_all: bool,
    },
    /// It is a list of these.
    List(Box<PlaceholderValue>),
}

/// A piece of a text.
pub enum Part<'a> {
    /// Stands for itself.
    Text(&'a str),
    /// The name in a `${…}`.
    Placeholder(&'a str),
}

/// A text with a placeholder that has no closing brace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} has a placeholder without an end: write ${{NAME}}, or $${{ for the text")]
pub struct UnclosedPlaceholder(pub String);

/// Splits a text into its pieces; none of them is the empty text.
///
/// # Errors
/// A placeholder has no end.
pub fn parse(text: &str) -> Result<Vec<Part<'_>>, UnclosedPlaceholder> {
    let mut parts = pieces(text)?;
    parts.retain(|part| !matches!(part, Part::Text("")));
    Ok(parts)
}

fn pieces(text: &str) -> Result<Vec<Part<'_>>, UnclosedPlaceholder> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let before = rest.get(..start).unwrap_or_default();
        let after = rest.get(start + 2..).unwrap_or_default();
        if let Some(escaped) = before.strip_suffix('$') {
            parts.extend([Part::Text(escaped), Part::Text("${")]);
            rest = after;
            continue;
        }
        let end = after.find('}').ok_or_else(|| UnclosedPlaceholder(text.to_owned()))?;
        parts.extend([Part::Text(before), Part::Placeholder(after.get(..end).unwrap_or_default())]);
        rest = after.get(end + 1..).unwrap_or_default();
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}
