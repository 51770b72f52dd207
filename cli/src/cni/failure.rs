//! How an operation fails: for a program the error object of the CNI specification, for a person the whole story.

use std::io;
use std::path::PathBuf;

use netclaim_driver::cni::{
    AddError, CacheError, Error, ErrorKind, NameError, Retry, SpecVersion, ValidAttachment,
};
use netclaim_driver::error_chain;
use serde_json::{Value, json};

use super::networks::LoadError;
use super::settings::SettingError;

/// Error codes of the specification (section 5, "Error").
mod code {
    pub(super) const UNKNOWN_CONTAINER: u64 = 3;
    pub(super) const ENVIRONMENT: u64 = 4;
    pub(super) const IO: u64 = 5;
    pub(super) const CONFIGURATION: u64 = 7;
    pub(super) const TRY_AGAIN: u64 = 11;
    /// What plugins written in Go use for everything.
    pub(super) const OTHER: u64 = 999;
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An option or variable.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The network's name.
    #[error("NETWORK cannot be used")]
    Name(#[source] NameError),
    /// The network's configuration.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What is remembered of attachments.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// ADD.
    #[error(transparent)]
    Add(#[from] AddError),
    /// Another operation of a plugin.
    #[error(transparent)]
    Plugin(#[from] Error),
    /// ADD of what is there.
    #[error("interface `{}` of container `{}` is attached already, or an ADD of it failed; `del` it first", .0.if_name, .0.container_id)]
    Attached(ValidAttachment),
    /// CHECK of what is not there.
    #[error("no result of an ADD is known for interface `{}` of container `{}`; `add` it first", .0.if_name, .0.container_id)]
    NotAttached(ValidAttachment),
    /// Attachments and plugins that GC could not clean up.
    #[error("{}", .0.iter().map(|failure| error_chain(failure)).collect::<Vec<_>>().join("; "))]
    Gc(Vec<Failure>),
    /// The text of `--keep`.
    #[error("{0:?} names no attachment; write it as CONTAINERID/IFNAME")]
    Keep(String),
    /// A file to validate.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Standard output.
    #[error("the result cannot be written")]
    Output(#[from] io::Error),
    /// A result that is no JSON any more.
    #[error("the result cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

impl Failure {
    /// The error object: a plugin's own where it gave one.
    pub(super) fn object(&self) -> Value {
        let version = SpecVersion::CURRENT;
        if let Some(reported) = self.plugin().and_then(Error::reported) {
            let (code, msg, details) = (reported.code, &reported.msg, &reported.details);
            return json!({"cniVersion": version, "code": code, "msg": msg, "details": details});
        }
        let details = std::error::Error::source(self).map(error_chain).unwrap_or_default();
        json!({"cniVersion": version, "code": self.code(), "msg": self.to_string(), "details": details})
    }

    fn plugin(&self) -> Option<&Error> {
        match self {
            Self::Add(failed) => Some(&failed.error),
            Self::Plugin(error) => Some(error),
            _ => None,
        }
    }

    fn code(&self) -> u64 {
        match self {
            Self::Setting(_) | Self::Name(_) | Self::Keep(_) | Self::Attached(_) => code::ENVIRONMENT,
            Self::NotAttached(_) => code::UNKNOWN_CONTAINER,
            Self::Load(LoadError::Read { .. })
            | Self::Cache(_)
            | Self::Read { .. }
            | Self::Output(_)
            | Self::Json(_) => code::IO,
            Self::Load(_) => code::CONFIGURATION,
            Self::Gc(failures) => failures.first().map_or(code::OTHER, Self::code),
            Self::Add(_) | Self::Plugin(_) => match self.plugin() {
                Some(error) if error.retry() == Retry::Later => code::TRY_AGAIN,
                Some(error) if matches!(error.kind(), ErrorKind::NoCheck(_)) => code::CONFIGURATION,
                _ => code::OTHER,
            },
        }
    }
}
