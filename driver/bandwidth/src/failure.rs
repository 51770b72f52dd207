//! What goes wrong, and how the runtime is told (CNI specification, section "Error").

use std::error::Error as _;
use std::io;

use serde_json::{Value, json};

use crate::VERSIONS;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The runtime's version and ours have nothing in common, or the operation is younger than the version.
    #[error("{0}")]
    Version(String),
    /// A key that nobody reads.
    #[error("unknown key {key:?} in the configuration: remove it; rates and bursts are {}", crate::limits::KEYS.join(", "))]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// An environment variable of the protocol.
    #[error("{name}: {problem}")]
    Environment {
        /// Its name.
        name: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Standard input.
    #[error("the configuration cannot be read from standard input")]
    Stdin(#[source] io::Error),
    /// Standard input is no JSON object.
    #[error("the configuration is no JSON object")]
    Decode(#[source] serde_json::Error),
    /// A value of the configuration.
    #[error("{field}: {problem}")]
    Config {
        /// The key.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The container's namespace.
    #[error("cannot enter the network namespace at {path}")]
    Namespace {
        /// Its path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel.
    #[error("{interface}: cannot {action}{}", needs(.module))]
    Kernel {
        /// The container's interface.
        interface: String,
        /// What was to be done.
        action: &'static str,
        /// What of the kernel it takes.
        module: Option<&'static str>,
        /// The kernel's error.
        source: io::Error,
    },
    /// CHECK found something else than ADD has made.
    #[error(
        "{interface}: {direction} is not limited as it was: {found}; somebody in the container's network namespace has changed it"
    )]
    Differs {
        /// The container's interface.
        interface: String,
        /// `ingress` or `egress`.
        direction: &'static str,
        /// What is there, and what should be.
        found: String,
    },
}

fn needs(module: &Option<&'static str>) -> String {
    module.map_or_else(String::new, |module| format!(" (the kernel needs {module})"))
}

impl Failure {
    pub(crate) fn environment(name: &'static str, problem: String) -> Self {
        Self::Environment { name, problem }
    }

    pub(crate) fn config(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { field: field.into(), problem: problem.into() }
    }

    pub(crate) fn unspoken(version: &str) -> Self {
        Self::Version(format!("CNI {version} is not spoken here: use one of {}", VERSIONS.join(", ")))
    }

    /// The error's number: those up to 99 are the specification's.
    fn code(&self) -> u32 {
        match self {
            Self::Version(_) => 1,
            Self::UnknownKey { .. } => 2,
            Self::Environment { .. } => 4,
            Self::Stdin(_) | Self::Namespace { .. } => 5,
            Self::Decode(_) => 6,
            Self::Config { .. } => 7,
            Self::Kernel { .. } => 100,
            Self::Differs { .. } => 101,
        }
    }

    /// The error as the runtime reads it.
    pub(crate) fn to_json(&self, version: &str) -> Value {
        let mut error = json!({"cniVersion": version, "code": self.code(), "msg": self.to_string()});
        if let Some(source) = self.source() {
            error["details"] = json!(source.to_string());
        }
        error
    }
}
