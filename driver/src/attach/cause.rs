//! What kind of failure an operation has met, for programs: people read its message.

use netclaim_cni::{Error, ErrorKind};

/// How `host-local` says that all its addresses are taken (release 1.9.1, `backend/allocator`). Its code is
/// the one of every failure.
const HOST_LOCAL_IS_FULL: &str = "no IP addresses available in range set";

/// The kind of a failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Cause {
    /// None of the others.
    #[default]
    Other,
    /// A plugin is not installed.
    PluginMissing,
    /// A plugin cannot serve an ADD now (CNI error 50), or its daemon does not answer.
    PluginNotReady,
    /// As [`PluginNotReady`](Self::PluginNotReady), and what it has attached before may not reach everything
    /// (CNI error 51).
    PluginLimited,
    /// A plugin wants to be asked again (CNI error 11).
    TryAgainLater,
    /// An IPAM plugin has no address left.
    OutOfAddresses,
    /// Another host on the network has an address that the attachment has got.
    AddressInUse,
    /// A gateway that the attachment needs does not answer.
    GatewayUnreachable,
    /// The deadline has passed.
    TimedOut,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 9] = [
        Self::Other,
        Self::PluginMissing,
        Self::PluginNotReady,
        Self::PluginLimited,
        Self::TryAgainLater,
        Self::OutOfAddresses,
        Self::AddressInUse,
        Self::GatewayUnreachable,
        Self::TimedOut,
    ];

    /// Returns its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Other => "Other",
            Self::PluginMissing => "PluginMissing",
            Self::PluginNotReady => "PluginNotReady",
            Self::PluginLimited => "PluginLimited",
            Self::TryAgainLater => "TryAgainLater",
            Self::OutOfAddresses => "OutOfAddresses",
            Self::AddressInUse => "AddressInUse",
            Self::GatewayUnreachable => "GatewayUnreachable",
            Self::TimedOut => "TimedOut",
        }
    }

    /// The cause of a plugin's error.
    pub(super) fn of(error: &Error) -> Self {
        if let Some(reported) = error.reported() {
            return match reported.code {
                11 => Self::TryAgainLater,
                50 => Self::PluginNotReady,
                51 => Self::PluginLimited,
                _ if reported.msg.contains(HOST_LOCAL_IS_FULL) => Self::OutOfAddresses,
                _ => Self::Other,
            };
        }
        match error.kind() {
            ErrorKind::NotFound { .. } => Self::PluginMissing,
            ErrorKind::Daemon { .. } => Self::PluginNotReady,
            ErrorKind::Timeout { .. } => Self::TimedOut,
            _ => Self::Other,
        }
    }
}
