//! `spec.default` of a ClaimNetwork: the namespaces whose pods get the network without asking.
//!
//! An admission policy of the API server adds a claim to each such pod, and the controller keeps the template
//! of that claim in each namespace. Both go by the names of this module.

use std::collections::BTreeMap;

use netclaim_cni::hex;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::admission::{EVERY_NAMESPACE, default_capacity_rules, default_rules};
use super::{ClaimNetworkSpec, Namespaces, NetworkClass};
use crate::labels::LabelSelector;
use crate::{
    API_VERSION, AttachmentConfig, DRIVER_NAME, Invalid, NetworkName, ObjectName, Quantity, Setting,
};

/// Label of the ResourceClaimTemplates that the controller keeps, with the name of the ClaimNetwork.
pub const DEFAULT_LABEL: &str = "netclaim.dev/default-network";
/// Annotation of these templates: the [`DefaultClaim::fingerprint`] that they were made by.
pub const MADE_BY: &str = "netclaim.dev/default-made-by";
/// Annotation of a pod: the ClaimNetworks that it gets by default, as `a,b`. Without it, it gets all; with an
/// empty one, none.
pub const DEFAULT_NETWORKS: &str = "netclaim.dev/default-networks";

/// What [`default_template`] begins with.
const TEMPLATE_PREFIX: &str = "netclaim-default-";

/// The longest name of a ClaimNetwork with a default: the name of a pod's claim is a DNS label.
const MAX_NAME: usize = 55;

/// Returns the name that pods have for their claim of a ClaimNetwork that they get by default.
pub fn default_claim(network: &str) -> String {
    format!("default-{network}")
}

/// Returns the name of the template of such claims.
pub fn default_template(network: &str) -> String {
    format!("{TEMPLATE_PREFIX}{network}")
}

/// Returns the ClaimNetwork of such a template.
pub fn network_of_template(template: &str) -> Option<&str> {
    template.strip_prefix(TEMPLATE_PREFIX)
}

/// Says how a pod does without the networks of these claims; an empty text for none of them.
pub fn opt_out<'a>(templates: impl Iterator<Item = &'a str>) -> String {
    let networks: Vec<&str> = templates.filter_map(network_of_template).collect();
    match networks.as_slice() {
        [] => String::new(),
        [one] => format!(
            "ClaimNetwork {one} is a default of this namespace; the annotation {DEFAULT_NETWORKS}: \"\" of the pod leaves it out"
        ),
        some => format!(
            "ClaimNetworks {} are defaults of this namespace; the annotation {DEFAULT_NETWORKS} of the pod names those that it \
             gets, and \"\" is none",
            some.join(", ")
        ),
    }
}

/// Pods of these namespaces get the network without asking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = default_rules()))]
pub struct DefaultNetwork {
    /// Labels of the namespaces. All of them must be among `namespaces`.
    pub namespace_selector: LabelSelector,
    /// DeviceClass of the claims. By default, it is the one that is named like the ClaimNetwork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class_name: Option<ObjectName>,
    /// How much of the network each pod is granted.
    #[serde(default, skip_serializing_if = "DefaultCapacity::is_empty")]
    pub capacity: DefaultCapacity,
    /// The settings of each attachment, as in the parameters of a claim (AttachmentConfig), as far as `allow`
    /// lets claims set them. Those that no two pods may have in common are refused: `ips`, `replicaIPs`,
    /// `mac` and `portMappings`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "attachment")]
    pub attachment: Option<AttachmentConfig>,
}

/// How much of a ClaimNetwork each pod is granted by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = default_capacity_rules()))]
pub struct DefaultCapacity {
    /// Bandwidth in bits per second, such as `100M`. By default, it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
}

