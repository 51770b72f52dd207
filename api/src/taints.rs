//! Taints of devices that cannot serve new pods. DeviceTaintRules and tolerations name them, so they are API.
//!
//! | key | reason |
//! |---|---|
//! | `netclaim.dev/link-down` | the uplink passes no frames |
//! | `netclaim.dev/link-in-use` | another program uses the link in a way that excludes the device's, or a pod does in one that is offered no more |
//! | `netclaim.dev/link-in-pod` | a pod has the whole link of the ClaimNetwork: others wait until it ends |
//! | `netclaim.dev/link-missing` | the uplink is gone, or is no longer an uplink, while claims hold the device |
//! | `netclaim.dev/withdrawn` | the ClaimNetwork is gone or no longer accepted, or the link is no longer offered so, while claims hold the device |
//! | `netclaim.dev/exhausted` | the node has no address or id of the ClaimNetwork |
//! | `netclaim.dev/full` | pods have all addresses that the node has of the ClaimNetwork, and no block is free: nothing is wrong, but a node autoscaler makes no nodes after this one |
//! | `netclaim.dev/plugin-missing` | a plugin of the ClaimNetwork is not on the node |
//! | `netclaim.dev/kernel-lacks` | the node's kernel cannot make the kind of link that a plugin of the ClaimNetwork makes |
//! | `netclaim.dev/value-missing` | the node has no label, or the uplink no attribute, that the ClaimNetwork's configuration names as a placeholder |
//! | `netclaim.dev/not-ready` | a plugin's STATUS (CNI error 50), or a file on the node, says that it cannot serve an ADD |
//! | `netclaim.dev/limited` | a plugin's STATUS (CNI error 51), or a file on the node, says that pods would have limited connectivity |
//!
//! The effect is `NoSchedule`, so running pods are not affected. With `onFailure: {traffic: Evict}` of the
//! ClaimNetwork there is another taint after a minute, of the key `link-down`, `link-missing` or `limited`
//! and with the effect `NoExecute`. The value is empty: the pod's health (`allocatedResourcesStatus`) and the
//! agent's log have the message.

use std::fmt;

use crate::{one_line, shorten};

/// Longest message in bytes: the kubelet cuts longer ones anywhere (`ResourceHealthMessageMaxLength`).
const MAX_MESSAGE: usize = 1024;

/// Why a device is tainted. The lesser of two reasons is worse: what running pods suffer from, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "see the table in the module's description")]
pub enum Reason {
    LinkDown,
    LinkInUse,
    LinkInPod,
    LinkMissing,
    Withdrawn,
    Exhausted,
    Full,
    PluginMissing,
    KernelLacks,
    ValueMissing,
    Limited,
    NotReady,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 12] = [
        Self::LinkDown,
        Self::LinkInUse,
        Self::LinkInPod,
        Self::LinkMissing,
        Self::Withdrawn,
        Self::Exhausted,
        Self::Full,
        Self::PluginMissing,
        Self::KernelLacks,
        Self::ValueMissing,
        Self::Limited,
        Self::NotReady,
    ];

    /// Returns the reason of a taint with this key.
    pub fn of_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.key() == key)
    }

    /// Whether a taint with this key is a problem: that pods have the device, or all of it, is none.
    pub fn is_problem(key: &str) -> bool {
        ![Self::LinkInPod, Self::Full].map(Self::key).contains(&key)
    }

    /// Whether pods that have the device cannot be reached, or only partly.
    pub const fn stops_traffic(self) -> bool {
        matches!(self, Self::LinkDown | Self::LinkMissing | Self::Limited)
    }

    /// Returns the reason in words, for people who see only the taint.
    pub const fn words(self) -> &'static str {
        match self {
            Self::LinkDown => "the uplink is down or has no carrier",
            Self::LinkInUse => "the uplink is in a use that excludes this one",
            Self::LinkInPod => "a pod has the whole uplink",
            Self::LinkMissing => "the uplink is gone, or is no longer an uplink",
            Self::Withdrawn => "the ClaimNetwork or this use of the link is no longer offered",
            Self::Exhausted => "all addresses or ids that the node has are taken",
            Self::Full => "pods have all addresses of the node, and no block is free",
            Self::PluginMissing => "a plugin of the ClaimNetwork is not on the node",
            Self::KernelLacks => "the node's kernel cannot make the kind of link that a plugin makes",
            Self::ValueMissing => {
                "the node or its uplink lacks a label or attribute that the ClaimNetwork needs"
            }
            Self::NotReady => "a plugin reports that it cannot serve",
            Self::Limited => "a plugin reports that pods would have limited connectivity",
        }
    }

    /// Returns the taint's key.
    pub const fn key(self) -> &'static str {
        match self {
            Self::LinkDown => "netclaim.dev/link-down",
            Self::LinkInUse => "netclaim.dev/link-in-use",
            Self::LinkInPod => "netclaim.dev/link-in-pod",
            Self::LinkMissing => "netclaim.dev/link-missing",
            Self::Withdrawn => "netclaim.dev/withdrawn",
            Self::Exhausted => "netclaim.dev/exhausted",
            Self::Full => "netclaim.dev/full",
            Self::PluginMissing => "netclaim.dev/plugin-missing",
            Self::KernelLacks => "netclaim.dev/kernel-lacks",
            Self::ValueMissing => "netclaim.dev/value-missing",
            Self::NotReady => "netclaim.dev/not-ready",
            Self::Limited => "netclaim.dev/limited",
        }
    }
}

/// Why a device cannot serve new pods now, for the scheduler and for people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unhealthy {
    /// The reason, for the taint.
    pub reason: Reason,
    /// What is wrong and where, in one line of at most 1024 bytes.
    pub message: String,
}

impl Unhealthy {
    /// Puts the message, which may be a plugin's, on one line and shortens it.
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        Self { reason, message: shorten(one_line(message.as_ref().trim()), MAX_MESSAGE) }
    }
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_key_of_its_own() {
        for reason in Reason::ALL {
            assert_eq!(Reason::of_key(reason.key()), Some(reason));
        }
        assert_eq!(Reason::of_key("example.com/broken"), None);
    }

    #[test]
    fn a_message_is_one_line_and_cut_between_characters() {
        let message = |words: &str| Unhealthy::new(Reason::NotReady, words).message;
        assert_eq!(message("not yet:\n\tthe daemon starts\n"), "not yet:  the daemon starts");
        assert_eq!(message(&"x".repeat(1024)), "x".repeat(1024));
        let cut = message(&"ä".repeat(1000));
        assert!(cut.ends_with("ä…") && (1023..=1024).contains(&cut.len()), "{}", cut.len());
    }
}
