//! ClaimNetworks that are pods' primary networks: what such a pod cannot do with them.

use super::ClaimNetworkSpec;
use crate::Invalid;

/// Plugins whose interfaces and those of the node itself do not reach each other: the kernel gives a child of
/// a link no frame of the link itself (Kubernetes #41736, #30382).
const APART_FROM_NODE: [&str; 4] = ["macvlan", "ipvlan", "host-device", "sriov"];

const NOT_REACHED: &str = "the node does not reach its own pods by this network, nor they it: their probes over the network fail, and \
                           ClusterIPs and the cluster's DNS do not answer them; use exec probes and dnsPolicy: None, or a plugin \
                           by whose link they do, such as ptp or bridge";

const NO_ADDRESS: &str = "the network gives no addresses, and a pod without one of its primary network does not start: add \
                          spec.addresses or an IPAM, or remove it";

impl ClaimNetworkSpec {
    /// Whether pods may have it as their primary network, as far as the ClaimNetwork says: by a claim, or by
    /// a class that it makes.
    pub(super) fn is_for_primary(&self) -> bool {
        self.primary_field().is_some()
    }

    /// Returns the first field that says so.
    fn primary_field(&self) -> Option<String> {
        if self.allow.primary.is_some() {
            return Some("spec.allow.primary".to_owned());
        }
        let mut classes = self.device_classes.iter().enumerate();
        classes.find_map(|(i, class)| {
            let is_primary = class.defaults.as_ref().is_some_and(|config| config.primary);
            is_primary.then(|| format!("spec.deviceClasses[{i}].defaults.primary"))
        })
    }

    /// Returns what a pod lacks whose primary network it is.
    pub(super) fn primary_warnings(&self) -> Vec<Invalid> {
        let Some(field) = self.primary_field() else { return Vec::new() };
        let is_apart = self.plugin_types().first().is_some_and(|first| APART_FROM_NODE.contains(first));
        let apart = is_apart.then_some(NOT_REACHED);
        let bare = (!self.gives_addresses()).then_some(NO_ADDRESS);
        apart.into_iter().chain(bare).map(|problem| Invalid::new(field.clone(), problem)).collect()
    }
}
