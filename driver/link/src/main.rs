//! `netclaim-link`: a CNI plugin that makes links of a host which no reference plugin can make without an
//! address: a VLAN link, and a bridge that has an uplink or a VLAN link as its port.
//!
//! ```text
//! {type: netclaim-link, kind: vlan, master: eth1, id: 100}     makes CNI_IFNAME on eth1
//! {type: netclaim-link, kind: bridge, bridge: br100}           makes br100, with CNI_IFNAME as its port
//! {type: netclaim-link, kind: bridge, bridge: br1, master: eth1}       makes br1, with eth1 as its port
//! ```
//!
//! * A network has a bridge once: the first ADD makes it, later ones add their ports, and it goes with the
//!   last of these ports, also if other ports are in it.
//! * What it makes is up, has no addresses, and belongs to the attachment that its [`alias`] names. Nothing
//!   else is changed or removed, and a link of the same name is refused. A port gets its alias back.
//! * All is done in `CNI_NETNS`, under a lock on this namespace. The host's own needs `CNI_NETNS_OVERRIDE=1`.
//! * A call can be killed anywhere: a DEL afterwards leaves nothing, an ADD afterwards works.
//! * GC works in the namespace of the caller. STATUS looks at the configuration only.
//! * Errors: 11, what is missing or down may come; 100, the kernel; 101, a link is there already; 102, a link
//!   cannot be a port; 103, CHECK found something else.
#![forbid(unsafe_code)]

mod alias;
mod config;
mod host;
mod kernel;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use netclaim_plugin::{Config, Failure, Object, Plugin, enter_if_there, enter_required, required};
use serde_json::json;
use serde_json::value::to_raw_value;

use config::{Kind, Part, Valid};
use kernel::{Kernel, Link};

struct Links;

fn main() -> ExitCode {
    netclaim_plugin::main::<Links>()
}

impl Plugin for Links {
    const ABOUT: &'static str = "netclaim-link: a CNI plugin that makes VLAN links and bridges of a host";
    const KEYS: &'static [&'static str] = &config::KEYS;

    fn add(config: &Config) -> Result<String, Failure> {
        let owner = config::owner(config)?;
        let wanted = config::wanted(config, &owner.interface)?;
        let problem = match (&wanted.kind, &config.prev_result) {
            (Kind::Bridge { is_chained: true, .. }, None) => {
                "is missing: name the port, or put the plugin that makes it before this one"
            }
            (Kind::Bridge { is_chained: false, .. }, Some(_)) => {
                "stands beside the interface of the plugin before, which would be the port: remove one"
            }
            _ => "",
        };
        if !problem.is_empty() {
            return Err(Failure::config("master", problem));
        }
        let made = host::add(&mut there()?, &owner, &wanted)?;
        result(config, &made)
    }

    fn del(config: &Config) -> Result<(), Failure> {
        let owner = config::owner(config)?;
        let kind = config.field::<String>("kind").ok().flatten();
        let bridge = config.field::<String>("bridge").ok().flatten().unwrap_or_default();
        // The links end with the namespace.
        if !enter_if_there()? {
            return Ok(());
        }
        match kind.as_deref() {
            Some("vlan") => host::del(&mut Kernel::lock()?, &owner, Part::Vlan),
            Some("bridge") => host::del(&mut Kernel::lock()?, &owner, Part::Bridge(&bridge)),
            // No ADD has made anything.
            _ => Ok(()),
        }
    }

    fn check(config: &Config) -> Result<(), Failure> {
        let owner = config::owner(config)?;
        let wanted = config::wanted(config, &owner.interface)?;
        host::check(&mut there()?, &owner, &wanted)
    }

    fn gc(config: &Config) -> Result<(), Failure> {
        const KEY: &str = "cni.dev/valid-attachments";
        let network = config::network(config)?;
        let valid: Vec<Valid> = config.field(KEY)?.ok_or_else(|| Failure::config(KEY, "is missing"))?;
        let is_gone = |owner: &alias::Owner| {
            !valid.iter().any(|one| one.container == owner.container && one.interface == owner.interface)
        };
        host::remove(&mut Kernel::lock()?, &network, &is_gone, Part::All)
    }

    fn status(config: &Config) -> Result<(), Failure> {
        config::wanted(config, "").map(drop)
    }
}

/// Enters the namespace and locks it.
fn there() -> Result<Kernel, Failure> {
    enter_required()?;
    Kernel::lock()
}

/// The previous result, or a new one, with the link that was made.
fn result(config: &Config, made: &Link) -> Result<String, Failure> {
    let octets: Vec<_> = made.mac.iter().map(|octet| format!("{octet:02x}")).collect();
    let mut interface =
        json!({"name": made.name, "mac": octets.join(":"), "sandbox": required("CNI_NETNS")?});
    if config.version == "1.1.0" {
        interface["mtu"] = json!(made.mtu);
    }
    let written = || {
        let mut result: Object = match &config.prev_result {
            Some(previous) => serde_json::from_str(previous)?,
            None => [("cniVersion".to_owned(), to_raw_value(&config.version)?)].into(),
        };
        let interfaces = result.get("interfaces").map_or("null", |interfaces| interfaces.get());
        let mut interfaces: Vec<_> = serde_json::from_str::<Option<_>>(interfaces)?.unwrap_or_default();
        interfaces.push(to_raw_value(&interface)?);
        result.insert("interfaces".to_owned(), to_raw_value(&interfaces)?);
        serde_json::to_string(&result)
    };
    written().map_err(|error: serde_json::Error| Failure::config("prevResult", error.to_string()))
}
