//! What a configuration asks for.

use netclaim_plugin::{Config, Failure, required};
use serde::Deserialize;

use crate::alias::Owner;

/// The plugin's own keys.
pub(crate) const KEYS: [&str; 5] = ["kind", "master", "id", "bridge", "mtu"];
/// Bytes of a link's name (linux/if.h), less the closing zero.
const IFNAMSIZ: usize = 15;
/// Bytes of other names.
const LONGEST: usize = 255;

/// What ADD makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkSpec {
    pub(crate) kind: Kind,
    /// In bytes.
    pub(crate) mtu: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// CNI_IFNAME.
    Vlan { master: String, id: u16 },
    Bridge {
        bridge: String,
        port: String,
        /// Whether the port is the interface of the plugin before, not a link of the host.
        is_chained: bool,
    },
}

/// The subject of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    Vlan,
    /// The bridge of this name, and ports of any.
    Bridge(&'a str),
    All,
}

impl Kind {
    /// What DEL removes.
    pub(crate) fn part(&self) -> Part<'_> {
        match self {
            Self::Vlan { .. } => Part::Vlan,
            Self::Bridge { bridge, .. } => Part::Bridge(bridge),
        }
    }

    /// The name of the link that ADD makes.
    pub(crate) fn made<'a>(&'a self, owner: &'a Owner) -> &'a str {
        match self {
            Self::Vlan { .. } => &owner.interface,
            Self::Bridge { bridge, .. } => bridge,
        }
    }
}

/// Reads what a configuration wants. `interface` is CNI_IFNAME.
pub(crate) fn wanted(config: &Config, interface: &str) -> Result<LinkSpec, Failure> {
    let link = |key: &str| match config.field::<String>(key)? {
        Some(name) => checked(name, IFNAMSIZ).map(Some).map_err(|problem| Failure::config(key, problem)),
        None => Ok(None),
    };
    let missing = |key: &str, what: &str| Failure::config(key, format!("is missing: write {what}"));
    let kind = config.field::<String>("kind")?.ok_or_else(|| missing("kind", "vlan or bridge"))?;
    let meaningless =
        |key: &str| Failure::config(key, format!("has no meaning for the kind {kind}: remove it"));
    let (master, bridge, id) = (link("master")?, link("bridge")?, config.field::<u16>("id")?);
    let kind = match kind.as_str() {
        "vlan" if bridge.is_some() => return Err(meaningless("bridge")),
        "vlan" => match id.ok_or_else(|| missing("id", "the VLAN's number, 1 to 4094"))? {
            id @ 1..=4094 => {
                let master = master.ok_or_else(|| missing("master", "the link to make the VLAN on"))?;
                Kind::Vlan { master, id }
            }
            id => return Err(Failure::config("id", format!("{id} is not a VLAN id: write 1 to 4094"))),
        },
        "bridge" if id.is_some() => return Err(meaningless("id")),
        "bridge" => {
            let bridge = bridge.ok_or_else(|| missing("bridge", "the bridge's name"))?;
            let is_chained = master.is_none();
            let port = master.unwrap_or_else(|| interface.to_owned());
            if port == bridge {
                return Err(Failure::config("bridge", format!("{bridge} cannot be a port of itself")));
            }
            Kind::Bridge { bridge, port, is_chained }
        }
        other => {
            return Err(Failure::config("kind", format!("{other:?} is not known: write vlan or bridge")));
        }
    };
    Ok(LinkSpec { kind, mtu: config.field("mtu")? })
}

/// An attachment's interface, as the runtime lists those that are left.
#[derive(Debug, Deserialize)]
pub(crate) struct Valid {
    #[serde(rename = "containerID")]
    pub(crate) container: String,
    #[serde(rename = "ifname")]
    pub(crate) interface: String,
}

/// Reads who calls.
pub(crate) fn owner(config: &Config) -> Result<Owner, Failure> {
    let variable = |name, longest| {
        checked(required(name)?, longest).map_err(|problem| Failure::environment(name, problem))
    };
    let (container, interface) = (variable("CNI_CONTAINERID", LONGEST)?, variable("CNI_IFNAME", IFNAMSIZ)?);
    Ok(Owner { network: network(config)?, container, interface })
}

/// Reads the network's name.
pub(crate) fn network(config: &Config) -> Result<String, Failure> {
    let name: Option<String> = config.field("name")?;
    let name = name.ok_or_else(|| "is missing: write the network's name".to_owned());
    name.and_then(|name| checked(name, LONGEST)).map_err(|problem| Failure::config("name", problem))
}

/// Returns a name that an alias can hold, and a path.
fn checked(name: String, longest: usize) -> Result<String, String> {
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if is_plain && (1..=longest).contains(&name.len()) && !matches!(name.as_str(), "." | "..") {
        return Ok(name);
    }
    Err(format!("{name:?} is not 1 to {longest} letters, digits, `_`, `.` and `-`"))
}
