//! Whether an interface is as its plugins have made it, by one look into the pod: a CHECK is a process for
//! each plugin.
//!
//! A difference is not a finding: plugins have views of their own, and CHECK decides.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use netclaim_cni::ipam::host_local::{HostLocal, TYPE as HOST_LOCAL, holder};
use netclaim_cni::{CniResult, ContainerId, Interface, NetworkList, Route, reference};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use rtnetlink::{Handle, RouteMessageBuilder};
use serde_json::value::RawValue;

use super::{CniPlugins, off_thread};
use crate::attach::plan::Spec;
use crate::attach::record::Sandbox;
use crate::links::Link;

/// A route of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    dst: IpNet,
    gateway: Option<IpAddr>,
}

/// Whether all that CHECK of the chain would look at is as in `result`: the interface is there and up, with
/// its MAC and MTU, and has its addresses and routes; and `host-local` knows the container. False for chains
/// whose CHECK looks at more, and where something is unknown.
pub(super) async fn is_as_made(spec: &Spec, sandbox: &Sandbox, result: &CniResult) -> bool {
    let list = &spec.conflist;
    if !reference::check_looks_at_interface(list) || list.disable_check() {
        return false;
    }
    let Ok(attachment) = CniPlugins::attachment(spec, &sandbox.id, Some(&sandbox.netns)) else {
        return false;
    };
    let Some(made) = result.interface_of(&attachment) else { return false };
    let Ok(netns) = sandbox.open_netns() else { return false };
    let Ok(Some((link, addresses))) = netns.link_with_addresses(spec.if_name.as_str()).await else {
        return false;
    };
    if !is_same(&link, made) {
        return false;
    }
    let ips: Vec<IpNet> = result.ips_of(&attachment).map(|ip| ip.address).collect();
    let index = link.index;
    let Ok(Ok(routes)) = netns.run(move || look(index)).await else { return false };
    if !ips.iter().all(|ip| addresses.iter().any(|address| address.local == *ip))
        || !result.routes().iter().all(|route| is_in(route, &routes))
    {
        return false;
    }
    let (list, container) = (list.clone(), attachment.container_id);
    off_thread(move || has_leases(&list, &container, &ips)).await.unwrap_or(false)
}

fn is_same(link: &Link, made: &Interface) -> bool {
    let mac = made.mac.as_ref().map(|mac| mac.to_lowercase());
    link.admin_up && (mac.is_none() || link.mac == mac) && made.mtu.is_none_or(|mtu| link.mtu == mtu)
}

fn is_in(route: &Route, found: &[Found]) -> bool {
    found.iter().any(|found| found.dst == route.dst && (route.gw.is_none() || found.gateway == route.gw))
}

/// Whether each `host-local` of the chain has given one of the addresses to the container, as its CHECK wants
/// it.
fn has_leases(list: &NetworkList, container: &ContainerId, ips: &[IpNet]) -> bool {
    list.plugins().filter(|plugin| plugin.ipam().is_some_and(|ipam| ipam.as_str() == HOST_LOCAL)).all(
        |plugin| {
            let Some(Ok(ipam)) = plugin.ipam_conf().map(RawValue::get).map(HostLocal::parse) else {
                return false;
            };
            let dir = ipam.reservations_dir(list.name());
            let is_ours =
                |ip: &IpNet| holder(&dir, ip.addr()).is_ok_and(|holder| holder == container.as_str());
            ips.iter().any(is_ours)
        },
    )
}

/// Reads the routes through a link in the calling thread's network namespace, which `links` reads only as far
/// as they are the node's. Blocks.
fn look(index: u32) -> io::Result<Vec<Found>> {
    // The thread ends after this look.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let connection = tokio::spawn(connection);
        let found = read(&handle, index).await.map_err(io::Error::other);
        connection.abort();
        found
    })
}

async fn read(handle: &Handle, index: u32) -> Result<Vec<Found>, rtnetlink::Error> {
    let of_v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let of_v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    let mut routes: Vec<RouteMessage> = handle.route().get(of_v4).execute().try_collect().await?;
    routes.extend(handle.route().get(of_v6).execute().try_collect::<Vec<_>>().await?);
    Ok(routes.iter().filter_map(|message| route_of(message, index)).collect())
}

fn route_of(message: &RouteMessage, index: u32) -> Option<Found> {
    let ip = |address: &RouteAddress| match address {
        RouteAddress::Inet(ip) => Some(IpAddr::from(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::from(*ip)),
        _ => None,
    };
    let (mut to, mut gateway, mut link) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => to = ip(address),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Oif(index) => link = Some(*index),
            _ => {}
        }
    }
    // A default route has no destination.
    let default = match message.header.address_family {
        AddressFamily::Inet => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let dst = IpNet::new(to.unwrap_or(default), message.header.destination_prefix_length).ok()?;
    (link == Some(index)).then_some(Found { dst, gateway })
}
