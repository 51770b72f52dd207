//! Validation of ClaimNetworks: errors, and warnings about likely mistakes.

use serde_json::{Value, json};

use netclaim_cni::BANDWIDTH_PLUGIN;
use netclaim_cni::placeholder::PlaceholderValue;
use netclaim_cni::validate::{Severity, UnknownPlaceholder, validate_template};

use super::admission::{ADDRESSES_COUNTED, ADDRESSES_OF_CLUSTER, EVERY_LINK, IDS_OF_CLUSTER, ONE_NAME};
use super::{
    ADDRESSES, ClaimNetworkSpec, MAX_CLASSES, NODE_INTERFACE, ON_NODE_INTERFACE, POD_LABELS, Scope,
    UplinkSelector, conflist_name,
};
use crate::addresses::{AddressPoolSpec, NetworkAddresses};
use crate::conflist::{
    PASSTHRU, Plugin, chain_problems, declares, is_inside_pod, may_be, too_much, whereabouts_problems,
};
use crate::merge::{Base, Layer, PASSTHRU_CHOSEN, merge};
use crate::{Invalid, LinkUse, NetworkName, Quantity, Setting, attribute, node_selector, template};

/// Plugins that work on a link of the node, and the key that names the link.
const LINK_KEYS: [(&str, &str); 4] =
    [("macvlan", "master"), ("ipvlan", "master"), ("vlan", "master"), ("host-device", "device")];

impl ClaimNetworkSpec {
    /// Returns every problem of the spec; none means that it is accepted. `name` is the object's name.
    pub fn problems(&self, name: &str) -> Vec<Invalid> {
        let mut problems = Vec::new();
        if let Err(problem) = name.parse::<NetworkName>() {
            problems.push(problem.within("metadata.name"));
        }
        let of_allow = self.allow.too_much().into_iter().map(|p| p.within("spec.allow"));
        let of_cni = too_much(&self.cni).into_iter().map(|p| p.within("spec.cni"));
        let to_finalize = self.too_much_to_finalize().map(|p| p.within("spec.finalize"));
        let mut many = of_cni.chain(to_finalize).chain(of_allow).peekable();
        if many.peek().is_some() {
            problems.extend(many);
            return problems;
        }
        if self.uplink.as_ref().is_some_and(|uplink| *uplink == UplinkSelector::default()) {
            problems.push(Invalid::new("spec.uplink", EVERY_LINK));
        }
        if let Some(uplink) = &self.uplink {
            problems.extend(uplink.problems().into_iter().map(|problem| problem.within("spec.uplink")));
        }
        for (name, amount) in
            [("interfaces", self.capacity.interfaces), ("addresses", self.capacity.addresses)]
        {
            if amount == Some(Quantity::new(0)) {
                problems.push(Invalid::new(
                    format!("spec.capacity.{name}"),
                    "is 0: no pod could use the network",
                ));
            }
        }
        problems.extend(self.address_problems());
        problems.extend(node_selector::problems(self.node_selector.as_ref()));
        problems.extend(self.namespaces.problems().into_iter().map(|p| p.within("spec.namespaces")));
        problems.extend(self.default_problems(name).into_iter().map(|p| p.within("spec.default")));
        let classes = self.device_class_names.len();
        problems.extend(Invalid::too_many("spec.deviceClassNames", classes, MAX_CLASSES));
        problems.extend(self.class_problems(name).into_iter().map(|p| p.within("spec")));
        problems
            .extend(attribute::problems(&self.attributes).into_iter().map(|p| p.within("spec.attributes")));
        problems.extend(self.pod_labels_problems().into_iter().map(|p| p.within("spec.podLabels")));
        problems.extend(self.segmentation_problems().into_iter().map(|p| p.within("spec.segmentation")));
        if self.scope == Scope::Cluster && self.link_use() == Some(LinkUse::Nic) {
            let problem = "a plugin that takes a whole link belongs to its node: use scope Node";
            problems.push(Invalid::new("spec.scope", problem));
        }
        if self.allow.mac.is_some() && self.link_use() == Some(LinkUse::Nic) && !self.moves_link() {
            let problem = "cannot be allowed with mode passthru: the pod's interface has the link's own MAC address; remove it";
            problems.push(Invalid::new("spec.allow.mac", problem));
        }
        problems.extend(self.default_route_problems());
        problems.extend(self.node_problems());
        problems.extend(self.bandwidth_problems().into_iter().map(|p| p.within("spec")));
        problems.extend(self.repair_problems().into_iter().map(|p| p.within("spec")));
        problems.extend(self.on_failure_problems().map(|p| p.within("spec")));
        problems.extend(self.conflicts_problems().map(|p| p.within("spec")));
        problems.extend(self.allow.problems().into_iter().map(|p| p.within("spec.allow")));
        problems.extend(self.cni_findings(name, Severity::Error));
        let whereabouts = whereabouts_problems(&self.cni, &self.allow);
        problems.extend(self.cni_problems().into_iter().chain(whereabouts).map(|p| p.within("spec.cni")));
        problems.extend(self.finalize_problems(name).into_iter().map(|p| p.within("spec.finalize")));
        if problems.is_empty() {
            problems.extend(self.refused_defaults(name));
        }
        problems
    }

