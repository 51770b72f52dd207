//! `netclaim-route`: a chained CNI plugin that makes `CNI_IFNAME` the way of the container's default route.
//!
//! The container's first interface, `eth0`, stays for the networks of the cluster:
//!
//! ```text
//!   main:   default via GATEWAY dev net1                 a new connection to anywhere
//!           default via NEXT_HOP dev eth0 metric 4096    in force again as soon as net1 is gone
//!           KEPT via NEXT_HOP dev eth0 onlink            pods, Services, the node
//!   rule:   from ETH0_ADDRESS lookup 4711                answers leave as they came in: probes, load balancers
//!   4711:   a copy of eth0's routes
//! ```
//!
//! * Configuration: `keep`, the prefixes that stay with `eth0`; `interface`, if that has another name;
//!   `table`, if 4711 is taken.
//! * The gateway of a family is that of the default route in the previous result, or of the address. A family
//!   without address or gateway stays as it is.
//! * All that the plugin makes has a routing protocol number of its own, by which it is found again. DEL
//!   leaves only `eth0`'s default route at its worse metric.
//! * Two interfaces can have one family each.
//! * CNI 0.3.0 to 1.1.0. The process needs CAP_SYS_ADMIN (setns) and CAP_NET_ADMIN; the kernel
//!   CONFIG_IP_MULTIPLE_TABLES, and CONFIG_IPV6_MULTIPLE_TABLES for IPv6.
//!
//! # Limitations
//! * Programs that bind to `eth0`'s address keep `eth0`, by the rule.
//! * A CNI that handles the traffic of `eth0` by eBPF may drop what it does not expect.
//! * A container with CAP_NET_ADMIN can change its routes. CHECK detects it, nothing prevents it.
#![forbid(unsafe_code)]

mod gateways;
mod messages;
mod routes;

use std::process::ExitCode;

use ipnet::IpNet;
use netclaim_plugin::{Config, Failure, Plugin, enter_if_there, enter_required};

use gateways::gateways;
use routes::Container;

/// What is configured.
#[derive(Debug)]
struct Settings {
    keep: Vec<IpNet>,
    /// The container's first interface.
    first: String,
    table: u32,
}

const FIRST: &str = "eth0";
const TABLE: u32 = 4711;
/// linux/rtnetlink.h: unspecified, and those of the kernel's own rules.
const TAKEN_TABLES: [u32; 4] = [0, 253, 254, 255];

struct DefaultRoute;

fn main() -> ExitCode {
    netclaim_plugin::main::<DefaultRoute>()
}

impl Plugin for DefaultRoute {
    const ABOUT: &'static str = "netclaim-route: a chained CNI plugin";
    const KEYS: &'static [&'static str] = &["keep", "interface", "table"];

    fn add(config: &Config) -> Result<String, Failure> {
        let settings = settings(config)?;
        let result = config.require_result()?;
        let interface = interface()?;
        let gateways = gateways(config, &interface)?;
        let mut container = Container::open(&interface, &settings.first)?;
        for gateway in gateways {
            container.lead(gateway, &settings.keep, settings.table)?;
        }
        Ok(result.to_owned())
    }

    fn del(_: &Config) -> Result<(), Failure> {
        let name = netclaim_plugin::interface()?;
        // The routes end with the namespace.
        if enter_if_there()? { routes::remove(&name) } else { Ok(()) }
    }

    fn check(config: &Config) -> Result<(), Failure> {
        let settings = settings(config)?;
        let interface = interface()?;
        let gateways = gateways(config, &interface)?;
        let mut container = Container::open(&interface, &settings.first)?;
        gateways.into_iter().try_for_each(|gateway| container.check(gateway, &settings.keep))
    }

    /// All that the plugin makes ends with the container's namespace.
    fn gc(_: &Config) -> Result<(), Failure> {
        Ok(())
    }
}

fn settings(config: &Config) -> Result<Settings, Failure> {
    let keep = config.field("keep")?.ok_or_else(|| {
        let problem = "is missing: write the prefixes that stay with the container's first interface: those of pods and Services, and \
                       the node's addresses";
        Failure::config("keep", problem)
    })?;
    let table = config.field("table")?.unwrap_or(TABLE);
    if TAKEN_TABLES.contains(&table) {
        return Err(Failure::config("table", format!("{table} is one of the kernel's: choose another one")));
    }
    Ok(Settings { keep, first: config.field("interface")?.unwrap_or_else(|| FIRST.to_owned()), table })
}

/// Enters the container's network namespace. Returns the name of its interface.
fn interface() -> Result<String, Failure> {
    let name = netclaim_plugin::interface()?;
    enter_required()?;
    Ok(name)
}
