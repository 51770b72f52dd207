//! `spec.finalize`: a chain of plugins for each attachment that works on what all attachments of the pod have
//! made.

use netclaim_cni::SpecVersion;
use netclaim_cni::placeholder::PlaceholderValue;
use netclaim_cni::validate::{Severity, UnknownPlaceholder, validate_template_after};
use serde_json::{Map, Value};

use super::{ClaimNetworkSpec, conflist_name};
use crate::conflist::{
    Plugin, chain_problems, declares, is_older, plugins, too_much, whereabouts_problems, with_versions,
};
use crate::{Invalid, NetworkName};

/// Plugins that make an interface, or move one into the pod.
const MAKES_INTERFACE: [&str; 16] = [
    "bond",
    "bridge",
    "dummy",
    "flannel",
    "host-device",
    "ib-sriov",
    "ipoib",
    "ipvlan",
    "loopback",
    "macvlan",
    "netclaim-link",
    "ovs",
    "ptp",
    "sriov",
    "tap",
    "vlan",
];

const HAS_INTERFACE: &str = "makes an interface: the attachments have theirs when these plugins run; move it to spec.cni, or remove it";
const HAS_ADDRESS: &str =
    "asks for addresses, and spec.finalize makes no interface that could have them: remove it";
const ONE_NAME: &str = "cannot be chosen, because plugins keep what they have changed under it: remove it";

/// The first version in which plugins of a chain and their results are as netclaim merges them.
const OLDEST: SpecVersion = SpecVersion::V0_3_1;

/// Returns the name of the conflist of a ClaimNetwork's `finalize`. No ClaimNetwork's name has a dot.
pub fn finalize_name(network: &str) -> String {
    format!("{}.finalize", conflist_name(network))
}

pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-validations": [{
            "rule": "!has(self.name)",
            "message": format!("name {ONE_NAME}"),
        }],
        "properties": {"name": {
            "type": "string",
            "description": "Must not be set: the name of the list is netclaim-NAME.finalize.",
        }},
    })
}

impl ClaimNetworkSpec {
    /// Returns the conflist of `finalize`. The version `auto` offers all versions.
    pub(crate) fn finalize_list(&self) -> Option<Map<String, Value>> {
        self.finalize.clone().map(with_versions)
    }

    /// Returns the types of the plugins of `finalize`, in the order of the chain.
    pub fn finalize_types(&self) -> Vec<&str> {
        self.finalize.iter().flat_map(plugins).map(Plugin::plugin_type).collect()
    }

    /// Returns what `finalize` has too much of.
    pub(super) fn too_much_to_finalize(&self) -> impl Iterator<Item = Invalid> {
        self.finalize.iter().flat_map(too_much)
    }

    /// Whether a plugin of either chain takes this capability.
    pub(super) fn takes(&self, capability: &str) -> bool {
        [Some(&self.cni), self.finalize.as_ref()].into_iter().flatten().any(|list| declares(list, capability))
    }

    /// Returns every problem of `finalize`; paths are relative to it.
    pub(super) fn finalize_problems(&self, name: &str) -> Vec<Invalid> {
        let Some(list) = &self.finalize else { return Vec::new() };
        let mut problems = Vec::new();
        if list.contains_key("name") {
            problems.push(Invalid::new("name", ONE_NAME));
        }
        problems.extend(too_old(list));
        problems.extend(self.finalize_findings(name, Severity::Error));
        problems.extend(chain_problems(list));
        for (i, plugin) in plugins(list).enumerate() {
            if MAKES_INTERFACE.contains(&plugin.plugin_type()) {
                problems.push(Invalid::new(format!("plugins[{i}].type"), HAS_INTERFACE));
            }
            // Plugins written in Go read keys in any case.
            if plugin.keys().any(|key| key.eq_ignore_ascii_case("ipam")) {
                problems.push(Invalid::new(format!("plugins[{i}].ipam"), HAS_ADDRESS));
            }
        }
        problems.extend(whereabouts_problems(list, &self.allow));
        problems
    }

    /// Returns what validation finds in `finalize`, under the name that it will have.
    pub(super) fn finalize_findings(&self, name: &str, severity: Severity) -> Vec<Invalid> {
        let Some(mut list) = self.finalize_list() else { return Vec::new() };
        // A name that is wrong is reported as the object's.
        let name = if name.parse::<NetworkName>().is_ok() { name } else { "network" };
        list.insert("name".to_owned(), Value::String(finalize_name(name)));
        let place = |place: &str| -> Result<PlaceholderValue, UnknownPlaceholder> {
            if place == "addresses" {
                let problem =
                    "${addresses} belongs to the plugin of spec.cni that has the interface".to_owned();
                return Err(UnknownPlaceholder { problem, advice: "remove it".to_owned() });
            }
            self.place(place)
        };
        let findings = validate_template_after(Value::Object(list).to_string().as_bytes(), &place);
        findings.into_iter().filter(|finding| finding.severity == severity).map(Invalid::from).collect()
    }
}

