//! `spec.repair`: whether attachments that have broken are made again in their running pods.

use netclaim_cni::SpecVersion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ADDRESSES, ClaimNetworkSpec};
use crate::conflist::{is_older, plugins};
use crate::{Invalid, LinkUse};

/// What becomes of an attachment that a CHECK finds broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum Repair {
    #[default]
    None,
    Reattach,
}

impl Repair {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// The IPAM plugins whose addresses are written down, and whose are a server's.
const STATIC: &str = "static";
const DHCP: &str = "dhcp";

/// The first version with CHECK.
const OLDEST: SpecVersion = SpecVersion::V0_4_0;

impl ClaimNetworkSpec {
    /// Returns why attachments could not be repaired with the same addresses, or never would be; paths are
    /// relative to the spec.
    pub(super) fn repair_problems(&self) -> Vec<Invalid> {
        if self.repair.is_none() {
            return Vec::new();
        }
        let (mut problems, at) = (Vec::new(), |problem: &str| Invalid::new("repair", problem));
        if self.link_use() == Some(LinkUse::Nic) {
            problems.push(at(
                "cannot be Reattach for a plugin that takes a whole link: what has happened to the link comes back with it; remove it",
            ));
        }
        // libcni takes a text for a boolean.
        let is_off = match self.cni.get("disableCheck") {
            Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
            other => other == Some(&Value::Bool(true)),
        };
        if is_off || too_old(&self.cni) {
            problems.push(at(
                "needs CHECK, which finds what has broken: remove disableCheck, and use at least cniVersion 0.4.0",
            ));
        }
        if !plugins(&self.cni).all(keeps_addresses) {
            problems.push(at(
                "needs addresses that stay the same: use spec.addresses with \"ipam\": \"${addresses}\", or write \"capabilities\": \
                 {\"ips\": true} in the plugin that has the ipam, other than dhcp",
            ));
        }
        problems
    }
}

/// Whether the addresses of a plugin's `ipam` can be had again.
fn keeps_addresses(plugin: &Map<String, Value>) -> bool {
    match plugin.get("ipam") {
        None => true,
        Some(Value::String(text)) => text == ADDRESSES,
        Some(ipam) => match ipam["type"].as_str() {
            None | Some(STATIC) => true,
            Some(DHCP) => false,
            Some(_) => plugin.get("capabilities").is_some_and(|of| of["ips"] == true),
        },
    }
}

fn too_old(list: &Map<String, Value>) -> bool {
    let is_old = |version: &Value| is_older(version, OLDEST);
    match list.get("cniVersions").and_then(Value::as_array) {
        Some(versions) => versions.iter().all(is_old),
        None => list.get("cniVersion").is_some_and(is_old),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(cni: Value) -> Vec<String> {
        let spec = json!({"uplink": {"links": ["eth1"]}, "cni": cni, "repair": "Reattach"});
        let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
        spec.problems("storage").iter().map(Invalid::to_string).collect()
    }

    fn macvlan(ipam: Value, capabilities: Value) -> Value {
        let plugin = json!({"type": "macvlan", "master": "${uplink.name}", "mode": "bridge", "ipam": ipam,
            "capabilities": capabilities});
        json!({"cniVersion": "1.1.0", "plugins": [plugin]})
    }

    #[test]
    fn an_attachment_can_be_repaired_whose_addresses_stay_the_same() {
        let of_host_local = json!({"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24"}]]});
        let of_static = json!({"type": "static", "addresses": [{"address": "10.20.0.5/24"}]});
        let none = json!({"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}", "mode": "bridge"}]});
        assert_eq!(of(macvlan(of_host_local.clone(), json!({"ips": true}))), [""; 0]);
        assert_eq!(of(macvlan(of_static, json!({}))), [""; 0]);
        assert_eq!(of(none), [""; 0]);
        let found = of(macvlan(of_host_local, json!({})));
        assert!(
            found.len() == 1 && found[0].starts_with("spec.repair: needs addresses that stay the same"),
            "{found:?}"
        );
        let dhcp = of(macvlan(json!({"type": "dhcp"}), json!({"ips": true})));
        assert!(dhcp[0].starts_with("spec.repair: needs addresses"), "{dhcp:?}");
    }

    #[test]
    fn a_chain_without_check_or_with_a_whole_link_is_refused() {
        let plugin = json!({"type": "macvlan", "master": "${uplink.name}", "mode": "bridge"});
        for list in [
            json!({"cniVersion": "1.1.0", "disableCheck": true, "plugins": [plugin]}),
            json!({"cniVersion": "1.1.0", "disableCheck": "true", "plugins": [plugin]}),
            json!({"cniVersion": "0.3.1", "plugins": [plugin]}),
        ] {
            let found = of(list);
            assert!(found.iter().any(|one| one.starts_with("spec.repair: needs CHECK")), "{found:?}");
        }
        let found = of(
            json!({"cniVersion": "1.1.0", "plugins": [{"type": "host-device", "device": "${uplink.name}"}]}),
        );
        assert!(found.iter().any(|one| one.starts_with("spec.repair: cannot be Reattach")), "{found:?}");
    }
}
