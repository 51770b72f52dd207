//! Why a connection to the runtime ended.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::{mux, ttrpc};

/// How long to wait for the runtime's answer to the registration. It registers plugins one after another and
/// gives each 5 s by default: enough for a node with many slow plugins.
pub(crate) const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    /// The socket does not exist, or no runtime listens on it.
    #[error("cannot connect to the container runtime's NRI socket {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The runtime closed the connection: it was stopped, or the plugin answered late.
    #[error("the container runtime closed the NRI connection")]
    Closed,
    #[error("cannot read from the NRI connection")]
    Read(#[source] io::Error),
    #[error("cannot write to the NRI connection")]
    Write(#[source] io::Error),
    #[error("the container runtime breaks the NRI protocol")]
    Frame(#[from] mux::OversizedFrame),
    #[error("the container runtime breaks the NRI protocol")]
    Message(#[from] ttrpc::OversizedMessage),
    #[error("the container runtime refused the NRI plugin")]
    Refused(#[source] ttrpc::CallError),
    #[error("the container runtime did not answer the NRI registration within {REGISTRATION_TIMEOUT:?}")]
    RegistrationTimeout,
}
