//! How much each attachment may send and receive, so that those that were granted bandwidth get it. Pure.
//!
//! A port is *guaranteed* when a ClaimNetwork on it says so (`spec.bandwidth.unrequested`). On such a port,
//! attachments that were granted nothing have equal parts of what is not granted: of the port, and of their
//! link where that has less. What is granted counts from when it is planned, so that it is free before its
//! pod starts.

use std::collections::BTreeMap;

use netclaim_api::conflist::Plugin as _;
use netclaim_api::device::DeviceName;
use netclaim_api::network::LEAST_BANDWIDTH;
use netclaim_api::{IfName, NetworkName};
use netclaim_bandwidth::{Limit, Limits};
use netclaim_cni::{BANDWIDTH_PLUGIN, BandwidthArg, PluginConf};

use crate::devices;
use crate::inventory::Inventory;
use crate::pods::owner::Plan;

/// What the agent holds an attachment to, in bit/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rate {
    /// Its part of what is not granted.
    Share(u64),
    /// What it was granted, where no plugin holds it to that.
    Granted(u64),
}

impl Rate {
    fn bits(self) -> u64 {
        match self {
            Self::Share(bits) | Self::Granted(bits) => bits,
        }
    }

    /// Returns the limits of a plan's interface, of which a plugin may have lower ones.
    pub(super) fn limits(self, plan: &Plan) -> Limits {
        let (own, rate) = (own_limits(plan), Limit::of_rate(self.bits()));
        Limits { ingress: Some(rate.stricter(own.ingress)), egress: Some(rate.stricter(own.egress)) }
    }
}

/// What is granted of a port or link, and how many share the rest.
#[derive(Default)]
struct Account {
    granted: u64,
    sharing: u64,
}

impl Account {
    fn add(&mut self, granted: u64) {
        self.granted = self.granted.saturating_add(granted);
        self.sharing += u64::from(granted == 0);
    }

    fn share_of(&self, total: u64) -> u64 {
        total.saturating_sub(self.granted).checked_div(self.sharing).unwrap_or_default()
    }
}

/// Returns what the agent holds each of the plans to, in their order; `None` for those that it leaves alone.
pub(super) fn rates<'a>(
    inventory: &Inventory,
    plans: impl Iterator<Item = &'a Plan> + Clone,
) -> Vec<Option<Rate>> {
    if !is_needed(inventory) {
        return plans.map(|_| None).collect();
    }
    let places: Vec<Option<(IfName, String)>> =
        plans.clone().map(|plan| devices::link_and_port(plan, inventory)).collect();
    let guarantees =
        |name: &NetworkName| inventory.networks.get(name).is_some_and(|spec| spec.bandwidth.is_guaranteed());
    let mut guaranteed = inventory.guaranteed_ports();
    let (mut ports, mut links) = (BTreeMap::<&str, Account>::new(), BTreeMap::<&IfName, Account>::new());
    for (plan, place) in plans.clone().zip(&places) {
        let Some((link, port)) = place else { continue };
        ports.entry(port).or_default().add(granted(plan));
        links.entry(link).or_default().add(granted(plan));
        // It stays on its link after its ClaimNetwork has moved.
        let network = plan.owner.device.device.parse();
        if matches!(network, Ok(DeviceName::Network(network)) if guarantees(&network)) {
            guaranteed.insert(port);
        }
    }
    let rate = |(plan, place): (&Plan, &Option<(IfName, String)>)| {
        let (link, port) = place.as_ref().filter(|(_, port)| guaranteed.contains(port.as_str()))?;
        if granted(plan) > 0 {
            return (!is_held_by_plugin(plan)).then(|| Rate::Granted(granted(plan)));
        }
        let of_port = ports.get(port.as_str())?.share_of(bandwidth(inventory, port)?);
        let uplink = inventory.uplinks.iter().find(|uplink| uplink.name == *link);
        let of_link = uplink.and_then(|uplink| Some(links.get(link)?.share_of(uplink.bandwidth?.value())));
        let share = of_link.map_or(of_port, |of_link| of_link.min(of_port));
        Some(Rate::Share(share.max(LEAST_BANDWIDTH.value())))
    };
    plans.zip(&places).map(rate).collect()
}

/// Whether bandwidth is guaranteed anywhere on the node.
pub(super) fn is_needed(inventory: &Inventory) -> bool {
    inventory.networks.values().any(|spec| spec.bandwidth.is_guaranteed())
}

fn granted(plan: &Plan) -> u64 {
    plan.owner.bandwidth.map(|granted| granted.value()).unwrap_or_default()
}

