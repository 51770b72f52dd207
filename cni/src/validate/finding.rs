//! Findings, and the report that collects them.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// A problem of a network configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// JSON pointer (RFC 6901) of the faulty value, or of the object that lacks something. It always leads to
    /// a value of the document; the empty pointer is the whole document.
    pub pointer: String,
    /// The fault.
    pub problem: String,
    /// The way to correct it.
    pub advice: String,
    /// Whether the configuration works nevertheless.
    pub severity: Severity,
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It works, perhaps not as intended; or it depends on the node, the kernel or the attachment.
    Warning,
    /// The runtime or a plugin refuses it on every node.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointer, problem, advice, severity } = self;
        write!(f, "{severity} at `{}`: {problem}; {advice}", if pointer.is_empty() { "/" } else { pointer })
    }
}

/// The most findings of a severity that a report keeps: people do not correct more at once, and the
/// author of a configuration chooses how many there are.
pub const MAX_FINDINGS: usize = 64;

/// Collects findings, each once, up to [`MAX_FINDINGS`] of each severity.
#[derive(Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    /// The same, to report each once.
    reported: BTreeSet<Finding>,
    /// Pointers to values that the plugin may never read.
    pub(super) unread: Vec<String>,
    /// Whether the first plugin gets the result of another list.
    pub(super) has_prev: bool,
}

impl Report {
    pub(super) fn error(&mut self, at: &str, problem: impl Into<String>, advice: impl Into<String>) {
        self.push(Severity::Error, at, problem.into(), advice.into());
    }

    pub(super) fn warning(&mut self, at: &str, problem: impl Into<String>, advice: impl Into<String>) {
        self.push(Severity::Warning, at, problem.into(), advice.into());
    }

    /// Reports a value that the plugin refuses if it reads it at all.
    pub(super) fn value_error(&mut self, at: &str, problem: impl Into<String>, advice: impl Into<String>) {
        let below = |unread: &String| {
            at.strip_prefix(unread.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let severity = if self.unread.iter().any(below) { Severity::Warning } else { Severity::Error };
        self.push(severity, at, problem.into(), advice.into());
    }

    pub(super) fn push(&mut self, severity: Severity, at: &str, problem: String, advice: String) {
        if self.is_full(severity) {
            return;
        }
        let finding = Finding { pointer: at.to_owned(), problem, advice, severity };
        if self.reported.insert(finding.clone()) {
            self.findings.push(finding);
        }
    }
    /// Returns whether no more findings of the severity are kept. The severities are counted apart, so that
    /// warnings hide no error.
    pub(super) fn is_full(&self, severity: Severity) -> bool {
        self.findings.iter().filter(|finding| finding.severity == severity).count() >= MAX_FINDINGS
    }
}
