//! `netclaim-bandwidth`: a chained CNI plugin that limits the bandwidth of a container's own interface.
//!
//! The reference plugin `bandwidth` limits the host's end of a veth pair, and so `bridge` and `ptp` only. This one works
//! on `CNI_IFNAME` inside `CNI_NETNS`, whatever made it: `macvlan`, `ipvlan`, `host-device`, a veth's inner end.
//!
//! * Configuration: `ingressRate`, `egressRate` in bit/s, `ingressBurst`, `egressBurst` in bits, the keys of the reference
//!   plugin. They come from the runtime by the capability `bandwidth`; those in the plugin's object are for a direction of
//!   which the runtime says nothing. A burst may be left out, see [`limits`]. Ingress is what the container receives. A
//!   direction without a rate is not touched.
//! * Egress: a token bucket (qdisc `tbf`) as the interface's root. Ingress: a qdisc `ingress` whose filter redirects
//!   everything to an `ifb` device in the container's namespace, which has the token bucket. The device's name is made
//!   from the interface's, its alias says whose it is.
//! * The previous result is passed on as it is. Nothing is kept outside of the namespace: GC and STATUS have nothing
//!   to do, and DEL succeeds once the namespace is gone.
//! * ADD starts by removing what an earlier one has left. DEL removes qdiscs and device before the interface is moved
//!   or destroyed.
//! * CNI 0.3.0 to 1.1.0. The process needs CAP_SYS_ADMIN (setns) and CAP_NET_ADMIN; the kernel `sch_tbf`, and for
//!   ingress `sch_ingress`, `cls_u32`, `act_mirred` and `ifb`.
//!
//! # What it cannot do
//! * Who has CAP_NET_ADMIN in the container's network namespace can remove the qdiscs, or make an interface beside them.
//!   CHECK tells of it; nothing prevents it, as the interface is the container's. Containers do not have CAP_NET_ADMIN
//!   by default.
//! * Received traffic has crossed the wire already when it waits or is dropped here: senders slow down only where the
//!   protocol does (TCP, QUIC).
//! * `ipvlan` in mode `l3s` hands received packets past the ingress hook: ingress is not limited there.
//! * Sockets that bypass the kernel's stack (AF_XDP without copying, DPDK, RDMA) bypass its qdiscs too.
#![forbid(unsafe_code)]

mod failure;
mod limits;
mod rtnl;
mod shape;

use std::env;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use serde_json::json;

use failure::Failure;
use limits::Config;
use shape::Interface;

/// Versions of the CNI specification that are spoken, oldest first.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
const NEWEST: &str = "1.1.0";
/// A configuration is a few kilobytes; a previous result with thousands of routes still fits.
const MAX_CONFIG: u64 = 16 << 20;

fn main() -> ExitCode {
    let Some(command) = env::var_os("CNI_COMMAND") else {
        eprintln!(
            "netclaim-bandwidth: a chained CNI plugin, to be run by a container runtime; CNI {}",
            VERSIONS.join(", ")
        );
        return ExitCode::SUCCESS;
    };
    let mut version = NEWEST.to_owned();
    let (answer, code) = match run(&command.to_string_lossy(), &mut version) {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(failure) => (Some(failure.to_json(&version).to_string()), ExitCode::FAILURE),
    };
    let told = answer.map_or(Ok(()), |answer| writeln!(io::stdout(), "{answer}"));
    if told.is_err() { ExitCode::FAILURE } else { code }
}

/// What to print. `version` becomes that of the configuration as soon as it is known.
fn run(command: &str, version: &mut String) -> Result<Option<String>, Failure> {
    let mut input = Vec::new();
    io::stdin().lock().take(MAX_CONFIG).read_to_end(&mut input).map_err(Failure::Stdin)?;
    if command == "VERSION" {
        *version = limits::version(&input).unwrap_or_else(|| NEWEST.to_owned());
        return Ok(Some(json!({"cniVersion": version, "supportedVersions": VERSIONS}).to_string()));
    }
    let config = Config::parse(&input)?;
    version.clone_from(&config.version);
    match command {
        "ADD" => add(&config).map(Some),
        "DEL" => del().map(|()| None),
        "CHECK" => check(&config).map(|()| None),
        // All there is to collect is in namespaces, and ends with them.
        "STATUS" | "GC" => config.speaks("1.1.0", command).map(|()| None),
        _ => Err(Failure::environment(
            "CNI_COMMAND",
            format!("{command:?} is none of ADD, DEL, CHECK, STATUS, GC, VERSION"),
        )),
    }
}

fn add(config: &Config) -> Result<String, Failure> {
    let result = config.prev_result.clone().ok_or_else(|| {
        Failure::config("prevResult", "is missing: put the plugin that makes the interface before this one")
    })?;
    let name = required("CNI_IFNAME")?;
    required("CNI_CONTAINERID")?;
    enter(&required("CNI_NETNS")?)?.ok_or_else(no_namespace)?;
    Interface::find(&name)?.ok_or_else(|| no_interface(&name))?.limit(&config.limits)?;
    Ok(result)
}

fn check(config: &Config) -> Result<(), Failure> {
    config.speaks("0.4.0", "CHECK")?;
    let name = required("CNI_IFNAME")?;
    required("CNI_CONTAINERID")?;
    enter(&required("CNI_NETNS")?)?.ok_or_else(no_namespace)?;
    Interface::find(&name)?.ok_or_else(|| no_interface(&name))?.check(&config.limits)
}

fn del() -> Result<(), Failure> {
    let name = required("CNI_IFNAME")?;
    required("CNI_CONTAINERID")?;
    // It ends with the namespace.
    let Some(netns) = variable("CNI_NETNS") else { return Ok(()) };
    let Some(()) = enter(&netns)? else { return Ok(()) };
    shape::remove(&name)
}

/// Enters the network namespace at `path`; `None` when there is none. There is one thread only.
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
        // The empty file that stays behind when a namespace is unmounted.
        Err(Errno::EINVAL) => Ok(None),
        entered => entered.map(Some).map_err(|errno| failed(errno.into())),
    }
}

fn no_namespace() -> Failure {
    let path = variable("CNI_NETNS").unwrap_or_default();
    Failure::environment("CNI_NETNS", format!("{path} is no network namespace"))
}

fn no_interface(name: &str) -> Failure {
    let problem =
        format!("the container has no interface {name}: put the plugin that makes it before this one");
    Failure::environment("CNI_IFNAME", problem)
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn required(name: &'static str) -> Result<String, Failure> {
    variable(name).ok_or_else(|| Failure::environment(name, "is not set".to_owned()))
}