/// Returns what a port has. Where that is unknown, it is what ClaimNetworks on it offer; `None` if nothing is
/// known of it, as of a link that is no uplink any more.
fn bandwidth(inventory: &Inventory, port: &str) -> Option<u64> {
    let known = inventory.uplinks.iter().find(|uplink| uplink.port.name == port);
    let offered = || {
        let on_port = |spec: &&_| inventory.uplink_of(spec).is_some_and(|uplink| uplink.port.name == port);
        let offered = inventory.networks.values().filter(on_port).filter_map(|spec| spec.capacity.bandwidth);
        offered.map(|offered| offered.value()).reduce(u64::saturating_add)
    };
    known.and_then(|uplink| uplink.port.bandwidth).map(|bandwidth| bandwidth.value()).or_else(offered)
}

/// Whether a plugin of the plan holds the pod to what it was granted.
fn is_held_by_plugin(plan: &Plan) -> bool {
    let told = plan.spec.capability_args.bandwidth;
    let is_told = told.is_some_and(|told| told.ingress_rate.is_some() && told.egress_rate.is_some());
    is_told && plan.spec.conflist.plugins().any(takes_bandwidth)
}

fn takes_bandwidth(plugin: &PluginConf) -> bool {
    plugin.member("capabilities").is_some_and(|capabilities| capabilities["bandwidth"] == true)
}

/// Returns the limits that netclaim's plugin has made on the plan's interface.
pub(super) fn own_limits(plan: &Plan) -> Limits {
    let is_ours = |plugin: &&PluginConf| plugin.plugin_type().as_str() == BANDWIDTH_PLUGIN;
    let Some(plugin) = plan.spec.conflist.plugins().find(is_ours) else { return Limits::default() };
    let asked: BandwidthArg = match plan.spec.capability_args.bandwidth {
        Some(asked) if takes_bandwidth(plugin) => asked,
        _ => BandwidthArg::default(),
    };
    let key = |name: &str| plugin.member(name).and_then(|value| value.as_u64());
    let limit = |direction: &str, rate: Option<u64>, burst: Option<u64>| {
        let (rate, burst) = match (rate, burst) {
            (None, None) => (key(&format!("{direction}Rate")), key(&format!("{direction}Burst"))),
            asked => asked,
        };
        // What the plugin has refused, it has not made.
        Limit::new(direction, rate, burst).ok().flatten()
    };
    Limits {
        ingress: limit("ingress", asked.ingress_rate, asked.ingress_burst),
        egress: limit("egress", asked.egress_rate, asked.egress_burst),
    }
}

