//! CHECK: whether the interface still has the addresses that the pod was given.

use std::net::IpAddr;

use ipnet::IpNet;
use netclaim_plugin::rtnl::{Body, attribute, u32_at};
use netclaim_plugin::{Config, Failure, Requests, enter_required, link};
use netlink_packet_core::NLM_F_DUMP;
use nix::errno::Errno;
use nix::libc::{IFA_ADDRESS, IFA_LOCAL, RTM_GETADDR, RTM_GETLINK};
use serde::Deserialize;

const LOOK: &str = "read its addresses";
/// The code of a container that differs from the result.
const DIFFERS: u32 = 102;
/// sizeof(struct ifaddrmsg).
const IFADDRMSG: usize = 8;

#[derive(Deserialize)]
struct Reported {
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    ips: Vec<Ip>,
}

#[derive(Deserialize)]
struct Interface {
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Deserialize)]
struct Ip {
    address: IpNet,
    interface: Option<usize>,
}

/// Compares the addresses of `CNI_IFNAME` in `CNI_NETNS` with those of the previous result.
pub(crate) fn check(config: &Config) -> Result<(), Failure> {
    let interface = netclaim_plugin::interface()?;
    let expected = expected(config, &interface)?;
    enter_required()?;
    let found = found(&interface)?;
    match expected.iter().find(|ip| !found.contains(ip)) {
        Some(ip) => Err(differs(&interface, &format!("it has no address {ip}"))),
        None => Ok(()),
    }
}

/// The addresses that the result gives to the container's interface.
pub(crate) fn expected(config: &Config, interface: &str) -> Result<Vec<IpAddr>, Failure> {
    let problem = "is missing: a CHECK needs the result of the ADD";
    let result = config.prev_result.as_deref().ok_or_else(|| Failure::config("prevResult", problem))?;
    let result: Reported =
        serde_json::from_str(result).map_err(|error| Failure::config("prevResult", error.to_string()))?;
    let is_its = |ip: &&Ip| {
        let of = ip.interface.and_then(|index| result.interfaces.get(index));
        of.is_none_or(|of| of.name == interface && !of.sandbox.is_empty())
    };
    Ok(result.ips.iter().filter(is_its).map(|ip| ip.address.addr()).collect())
}

/// The interface's addresses in the calling thread's network namespace.
fn found(interface: &str) -> Result<Vec<IpAddr>, Failure> {
    let mut kernel = Requests::open(interface, LOOK)?;
    let links = kernel.ask(LOOK, None, (RTM_GETLINK, 0), &link::by_name(interface), &[Errno::ENODEV])?;
    let index = links.first().and_then(|message| u32_at(message, 4));
    let index = index.ok_or_else(|| differs(interface, "the container has no such interface"))?;
    // Of all families.
    let all = Body::new(&[0; IFADDRMSG]);
    let addresses = kernel.ask(LOOK, None, (RTM_GETADDR, NLM_F_DUMP), &all, &[])?;
    let of_it = addresses.iter().filter(|message| u32_at(message, 4) == Some(index));
    Ok(of_it.filter_map(|message| address(message)).collect())
}

/// Decodes the kernel's description of an address.
fn address(message: &[u8]) -> Option<IpAddr> {
    let attributes = message.get(IFADDRMSG..)?;
    // With a peer, IFA_ADDRESS is the peer's.
    let bytes = attribute(attributes, IFA_LOCAL).or_else(|| attribute(attributes, IFA_ADDRESS))?;
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

fn differs(interface: &str, found: &str) -> Failure {
    let problem =
        format!("{interface}: {found}: the pod was given something else at its start; delete the pod");
    Failure::State { code: DIFFERS, problem }
}
