//! Errors, and how the plugin reports them to the runtime (CNI specification, section "Error").

use std::error::Error;
use std::io;

use nix::errno::Errno;
use serde_json::{Value, json};

use crate::rtnl::errno;
use crate::version;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration's version is not supported, or has no such operation.
    #[error("{0}")]
    Version(String),
    /// The configuration has an unknown key.
    #[error("unknown key {key:?} in the configuration: remove it; the plugin's own are {}", known.join(", "))]
    UnknownKey {
        /// The key.
        key: String,
        /// The plugin's own keys.
        known: &'static [&'static str],
    },
    /// An environment variable of the protocol is missing or wrong.
    #[error("{name}: {problem}")]
    Environment {
        /// The variable.
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
        /// The key.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The container's network namespace cannot be entered.
    #[error("cannot enter the network namespace at {path}")]
    Namespace {
        /// The path that the runtime passed.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused a request.
    #[error("{interface}: cannot {action}{}", needs(.module))]
    Kernel {
        /// The interface that the request was about.
        interface: String,
        /// What the request was to do.
        action: &'static str,
        /// The kernel module that it needs.
        module: Option<&'static str>,
        /// The kernel's error.
        source: io::Error,
    },
    /// The host or the container is not as the operation needs it.
    #[error("{problem}")]
    State {
        /// The plugin's own code, from 100 on, or [`Failure::TRY_AGAIN`].
        code: u32,
        /// What is there, and what to do.
        problem: String,
    },
}

fn needs(module: &Option<&'static str>) -> String {
    module.map_or_else(String::new, |module| format!(" (the kernel needs {module})"))
}

impl Failure {
    /// The code of what may pass by itself.
    pub const TRY_AGAIN: u32 = 11;

    /// A request that the kernel refused. `module` is named where the error says that the kernel lacks it.
    pub fn kernel(
        interface: &str,
        action: &'static str,
        module: Option<&'static str>,
        source: io::Error,
    ) -> Self {
        // Both mean that a kind is unknown: of a qdisc, filter or action, and of a link.
        let unknown = matches!(errno(&source), Some(Errno::ENOENT | Errno::EOPNOTSUPP));
        Self::Kernel { interface: interface.to_owned(), action, module: module.filter(|_| unknown), source }
    }

    /// A wrong variable of the environment.
    pub fn environment(name: &'static str, problem: impl Into<String>) -> Self {
        Self::Environment { name, problem: problem.into() }
    }

    /// The container lacks the interface that a chained plugin is for.
    pub fn no_interface(name: &str) -> Self {
        let problem =
            format!("the container has no interface {name}: put the plugin that makes it before this one");
        Self::environment("CNI_IFNAME", problem)
    }

    /// A wrong value of the configuration.
    pub fn config(field: impl Into<String>, problem: impl Into<String>) -> Self {
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
            Self::State { code, .. } => *code,
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
