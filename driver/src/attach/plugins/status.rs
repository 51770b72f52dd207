//! Whether a network could serve an ADD now, as far as that is known without one: its plugins are installed,
//! and say yes when asked by STATUS.

use std::io;
use std::time::Duration;

use netclaim_cni::{self as cni, BinChanges, ErrorKind, NetworkList, PluginType, Program, error_chain};

use super::CniPlugins;
use super::check_and_gc::INVALID_ENVIRONMENT;
use crate::attach::Failure;

/// How long the plugins of a network may take for STATUS, unless an operation has less. It costs them no more
/// than VERSION, and pods wait for the answer.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// "The plugin is not available (i.e. cannot service ADD requests)" (specification, section 2, "STATUS").
const NOT_AVAILABLE: u64 = 50;

/// "The plugin is not available, and existing containers in the network may have limited connectivity"
/// (specification, section 2, "STATUS").
const LIMITED: u64 = 51;

/// The answer of a network's plugins to STATUS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// They would serve an ADD, or have no way to say.
    Ready,
    /// They would not, and why.
    NotReady(String),
    /// They have given no answer, and why: an ADD may fare no better.
    Unclear(String),
    /// They would not, and the pods that they served before may not reach everything; and why.
    Limited(String),
}

impl CniPlugins {
    /// Subscribes to changes of the installed plugins.
    ///
    /// # Errors
    /// When they cannot be watched.
    pub fn bin_changes(&self) -> io::Result<BinChanges> {
        self.runtime.bin_changes()
    }

    /// Finds an installed plugin.
    ///
    /// # Errors
    /// Which plugin is not, and where it was looked for.
    pub fn installed(&self, plugin: &PluginType) -> Result<Program, Failure> {
        self.runtime.find(plugin).map_err(|error| Failure::of(&error))
    }

    /// Asks the plugins of `list` by STATUS, in the version that an ADD would use. Versions before 1.1.0 have
    /// no STATUS, and some plugins of 1.1.0 do not know it either: those are ready. Daemons must answer.
    pub async fn status(&self, list: &NetworkList) -> Status {
        let deadline = self.timeout.min(STATUS_TIMEOUT);
        let asked = async {
            self.runtime.daemons_answer(list, deadline).await?;
            if !list.version().has_gc_and_status() {
                return Ok(());
            }
            let list = self.runtime.settle(list).await?;
            self.runtime.status(&list, deadline).await
        };
        asked.await.map_or_else(|error| judged(&error), |()| Status::Ready)
    }
}

fn judged(error: &cni::Error) -> Status {
    match error.reported().map(|reported| reported.code) {
        Some(LIMITED) => Status::Limited(error_chain(error)),
        // What plugins say that do not know the verb.
        Some(INVALID_ENVIRONMENT) => Status::Ready,
        Some(NOT_AVAILABLE) => Status::NotReady(error_chain(error)),
        None if matches!(error.kind(), ErrorKind::Daemon { .. }) => Status::NotReady(error_chain(error)),
        _ => Status::Unclear(error_chain(error)),
    }
}