    /// Returns the defaults of classes that no attachment can have: each claim of the class would be refused.
    fn refused_defaults(&self, name: &str) -> Vec<Invalid> {
        let Ok(name) = name.parse::<NetworkName>() else { return Vec::new() };
        let refused = self.device_classes.iter().enumerate().filter_map(|(i, class)| {
            // A claim that asks for what it must.
            let granted = self.capacity.bandwidth.filter(|_| self.requires_bandwidth());
            let problem = merge(Base::Network(&name, self), &[Layer::of_class(class)?], granted).err()?;
            Some(problem.within(&format!("spec.deviceClasses[{i}].defaults")))
        });
        refused.collect()
    }

    /// Returns every likely mistake in a spec without problems. `name` is the object's name.
    pub fn warnings(&self, name: &str) -> Vec<Invalid> {
        let allow = &self.allow;
        // With addresses of its own, the network itself serves claims that ask for one.
        let is_served = |setting: Setting| {
            let by_network = setting == Setting::Ips && self.addresses.is_some();
            by_network || !setting.is_capability() || declares(&self.cni, setting.as_str())
        };
        let untaken =
            Setting::ALL.into_iter().filter(|setting| allow.allows(*setting) && !is_served(*setting));
        let problem = |name| {
            format!(
                "no plugin takes it, so that claims which set it are refused; write \"capabilities\": {{{name:?}: true}} \
                 in the plugin that does, or remove it"
            )
        };
        let untaken = untaken.map(Setting::as_str);
        let untaken = untaken.map(|name| Invalid::new(format!("spec.allow.{name}"), problem(name)));
        let granted = self.capacity.bandwidth.is_some_and(|rate| rate.value() > 0);
        let unenforced = (granted && !declares(&self.cni, "bandwidth")).then(|| {
            let problem = format!(
                "nothing holds pods to the bandwidth that they are granted of it: add {{\"type\": {BANDWIDTH_PLUGIN:?}, \
                 \"capabilities\": {{\"bandwidth\": true}}}} as the last of spec.cni.plugins"
            );
            Invalid::new("spec.capacity.bandwidth", problem)
        });
        let inline = self.addresses.as_ref().and_then(NetworkAddresses::inline);
        let none_reserved = inline.filter(|pool| allow.ips.is_some() && pool.reserved.is_empty()).map(|_| {
            let problem = "claims can ask only for addresses of spec.addresses.reserved, which is empty";
            Invalid::new("spec.allow.ips", problem)
        });
        let lists = [Some(&self.cni), self.finalize.as_ref()];
        let unused = allow.unused(lists.into_iter().flatten(), "spec.cni");
        let unused = unused.into_iter().map(|p| p.within("spec.allow"));
        let to_finalize = self.finalize_findings(name, Severity::Warning);
        self.cni_findings(name, Severity::Warning)
            .chain(to_finalize.into_iter().map(|p| p.within("spec.finalize")))
            .chain(untaken)
            .chain(unused)
            .chain(unenforced)
            .chain(none_reserved)
            .chain(self.default_warnings())
            .chain(self.default_route_warnings(name))
            .chain(self.primary_warnings())
            .chain(self.no_gateway())
            .chain(self.table_warnings())
            .chain(self.node_warnings())
            .collect()
    }

    /// Returns the warning for a network that several nodes serve on one layer 2 and whose `host-local` hands
    /// out the same addresses on each of them.
    pub fn repeated_addresses(&self) -> Option<Invalid> {
        /// The label that every node has with a value of its own.
        const HOSTNAME: &str = "kubernetes.io/hostname";
        let is_of_one_node = self.node_selector.as_ref().is_some_and(|nodes| nodes.0.fixes(HOSTNAME));
        if self.uplink.is_none() || is_of_one_node {
            return None;
        }
        // Where leases are kept does not matter: the addresses are the same.
        let tells_apart = |ipam: &Value| {
            [&ipam["subnet"], &ipam["ranges"], &ipam["rangeStart"]]
                .iter()
                .any(|value| value.to_string().contains("${node."))
        };
        let repeats = |ipam: &Value| ipam["type"] == "host-local" && !tells_apart(ipam);
        let (index, _) =
            self.plugins().enumerate().find(|(_, plugin)| plugin.get("ipam").is_some_and(repeats))?;
        let problem = "host-local counts on each node for itself, so that pods on two nodes get one address: move the ranges \
                       to spec.addresses, and write \"ipam\": \"${addresses}\" here; pods keep the addresses that they have";
        Some(Invalid::new(format!("spec.cni.plugins[{index}].ipam"), problem))
    }

    /// Addresses that cannot be handed out, or that no pod would get.
    fn address_problems(&self) -> Vec<Invalid> {
        let ipams: Vec<&Value> = self.plugins().filter_map(|plugin| plugin.get("ipam")).collect();
        let places = ipams.iter().filter(|ipam| ipam.as_str() == Some(ADDRESSES)).count();
        let Some(addresses) = &self.addresses else {
            let problem = "is not set: list the subnets there, or remove \"${addresses}\" from spec.cni";
            return (places > 0).then(|| Invalid::new("spec.addresses", problem)).into_iter().collect();
        };
        let mut problems: Vec<Invalid> =
            addresses.problems().into_iter().map(|problem| problem.within("spec.addresses")).collect();
        if self.scope == Scope::Cluster {
            problems.push(Invalid::new("spec.addresses", ADDRESSES_OF_CLUSTER));
        }
        if self.capacity.addresses.is_some() {
            problems.push(Invalid::new("spec.capacity.addresses", ADDRESSES_COUNTED));
        }
        let inline = addresses.inline().filter(|pool| pool.problems().is_empty());
        problems.extend(inline.and_then(|pool| self.serves_no_pod(&pool)));
        if self.cni.get("name").and_then(Value::as_str).is_some_and(|name| name.contains("${")) {
            problems.push(Invalid::new("spec.cni.name", ONE_NAME));
        }
        if places != 1 && !ipams.is_empty() {
            let problem = format!(
                "{places} plugins use them: write \"ipam\": {ADDRESSES:?} in the one that has the interface"
            );
            problems.push(Invalid::new("spec.addresses", problem));
        }
        problems
    }