#[cfg(test)]
mod tests {
    use netclaim_api::Quantity;
    use netclaim_api::network::ClaimNetworkSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, conflist};
    use crate::inventory::fixtures::uplink;
    use crate::inventory::{Port, Uplink};

    const G: u64 = 1_000_000_000;

    /// `eth1` has 10G, and `eth1.100` on the same port 3G; ClaimNetworks are on them.
    fn inventory(networks: &[(&str, &str, &str)]) -> Inventory {
        let port = uplink("eth1").port;
        let vlan = Uplink { port, bandwidth: Some(Quantity::new(3 * G)), ..uplink("eth1.100") };
        let network = |(name, link, unrequested): &(&str, &str, &str)| {
            let spec: ClaimNetworkSpec = serde_json::from_value(json!({
                "uplink": {"links": [link]}, "capacity": {"bandwidth": "4G"}, "bandwidth": {"unrequested": unrequested},
                "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan"}]}}))
            .expect("a network");
            (name.parse().expect("a name"), spec)
        };
        let networks = networks.iter().map(network).collect();
        Inventory { uplinks: vec![uplink("eth1"), vlan, uplink("eth2")], networks, ..Inventory::default() }
    }

    fn plan(link: &str, granted: Option<u64>) -> Plan {
        let mut plan = fixtures::plan("c");
        plan.owner.attributes = json!({"uplink": {"string": link}}).as_object().cloned().unwrap_or_default();
        plan.owner.bandwidth = granted.map(|granted| Quantity::new(granted * G));
        plan.spec.capability_args.bandwidth = granted.filter(|granted| *granted > 0).map(|granted| {
            let rate = Some(granted * G);
            BandwidthArg { ingress_rate: rate, egress_rate: rate, ..BandwidthArg::default() }
        });
        let plugin = json!({"type": "netclaim-bandwidth", "capabilities": {"bandwidth": true}});
        plan.spec.conflist = conflist(json!([{"type": "macvlan"}, plugin]));
        plan
    }

    /// The rates in tenths of Gbit/s of plans: link, granted Gbit/s.
    fn shares(inventory: &Inventory, plans: &[(&str, Option<u64>)]) -> Vec<Option<u64>> {
        let plans: Vec<Plan> = plans.iter().map(|(link, granted)| plan(link, *granted)).collect();
        let rates = rates(inventory, plans.iter());
        rates.into_iter().map(|rate| rate.map(|rate| rate.bits() * 10 / G)).collect()
    }

    #[test]
    fn what_is_not_granted_of_a_guaranteed_port_is_shared_in_equal_parts() {
        let of = |unrequested: &str| inventory(&[("a", "eth1", unrequested)]);
        let plans = [("eth1", Some(2)), ("eth1", None), ("eth1", Some(0)), ("eth2", None)];
        assert_eq!(shares(&of("Unlimited"), &plans), [None; 4]);
        for guaranteed in ["Share", "Refuse"] {
            assert_eq!(shares(&of(guaranteed), &plans), [None, Some(40), Some(40), None], "{guaranteed}");
        }
        assert_eq!(shares(&of("Share"), &plans[1..3]), [Some(50), Some(50)]);
        assert_eq!(shares(&of("Share"), &[]), []);
    }

    #[test]
    fn all_links_of_a_port_share_it_and_no_part_is_more_than_the_link_has() {
        let network = inventory(&[("a", "eth1", "Unlimited"), ("b", "eth1.100", "Share")]);
        let plans = [("eth1", Some(4)), ("eth1", None), ("eth1.100", Some(2)), ("eth1.100", None)];
        assert_eq!(shares(&network, &plans), [None, Some(20), None, Some(10)]);
    }

    #[test]
    fn where_all_is_granted_a_pod_can_still_resolve_names() {
        let network = inventory(&[("a", "eth1", "Share")]);
        let plans = [plan("eth1", Some(11)), plan("eth1", None)];
        assert_eq!(rates(&network, plans.iter())[1], Some(Rate::Share(64_000)));
    }

    #[test]
    fn a_port_of_unknown_speed_has_what_its_networks_offer() {
        let mut network = inventory(&[("a", "eth1", "Share"), ("b", "eth1", "Unlimited")]);
        for uplink in &mut network.uplinks {
            (uplink.bandwidth, uplink.port.bandwidth) = (None, None);
        }
        assert_eq!(shares(&network, &[("eth1", Some(5)), ("eth1", None)]), [None, Some(30)]);
    }

    #[test]
    fn a_network_guarantees_the_port_on_which_its_attachments_are() {
        let network = inventory(&[("a", "eth2", "Share")]);
        let mut old = plan("eth1", None);
        assert_eq!(rates(&network, std::iter::once(&old)), [None]);
        old.owner.device.device = "net-a".into();
        assert_eq!(rates(&network, std::iter::once(&old)), [Some(Rate::Share(10 * G))]);
    }

    #[test]
    fn a_function_in_a_pod_is_on_the_port_of_its_card() {
        let mut network = inventory(&[("a", "eth1", "Share")]);
        let mut in_pod = plan("eth1v0", Some(6));
        in_pod.owner.attributes.insert("physicalFunction".into(), json!({"string": "eth1"}));
        let plans = [in_pod, plan("eth1", None)];
        assert_eq!(rates(&network, plans.iter())[1], Some(Rate::Share(4 * G)));
        network.uplinks[0].port = Port { name: "bond0".into(), bandwidth: None };
        assert_eq!(rates(&network, plans.iter())[0], None);
    }

    #[test]
    fn what_no_plugin_holds_to_its_grant_the_agent_does() {
        let network = inventory(&[("a", "eth1", "Share")]);
        let mut held = plan("eth1", Some(2));
        held.spec.conflist = conflist(json!([{"type": "macvlan"}]));
        assert_eq!(rates(&network, std::iter::once(&held)), [Some(Rate::Granted(2 * G))]);
    }

    #[test]
    fn a_lower_limit_of_the_plugin_stays() {
        let mut plan = plan("eth1", None);
        let limits = |plan: &Plan| Rate::Share(800).limits(plan);
        let share = Some(Limit::of_rate(800));
        assert_eq!(limits(&plan), Limits { ingress: share, egress: share });
        let own: Value = json!({"type": "netclaim-bandwidth", "capabilities": {"bandwidth": true},
            "ingressRate": 80, "egressRate": 8000});
        plan.spec.conflist = conflist(json!([{"type": "macvlan"}, own]));
        assert_eq!(limits(&plan), Limits { ingress: Some(Limit::of_rate(80)), egress: share });
        plan.spec.capability_args.bandwidth =
            Some(BandwidthArg { egress_rate: Some(160), ..BandwidthArg::default() });
        let own = Limits { ingress: Some(Limit::of_rate(80)), egress: Some(Limit::of_rate(160)) };
        assert_eq!((limits(&plan), own_limits(&plan)), (own, own));
    }
}
