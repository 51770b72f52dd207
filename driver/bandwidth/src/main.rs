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
//!   object count for a direction that the capability does not set. A burst is optional, see [`limits`].
//!   Ingress is what the container receives. A direction without a rate stays as it is.
//! * The name of the `ifb` device is derived from the interface's name; its alias names the interface.
//! * The previous result is passed on unchanged; one without `cniVersion` gets the configuration's. The
//!   plugin stores nothing outside the namespace: GC and STATUS have nothing to do, and DEL succeeds if the
//!   namespace is gone.
//! * ADD first removes the remains of an earlier ADD. DEL removes qdiscs and device before the interface is
//!   moved or destroyed.
//! * CNI 0.3.0 to 1.1.0. The process needs CAP_SYS_ADMIN (setns) and CAP_NET_ADMIN; the kernel `sch_tbf`, and
//!   for ingress `sch_ingress`, `cls_u32`, `act_mirred` and `ifb`.
//!
//! # Limitations
//! * A container with CAP_NET_ADMIN can remove the qdiscs, or add an interface without limits. CHECK detects
//!   the first, nothing prevents it. Containers do not have CAP_NET_ADMIN by default.
//! * Received traffic has already crossed the wire when it waits or is dropped here: senders slow down only
//!   if the protocol does (TCP, QUIC).
//! * `ipvlan` in mode `l3s` passes received packets around the ingress hook: ingress is not limited there.
//! * Sockets that bypass the kernel's network stack (AF_XDP without copying, DPDK, RDMA) bypass its qdiscs,
//!   too.
#![forbid(unsafe_code)]

mod config;
mod failure;
mod interface;
mod limits;
mod messages;
mod rtnl;
mod version;

use std::env;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use serde_json::json;

use config::Config;
use failure::Failure;
use interface::Interface;
use version::{NEWEST, SUPPORTED};

/// A configuration is a few kilobytes; a previous result with thousands of routes still fits.
const MAX_CONFIG: u64 = 16 << 20;

fn main() -> ExitCode {
    let Some(command) = env::var_os("CNI_COMMAND") else {
        eprintln!(
            "netclaim-bandwidth: a chained CNI plugin, to be run by a container runtime; CNI {}",
            SUPPORTED.join(", ")
        );
        return ExitCode::SUCCESS;
    };
    let mut version = NEWEST.to_owned();
    let (answer, code) = match run(&command.to_string_lossy(), &mut version) {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(failure) => (Some(failure.to_json(&version).to_string()), ExitCode::FAILURE),
    };
    let printed = answer.map_or(Ok(()), |answer| writeln!(io::stdout(), "{answer}"));
    if printed.is_err() { ExitCode::FAILURE } else { code }
}

/// Runs an operation and returns what to print. Sets `version` to the configuration's as soon as it is known.
fn run(command: &str, version: &mut String) -> Result<Option<String>, Failure> {
    let mut input = Vec::new();
    io::stdin().lock().take(MAX_CONFIG).read_to_end(&mut input).map_err(Failure::Stdin)?;
    if command == "VERSION" {
        *version = config::version_of(&input).unwrap_or_else(|| NEWEST.to_owned());
        return Ok(Some(json!({"cniVersion": version, "supportedVersions": SUPPORTED}).to_string()));
    }
    let config = Config::parse(&input)?;
    version.clone_from(&config.version);
    match command {
        "ADD" => add(&config).map(Some),
        "DEL" => del().map(|()| None),
        "CHECK" => check(&config).map(|()| None),
        // All that the plugin makes ends with the container's namespace.
        "STATUS" | "GC" => config.has_operation("1.1.0", command).map(|()| None),
        _ => Err(Failure::environment(
            "CNI_COMMAND",
            format!("{command:?} is not one of ADD, DEL, CHECK, STATUS, GC, VERSION"),
        )),
    }
}

fn add(config: &Config) -> Result<String, Failure> {
    let result = config.prev_result.clone().ok_or_else(|| {
        Failure::config("prevResult", "is missing: put the plugin that makes the interface before this one")
    })?;
    interface()?.limit(&config.limits)?;
    Ok(result)
}

fn check(config: &Config) -> Result<(), Failure> {
    config.has_operation("0.4.0", "CHECK")?;
    interface()?.check(&config.limits)
}

fn del() -> Result<(), Failure> {
    let name = required("CNI_IFNAME")?;
    required("CNI_CONTAINERID")?;
    // The limits ended with the namespace.
    let Some(netns) = variable("CNI_NETNS") else { return Ok(()) };
    let Some(()) = enter(&netns)? else { return Ok(()) };
    interface::remove_limits(&name)
}

/// Enters the network namespace at `path`; `None` if there is none. The process has one thread only.
fn enter(path: &str) -> Result<Option<()>, Failure> {
    let failed = |source| Failure::Namespace { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file.map_err(failed)?,
    };
    let id = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    if id(file.metadata().map_err(failed)?) == id(std::fs::metadata("/proc/self/ns/net").map_err(failed)?) {
        return Err(Failure::environment(
            "CNI_NETNS",
            format!("{path} is the plugin's own network namespace"),
        ));
    }
    match setns(&file, CloneFlags::CLONE_NEWNET) {
        // Unmounting a namespace leaves an empty file.
        Err(Errno::EINVAL) => Ok(None),
        entered => entered.map(Some).map_err(|errno| failed(errno.into())),
    }
}

/// Enters the container's network namespace and finds its interface.
fn interface() -> Result<Interface, Failure> {
    let name = required("CNI_IFNAME")?;
    required("CNI_CONTAINERID")?;
    let netns = required("CNI_NETNS")?;
    enter(&netns)?
        .ok_or_else(|| Failure::environment("CNI_NETNS", format!("{netns} is not a network namespace")))?;
    Interface::find(&name)?.ok_or_else(|| {
        let problem =
            format!("the container has no interface {name}: put the plugin that makes it before this one");
        Failure::environment("CNI_IFNAME", problem)
    })
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn required(name: &'static str) -> Result<String, Failure> {
    variable(name).ok_or_else(|| Failure::environment(name, "is not set".to_owned()))
}
