//! Why there is no template.

use netclaim_api::NetworkName;

use crate::cluster::ReadError;

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateError {
    /// The cluster cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no such ClaimNetwork.
    #[error("there is no ClaimNetwork {0}: see `kubectl get claimnetworks`")]
    NoNetwork(NetworkName),
    /// No node has a device of each of them.
    #[error(
        "no node publishes {networks}, so there is no pattern for a new node: see `netclaimctl status` for \
         why"
    )]
    Unpublished {
        /// The ClaimNetworks.
        networks: String,
    },
    /// The node that the user chose has no device of one of them.
    #[error("node {node} does not publish {networks}: see `netclaimctl status --node {node}` for why")]
    NotOnNode {
        /// The node.
        node: String,
        /// The ClaimNetworks.
        networks: String,
    },
    /// Every pool with the devices lacks slices.
    #[error(
        "the ResourceSlices of {nodes} are incomplete: an agent is writing them, or cannot; run this \
         command again in some seconds, and then see `netclaimctl status`"
    )]
    Incomplete {
        /// The nodes.
        nodes: String,
    },
}
