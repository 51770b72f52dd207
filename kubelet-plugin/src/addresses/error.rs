//! Why an attachment gets no address.

use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_api::Invalid;
use netclaim_api::addresses::Family;

/// Why an attachment gets no address, or cannot keep the one that it has.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(
        "no {family} address of ClaimNetwork {network:?} is free on node {node}, which has {blocks} blocks: see `kubectl get claimnetworks \
         {network}` and `kubectl get addressblocks.netclaim.dev`{}",
        without(left_out)
    )]
    NoAddress { network: String, family: Family, node: String, blocks: usize, left_out: Vec<IpAddr> },
    #[error(
        "node {node} has not heard of its blocks of addresses for too long, so that other nodes may soon have them: no new pod gets \
         an address of ClaimNetwork {network:?} until the agent reaches the API server"
    )]
    Stale { network: String, node: String },
    #[error(
        "ClaimNetwork {network:?} has its addresses from AddressPool {pool:?}, which does not exist or is invalid: see \
         `kubectl get addresspools.netclaim.dev`"
    )]
    NoPool { network: String, pool: String },
    #[error(
        "address {ip} is no longer one that pods of ClaimNetwork {network:?} get: its admin excluded it or took it out of the ranges of \
         spec.addresses; change the claim, and delete its pod"
    )]
    NotPermitted { network: String, ip: IpAddr },
    #[error(
        "node {node} has lost AddressBlock {block} of ClaimNetwork {network:?}, and the ClaimNetwork is gone or has no addresses here: see \
         `kubectl get claimnetworks {network}`, and delete the pod"
    )]
    NoBlock { network: String, block: IpNet, node: String },
    #[error(
        "the address was planned for other plugins than ClaimNetwork {network:?} has now, and is not usable any more: delete the pod to \
         have its claim prepared again"
    )]
    OtherChain { network: String },
}

impl AddressError {
    /// Whether the node has no address now.
    pub(crate) fn is_for_lack_of_addresses(&self) -> bool {
        matches!(self, Self::NoAddress { .. } | Self::Stale { .. } | Self::NoPool { .. })
    }
}

/// Says which addresses are left out for a time.
fn without(left_out: &[IpAddr]) -> String {
    /// The most that are named.
    const NAMED: usize = 8;
    if left_out.is_empty() {
        return String::new();
    }
    let named = left_out.iter().take(NAMED).map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    format!(
        "; {} are left out for 10 minutes because other hosts on the network have them: {named}",
        left_out.len()
    )
}
