//! The error of all validation: which field, what is wrong, what to do.

use std::fmt;

use netclaim_cni::validate::Finding;

/// A value that was decoded but cannot be accepted.
///
/// Displayed as `FIELD: PROBLEM`, for example
/// `spec.allow.parameters.vlan.minimum: is above maximum (4096 > 4094)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// Path of the field in the object, in `a.b[0].c` form.
    pub field: String,
    /// What is wrong with it and, where it is not obvious, what to write instead.
    pub problem: String,
}

impl Invalid {
    /// Returns an error for `field`.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    /// Joins many errors into one text, and shows only the first ones.
    pub fn list(problems: &[Self]) -> String {
        /// People do not correct more at once.
        const SHOWN: usize = 8;
        /// The longest error, in bytes.
        const MAX: usize = 1024;
        first_of(problems.iter().map(|problem| shorten(problem.to_string(), MAX)), SHOWN, "; ")
    }

    /// Returns the error if there are more than `max` of what `field` lists.
    pub(crate) fn too_many(field: impl Into<String>, count: usize, max: usize) -> Option<Self> {
        (count > max).then(|| Self::new(field, format!("has {count} items: write at most {max}")))
    }

    /// Returns the error with the path of the field from the object that contains it.
    #[must_use]
    pub fn within(self, parent: &str) -> Self {
        let field = match self.field.chars().next() {
            _ if parent.is_empty() => self.field,
            None => parent.to_owned(),
            Some('[') => format!("{parent}{}", self.field),
            Some(_) => format!("{parent}.{}", self.field),
        };
        Self { field, ..self }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.problem)
        } else {
            write!(f, "{}: {}", self.field, self.problem)
        }
    }
}

impl std::error::Error for Invalid {}

impl From<Finding> for Invalid {
    /// Writes the pointer as Kubernetes writes paths, and drops the severity.
    fn from(finding: Finding) -> Self {
        let mut field = String::new();
        for key in finding.pointer.split('/').skip(1) {
            let key = key.replace("~1", "/").replace("~0", "~");
            let plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            if key.bytes().all(|b| b.is_ascii_digit()) || !plain {
                field.push_str(&format!("[{key}]"));
            } else {
                field.push_str(if field.is_empty() { "" } else { "." });
                field.push_str(&key);
            }
        }
        Self { field, problem: format!("{}; {}", finding.problem, finding.advice) }
    }
}

/// Joins the first `count` of the texts, and says how many more there are.
pub(crate) fn first_of(
    texts: impl ExactSizeIterator<Item = String>,
    count: usize,
    separator: &str,
) -> String {
    let more = texts.len().checked_sub(count).filter(|more| *more > 0);
    let shown = texts.take(count).chain(more.map(|more| format!("and {more} more")));
    shown.collect::<Vec<_>>().join(separator)
}

/// Puts a text on one line: what others write may have control characters.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Shortens `text` to `max` bytes, with `…` at its end.
pub fn shorten(mut text: String, max: usize) -> String {
    const MARK: &str = "…";
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max.saturating_sub(MARK.len())));
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_spaces() {
        assert_eq!(one_line("not yet:\n\tÄ"), "not yet:  Ä");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shorten("äöü".into(), 6), "äöü");
        assert_eq!(shorten("äöüß".into(), 6), "ä…");
    }

    #[test]
    fn a_long_list_of_problems_names_the_first_and_counts_the_others() {
        let problems = |n| (0..n).map(|i| Invalid::new(format!("f{i}"), "is bad")).collect::<Vec<_>>();
        assert_eq!(Invalid::list(&problems(2)), "f0: is bad; f1: is bad");
        assert!(Invalid::list(&problems(8)).ends_with("f7: is bad"));
        assert!(Invalid::list(&problems(11)).ends_with("f7: is bad; and 3 more"));
        let long = [Invalid::new("a", "x".repeat(1_000_000)), Invalid::new("b", "is bad")];
        let list = Invalid::list(&long);
        assert!(list.len() < 2000 && list.ends_with("b: is bad"), "{}", list.len());
    }

    #[test]
    fn a_nested_field_is_named_by_its_whole_path() {
        let error = Invalid::new("[1].type", "is empty").within("plugins").within("spec.cni");
        assert_eq!(error.to_string(), "spec.cni.plugins[1].type: is empty");
    }
}
