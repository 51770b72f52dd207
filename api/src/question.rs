//! What people ask an agent, and what it answers: a line of JSON each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::dry_run::DryRun;
use crate::history::{HistoryEntry, Subject};
use crate::ping::{Ping, Probed};
use crate::traffic::{Selection, Traffic};
use crate::{IfName, NetworkName};

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    /// What an attachment to this ClaimNetwork would be.
    Network(NetworkName),
    /// Which pods are and were attached that have this address, or are this pod.
    Who(Subject),
    /// What attachments receive and send.
    Traffic(Selection),
    /// Where what passes through an attachment can be copied.
    Capture(CaptureOf),
    /// What the network passes between these nodes or pods.
    Ping(Ping),
}

/// The attachment whose frames are to be copied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CaptureOf {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The interface in the pod.
    pub interface: IfName,
}

/// What the agent answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// What would be.
    DryRun(Box<DryRun>),
    /// Who is and was attached, the last one last.
    History(Vec<HistoryEntry>),
    /// What each attachment receives and sends.
    Traffic(Vec<Traffic>),
    /// The path of the pod's network namespace.
    NetworkNamespace(PathBuf),
    /// What those on the node have heard that take part.
    Ping(Vec<Probed>),
    /// Why it gives no answer.
    Error(String),
}
