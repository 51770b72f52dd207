//! Errors, and how the plugin reports them to the runtime (CNI specification, section "Error").

use std::error::Error as _;
use std::io;

use serde_json::{Value, json};

use crate::version;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The configuration's version is not supported, or has no such operation.
    #[error("{0}")]
    Version(String),
    /// The configuration has an unknown key.
    #[error("unknown key {key:?} in the configuration: remove it; rates and bursts are {}", known.join(", "))]
    UnknownKey {
        key: String,
        /// The plugin's own keys.
        known: &'static [&'static str],
    },
    /// An environment variable of the protocol is missing or wrong.
    #[error("{name}: {problem}")]
    Environment {
        name: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Standard input cannot be read.
    #[error("the configuration cannot be read from standard input")]
    Stdin(#[source] io::Error),
    /// Standard input is not a JSON object.
    #[error("the configuration is not a JSON object")]
    Decode(#[source] serde_json::Error),
    /// A value of the configuration is wrong.
    #[error("{field}: {problem}")]
    Config {
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The container's network namespace cannot be entered.
    #[error("cannot enter the network namespace at {path}")]
    Namespace { path: String, source: io::Error },
    /// The kernel refused a request.
    #[error("{interface}: cannot {action}{}", needs(.module))]
    Kernel {
        interface: String,
        /// What the request was to do.
        action: &'static str,
        /// The kernel module that it needs.
        module: Option<&'static str>,
        source: io::Error,
    },
    /// CHECK found something else than ADD made.
    #[error(
        "{interface}: {direction} is not limited as it was: {found}; a process in the container's network namespace has changed it"
    )]
    Differs {
        interface: String,
        /// `ingress` or `egress`.
        direction: &'static str,
        /// What is there, and what should be there.
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

    pub(crate) fn unsupported(version: &str) -> Self {
        let supported = version::SUPPORTED.join(", ");
        Self::Version(format!("CNI {version} is not supported: use one of {supported}"))
    }

    /// The error's code: the specification defines those up to 99.
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
