//! Takes part in runs of `netclaimctl ping`, when asked: by the uplink of a ClaimNetwork, which needs no pod,
//! and by interfaces in pods.

use std::net::IpAddr;
use std::time::Duration;

use futures::future::join_all;
use netclaim_api::NetworkName;
use netclaim_api::device::DeviceName;
use netclaim_api::ping::{Heard, MAX_ENDPOINTS, Ping, Probed, UsedTwice};
use netclaim_api::question::Answer;
use netclaim_cni::error_chain;
use netclaim_driver::attach::{Attach, Attacher, Failure, Observer};
use netclaim_driver::links::{self, Netns};

use crate::inventory::Inventory;
use crate::pods::attached::attachment_of;
use crate::pods::owner::{Owner, Plan};

/// Why one cannot take part.
#[derive(Debug, thiserror::Error)]
enum CannotProbe {
    #[error("the agent does not know the node's ClaimNetworks yet: ask again in some seconds")]
    NotKnownYet,
    #[error(
        "ClaimNetwork {0} is not for this node: it is not valid, or spec.nodeSelector does not select the node"
    )]
    NotHere(NetworkName),
    #[error("ClaimNetwork {0} has no spec.uplink: its frames do not leave the node")]
    WithoutUplink(NetworkName),
    #[error("the node has no link for ClaimNetwork {network}, or a pod has it{why}")]
    WithoutLink { network: NetworkName, why: String },
    #[error("uplink {0} is down or has no carrier")]
    Down(String),
    #[error(
        "the VLAN of ClaimNetwork {network} is {id}, which a claim or a node fills in: choose it with --vlan"
    )]
    VlanIsChosen { network: NetworkName, id: String },
    #[error("VLAN {0} is not an id from 1 to 4094")]
    NoVlan(u32),
    #[error("pod {pod} has no interface of ClaimNetwork {network} now")]
    WithoutInterface { network: NetworkName, pod: String },
    #[error(transparent)]
    Netns(#[from] Failure),
    #[error(transparent)]
    Link(#[from] links::Error),
}

impl CannotProbe {
    /// Whether that is so by the ClaimNetwork, and not because something fails.
    fn is_not_offered(&self) -> bool {
        matches!(self, Self::NotHere(_) | Self::WithoutUplink(_) | Self::WithoutLink { .. })
    }
}

/// What frames are sent by, and how.
#[derive(Debug, Clone, Default, PartialEq)]
struct Means {
    link: String,
    vlan: Option<u16>,
    mtu: u32,
    has_second_mac: bool,
    hears_unicast: bool,
    /// Addresses of the pod, which other hosts may have as well.
    ips: Vec<IpAddr>,
}

/// Has those of the run take part that are on this node.
pub(crate) async fn probe<A: Attach, O: Observer<Owner = Owner>>(
    ping: &Ping,
    node: &str,
    inventory: Option<&Inventory>,
    attacher: &Attacher<A, O>,
) -> Answer {
    let many = ping.endpoints.len();
    if many > MAX_ENDPOINTS {
        return Answer::Error(format!(
            "at most {MAX_ENDPOINTS} nodes or pods take part in a run, not {many}"
        ));
    }
    let here = ping.endpoints.iter().enumerate().filter(|(_, endpoint)| endpoint.node == node);
    let probed = here.map(async |(place, endpoint)| {
        let probed = async {
            let (netns, means) = match &endpoint.pod {
                None => {
                    let means = by_uplink(ping, inventory.ok_or(CannotProbe::NotKnownYet)?)?;
                    (Netns::of_thread()?, means)
                }
                Some((namespace, pod)) => by_interface(&ping.network, namespace, pod, attacher).await?,
            };
            take_part(ping, place, &netns, means).await
        };
        probed.await.unwrap_or_else(|error: CannotProbe| Probed {
            place,
            is_not_offered: error.is_not_offered(),
            problem: Some(error_chain(&error)),
            ..Probed::default()
        })
    });
    Answer::Ping(join_all(probed).await)
}

/// How the ClaimNetwork's uplink is used.
fn by_uplink(ping: &Ping, inventory: &Inventory) -> Result<Means, CannotProbe> {
    let network = || ping.network.clone();
    let spec = inventory.networks.get(&ping.network).ok_or_else(|| CannotProbe::NotHere(network()))?;
    let selector = spec.uplink.as_ref().ok_or_else(|| CannotProbe::WithoutUplink(network()))?;
    let Some(uplink) = inventory.uplink_of(spec) else {
        let withheld = selector.links.iter().find_map(|link| inventory.withheld.get(link.as_str()));
        let why = withheld.map(|why| format!(": {why}")).unwrap_or_default();
        return Err(CannotProbe::WithoutLink { network: network(), why });
    };
    if !uplink.link.is_up() {
        return Err(CannotProbe::Down(uplink.link.name.clone()));
    }
    let vlan = match ping.vlan {
        Some(asked) => Some(u32::from(asked)),
        None => {
            let ids = spec.vlans().map_err(|id| CannotProbe::VlanIsChosen { network: network(), id })?;
            ids.first().copied()
        }
    };
    let in_range =
        |id| u16::try_from(id).ok().filter(|id| (1..=4094).contains(id)).ok_or(CannotProbe::NoVlan(id));
    Ok(Means {
        link: uplink.link.name.clone(),
        vlan: vlan.map(in_range).transpose()?,
        mtu: spec.mtu_on(uplink.link.mtu),
        // One more address can make a port of a switch shut down: only where pods have one.
        has_second_mac: spec.has_own_macs(),
        hears_unicast: true,
        ips: Vec::new(),
    })
}

/// How the pod's interface of the ClaimNetwork is used, and where it is.
async fn by_interface<A: Attach, O: Observer<Owner = Owner>>(
    network: &NetworkName,
    namespace: &str,
    pod: &str,
    attacher: &Attacher<A, O>,
) -> Result<(Netns, Means), CannotProbe> {
    let is_of_network = |plan: &Plan| matches!(plan.owner.device.device.parse(), Ok(DeviceName::Network(of)) if of == *network);
    let found = attachment_of(attacher, namespace, pod, is_of_network);
    let without =
        || CannotProbe::WithoutInterface { network: network.clone(), pod: format!("{namespace}/{pod}") };
    let (sandbox, plan) = found.ok_or_else(without)?;
    let name = plan.spec.if_name.to_string();
    let netns = sandbox.open_netns()?;
    let (link, addresses) = netns.link_with_addresses(&name).await?.ok_or_else(without)?;
    // Answers to it go to its uplink, as do frames that are not IP.
    let is_ipvlan = link.kind.as_deref() == Some("ipvlan");
    let ips = addresses.iter().map(|address| address.local.addr());
    let is_of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let ips = ips.filter(|ip| !is_ipvlan && !is_of_link(ip)).collect();
    let means = Means { link: name, mtu: link.mtu, hears_unicast: !is_ipvlan, ips, ..Means::default() };
    Ok((netns, means))
}

async fn take_part(ping: &Ping, place: usize, netns: &Netns, means: Means) -> Result<Probed, CannotProbe> {
    let Means { link, vlan, mtu, has_second_mac, hears_unicast, ips } = means;
    let (many, own) = (ping.endpoints.len(), place);
    let number = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    let run =
        links::Ping { run: ping.run, place: number(own), many: number(many), vlan, mtu, has_second_mac };
    let used_twice =
        async { if ips.is_empty() { Ok(Vec::new()) } else { netns.used_twice(&link, ips).await } };
    let (pinged, used_twice) = tokio::join!(netns.ping(&link, run), used_twice);
    let pinged = pinged?;
    let used_twice = used_twice.unwrap_or_else(|error: links::Error| {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            link,
            "cannot find out whether addresses are used twice"
        );
        Vec::new()
    });
    let heard = pinged.heard.into_iter().map(|heard| {
        let links::Heard { untagged, broadcast, second_mac, unicast, to_second_mac, longest, lost_tag } =
            heard;
        Heard { untagged, broadcast, second_mac, unicast, to_second_mac, longest, lost_tag }
    });
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(Probed {
        place,
        problem: None,
        is_not_offered: false,
        mac: pinged.mac,
        second_mac: pinged.second_mac,
        vlan,
        mtu: pinged.mtu,
        hears_unicast,
        listened: milliseconds(links::Ping::WINDOW),
        heard: heard.collect(),
        used_twice: used_twice.into_iter().map(|used| UsedTwice { ip: used.ip, mac: used.by }).collect(),
        link,
    })
}

