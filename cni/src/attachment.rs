//! The parameters of one attachment.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::capability_args::CapabilityArgs;
use crate::names::{ContainerId, IfName};
use crate::trace_context::TraceContext;

/// The parameters of one attachment (specification, section 3, "Attachment Parameters").
///
/// Identified by [`container_id`](Self::container_id) and [`if_name`](Self::if_name). DEL and CHECK must be
/// given the same parameters as ADD was, so the value can be stored as JSON and read back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    /// The container, in Kubernetes the pod's sandbox.
    pub container_id: ContainerId,
    /// Path of the network namespace. `None` means that the namespace is gone: plugins get an empty
    /// `CNI_NETNS`, which only DEL allows.
    pub netns: Option<PathBuf>,
    /// The interface to create or to adjust in the namespace.
    pub if_name: IfName,
    /// `CNI_ARGS`, in order. `IgnoreUnknown=1` is always sent before them and need not be given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<(String, String)>,
    /// Capability arguments; a plugin gets those it declares in `capabilities`.
    #[serde(default, skip_serializing_if = "CapabilityArgs::is_empty")]
    pub capability_args: CapabilityArgs,
    /// The trace that the plugins' work is part of. Each operation may have another, so it is not stored.
    #[serde(skip)]
    pub trace: Option<TraceContext>,
}

impl Attachment {
    /// Creates an attachment without arguments.
    pub fn new(container_id: ContainerId, netns: Option<PathBuf>, if_name: IfName) -> Self {
        let capability_args = CapabilityArgs::default();
        Self { container_id, netns, if_name, args: Vec::new(), capability_args, trace: None }
    }

    /// Returns the two names that identify the attachment.
    pub fn key(&self) -> ValidAttachment {
        ValidAttachment { container_id: self.container_id.clone(), if_name: self.if_name.clone() }
    }
}

/// The two names that identify an attachment. GC keeps the attachments that it is given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ValidAttachment {
    /// `CNI_CONTAINERID` of its ADD.
    #[serde(rename = "containerID")]
    pub container_id: ContainerId,
    /// `CNI_IFNAME` of its ADD.
    #[serde(rename = "ifname")]
    pub if_name: IfName,
}
