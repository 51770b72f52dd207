//! What attachments of a node receive and send, as its agent answers `netclaimctl attachments --traffic`.
//!
//! Agent and command may be of different versions: a field that one of them does not know is left out.

use serde::{Deserialize, Serialize};

/// Whose traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selection {
    /// The namespace of the pods; `None` for all.
    pub namespace: Option<String>,
    /// The pod; `None` for all.
    pub pod: Option<String>,
}

impl Selection {
    /// Whether it selects the pod.
    pub fn selects(&self, namespace: &str, pod: &str) -> bool {
        self.namespace.as_deref().is_none_or(|selected| selected == namespace)
            && self.pod.as_deref().is_none_or(|selected| selected == pod)
    }
}

/// What an attachment receives and sends.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Traffic {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The interface in the pod.
    pub interface: String,
    /// Bandwidth that its claim was granted, in bit/s.
    pub granted: Option<u64>,
    /// Its part of what no claim was granted, in bit/s, where attachments share that.
    pub share: Option<u64>,
    /// What the pod receives.
    pub received: Flow,
    /// What it sends.
    pub sent: Flow,
}

/// What passes in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Flow {
    /// Bits per second, as measured for a second.
    pub rate: u64,
    /// Bytes since the interface was made.
    pub bytes: u64,
    /// Packets since then.
    pub packets: u64,
    /// Packets since then that were broken or could not be sent.
    pub errors: u64,
    /// Packets since then that the kernel has dropped.
    pub dropped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_without_names_selects_all() {
        let of = |namespace: Option<&str>, pod: Option<&str>| Selection {
            namespace: namespace.map(str::to_owned),
            pod: pod.map(str::to_owned),
        };
        assert!(of(None, None).selects("shop", "web"));
        assert!(of(Some("shop"), None).selects("shop", "web"));
        assert!(!of(Some("bank"), None).selects("shop", "web"));
        assert!(!of(Some("shop"), Some("db")).selects("shop", "web"));
    }
}
