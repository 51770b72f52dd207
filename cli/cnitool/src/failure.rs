//! Why an operation failed: an error object of the CNI specification for programs, an error chain for people.

use std::io;
use std::path::PathBuf;

use netclaim_cni::error_chain;
use netclaim_cni::{
    AttachmentError, CacheError, Error, ErrorKind, NameError, Retry, ServeError, SpecVersion,
};
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
    /// Plugins written in Go use this for all failures.
    pub(super) const OTHER: u64 = 999;
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An unusable option or variable.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// An unusable name of a network.
    #[error("NETWORK cannot be used")]
    Name(#[source] NameError),
    /// An unusable type of plugin.
    #[error("--type cannot be used")]
    Type(#[source] NameError),
    /// Plugins cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The network's configuration cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The cache of attachments failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A plugin failed, without an attachment.
    #[error(transparent)]
    Plugin(#[from] Error),
    /// An operation on an attachment failed.
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// GC could not clean up attachments or plugins.
    #[error("{}", .0.iter().map(|failure| error_chain(failure)).collect::<Vec<_>>().join("; "))]
    Gc(Vec<AttachmentError>),
    /// A malformed `--keep`.
    #[error("{0:?} names no attachment; write it as CONTAINERID/IFNAME")]
    Keep(String),
    /// A file to validate cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("the result cannot be written")]
    Output(#[from] io::Error),
    /// A result cannot be written as JSON.
    #[error("the result cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

impl Failure {
    /// Returns the error object, which is the plugin's own if it gave one.
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
            Self::Plugin(error) => Some(error),
            Self::Attachment(error) => plugin(error),
            _ => None,
        }
    }

    fn code(&self) -> u64 {
        match self {
            Self::Setting(_) | Self::Name(_) | Self::Type(_) | Self::Keep(_) => code::ENVIRONMENT,
            Self::Load(LoadError::Read { .. })
            | Self::Cache(_)
            | Self::Read { .. }
            | Self::Output(_)
            | Self::Json(_) => code::IO,
            Self::Load(_) => code::CONFIGURATION,
            Self::Serve(_) => code::OTHER,
            Self::Gc(errors) => errors.first().map_or(code::OTHER, attachment_code),
            Self::Attachment(error) => attachment_code(error),
            Self::Plugin(error) => plugin_code(error),
        }
    }
}

/// Returns the plugin's error in it.
fn plugin(error: &AttachmentError) -> Option<&Error> {
    match error {
        AttachmentError::Add(failed) => Some(&failed.error),
        AttachmentError::Plugin(error) => Some(error),
        AttachmentError::Left(errors) => errors.first(),
        _ => None,
    }
}

fn attachment_code(error: &AttachmentError) -> u64 {
    match error {
        AttachmentError::Cache(_) => code::IO,
        AttachmentError::Attached(_) => code::ENVIRONMENT,
        AttachmentError::NotAttached(_) => code::UNKNOWN_CONTAINER,
        error => plugin(error).map_or(code::OTHER, plugin_code),
    }
}

fn plugin_code(error: &Error) -> u64 {
    match error.kind() {
        _ if error.retry() == Retry::Later => code::TRY_AGAIN,
        ErrorKind::NoCheck(_) => code::CONFIGURATION,
        _ => code::OTHER,
    }
}
