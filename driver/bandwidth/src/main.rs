//! `netclaim-bandwidth`: a chained CNI plugin that limits the bandwidth of a container's own interface.
//!
//! The reference plugin `bandwidth` limits the host's end of a veth pair, so it works with `bridge` and `ptp`
//! only. This plugin limits `CNI_IFNAME` inside `CNI_NETNS`, of any kind: `macvlan`, `ipvlan`, `host-device`,
//! a veth's inner end.
//!
//! ```text
//!   egress:   process ──> net1: qdisc tbf ──> wire
//!   ingress:  wire ──> net1: qdisc ingress, filter ──> ifb device: qdisc tbf ──> process
//! ```
//!
//! * Configuration: `ingressRate`, `egressRate` in bit/s, `ingressBurst`, `egressBurst` in bits, as for the
//!   reference plugin. The runtime passes them as the capability `bandwidth`. The same keys of the plugin's
//!   object count for a direction that the capability does not set. A burst is optional, see
//!   [`netclaim_bandwidth::Limit`].
//!   Ingress is what the container receives. A direction without a rate stays as it is.
//! * The previous result is passed on unchanged; one without `cniVersion` gets the configuration's. The
//!   plugin stores nothing outside the namespace: GC and STATUS have nothing to do, and DEL succeeds if the
//!   namespace is gone.
//! * ADD first removes the remains of an earlier ADD. DEL removes qdiscs and device before the interface is
//!   moved or destroyed.
//! * CNI 0.3.0 to 1.1.0. The process needs CAP_SYS_ADMIN (setns) and CAP_NET_ADMIN; the kernel `sch_tbf`, and
//!   for ingress `sch_ingress`, `cls_u32`, `act_mirred` and `ifb`.
//!
//! What it cannot do is with the library of the same name, which does the work.
#![forbid(unsafe_code)]

mod config;

use std::process::ExitCode;

use netclaim_bandwidth::{Interface, remove_limits};
use netclaim_plugin::{Config, Failure, Plugin, enter_if_there, enter_required};

struct Bandwidth;

fn main() -> ExitCode {
    netclaim_plugin::main::<Bandwidth>()
}

impl Plugin for Bandwidth {
    const ABOUT: &'static str = "netclaim-bandwidth: a chained CNI plugin";
    const KEYS: &'static [&'static str] = &config::KEYS;

    fn add(config: &Config) -> Result<String, Failure> {
        let limits = config::limits(config)?;
        let result = config.require_result()?;
        interface()?.limit(&limits)?;
        Ok(result.to_owned())
    }

    fn del(_: &Config) -> Result<(), Failure> {
        let name = netclaim_plugin::interface()?;
        // The limits end with the namespace.
        if enter_if_there()? { remove_limits(&name) } else { Ok(()) }
    }

    fn check(config: &Config) -> Result<(), Failure> {
        let limits = config::limits(config)?;
        interface()?.check(&limits)
    }

    /// All that the plugin makes ends with the container's namespace.
    fn gc(_: &Config) -> Result<(), Failure> {
        Ok(())
    }
}

/// Enters the container's network namespace and finds its interface.
fn interface() -> Result<Interface, Failure> {
    let name = netclaim_plugin::interface()?;
    enter_required()?;
    Interface::find(&name)?.ok_or_else(|| Failure::no_interface(&name))
}