/// Returns the problem of a version in which results are not merged.
fn too_old(list: &Map<String, Value>) -> Option<Invalid> {
    let single = || list.get("cniVersion").into_iter();
    let several = list.get("cniVersions").and_then(Value::as_array).map(|all| all.iter());
    let is_old = |version: &Value| is_older(version, OLDEST);
    let (key, old) = match several {
        Some(mut all) => ("cniVersions", all.any(is_old)),
        None => ("cniVersion", !list.contains_key("cniVersion") || single().any(is_old)),
    };
    old.then(|| Invalid::new(key, format!("must be at least {OLDEST}: write for example 1.1.0")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(finalize: Value) -> ClaimNetworkSpec {
        let spec = json!({
            "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.name}", "mode": "bridge"}]},
            "finalize": finalize,
        });
        serde_json::from_value(spec).expect("decodes")
    }

    fn of(list: Value) -> Vec<String> {
        let problems = spec(list).problems("storage");
        problems.iter().map(Invalid::to_string).collect()
    }

    fn with(plugins: Value) -> Vec<String> {
        of(json!({"cniVersion": "1.1.0", "plugins": plugins}))
    }

    #[test]
    fn a_chain_that_begins_with_a_chained_plugin_finalizes() {
        let tuning = json!({"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "2"}});
        let other = json!({"type": "istio-cni", "node": "${node.name}", "uplink": "${uplink.name}", "pod": "${pod.name}"});
        assert_eq!(with(json!([tuning, {"type": "sbr"}, other])), [""; 0]);
        assert_eq!(of(json!({"cniVersion": "auto", "plugins": [tuning]})), [""; 0]);
        assert_eq!(spec(json!({"cniVersion": "1.1.0", "plugins": [tuning]})).warnings("storage"), []);
        assert_eq!(spec(json!({"plugins": [tuning]})).finalize_types(), ["tuning"]);
    }

    #[test]
    fn a_plugin_that_makes_an_interface_or_has_addresses_is_refused() {
        for plugin in [
            "macvlan",
            "ipvlan",
            "vlan",
            "bridge",
            "ptp",
            "host-device",
            "dummy",
            "tap",
            "bond",
            "loopback",
            "sriov",
            "netclaim-link",
        ] {
            let found = with(json!([{"type": plugin}]));
            let place = "spec.finalize.plugins[0].type: makes an interface";
            assert!(found.iter().any(|problem| problem.starts_with(place)), "{plugin}: {found:?}");
        }
        for ipam in [json!({"type": "host-local"}), json!("${addresses}"), json!({})] {
            let found = with(json!([{"type": "x", "IPAM": ipam}]));
            assert!(
                found.iter().any(|problem| problem.starts_with("spec.finalize.plugins[0].ipam: asks")),
                "{found:?}"
            );
        }
        let found = with(json!([{"type": "x", "y": "${addresses}"}]));
        assert!(found.len() == 1 && found[0].contains("belongs to the plugin of spec.cni"), "{found:?}");
    }

    #[test]
    fn a_name_and_versions_that_cannot_merge_results_are_refused() {
        let plugins = json!([{"type": "tuning"}]);
        assert!(
            of(json!({"name": "mine", "cniVersion": "1.1.0", "plugins": plugins}))[0]
                .starts_with("spec.finalize.name: cannot be")
        );
        for (list, field) in [
            (json!({"cniVersion": "0.3.0", "plugins": plugins}), "cniVersion"),
            (json!({"plugins": plugins}), "cniVersion"),
            (
                json!({"cniVersions": ["0.2.0", "1.0.0"], "cniVersion": "1.0.0", "plugins": plugins}),
                "cniVersions",
            ),
        ] {
            let found = of(list);
            let expected = format!("spec.finalize.{field}: must be at least 0.3.1");
            assert!(found.iter().any(|problem| problem.starts_with(&expected)), "{found:?}");
        }
        assert_eq!(of(json!({"cniVersion": "0.3.1", "plugins": plugins})), [""; 0]);
    }

    #[test]
    fn its_problems_are_found_at_their_place_as_those_of_cni() {
        let found = with(
            json!([{"type": "${parameters.type}"}, 7, {"type": "tuning", "sysctls": {}, "x": "${nope}"}]),
        );
        for place in ["plugins[0].type", "plugins[1]", "plugins[2].x"] {
            assert!(
                found.iter().any(|problem| problem.starts_with(&format!("spec.finalize.{place}: "))),
                "{place}: {found:?}"
            );
        }
        let many = with(json!(vec![json!({"type": "tuning"}); 33]));
        assert_eq!(many, ["spec.finalize.plugins: has 33 items: write at most 32"]);
        assert!(!of(json!({"cniVersion": "1.1.0", "type": "tuning"})).is_empty(), "not a list");
        let without = json!({"cniVersion": "1.1.0", "plugins": [{"type": "x", "a": "${segmentation.id}"}]});
        assert!(of(without)[0].contains("needs spec.segmentation"));
    }

    #[test]
    fn a_parameter_or_label_that_only_it_uses_has_an_effect() {
        let mut spec = spec(json!({"cniVersion": "1.1.0", "plugins": [
            {"type": "x", "y": "${parameters.filter}", "capabilities": {"podLabels": true}}]}));
        spec.allow =
            serde_json::from_value(json!({"parameters": {"filter": {"type": "integer", "maximum": 2}}}))
                .expect("decodes");
        spec.pod_labels = serde_json::from_value(json!({"keys": ["app"]})).expect("decodes");
        assert_eq!((spec.problems("storage"), spec.warnings("storage")), (vec![], vec![]));
    }
}
