//! For whom a network is set up on the node, and the node as a sandbox.

use std::fmt;

use netclaim_api::NetworkName;
use netclaim_driver::attach::{self, LiveSandbox, Sandbox};
use netclaim_driver::links::{Error, Netns};
use serde::{Deserialize, Serialize};

/// The plan of what is set up.
pub(super) type Plan = attach::Plan<NodeOwner>;
/// What is journalled of it.
pub(super) type Record = attach::Record<NodeOwner>;
/// The journal of what is set up on the node.
pub(crate) type NodeJournal = attach::journal::Journal<NodeOwner>;

/// The network namespace of this process, as plugins see it, too: they are its children.
const OWN_NETNS: &str = "/proc/self/ns/net";

/// The ClaimNetwork that is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeOwner {
    /// Name of the ClaimNetwork.
    pub(super) claim_network: NetworkName,
    /// How long it stays without pods, in seconds.
    pub(super) idle_seconds: u32,
}

impl fmt::Display for NodeOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimNetwork {} on the node", self.claim_network)
    }
}

/// Each ClaimNetwork has one attachment, alone in its "pod" and in its group.
impl attach::Owner for NodeOwner {
    /// There are few, and nobody looks at all of them for a pod.
    type Kind = ();

    fn kind(_: &Plan) {}

    fn pod_uid(&self) -> &str {
        self.claim_network.as_str()
    }

    fn group(&self) -> &str {
        self.claim_network.as_str()
    }

    fn group_name(&self) -> &str {
        self.claim_network.as_str()
    }

    fn tenant(&self) -> &str {
        ""
    }

    fn has_runtime(&self) -> bool {
        false
    }
}

/// The node as a sandbox: its network namespace in this boot.
#[derive(Debug, Clone)]
pub(crate) struct NodeSandbox {
    netns: Netns,
    sandbox: Sandbox,
}

impl NodeSandbox {
    /// The node in the boot `boot_id`. A node that is a container has another namespace after it was started
    /// again, although the boot is the same: the id tells them apart.
    ///
    /// # Errors
    /// When the namespace cannot be opened.
    pub(crate) fn open(boot_id: &str) -> Result<Self, Error> {
        let netns = Netns::open(OWN_NETNS)?;
        let sandbox = Sandbox {
            id: format!("node-{}", netns.id().ino),
            netns: OWN_NETNS.into(),
            netns_id: netns.id(),
            boot_id: boot_id.to_owned(),
        };
        Ok(Self { netns, sandbox })
    }

    pub(super) fn id(&self) -> &str {
        &self.sandbox.id
    }

    /// The sandbox, as the attacher is told of it for one ClaimNetwork.
    pub(super) fn of(&self, network: &NetworkName) -> LiveSandbox {
        LiveSandbox { pod_uid: network.to_string(), sandbox: self.sandbox.clone(), netns: self.netns.clone() }
    }
}
