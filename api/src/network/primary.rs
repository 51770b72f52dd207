//! ClaimNetworks that are pods' primary networks: what such a pod cannot do with them.

use serde_json::{Map, Value};

use super::ClaimNetworkSpec;
use crate::Invalid;
use crate::addresses::NetworkAddresses;

/// Plugins whose interfaces and those of the node itself do not reach each other: the kernel gives a child of
/// a link no frame of the link itself (Kubernetes #41736, #30382), and a link that is moved leaves none.
const APART_FROM_NODE: [&str; 5] = ["macvlan", "ipvlan", "vlan", "host-device", "sriov"];

/// IPAM plugins that give no other routes than those of their configuration.
const GIVE_WRITTEN_ROUTES: [&str; 2] = ["host-local", "static"];

const NOT_REACHED: &str = "the node does not reach its own pods by this network, and they do not reach the node: their probes over the \
                           network fail, and ClusterIPs and the cluster's DNS do not answer them; use exec probes and dnsPolicy: \
                           None, or a plugin by whose link they do, such as ptp or bridge";

const NO_ADDRESS: &str = "the network gives no addresses, and a pod without one of its primary network does not start: add \
                          spec.addresses or an IPAM, or remove it";

const NO_ROUTE: &str = "no route of the network leads to everywhere, and a pod has no other network than its primary one: add \
                        {dst: 0.0.0.0/0} or {dst: \"::/0\"} to its routes, unless its pods are to reach its own subnet only";

impl ClaimNetworkSpec {
    /// Whether pods may have it as their primary network, as far as the ClaimNetwork says: by a claim, or by
    /// a class that it makes.
    pub fn is_for_primary(&self) -> bool {
        self.primary_field().is_some()
    }

    /// Whether its classes give it to pods in no other way. `name` is the ClaimNetwork's name.
    pub(super) fn is_only_for_primary(&self, name: &str) -> bool {
        let classes = &self.device_classes;
        let has_plain_class =
            self.has_own_class() && !classes.iter().any(|class| class.name.as_str() == name);
        !has_plain_class && !classes.is_empty() && classes.iter().all(|class| class.is_primary())
    }

    /// Returns the first field that says so.
    fn primary_field(&self) -> Option<String> {
        if self.allow.primary.is_some() {
            return Some("spec.allow.primary".to_owned());
        }
        let first = self.device_classes.iter().position(|class| class.is_primary())?;
        Some(format!("spec.deviceClasses[{first}].defaults.primary"))
    }

    /// Returns what a pod lacks whose primary network it is.
    pub(super) fn primary_warnings(&self) -> Vec<Invalid> {
        let Some(field) = self.primary_field() else { return Vec::new() };
        self.lacks_as_primary().map(|problem| Invalid::new(field.clone(), problem)).collect()
    }

    /// Returns what a pod lacks whose primary network it is, whichever class makes it that.
    pub fn lacks_as_primary(&self) -> impl Iterator<Item = &'static str> {
        let is_apart = self.plugin_types().first().is_some_and(|first| APART_FROM_NODE.contains(first));
        let apart = is_apart.then_some(NOT_REACHED);
        let bare = (!self.gives_addresses()).then_some(NO_ADDRESS);
        let closed = (self.writes_routes() && self.default_routes().is_empty()).then_some(NO_ROUTE);
        apart.into_iter().chain(bare).chain(closed)
    }

    /// Whether its attachments have no other routes than those that it writes.
    fn writes_routes(&self) -> bool {
        let is_written = |plugin: &Map<String, Value>| {
            let ipam = plugin.get("ipam").and_then(|ipam| ipam.get("type")?.as_str());
            ipam.is_some_and(|ipam| GIVE_WRITTEN_ROUTES.contains(&ipam))
        };
        self.addresses.as_ref().and_then(NetworkAddresses::inline).is_some() || self.plugins().any(is_written)
    }
}
