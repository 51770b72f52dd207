//! Taints of devices that cannot serve new pods. DeviceTaintRules and tolerations name them, so they are API.
//!
//! | key | reason |
//! |---|---|
//! | `netclaim.dev/link-down` | the uplink passes no frames |
//! | `netclaim.dev/link-in-use` | another program uses the link in a way that excludes the device's |
//! | `netclaim.dev/link-missing` | the uplink is gone, or is no longer an uplink, while claims hold the device |
//! | `netclaim.dev/withdrawn` | the Network is gone, or no longer accepted, while claims hold the device |
//! | `netclaim.dev/exhausted` | other claims hold all addresses or ids of the Network on the node |
//! | `netclaim.dev/plugin-missing` | a plugin of the Network is not on the node |
//! | `netclaim.dev/not-ready` | a plugin's STATUS says that it cannot serve an ADD (CNI error 50) |
//! | `netclaim.dev/limited` | a plugin's STATUS says that pods would have limited connectivity (CNI error 51) |
//!
//! The effect is `NoSchedule`, so running pods are not affected. The value is empty: the pod's health
//! (`allocatedResourcesStatus`) and the agent's log have the message.

use std::fmt;

/// Why a device is tainted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "see the table in the module's description")]
pub enum TroubleKind {
    LinkDown,
    LinkInUse,
    LinkMissing,
    Withdrawn,
    Exhausted,
    PluginMissing,
    NotReady,
    Limited,
}

impl TroubleKind {
    /// The taint's key.
    pub const fn key(self) -> &'static str {
        match self {
            Self::LinkDown => "netclaim.dev/link-down",
            Self::LinkInUse => "netclaim.dev/link-in-use",
            Self::LinkMissing => "netclaim.dev/link-missing",
            Self::Withdrawn => "netclaim.dev/withdrawn",
            Self::Exhausted => "netclaim.dev/exhausted",
            Self::PluginMissing => "netclaim.dev/plugin-missing",
            Self::NotReady => "netclaim.dev/not-ready",
            Self::Limited => "netclaim.dev/limited",
        }
    }
}

/// Why a device cannot serve new pods now, for the scheduler and for people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trouble {
    /// The reason, which decides the taint.
    pub kind: TroubleKind,
    /// What is wrong and where, in one line.
    pub message: String,
}

impl Trouble {
    /// Trouble of this kind.
    pub fn new(kind: TroubleKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
