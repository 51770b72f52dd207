//! The one error of validation: which field, what is wrong, what to do.

use std::fmt;

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
    /// An error for `field`.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    /// The same error seen from the object that contains the field.
    #[must_use]
    pub fn within(self, parent: &str) -> Self {
        let field = match self.field.chars().next() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_field_is_named_by_its_whole_path() {
        let error = Invalid::new("[1].type", "is empty").within("plugins").within("spec.cni");
        assert_eq!(error.to_string(), "spec.cni.plugins[1].type: is empty");
    }
}
