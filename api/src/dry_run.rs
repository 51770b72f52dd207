//! What an attachment to a ClaimNetwork would be on a node, as the node's agent answers
//! `netclaimctl explain network`.
//!
//! Agent and command may be of different versions: a field that one of them does not know is left out.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an ADD would do for a pod whose claim sets nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DryRun {
    /// Why no such pod can be attached.
    pub refusal: Option<String>,
    /// The conflist of the ADD, in the version that all plugins support. What a claim and its pod fill in is
    /// a placeholder; an address and a segmentation id are those that the next pod would get.
    pub conflist: Option<Value>,
    /// The conflist that finalizes the attachment.
    pub finalize: Option<Value>,
    /// Every plugin that is needed, IPAM plugins and those of `spec.node` and `spec.finalize` included.
    pub plugins: Vec<FoundPlugin>,
    /// What the plugins of the chain say to STATUS.
    pub status: Status,
    /// The link of the node; `None` for a ClaimNetwork on no link, and where there is none.
    pub uplink: Option<FoundUplink>,
    /// How many attachments there are addresses for; `None` where netclaim does not know the IPAM.
    pub addresses: Option<Addresses>,
    /// What `spec.node` sets up on the node.
    pub node: Option<SetUp>,
    /// What else matters.
    pub notes: Vec<String>,
}

/// A plugin, and where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FoundPlugin {
    /// Its type.
    pub plugin: String,
    /// The program; `None` if it is not installed.
    pub path: Option<String>,
    /// Why it is not found.
    pub problem: Option<String>,
}

/// The answer to STATUS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Whether the plugins would serve an ADD; `None` if they were not asked.
    pub is_ready: Option<bool>,
    /// Why they would not, or why they were not asked.
    pub message: String,
}

/// A link of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FoundUplink {
    /// Its name.
    pub name: String,
    /// In bytes.
    pub mtu: u32,
    /// Why pods cannot use it now.
    pub problem: Option<String>,
}

/// Numbers of attachments for which a node has addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Addresses {
    /// Those that claims do not hold.
    pub left: u64,
    /// All.
    pub all: u64,
}

/// What is set up on the node before the first pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SetUp {
    /// The interface on the node.
    pub interface: String,
    /// The chain that makes it; `None` if it cannot be resolved.
    pub conflist: Option<Value>,
    /// Whether it is set up now.
    pub is_ready: bool,
    /// Why it cannot be set up.
    pub problem: Option<String>,
}