#[cfg(test)]
mod tests {
    use netclaim_api::network::ClaimNetworkSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::inventory::fixtures::uplink;

    fn inventory(plugin: Value) -> Inventory {
        let spec =
            json!({"uplink": {"links": ["eth1"]}, "cni": {"cniVersion": "1.1.0", "plugins": [plugin]}});
        let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("a network");
        let name: NetworkName = "storage".parse().expect("a name");
        Inventory { uplinks: vec![uplink("eth1")], networks: [(name, spec)].into(), ..Inventory::default() }
    }

    fn ping(vlan: Option<u16>) -> Ping {
        let network = "storage".parse().expect("a name");
        Ping {
            network,
            run: 1,
            vlan,
            endpoints: ["node0", "node1"].map(|node| node.parse().expect("a node")).into(),
        }
    }

    #[test]
    fn an_uplink_is_used_as_the_networks_pods_would_use_it() {
        let of = |plugin, vlan| by_uplink(&ping(vlan), &inventory(plugin)).expect("means");
        let macvlan = of(json!({"type": "macvlan", "mtu": 1400}), None);
        assert_eq!((macvlan.vlan, macvlan.mtu, macvlan.has_second_mac), (None, 1400, true));
        let vlan = of(json!({"type": "vlan", "vlanId": 100}), None);
        assert_eq!((vlan.vlan, vlan.mtu, vlan.has_second_mac), (Some(100), 1500, false));
        assert_eq!(of(json!({"type": "vlan", "vlanId": "${parameters.id}"}), Some(7)).vlan, Some(7));
    }

