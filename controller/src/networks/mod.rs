//! ClaimNetworks: on which nodes they are, what their status says, and the pools and labels that follow.
//! Pure.

pub(crate) mod abandoned_labels;
pub(crate) mod cluster_pools;
pub(crate) mod nodes;
pub(crate) mod published;
pub(crate) mod status;
pub(crate) mod warnings;
