//! The pod's default route by an attachment: what `eth0` keeps, and which attachment of a pod has it. And
//! what the cluster has, which no primary network gives. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use netclaim_api::addresses::Family;
use netclaim_api::opaque::Opaque;
use netclaim_cni::ROUTE_PLUGIN;

use super::claim::Claim;
use super::error::DeviceError;
use crate::pods::owner::{Addresses, Plan};

/// Whether the claim or its class asks for it, or for a primary network.
pub(super) fn is_asked(claim: &Claim) -> bool {
    let mut layers = claim.devices.iter().flat_map(|device| &device.layers);
    layers.any(
        |layer| matches!(&layer.config, Opaque::Attachment(config) if config.default_route || config.primary),
    )
}

/// Returns the first address that is one of the cluster's, with the prefix that it is in. No primary network
/// gives such a one.
pub(crate) fn clusters_own(
    ips: impl IntoIterator<Item = IpAddr>,
    cluster: &[IpNet],
) -> Option<(IpAddr, IpNet)> {
    ips.into_iter().find_map(|ip| Some((ip, *cluster.iter().find(|prefix| prefix.contains(&ip))?)))
}

/// Returns the prefixes that stay with `eth0`: those of pods and Services, and the node's addresses.
pub(super) fn kept(cluster: &[IpNet], services: &[ServiceCIDR], node: &BTreeSet<IpAddr>) -> Vec<IpNet> {
    let services = services.iter().filter_map(|services| services.spec.as_ref()?.cidrs.as_ref()).flatten();
    // The API server has checked them.
    let services = services.filter_map(|cidr| cidr.parse().ok());
    let all = cluster.iter().copied().chain(services).chain(node.iter().copied().map(IpNet::from));
    all.map(|prefix| prefix.trunc()).collect::<BTreeSet<IpNet>>().into_iter().collect()
}

/// The attachments of a pod that have its default route.
#[derive(Debug, Clone, Default)]
pub(crate) struct DefaultRoutes(BTreeMap<Family, String>);

impl DefaultRoutes {
    /// Adds a journalled plan.
    pub(super) fn add(&mut self, plan: &Plan) {
        let holder = || format!("interface {} of ResourceClaim {}", plan.spec.if_name, plan.owner.claim);
        self.0.extend(families(plan).into_iter().map(|family| (family, holder())));
    }

    /// Refuses a plan whose family another one has.
    pub(super) fn refuse(&self, plan: &Plan) -> Result<(), DeviceError> {
        let taken = families(plan).into_iter().find_map(|family| Some((family, self.0.get(&family)?)));
        taken.map_or(Ok(()), |(family, holder)| {
            let family = if family == Family::V4 { "IPv4" } else { "IPv6" };
            Err(DeviceError::DefaultRouteTaken { family, holder: holder.clone() })
        })
    }
}

/// Returns the families in which the attachment gets the default route, as far as that is known before its
/// ADD: both, unless the ClaimNetwork itself gives its addresses.
fn families(plan: &Plan) -> BTreeSet<Family> {
    if !plan.spec.conflist.plugins().any(|plugin| plugin.plugin_type().as_str() == ROUTE_PLUGIN) {
        return BTreeSet::new();
    }
    let ips = plan.owner.addresses.iter().flat_map(Addresses::known_ips);
    let known: BTreeSet<Family> = ips.map(Family::of).collect();
    if known.is_empty() { BTreeSet::from([Family::V4, Family::V6]) } else { known }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_services_and_the_node_stay_with_eth0() {
        let services =
            json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12", "fd00:96::/112"]}});
        let services: ServiceCIDR = serde_json::from_value(services).expect("a ServiceCIDR");
        let cluster = ["10.244.0.1/16", "10.96.0.0/12"].map(|cidr| cidr.parse().expect("a prefix"));
        let node = BTreeSet::from(["192.0.2.10", "fd00::10"].map(|ip| ip.parse().expect("an address")));
        let kept: Vec<String> = kept(&cluster, &[services], &node).iter().map(ToString::to_string).collect();
        assert_eq!(kept, ["10.96.0.0/12", "10.244.0.0/16", "192.0.2.10/32", "fd00::10/128", "fd00:96::/112"]);
    }
}