    /// Returns why no pod gets an address of the pool that the network draws from, if none does.
    pub fn serves_no_pod(&self, pool: &AddressPoolSpec) -> Option<Invalid> {
        let problem = "is not set, and all addresses are reserved for claims that ask for them: set it, or reserve fewer";
        (self.allow.ips.is_none() && !pool.has_usable()).then(|| Invalid::new("spec.allow.ips", problem))
    }

    /// An `ipam` like those that attachments get, to check the conflist with.
    fn sample_ipam(&self) -> Value {
        let inline = self.addresses.as_ref().and_then(NetworkAddresses::inline);
        let inline = inline.filter(|pool| pool.problems().is_empty());
        // The ranges of an AddressPool are not known here: these are for documentation.
        inline.map_or_else(
            || json!({"type": "host-local", "ranges": [[{"subnet": "192.0.2.0/24"}]]}),
            |pool| pool.sample(),
        )
    }

    /// What validation finds in the conflist, under the name that it will have.
    fn cni_findings(&self, name: &str, severity: Severity) -> impl Iterator<Item = Invalid> {
        let mut conflist = self.cni_with(&self.sample_ipam());
        // A name that is wrong is reported as the object's.
        let name = if name.parse::<NetworkName>().is_ok() { name } else { "network" };
        conflist.entry("name").or_insert_with(|| Value::String(conflist_name(name)));
        let place = |place: &str| self.place(place);
        let findings = validate_template(Value::Object(conflist).to_string().as_bytes(), &place);
        findings
            .into_iter()
            .filter(move |finding| finding.severity == severity)
            .map(|finding| Invalid::from(finding).within("spec.cni"))
    }

    /// Returns the facts about a placeholder.
    pub(super) fn place(&self, place: &str) -> Result<PlaceholderValue, UnknownPlaceholder> {
        match place.strip_prefix("uplink.").map(|_| &self.uplink) {
            Some(None) => Err(UnknownPlaceholder {
                problem: format!("${{{place}}} needs spec.uplink"),
                advice: "list the links there".to_owned(),
            }),
            Some(Some(uplink)) if place == "uplink.name" && !uplink.links.is_empty() => {
                Ok(PlaceholderValue::OneOf(
                    uplink.links.iter().map(|name| Value::String(name.to_string())).collect(),
                ))
            }
            _ => match (place, &self.segmentation) {
                ("segmentation.id", Some(segmentation)) => {
                    let (first, last) = segmentation.bounds();
                    Ok(PlaceholderValue::Between(first.into(), last.into()))
                }
                // The place of the `ipam` has been filled; see `address_problems` for networks without
                // addresses.
                ("addresses", _) if self.addresses.is_none() => Ok(PlaceholderValue::Any),
                ("addresses", _) => Err(UnknownPlaceholder {
                    problem: "${addresses} stands for a whole `ipam`".to_owned(),
                    advice: format!("write \"ipam\": {ADDRESSES:?}"),
                }),
                (NODE_INTERFACE, _) if self.node.is_some() => Ok(PlaceholderValue::Text),
                (NODE_INTERFACE, _) => Err(UnknownPlaceholder {
                    problem: format!("${{{NODE_INTERFACE}}} needs spec.node"),
                    advice: "write there what makes it".to_owned(),
                }),
                ("segmentation.id", None) => Err(UnknownPlaceholder {
                    problem: "${segmentation.id} needs spec.segmentation".to_owned(),
                    advice: "list the ids there".to_owned(),
                }),
                _ => template::place_with(place, &self.allow),
            },
        }
    }