impl DefaultCapacity {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The webhook and the controller check what is in it, as in claims.
fn attachment(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({
        "type": "object",
        "properties": {"interfaceName": {
            "type": "string",
            "description": "Name of the interface in the pod. By default, interfaces are called net1, net2 and so on, in the \
                            alphabetical order of the claims' names.",
        }},
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

/// The claim that a pod gets by default, as its template has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultClaim {
    /// `spec.spec` of the template.
    pub spec: Value,
    /// Stands for the spec: the API server writes quantities in another form.
    pub fingerprint: String,
}

impl DefaultClaim {
    /// Returns the claim of a ClaimNetwork's default.
    pub fn of(network: &NetworkName, default: &DefaultNetwork) -> Self {
        let class = default.device_class_name.as_ref().map_or(network.as_str(), ObjectName::as_str);
        let mut request = json!({"name": "net", "exactly": {"deviceClassName": class}});
        if let Some(bandwidth) = default.capacity.bandwidth {
            request["exactly"]["capacity"] = json!({"requests": {"bandwidth": bandwidth}});
        }
        let mut devices = json!({"requests": [request]});
        if let Some(mut parameters) = default.attachment.as_ref().map(|config| json!(config)) {
            parameters["apiVersion"] = json!(API_VERSION);
            parameters["kind"] = json!("AttachmentConfig");
            devices["config"] = json!([{"opaque": {"driver": DRIVER_NAME, "parameters": parameters}}]);
        }
        let spec = json!({"devices": devices});
        // The keys of objects are sorted.
        let hash = Sha256::digest(spec.to_string());
        Self { fingerprint: hex(&hash[..8]), spec }
    }
}

impl DefaultNetwork {
    /// Whether pods of a namespace with these labels get the network.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.namespace_selector.is_empty() && self.namespace_selector.selects(labels)
    }

    fn interface_name(&self) -> Option<&str> {
        Some(self.attachment.as_ref()?.interface_name.as_ref()?.as_str())
    }

    fn takes_default_route(&self) -> bool {
        self.attachment.as_ref().is_some_and(|config| config.default_route)
    }

    /// Returns what the selector has wrong; paths are relative to the default.
    fn selector_problems(&self, namespaces: &Namespaces) -> Vec<Invalid> {
        let selector = &self.namespace_selector;
        let every = selector.is_empty().then(|| Invalid::new("", EVERY_NAMESPACE));
        let mut problems: Vec<Invalid> = every.into_iter().chain(selector.problems()).collect();
        let allowed = namespaces.selector.as_ref().filter(|_| !namespaces.is_all());
        if problems.is_empty() && allowed.is_some_and(|allowed| !selector.implies(allowed)) {
            problems.push(Invalid::new("", BEYOND));
        }
        problems.into_iter().map(|problem| problem.within("namespaceSelector")).collect()
    }
}

const BEYOND: &str = "selects namespaces that spec.namespaces does not, whose pods would wait for ever: write the requirements of \
                      spec.namespaces here, too";

const NOT_BY_DEFAULT: &str = "pods of the namespaces without the RuntimeClass of primary networks would not start: use a class without primary, \
                              and have pods claim the network that is to be their primary one";

const OF_ONE_POD: &str = "no two pods may have the same, and each pod of the namespaces would get it: remove it, and set it in claims";

impl ClaimNetworkSpec {
    /// Returns every problem of `default`; paths are relative to it. `name` is the ClaimNetwork's name.
    pub(super) fn default_problems(&self, name: &str) -> Vec<Invalid> {
        let Some(default) = &self.default else { return Vec::new() };
        let mut problems = Vec::new();
        if name.len() > MAX_NAME {
            let problem = format!(
                "a ClaimNetwork with a default may have a name of at most {MAX_NAME} bytes, because default-NAME is what \
                 pods call their claim; this one has {}",
                name.len()
            );
            problems.push(Invalid::new("", problem));
        }
        problems.extend(default.selector_problems(&self.namespaces));
        problems.extend(default.capacity.bandwidth.and_then(|wanted| self.too_wide(wanted)));
        let class = default.device_class_name.as_ref().map_or(name, ObjectName::as_str);
        let mut classes = self.device_classes.iter().filter(|own| own.name.as_str() == class);
        if classes.any(NetworkClass::is_primary) {
            problems.push(Invalid::new("deviceClassName", NOT_BY_DEFAULT));
        }
        problems.extend(default.attachment.iter().flat_map(|config| self.attachment_problems(config)));
        problems
    }

    fn too_wide(&self, wanted: Quantity) -> Option<Invalid> {
        let problem = match self.capacity.bandwidth {
            None => {
                "spec.capacity.bandwidth is not set, so that claims can request none: set it, or remove this"
                    .to_owned()
            }
            Some(all) if wanted > all => {
                format!(
                    "is more than spec.capacity.bandwidth, so that no pod could get it: write at most {all}"
                )
            }
            Some(_) => return None,
        };
        Some(Invalid::new("capacity.bandwidth", problem))
    }

    fn attachment_problems(&self, config: &AttachmentConfig) -> Vec<Invalid> {
        let AttachmentConfig { ips, replica_ips, mac, port_mappings, .. } = config;
        let of_one_pod = [
            ("ips", !ips.is_empty()),
            ("replicaIPs", !replica_ips.is_empty()),
            ("mac", mac.is_some()),
            ("portMappings", !port_mappings.is_empty()),
        ];
        let of_one_pod = of_one_pod.into_iter().filter(|(_, is_set)| *is_set);
        let of_one_pod = of_one_pod.map(|(field, _)| Invalid::new(field, OF_ONE_POD));
        let primary = config.primary.then(|| Invalid::new(Setting::Primary.as_str(), NOT_BY_DEFAULT));
        let of_one_pod = of_one_pod.chain(primary).collect::<Vec<_>>();
        let refused =
            if of_one_pod.is_empty() { self.allow.permits(config, "spec.allow").err() } else { None };
        let problems = config.problems().into_iter().chain(of_one_pod).chain(refused);
        problems.map(|problem| problem.within("attachment")).collect()
    }

    /// Returns what a default without problems may not mean as it is written.
    pub(super) fn default_warnings(&self) -> Option<Invalid> {
        self.default.as_ref().filter(|_| self.is_exclusive())?;
        let problem = "one pod at a time can have the network on a node, so that other pods of these namespaces stay Pending: have \
                       pods claim it instead";
        Some(Invalid::new("spec.default", problem))
    }
}

/// Returns the ClaimNetworks whose defaults give a pod of some namespace the same interface name or default
/// route, each with a warning. Such a pod does not start.
pub(super) fn contested_defaults<'a>(
    networks: impl Iterator<Item = (&'a NetworkName, &'a ClaimNetworkSpec)>,
) -> Vec<(&'a NetworkName, Invalid)> {
    let all: Vec<_> = networks.filter_map(|(name, spec)| Some((name, spec.default.as_ref()?))).collect();
    let mut found = Vec::new();
    for (index, (name, one)) in all.iter().enumerate() {
        for (other_name, other) in all.iter().skip(index + 1) {
            let names = one.interface_name().filter(|name| other.interface_name() == Some(name));
            let routes = one.takes_default_route() && other.takes_default_route();
            if names.is_none() && !routes || one.namespace_selector.contradicts(&other.namespace_selector) {
                continue;
            }
            let setting = if names.is_some() { "interfaceName" } else { Setting::DefaultRoute.as_str() };
            for (name, other) in [(*name, *other_name), (*other_name, *name)] {
                let problem = format!(
                    "ClaimNetwork {other} is a default with the same, and pods of a namespace that both select do not start: \
                     write another one, or selectors that no namespace meets both of"
                );
                found.push((name, Invalid::new(format!("spec.default.attachment.{setting}"), problem)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(change: impl FnOnce(&mut Value)) -> ClaimNetworkSpec {
        let mut spec = json!({
            "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]},
            "capacity": {"bandwidth": "10G"},
            "default": {"namespaceSelector": {"matchLabels": {"net-storage": "yes"}}},
        });
        change(&mut spec);
        serde_json::from_value(spec).expect("decodes")
    }

    fn problems(name: &str, change: impl FnOnce(&mut Value)) -> Vec<String> {
        network(change).default_problems(name).into_iter().map(|problem| problem.to_string()).collect()
    }

    #[test]
    fn a_default_needs_labels_and_a_name_that_leaves_room_for_the_claims() {
        assert_eq!(problems(&"a".repeat(55), |_| {}), [""; 0]);
        let found = problems(&"a".repeat(56), |spec| spec["default"]["namespaceSelector"] = json!({}));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("at most 55 bytes") && found[1].starts_with("namespaceSelector: "));
    }

    #[test]
    fn a_default_lies_within_the_namespaces_of_the_network() {
        let of = |namespaces: Value, selector: Value| {
            problems("storage", |spec| {
                spec["namespaces"] = json!({"from": "Selector", "selector": namespaces});
                spec["default"]["namespaceSelector"] = selector;
            })
        };
        let (a, b) = (json!({"matchLabels": {"team": "a"}}), json!({"matchLabels": {"team": "b"}}));
        assert_eq!(of(a.clone(), a.clone()), [""; 0]);
        assert_eq!(of(a.clone(), json!({"matchLabels": {"team": "a", "net-storage": "yes"}})), [""; 0]);
        assert!(of(a, b)[0].contains("selects namespaces that spec.namespaces does not"));
    }

    #[test]
    fn what_no_pod_could_have_is_refused() {
        let capacity = |bandwidth: &str| {
            problems("storage", |spec| spec["default"]["capacity"] = json!({"bandwidth": bandwidth}))
        };
        assert_eq!(capacity("10G"), [""; 0]);
        assert!(capacity("11G")[0].starts_with("capacity.bandwidth: is more than"));
        let attachment = |value: Value| problems("storage", |spec| spec["default"]["attachment"] = value);
        assert_eq!(attachment(json!({"interfaceName": "storage0"})), [""; 0]);
        assert!(attachment(json!({"interfaceName": "eth0"}))[0].starts_with("attachment.interfaceName: "));
        assert!(
            attachment(json!({"mac": "02:00:5e:10:00:01"}))[0].starts_with("attachment.mac: no two pods")
        );
        let bandwidth = json!({"bandwidth": {"ingress": "1M"}});
        assert!(attachment(bandwidth)[0].starts_with("attachment.bandwidth: spec.allow does not allow"));
    }

    #[test]
    fn the_claim_of_a_default_has_its_class_capacity_and_settings() {
        let of = |change: fn(&mut Value)| {
            let spec = network(change);
            DefaultClaim::of(&"storage".parse().expect("a name"), &spec.default.expect("a default"))
        };
        let plain = of(|_| {});
        assert_eq!(
            plain.spec,
            json!({"devices": {"requests": [{"name": "net", "exactly": {"deviceClassName": "storage"}}]}})
        );
        let whole = of(|spec| {
            spec["default"]["deviceClassName"] = json!("fast");
            spec["default"]["capacity"] = json!({"bandwidth": "100M"});
            spec["default"]["attachment"] = json!({"interfaceName": "storage0"});
        });
        assert_eq!(
            whole.spec,
            json!({"devices": {
                "requests": [{"name": "net", "exactly": {
                    "deviceClassName": "fast", "capacity": {"requests": {"bandwidth": "100M"}}}}],
                "config": [{"opaque": {"driver": "netclaim.dev", "parameters": {
                    "apiVersion": "netclaim.dev/v1alpha1", "kind": "AttachmentConfig", "interfaceName": "storage0"}}}],
            }})
        );
        assert_ne!(plain.fingerprint, whole.fingerprint);
        assert_eq!(plain, of(|_| {}));
    }

    #[test]
    fn defaults_that_want_the_same_interface_of_a_pod_warn_of_each_other() {
        let of = |team: &str, name: &str| {
            network(|spec| {
                spec["default"]["namespaceSelector"] = json!({"matchLabels": {"team": team}});
                spec["default"]["attachment"] = json!({"interfaceName": name});
            })
        };
        let names: [NetworkName; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
        let contested = |one: ClaimNetworkSpec, other: ClaimNetworkSpec| {
            let found = contested_defaults(names.iter().zip([&one, &other]));
            found.into_iter().map(|(name, warning)| format!("{name} {}", warning.field)).collect::<Vec<_>>()
        };
        let field = "spec.default.attachment.interfaceName";
        assert_eq!(contested(of("x", "s0"), of("x", "s0")), [format!("a {field}"), format!("b {field}")]);
        assert_eq!(contested(of("x", "s0"), of("y", "s0")), [""; 0]);
        assert_eq!(contested(of("x", "s0"), of("x", "s1")), [""; 0]);
    }

    #[test]
    fn a_pod_is_told_which_of_its_claims_it_can_leave_out() {
        let of = |templates: &[&str]| opt_out(templates.iter().copied());
        assert_eq!(of(&["mine"]), "");
        assert!(
            of(&["mine", "netclaim-default-storage"])
                .starts_with("ClaimNetwork storage is a default of this")
        );
        let both = of(&["netclaim-default-storage", "netclaim-default-mgmt"]);
        assert!(both.starts_with("ClaimNetworks storage, mgmt are defaults"), "{both}");
    }
}