    #[test]
    fn what_keeps_an_uplink_from_being_used_is_said() {
        let why = |ping: &Ping, inventory: &Inventory| {
            let error = by_uplink(ping, inventory).expect_err("no means");
            (error.is_not_offered(), error.to_string())
        };
        let chosen = inventory(json!({"type": "vlan", "vlanId": "${parameters.id}"}));
        assert_eq!(
            why(&ping(None), &chosen),
            (
                false,
                "the VLAN of ClaimNetwork storage is \"${parameters.id}\", which a claim or a node fills in: choose it with --vlan"
                    .to_owned()
            )
        );
        assert!(why(&ping(Some(4095)), &chosen).1.contains("1 to 4094"));
        let mut down = inventory(json!({"type": "macvlan"}));
        down.uplinks[0].link.carrier = false;
        assert_eq!(why(&ping(None), &down), (false, "uplink eth1 is down or has no carrier".to_owned()));
        let mut without = inventory(json!({"type": "macvlan"}));
        without.uplinks.clear();
        without.withheld.insert("eth1".to_owned(), "it is a bridge".to_owned());
        let (is_not_offered, said) = why(&ping(None), &without);
        assert!(is_not_offered && said.ends_with("or a pod has it: it is a bridge"), "{said}");
        let elsewhere = Ping { network: "other".parse().expect("a name"), ..ping(None) };
        assert!(why(&elsewhere, &without).0);
    }
}