    /// What the CNI specification permits and a ClaimNetwork does not.
    fn cni_problems(&self) -> Vec<Invalid> {
        let mut problems = chain_problems(&self.cni);
        for (i, plugin) in self.plugins().enumerate() {
            let mode = plugin.get("mode").and_then(Value::as_str).unwrap_or_default();
            if plugin.plugin_type() == "macvlan" && mode != PASSTHRU && may_be(mode, PASSTHRU, &self.allow) {
                problems.push(Invalid::new(format!("plugins[{i}].mode"), PASSTHRU_CHOSEN));
            }
            let Some((_, key)) = LINK_KEYS.iter().find(|(r#type, _)| *r#type == plugin.plugin_type()) else {
                continue;
            };
            let link = plugin.get(*key).and_then(Value::as_str).unwrap_or_default();
            if !is_inside_pod(plugin) && !["${uplink.name}", ON_NODE_INTERFACE].contains(&link) {
                problems.push(Invalid::new(
                    format!("plugins[{i}].{key}"),
                    "must be \"${uplink.name}\", with the link listed in spec.uplink.links, or \"${node.interfaceName}\": \
                     otherwise the scheduler does not know which link is used",
                ));
            }
        }
        problems
    }

    /// Labels that no plugin takes, or that are none.
    fn pod_labels_problems(&self) -> Vec<Invalid> {
        let Some(labels) = &self.pod_labels else { return Vec::new() };
        let mut problems = labels.problems();
        if !self.takes(POD_LABELS) {
            let problem = format!(
                "no plugin takes them: write \"capabilities\": {{{POD_LABELS:?}: true}} in the plugin that does"
            );
            problems.push(Invalid::new("", problem));
        }
        problems
    }

    /// Ids that no attachment would get.
    fn segmentation_problems(&self) -> Vec<Invalid> {
        let Some(segmentation) = &self.segmentation else { return Vec::new() };
        let mut problems = segmentation.problems();
        if self.scope == Scope::Cluster {
            problems.push(Invalid::new("", IDS_OF_CLUSTER));
        }
        if !Value::Object(self.cni.clone()).to_string().contains("${segmentation.id}") {
            let problem =
                "no plugin uses the ids: write \"${segmentation.id}\" where the id belongs, such as vlanId";
            problems.push(Invalid::new("", problem));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn storage() -> Value {
        json!({
            "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.name}", "mode": "bridge",
                 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24"}]]}}]},
            "capacity": {"bandwidth": "10G", "interfaces": 64},
            "allow": {"bandwidth": {}},
        })
    }

    fn problems_of(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut spec = storage();
        change(&mut spec);
        let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
        spec.problems("storage").iter().map(Invalid::to_string).collect()
    }

    #[test]
    fn the_example_of_the_readme_is_accepted() {
        assert_eq!(problems_of(|_| {}), [""; 0]);
        let spec: ClaimNetworkSpec = serde_json::from_value(storage()).expect("decodes");
        assert_eq!(spec.link_use(), Some(LinkUse::Macvlan));
        assert_eq!(spec.plugin_types(), ["macvlan"]);
    }

    #[test]
    fn labels_of_pods_need_keys_and_a_plugin_that_takes_them() {
        let of = |labels: Value, takes: bool| {
            problems_of(|spec| {
                spec["podLabels"] = labels;
                let taker = json!({"type": "ovn", "capabilities": {"podLabels": takes}});
                spec["cni"]["plugins"].as_array_mut().expect("a list").push(taker);
            })
        };
        assert_eq!(of(json!({"keys": ["app.kubernetes.io/name", "tier"]}), true), [""; 0]);
        assert!(of(json!({"keys": ["tier"]}), false)[0].starts_with("spec.podLabels: no plugin takes them"));
        assert!(of(json!({"keys": []}), true)[0].starts_with("spec.podLabels.keys: is empty"));
        assert!(of(json!({"keys": ["a", "a b"]}), true)[0].starts_with("spec.podLabels.keys[1]: "));
    }

    #[test]
    fn a_route_of_another_table_needs_check_to_be_off() {
        let of = |routes: Value, is_off: bool| {
            let mut spec = storage();
            spec["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
            spec["cni"]["disableCheck"] = json!(is_off);
            spec["addresses"] = json!({"ranges": [{"subnet": "10.30.0.0/22"}], "routes": routes});
            let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
            assert_eq!(spec.problems("storage"), []);
            let warnings = spec.warnings("storage").into_iter().map(|warning| warning.field);
            warnings.filter(|field| field.contains("routes")).collect::<Vec<_>>()
        };
        let routes = json!([{"dst": "10.0.0.0/8", "priority": 9}, {"dst": "10.0.0.0/8", "table": 7}]);
        assert_eq!(of(routes.clone(), false), ["spec.addresses.routes[1].table"]);
        assert_eq!(of(routes, true), [""; 0]);
        let default = |key: &str| of(json!([{"dst": "0.0.0.0/0", key: 5}]), true);
        assert_eq!((default("priority"), default("table")), (vec![], vec![]), "beside that of eth0");
        assert_eq!(of(json!([{"dst": "0.0.0.0/0"}]), true), ["spec.addresses.routes[0].dst"]);
    }

    #[test]
    fn placeholders_of_labels_and_attributes_are_checked() {
        let found = |x: &str| problems_of(|spec| spec["cni"]["plugins"][0]["ipam"]["dataDir"] = json!(x));
        assert_eq!(found("/run/${node.labels.topology.kubernetes.io/zone}"), [""; 0]);
        assert_eq!(found("/run/${uplink.attributes.switch}"), [""; 0]);
        let wrong = found("/run/${node.labels.a b}");
        assert!(wrong.len() == 1 && wrong[0].contains("node.labels.KEY"), "{wrong:?}");
        let without = problems_of(|spec| {
            spec["uplink"] = Value::Null;
            spec["cni"]["plugins"] = json!([{"type": "x", "a": "${uplink.attributes.switch}"}]);
        });
        assert!(without.len() == 1 && without[0].contains("needs spec.uplink"), "{without:?}");
        let typed = problems_of(|spec| spec["cni"]["plugins"][0]["type"] = json!("${node.labels.a}"));
        assert!(!typed.is_empty());
    }

    #[test]
    fn the_version_auto_is_accepted_where_it_is_the_only_one() {
        assert_eq!(problems_of(|spec| spec["cni"]["cniVersion"] = json!("auto")), [""; 0]);
        let found = problems_of(|spec| {
            spec["cni"]["cniVersion"] = json!("auto");
            spec["cni"]["cniVersions"] = json!(["1.0.0"]);
        });
        assert!(found.len() == 1 && found[0].starts_with("spec.cni.cniVersion: "), "{found:?}");
    }

    #[test]
    fn which_plugins_are_daemons_is_the_agents_to_say() {
        let found = problems_of(|spec| spec["cni"]["netclaim.dev/sockets"] = json!(["macvlan"]));
        assert!(found.len() == 1 && found[0].contains("is written by the agent"), "{found:?}");
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let found = problems_of(|spec| {
            spec["cni"] = json!({"cniVersion": "9.9.9", "plugins": [{"type": "a/b", "prevResult": {}}, 1, {"type": "x", "y": "${nope}"}]});
            spec["capacity"]["interfaces"] = json!(0);
        });
        let fields: Vec<_> = found.iter().map(|p| p.split(": ").next().unwrap_or_default()).collect();
        let expected = [
            "spec.capacity.interfaces",
            "spec.cni.plugins[2].y",
            "spec.cni.cniVersion",
            "spec.cni.plugins[1]",
            "spec.cni.plugins[0].type",
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn a_list_that_is_too_long_is_not_looked_at_further() {
        let found = problems_of(|spec| {
            spec["cni"]["plugins"] = vec![json!({"type": "a/b", "x": "${nope}"}); 300].into();
            spec["allow"]["parameters"] =
                (0..65).map(|n| (format!("p{n}"), json!({"type": "boolean"}))).collect();
        });
        assert_eq!(
            found,
            [
                "spec.cni.plugins: has 300 items: write at most 32",
                "spec.cni: has 300 placeholders: write at most 256",
                "spec.allow.parameters: has 65 items: write at most 64",
            ]
        );
        let listed = |of: &str| {
            let values: Vec<u32> = (0..257).collect();
            let rule = match of {
                "enum" => json!({"type": "integer", "enum": values}),
                _ => json!({"type": "array", "maxItems": 1, "items": {"type": "integer", "enum": values}}),
            };
            problems_of(|spec| spec["allow"]["parameters"] = json!({"p": rule}))
        };
        for of in ["enum", "items.enum"] {
            assert_eq!(
                listed(of),
                [format!("spec.allow.parameters.p.{of}: has 257 items: write at most 256")]
            );
        }
    }

    #[test]
    fn a_message_names_ten_parameters_at_most() {
        let found = problems_of(|spec| {
            spec["cni"]["plugins"][0]["x"] = json!("${nope}");
            spec["allow"]["parameters"] =
                (10..30).map(|n| (format!("p{n}"), json!({"type": "boolean"}))).collect();
        });
        assert!(found[0].ends_with("parameters.p18, parameters.p19, and 10 more"), "{found:?}");
    }

    #[test]
    fn a_link_that_the_scheduler_cannot_know_is_refused() {
        let found = problems_of(|spec| spec["cni"]["plugins"][0]["master"] = json!("eth1"));
        assert!(found.len() == 1 && found[0].starts_with("spec.cni.plugins[0].master: must be"), "{found:?}");
        let found = problems_of(|spec| {
            spec.as_object_mut().expect("object").remove("uplink");
        });
        assert_eq!(
            found,
            ["spec.cni.plugins[0].master: ${uplink.name} needs spec.uplink; list the links there"]
        );
    }

    #[test]
    fn a_plugin_that_works_on_links_in_the_pod_needs_no_uplink() {
        let found = |plugin: Value| {
            let spec = json!({"cni": {"cniVersion": "1.0.0", "plugins": [plugin]}});
            let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
            let all = [spec.problems("bond"), spec.warnings("bond")].concat();
            (all.iter().map(Invalid::to_string).collect::<Vec<_>>(), spec.is_exclusive())
        };
        let (links, ipam) = (json!([{"name": "net1"}, {"name": "net2"}]), json!({"type": "dhcp"}));
        let bond = json!({"type": "bond", "linksInContainer": true, "links": links, "mode": "802.3ad", "miimon": "100",
            "failOverMac": 1, "mtu": 1500, "ipam": ipam});
        assert_eq!(found(bond), (vec![], false));
        let mut vlan =
            json!({"type": "vlan", "linkInContainer": true, "master": "bond0", "vlanId": 7, "ipam": ipam});
        assert_eq!(found(vlan.clone()), (vec![], false), "each pod has a bond of its own");
        let macvlan = json!({"type": "macvlan", "linkInContainer": true, "master": "bond0", "ipam": ipam});
        let network =
            |plugin: Value| serde_json::from_value::<ClaimNetworkSpec>(json!({"cni": {"plugins": [plugin]}}));
        assert_eq!(network(macvlan).expect("a spec").link_use(), None, "no uplink has a child");
        vlan["linkInContainer"] = json!(false);
        assert!(found(vlan).0[0].starts_with("spec.cni.plugins[0].master: must be"));
    }

    #[test]
    fn a_macvlan_that_takes_the_whole_link_is_exclusive_and_gives_no_mac() {
        let mode = |mode: &str, allow: Value| {
            let mut spec = storage();
            spec["cni"]["plugins"][0]["mode"] = json!(mode);
            spec["allow"] = allow;
            let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
            let problems: Vec<String> = spec.problems("storage").iter().map(Invalid::to_string).collect();
            (spec.is_exclusive(), problems)
        };
        assert_eq!(mode("passthru", json!({})), (true, vec![]));
        assert_eq!(mode("bridge", json!({"mac": {}})), (false, vec![]));
        let (_, refused) = mode("passthru", json!({"mac": {}}));
        assert!(
            refused.len() == 1 && refused[0].starts_with("spec.allow.mac: cannot be allowed"),
            "{refused:?}"
        );
        let chosen = |values: Value| {
            let allow = json!({"parameters": {"mode": {"type": "string", "enum": values}}});
            mode("${parameters.mode}", allow).1
        };
        assert_eq!(chosen(json!(["bridge", "private"])), [""; 0]);
        let refused = chosen(json!(["bridge", "passthru"]));
        assert!(
            refused.len() == 1 && refused[0].starts_with("spec.cni.plugins[0].mode: mode passthru"),
            "{refused:?}"
        );
    }

    #[test]
    fn a_selector_that_selects_nothing_and_a_scope_that_cannot_be_counted_are_refused() {
        let found = problems_of(|spec| {
            spec["nodeSelector"] =
                json!({"matchLabels": {"rack": "no label", "example.org/zone": "a", "ok": ""}})
        });
        assert_eq!(found, ["spec.nodeSelector.matchLabels: rack=no label cannot be a label"]);
        let found = problems_of(|spec| {
            spec["scope"] = json!("Cluster");
            spec["cni"]["plugins"][0] = json!({"type": "host-device", "device": "${uplink.name}"});
        });
        assert_eq!(
            found,
            ["spec.scope: a plugin that takes a whole link belongs to its node: use scope Node"]
        );
    }

    #[test]
    fn parameters_must_be_declared_to_be_used() {
        let found = problems_of(|spec| {
            spec["allow"]["parameters"] = json!({"vlan": {"type": "integer", "minimum": 1, "maximum": 4094}});
            spec["cni"]["plugins"][0]["a"] = json!("${parameters.vlan}");
            spec["cni"]["plugins"][0]["b"] = json!("${parameters.vlam}");
        });
        assert!(
            found.len() == 1 && found[0].starts_with("spec.cni.plugins[0].b: ${parameters.vlam} is unknown"),
            "{found:?}"
        );
    }

    #[test]
    fn a_parameter_of_any_type_is_accepted_where_it_belongs() {
        let found = problems_of(|spec| {
            spec["allow"]["parameters"] = json!({
                "zone": {"type": "string", "description": "of the firewall", "pattern": "^[a-z]+$", "maxLength": 17},
                "servers": {"type": "array", "items": {"type": "string", "format": "ipv4"}, "maxItems": 3},
            });
            spec["cni"]["plugins"][0]["dns"] =
                json!({"nameservers": "${parameters.servers}", "search": ["${parameters.zone}.lab"]});
        });
        assert_eq!(found, [""; 0]);
        let found = problems_of(|spec| {
            spec["allow"]["parameters"] = json!({
                "zone": {"type": "string", "pattern": "[a-z]+"},
                "servers": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            });
            spec["cni"]["plugins"][0]["a"] = json!("all of ${parameters.servers}");
        });
        let expected = [
            "spec.allow.parameters.servers.items.enum: a string needs",
            "spec.allow.parameters.zone.pattern: matches parts of a text, too: write it as ^(…)$",
            "spec.cni.plugins[0].a: ${parameters.servers} is a list and cannot stand inside a text; write",
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    fn warnings_of(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut spec = storage();
        change(&mut spec);
        let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
        assert_eq!(spec.problems("storage"), []);
        spec.warnings("storage").iter().map(Invalid::to_string).collect()
    }

    #[test]
    fn plugins_are_validated_with_the_values_that_claims_may_choose() {
        let vlan = |rule: Value, spec: &mut Value| {
            spec["allow"] = json!({"parameters": {"vlan": rule}});
            spec["cni"]["plugins"][0] = json!({"type": "vlan", "master": "${uplink.name}", "vlanId": "${parameters.vlan}",
                "ipam": {"type": "host-local", "subnet": "10.0.0.0/33"}});
        };
        assert_eq!(
            problems_of(|spec| vlan(json!({"type": "string", "enum": ["5"]}), spec)),
            [
                "spec.cni.plugins[0].ipam.subnet: \"10.0.0.0/33\" is not a network in CIDR notation; write address and prefix \
                 length, such as 10.0.0.0/24 or fd00::/64",
                "spec.cni.plugins[0].vlanId: `${parameters.vlan}` may become \"5\": must be a whole number, not a string; \
                 write it without quotes",
            ]
        );
        let warnings = warnings_of(|spec| {
            vlan(json!({"type": "integer", "minimum": 1}), spec);
            spec["cni"]["plugins"][0]["ipam"]["subnet"] = json!("10.0.0.0/24");
            spec["capacity"] = json!({});
        });
        assert_eq!(
            warnings,
            [
                "spec.cni.plugins[0].vlanId: `${parameters.vlan}` may become 9223372036854775807: 9223372036854775807 is out \
                 of range; write a number from 0 to 4094"
            ]
        );
    }

    #[test]
    fn a_primary_network_needs_addresses_and_a_way_to_its_node() {
        let of = |plugin: Value, allow: &str| {
            warnings_of(|spec| {
                spec["allow"] = json!({allow: {}});
                spec.as_object_mut().expect("an object").remove("capacity");
                spec["cni"]["plugins"] = json!([plugin]);
            })
        };
        let bare = json!({"type": "macvlan", "master": "${uplink.name}"});
        let warned = of(bare.clone(), "primary");
        assert!(
            warned.iter().any(|w| w.starts_with("spec.allow.primary: the node does not reach")),
            "{warned:?}"
        );
        assert!(warned.iter().any(|w| w.starts_with("spec.allow.primary: the network gives no addresses")));
        assert!(!of(bare, "mac").iter().any(|warning| warning.contains("primary")));
        let subnet = json!([[{"subnet": "10.0.0.0/24"}]]);
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        let ptp = |routes: Value| json!({"type": "ptp", "ipam": {"type": "host-local", "ranges": subnet, "routes": routes}});
        let warned = of(ptp(routes), "primary");
        let second = "in pods whose primary network is another one, it is";
        assert!(warned.len() == 2 && warned.iter().all(|warning| warning.contains(second)), "{warned:?}");
        let warned = of(ptp(json!([])), "primary");
        assert!(
            warned[0].starts_with("spec.allow.primary: no route of the network leads to everywhere"),
            "{warned:?}"
        );
        let only = warnings_of(|spec| {
            spec["deviceClasses"] = json!([{"name": "storage", "defaults": {"primary": true}}]);
            let object = spec.as_object_mut().expect("an object");
            object.retain(|field, _| field != "capacity" && field != "allow");
            spec["cni"]["plugins"] = json!([ptp(json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]))]);
        });
        assert_eq!(only, [""; 0], "its default routes are the pod's own");
    }

    #[test]
    fn a_class_makes_primary_networks_and_defaults_do_not() {
        let class = |defaults: Value| {
            problems_of(|spec| spec["deviceClasses"] = json!([{"name": "own", "defaults": defaults}]))
        };
        assert_eq!(class(json!({"primary": true})), [""; 0]);
        let both = class(json!({"primary": true, "interfaceName": "net1", "defaultRoute": true}));
        assert_eq!(
            both,
            [
                "spec.deviceClasses[0].defaults.interfaceName: is eth0 for a primary network: remove it",
                "spec.deviceClasses[0].defaults.defaultRoute: comes from the routes of a primary network itself: remove it",
            ]
        );
        let default = problems_of(|spec| {
            spec["allow"] = json!({"primary": {}});
            let selector = json!({"matchLabels": {"team": "a"}});
            spec["default"] = json!({"namespaceSelector": selector, "attachment": {"primary": true}});
        });
        assert!(
            default[0].starts_with("spec.default.attachment.primary: pods of the namespaces"),
            "{default:?}"
        );
        let by_class = problems_of(|spec| {
            spec["deviceClasses"] = json!([{"name": "own", "defaults": {"primary": true}}]);
            let selector = json!({"matchLabels": {"team": "a"}});
            spec["default"] = json!({"namespaceSelector": selector, "deviceClassName": "own"});
        });
        assert!(
            by_class[0].starts_with("spec.default.deviceClassName: pods of the namespaces"),
            "{by_class:?}"
        );
    }

    #[test]
    fn a_network_without_addresses_has_no_gateway_for_a_default_route() {
        let warned = |ipam: bool| {
            let warnings = warnings_of(|spec| {
                spec["allow"] = json!({"defaultRoute": {}});
                spec["cni"]["plugins"] = json!([{"type": "macvlan", "master": "${uplink.name}"}]);
                if ipam {
                    spec["cni"]["plugins"][0]["ipam"] = json!({"type": "dhcp"});
                }
            });
            warnings
                .iter()
                .any(|warning| warning.starts_with("spec.allow.defaultRoute: the network gives no addresses"))
        };
        assert!(warned(false) && !warned(true));
    }

    #[test]
    fn a_field_that_claims_may_set_and_no_plugin_takes_gets_a_warning() {
        let untaken = |spec: &mut Value| {
            spec["allow"] = json!({"ips": {}, "portMappings": {}, "args": {"names": ["TENANT"]}});
            spec["capacity"] = json!({});
        };
        assert_eq!(
            warnings_of(|spec| {
                untaken(spec);
                spec["cni"]["plugins"][0]["capabilities"] = json!({"ips": true});
            }),
            ["spec.allow.portMappings: no plugin takes it, so that claims which set it are refused; write \
                 \"capabilities\": {\"portMappings\": true} in the plugin that does, or remove it"]
        );
    }

    #[test]
    fn bandwidth_that_no_plugin_enforces_gets_a_warning() {
        let told = warnings_of(|spec| spec["allow"] = json!({}));
        let expected = "spec.capacity.bandwidth: nothing holds pods to the bandwidth that they are granted of it: add \
             {\"type\": \"netclaim-bandwidth\", \"capabilities\": {\"bandwidth\": true}} as the last of spec.cni.plugins";
        assert_eq!(told, [expected]);
        let enforced = json!({"type": BANDWIDTH_PLUGIN, "capabilities": {"bandwidth": true}});
        let plugins =
            |spec: &mut Value| spec["cni"]["plugins"].as_array_mut().expect("a list").push(enforced.clone());
        assert_eq!(warnings_of(plugins), [""; 0]);
    }

    #[test]
    fn claims_cannot_choose_the_plugins() {
        let found = problems_of(|spec| {
            spec["allow"]["parameters"] = json!({"p": {"type": "string", "enum": ["macvlan", "ipvlan"]}});
            let ipam = json!({"type": "${parameters.p}"});
            spec["cni"]["plugins"] =
                json!([{"type": "${parameters.p}"}, {"type": "x", "ipam": ipam}, "${parameters.p}"]);
        });
        let expected = ["plugins[0].type", "plugins[1].ipam.type", "plugins[2]"];
        assert_eq!(
            found,
            expected.map(|place| format!("spec.cni.{place}: {}", crate::conflist::WRITTEN_OUT))
        );
    }

    #[test]
    fn a_plugin_that_stands_alone_is_asked_into_a_list() {
        let found = problems_of(|spec| spec["cni"] = json!({"cniVersion": "1.0.0", "type": "bridge"}));
        assert_eq!(found, ["spec.cni.plugins: is missing: put the plugin into a list"]);
    }

    fn with_addresses(change: impl FnOnce(&mut Value)) -> Vec<String> {
        problems_of(|spec| {
            spec["addresses"] = json!({"ranges": [{"subnet": "10.20.0.0/22"}], "reserved": ["10.20.3.0/24"]});
            spec["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
            change(spec);
        })
    }

    #[test]
    fn addresses_take_the_place_of_an_ipam() {
        assert_eq!(with_addresses(|_| {}), [""; 0]);
        let without = |spec: &mut Value| {
            spec["cni"]["plugins"][0].as_object_mut().expect("an object").remove("ipam");
        };
        assert_eq!(with_addresses(without), [""; 0]);
        let mut spec = storage();
        spec["addresses"] = json!({"poolName": "lan"});
        without(&mut spec);
        let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
        assert_eq!(spec.problems("storage"), []);
        assert_eq!(spec.cni_with(&json!({"type": "x"}))["plugins"][0]["ipam"], json!({"type": "x"}));
    }

    #[test]
    fn addresses_that_no_pod_would_get_are_refused() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 7] = [
            (
                |spec| spec["cni"]["plugins"][0]["ipam"] = json!({"type": "dhcp"}),
                "spec.addresses: 0 plugins use them",
            ),
            (|spec| spec["capacity"]["addresses"] = json!(5), "spec.capacity.addresses: is counted"),
            (
                |spec| spec["addresses"]["ranges"][0]["subnet"] = json!("10.20.0.1/22"),
                "spec.addresses.ranges[0].subnet: 10.20.0.1/22 has host bits",
            ),
            (|spec| spec["addresses"] = json!({}), "spec.addresses.ranges: is empty"),
            (
                |spec| {
                    spec["addresses"]["reserved"] = json!(["10.20.0.0/22"]);
                },
                "spec.allow.ips: is not set, and all addresses are reserved",
            ),
            (
                |spec| spec["cni"]["plugins"][0]["x"] = json!("${addresses}"),
                "spec.cni.plugins[0].x: ${addresses} stands for",
            ),
            (
                |spec| {
                    spec.as_object_mut().expect("an object").remove("addresses");
                },
                "spec.addresses: is not set",
            ),
        ];
        for (change, expected) in cases {
            let found = with_addresses(change);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn a_network_with_addresses_of_whereabouts_is_refused() {
        let found = problems_of(|spec| {
            spec["cni"]["plugins"][0]["ipam"] = json!({"type": "whereabouts", "range": "10.20.0.0/24"});
        });
        assert!(
            found.len() == 1 && found[0].starts_with("spec.cni.plugins[0].ipam.type: whereabouts"),
            "{found:?}"
        );
        assert!(found[0].contains("spec.addresses or an AddressPool"), "{found:?}");
    }

    #[test]
    fn host_local_on_several_nodes_gets_a_warning_unless_something_tells_them_apart() {
        let warned = |change: &dyn Fn(&mut Value)| {
            let mut spec = storage();
            change(&mut spec);
            let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
            spec.repeated_addresses().map(|warning| warning.field)
        };
        assert_eq!(warned(&|_| {}).as_deref(), Some("spec.cni.plugins[0].ipam"));
        let of_nodes = |selector: Value| warned(&|spec| spec["nodeSelector"] = selector.clone());
        let hosts = |values: &[&str]| json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": values}]});
        assert_eq!(of_nodes(json!({"matchLabels": {"kubernetes.io/hostname": "n1"}})), None);
        assert_eq!(of_nodes(hosts(&["n1"])), None);
        assert!(of_nodes(hosts(&["n1", "n2"])).is_some());
        assert!(of_nodes(json!({"matchLabels": {"rack": "a"}})).is_some());
        assert_eq!(
            warned(&|spec| {
                spec.as_object_mut().expect("an object").remove("uplink");
            }),
            None
        );
        assert_eq!(warned(&|spec| spec["cni"]["plugins"][0]["ipam"] = json!("${addresses}")), None);
        assert!(
            warned(&|spec| spec["cni"]["plugins"][0]["ipam"]["dataDir"] = json!("/var/lib/${node.name}"))
                .is_some()
        );
        let by_node = |spec: &mut Value| {
            spec["cni"]["plugins"][0]["ipam"]["ranges"] = json!([[{"subnet": "${node.name}"}]]);
        };
        assert_eq!(warned(&by_node), None);
    }
}
