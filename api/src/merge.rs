//! Merges the configurations of a request into one attachment, field by field: classes first, then the claim.
//!
//! Only this module checks what a claim sets against the admin's [`Allow`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use netclaim_cni::validate::{Finding, Severity, validate, validate_after};
use netclaim_cni::{CapabilityArgs, NetworkList, ROUTE_PLUGIN, error_chain};
use serde_json::{Map, Value, json};

use crate::addresses::nth_after;
use crate::capability::capability_args;
use crate::conflist::{as_conflist, link_use_of, plain_conflist, plugins, whereabouts_problems};
use crate::network::{ADDRESSES, ClaimNetworkSpec, NetworkClass};
use crate::opaque::Opaque;
use crate::{Allow, AttachmentConfig, IfName, Invalid, IpRequest, LinkUse, NetworkName, Quantity, template};

/// Who wrote a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// A DeviceClass: the admin.
    Class,
    /// A ResourceClaim: the tenant.
    Claim,
}

/// One decoded configuration of a request, in the order of the allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Who wrote it.
    pub author: Author,
    /// Its index in the author's list of configurations, for messages.
    pub index: usize,
    /// The configuration.
    pub config: Opaque,
}

impl Layer {
    /// Returns what a class that a ClaimNetwork makes has as its configuration, if it has one.
    pub fn of_class(class: &NetworkClass) -> Option<Self> {
        let config = Opaque::Attachment(class.defaults.clone()?);
        Some(Self { author: Author::Class, index: 0, config })
    }

    /// Returns where the configuration is, for messages: `claim config[0]`.
    pub fn place(&self) -> String {
        let author = match self.author {
            Author::Class => "class",
            Author::Claim => "claim",
        };
        format!("{author} config[{}]", self.index)
    }
}

/// Where the CNI configuration of a device comes from if no class has one.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// The device is a ClaimNetwork, with this name and spec.
    Network(&'a NetworkName, &'a ClaimNetworkSpec),
    /// The device is an uplink: the whole link, a macvlan child in bridge mode or an ipvlan child in L2 mode.
    Uplink(LinkUse),
}

/// One attachment, ready to be resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// Interface name, if a class or the claim sets it.
    pub if_name: Option<IfName>,
    /// Values for `parameters.NAME`.
    pub parameters: BTreeMap<String, Value>,
    /// CNI_ARGS.
    pub args: BTreeMap<String, String>,
    /// Capability arguments; a plugin of the conflist declares each of them.
    pub capability_args: CapabilityArgs,
    /// Addresses that a class or the claim asks for, of a ClaimNetwork whose `addresses` serve them.
    pub asked: Asked,
    /// Whether the pod's default route leads by the attachment: [`KEPT`] has to be in the scope then.
    pub default_route: bool,
    /// Whether the attachment is the pod's primary network, whose interface is `eth0`.
    pub primary: bool,
    template: Template,
    /// What finalizes the attachment.
    finalizer: Option<Template>,
}

/// The value of a scope that has what the pod's first interface keeps beside an attachment with the default
/// route: prefixes.
pub const KEPT: &str = "kept";

/// Which addresses an attachment asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// Any.
    None,
    /// These.
    Addresses(Vec<IpRequest>),
    /// The Nth ones after these, for the pod of ordinal N.
    ByReplica(Vec<IpAddr>),
}

impl Asked {
    /// Returns the addresses that the pod of this name gets; none if it may get any.
    ///
    /// # Errors
    /// The pod's name has no ordinal, or there is no Nth address.
    pub fn of_pod(&self, pod: &str) -> Result<Vec<IpRequest>, Invalid> {
        let first = match self {
            Self::None => return Ok(Vec::new()),
            Self::Addresses(ips) => return Ok(ips.clone()),
            Self::ByReplica(first) => first,
        };
        let ordinal: u32 = pod.rsplit_once('-').and_then(|(_, end)| end.parse().ok()).ok_or_else(|| {
            let problem = format!(
                "pod {pod:?} has no ordinal at the end of its name, as the pods of a StatefulSet have"
            );
            Invalid::new("replicaIPs", problem)
        })?;
        let nth = |ip: &IpAddr| nth_after(*ip, ordinal.into());
        let none = |ip| Invalid::new("replicaIPs", format!("there is no address {ordinal} after {ip}"));
        first.iter().map(|ip| nth(ip).map(IpRequest::Address).ok_or_else(|| none(ip))).collect()
    }
}

/// A conflist with its placeholders.
#[derive(Debug, Clone, PartialEq)]
struct Template {
    conflist: Map<String, Value>,
    /// Whose conflist it is, for messages.
    owner: String,
    /// The field there.
    field: &'static str,
}

/// Merges `layers` over `base`. `granted` is the bandwidth in bit/s that the scheduler charged for the
/// device.
///
/// # Errors
/// The first problem: in which configuration and field it is, and what to change.
pub fn merge(base: Base<'_>, layers: &[Layer], granted: Option<Quantity>) -> Result<Merged, Invalid> {
    let granted = granted.filter(|rate| rate.value() > 0);
    if let Base::Network(name, spec) = base
        && spec.requires_bandwidth()
        && granted.is_none()
    {
        return Err(Invalid::new("capacity.requests.bandwidth", bandwidth_not_asked(name.as_str())));
    }
    let asks =
        |layer: &Layer| matches!(&layer.config, Opaque::Attachment(config) if config.bandwidth.is_some());
    let limited = granted.is_some() || layers.iter().any(asks);
    let (mut template, allow) = template_of(base, layers, limited)?;
    let mut settings = AttachmentConfig::default();
    for layer in layers {
        match &layer.config {
            Opaque::Attachment(config) => {
                if layer.author == Author::Claim {
                    allow.permits(config, &template.owner).map_err(|e| e.within(&layer.place()))?;
                }
                settings.overlay(config);
            }
            Opaque::Cni(config) => {
                settings.interface_name = config.interface_name.clone().or(settings.interface_name)
            }
        }
    }
    for (name, rule) in &allow.parameters {
        if let Some(default) = &rule.default {
            settings.parameters.entry(name.clone()).or_insert_with(|| default.clone());
        }
    }
    if let Some(problem) = settings.primary_problems().next() {
        return Err(problem);
    }
    let asked = asked(base, &mut settings)?;
    let capability_args = capability_args(&settings, &template.conflist, granted)?;
    let AttachmentConfig { interface_name, default_route, primary, args, parameters, .. } = settings;
    if default_route && let Some(Value::Array(plugins)) = template.conflist.get_mut("plugins") {
        // It goes by the gateway that the plugins before it report.
        plugins.push(json!({"type": ROUTE_PLUGIN, "keep": format!("${{{KEPT}}}")}));
    }
    let if_name = interface_name;
    let finalizer = finalizer_of(base);
    Ok(Merged {
        if_name,
        parameters,
        args,
        capability_args,
        asked,
        default_route,
        primary,
        template,
        finalizer,
    })
}

/// Takes the addresses out of the settings that the ClaimNetwork's `addresses` serve: no plugin has to take
/// them.
fn asked(base: Base<'_>, settings: &mut AttachmentConfig) -> Result<Asked, Invalid> {
    let is_served = matches!(base, Base::Network(_, spec) if spec.addresses.is_some());
    if !is_served {
        let problem = "needs a ClaimNetwork with spec.addresses: use ips";
        return if settings.replica_ips.is_empty() {
            Ok(Asked::None)
        } else {
            Err(Invalid::new("replicaIPs", problem))
        };
    }
    match (std::mem::take(&mut settings.ips), std::mem::take(&mut settings.replica_ips)) {
        (ips, first) if ips.is_empty() && first.is_empty() => Ok(Asked::None),
        (ips, first) if first.is_empty() => Ok(Asked::Addresses(ips)),
        (ips, first) if ips.is_empty() => Ok(Asked::ByReplica(first)),
        _ => Err(Invalid::new("replicaIPs", EITHER_IPS)),
    }
}

/// What is wrong with a CNIConfig of a claim.
pub const CNI_OF_CLAIM: &str = "a CNIConfig may only come from a DeviceClass, because it runs as root on the node: use an \
                                AttachmentConfig, or ask the admin for a class";

/// Returns what is wrong with a CNIConfig for the device of a ClaimNetwork.
pub fn cni_of_network(network: &str) -> String {
    format!("a CNIConfig needs an uplink device, but this is ClaimNetwork {network:?}, which has its own")
}

/// What is wrong with a request that asks for no bandwidth of a ClaimNetwork that gives none away without.
pub fn bandwidth_not_asked(network: &str) -> String {
    format!(
        "is not set, and ClaimNetwork {network:?} has spec.bandwidth.unrequested: Refuse: ask for what the pod needs, such as 1G"
    )
}

/// What is wrong with two ways to ask for addresses.
pub const EITHER_IPS: &str = "set either ips or replicaIPs";

/// Returns the conflist of a device and what claims may set in it. `limited` says that bandwidth was granted
/// or asked for.
fn template_of(base: Base<'_>, layers: &[Layer], limited: bool) -> Result<(Template, Allow), Invalid> {
    let mut class_config = None;
    for layer in layers {
        let Opaque::Cni(config) = &layer.config else {
            continue;
        };
        if layer.author == Author::Claim {
            return Err(Invalid::new("kind", CNI_OF_CLAIM).within(&layer.place()));
        }
        if let Base::Network(name, _) = base {
            return Err(Invalid::new("kind", cni_of_network(name.as_str())).within(&layer.place()));
        }
        class_config = Some((layer, config));
    }
    let (conflist, allow, owner, field) = match (class_config, base) {
        (Some((layer, config)), _) => {
            let problems = config.problems();
            if !problems.is_empty() {
                return Err(Invalid::new(layer.place(), Invalid::list(&problems)));
            }
            let conflist = as_conflist(&config.config);
            (conflist, config.allow.clone(), "the DeviceClass".to_owned(), "config")
        }
        (None, Base::Network(name, spec)) => {
            (spec.cni_with(&json!(ADDRESSES)), spec.allow.clone(), owner_of(name), "spec.cni")
        }
        (None, Base::Uplink(link_use)) => {
            let owner = "an uplink without a ClaimNetwork".to_owned();
            (plain_conflist(link_use, limited), Allow::default(), owner, "config")
        }
    };
    Ok((Template { conflist, owner, field }, allow))
}

fn finalizer_of(base: Base<'_>) -> Option<Template> {
    let Base::Network(name, spec) = base else { return None };
    Some(Template { conflist: spec.finalize_list()?, owner: owner_of(name), field: "spec.finalize" })
}

fn owner_of(network: &NetworkName) -> String {
    format!("ClaimNetwork {:?}", network.as_str())
}

/// What is wrong with a mode `passthru` that is chosen and not written out.
pub(crate) const PASSTHRU_CHOSEN: &str = "mode passthru takes the whole link, so it must be written out and cannot be chosen by a \
                                          parameter: the scheduler would place several pods on the link";

/// Refuses a configuration at `path` with errors among its findings.
fn refused(findings: Vec<Finding>, path: &str) -> Result<(), String> {
    let found = findings.into_iter().filter(|finding| finding.severity == Severity::Error);
    let errors: Vec<Invalid> = found.map(|error| Invalid::from(error).within(path)).collect();
    if errors.is_empty() { Ok(()) } else { Err(Invalid::list(&errors)) }
}

impl Merged {
    /// Returns the conflist with every placeholder filled from `scope` and the parameters. Its name is `name`
    /// unless the configuration has one.
    ///
    /// # Errors
    /// Names the path in the conflist and the placeholder without a value, or everything that the runtime or
    /// a plugin will refuse with these values.
    pub fn resolve(&self, name: &str, scope: template::Scope) -> Result<NetworkList, Invalid> {
        self.template.resolve(name, &self.with_parameters(scope), validate)
    }

    /// Returns the conflist that finalizes the attachment, filled as by [`resolve`](Self::resolve); `None` if
    /// the ClaimNetwork has none.
    ///
    /// # Errors
    /// As of [`resolve`](Self::resolve).
    pub fn finalizer(&self, name: &str, scope: template::Scope) -> Result<Option<NetworkList>, Invalid> {
        let resolved =
            |template: &Template| template.resolve(name, &self.with_parameters(scope), validate_after);
        self.finalizer.as_ref().map(resolved).transpose()
    }

    fn with_parameters(&self, mut scope: template::Scope) -> template::Scope {
        scope.extend(self.parameters.iter().map(|(key, value)| (format!("parameters.{key}"), value.clone())));
        scope
    }
}

impl Template {
    fn resolve(
        &self,
        name: &str,
        scope: &template::Scope,
        validate: impl Fn(&[u8]) -> Vec<Finding>,
    ) -> Result<NetworkList, Invalid> {
        let Self { conflist, owner, field } = self;
        let mut resolved = Map::new();
        for (key, value) in conflist {
            let value = template::resolve(value, scope).map_err(|e| e.within(key))?;
            resolved.insert(key.clone(), value);
        }
        if link_use_of(plugins(&resolved)) != link_use_of(plugins(conflist)) {
            return Err(Invalid::new(owner, Invalid::new(*field, PASSTHRU_CHOSEN).to_string()));
        }
        resolved.entry("name").or_insert_with(|| Value::String(name.to_owned()));
        // A text is known only now if the claim chooses a part of it.
        let whereabouts = whereabouts_problems(&resolved, &Allow::default());
        if !whereabouts.is_empty() {
            let whereabouts: Vec<Invalid> =
                whereabouts.into_iter().map(|error| error.within(field)).collect();
            return Err(Invalid::new(owner, Invalid::list(&whereabouts)));
        }
        let json = Value::Object(resolved).to_string();
        refused(validate(json.as_bytes()), field)
            .and_then(|()| {
                NetworkList::parse(json.as_bytes()).map_err(|e| format!("{field}: {}", error_chain(&e)))
            })
            .map_err(|problems| Invalid::new(owner, problems))
    }
}

#[cfg(test)]
mod tests {
    use netclaim_cni::{BANDWIDTH_PLUGIN, BandwidthArg};

    use super::*;

    fn network(allow: Value) -> ClaimNetworkSpec {
        serde_json::from_value(json!({
            "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.name}", "vlan": "${parameters.vlan}",
                 "capabilities": {"ips": true, "mac": true, "bandwidth": true}}]},
            "allow": allow,
        }))
        .expect("a network")
    }

    fn storage() -> NetworkName {
        "storage".parse().expect("a name")
    }

    fn json_of(list: &NetworkList) -> Value {
        serde_json::from_str(list.raw()).expect("JSON")
    }

    fn bandwidth(merged: &Merged) -> BandwidthArg {
        merged.capability_args.bandwidth.expect("a limit")
    }

    fn layer(author: Author, config: Value) -> Layer {
        let mut config = config;
        config["apiVersion"] = json!(crate::API_VERSION);
        if config.get("kind").is_none() {
            config["kind"] = json!("AttachmentConfig");
        }
        Layer { author, index: 0, config: Opaque::decode(&config.to_string()).expect("decodes") }
    }

    fn refused(allow: Value, config: Value) -> String {
        let spec = network(allow);
        let layers = [layer(Author::Claim, config)];
        merge(Base::Network(&storage(), &spec), &layers, None).expect_err("refused").to_string()
    }

    #[test]
    fn the_claim_wins_over_the_class_field_by_field() {
        let spec = network(json!({"mac": {}}));
        let layers = [
            layer(
                Author::Class,
                json!({"interfaceName": "a", "ips": ["10.0.0.1"], "args": {"x": "1", "y": "1"}}),
            ),
            layer(Author::Class, json!({"args": {"y": "2"}})),
            layer(Author::Claim, json!({"interfaceName": "b", "mac": "02:00:00:00:00:01"})),
        ];
        let merged = merge(Base::Network(&storage(), &spec), &layers, None).expect("merges");
        assert_eq!(merged.if_name.as_ref().map(IfName::as_str), Some("b"));
        assert_eq!(
            Value::Object(merged.capability_args.into()),
            json!({"ips": ["10.0.0.1"], "mac": "02:00:00:00:00:01"})
        );
        assert_eq!(merged.args, BTreeMap::from([("x".into(), "1".into()), ("y".into(), "2".into())]));
    }

    #[test]
    fn a_claim_cannot_choose_a_mode_that_takes_the_whole_link() {
        let mut spec = network(json!({"parameters": {"mode": {"type": "string", "pattern": "^[a-z]+$"}}}));
        spec.cni =
            json!({"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "mode": "${parameters.mode}"}]})
                .as_object()
                .cloned()
                .expect("an object");
        let resolved = |mode: &str| {
            let layers = [layer(Author::Claim, json!({"parameters": {"mode": mode}}))];
            let merged = merge(Base::Network(&storage(), &spec), &layers, None).expect("merges");
            merged.resolve("n", template::Scope::new()).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(resolved("private"), Ok(()));
        let error = resolved("passthru").expect_err("refused");
        assert!(
            error.starts_with("ClaimNetwork \"storage\": spec.cni: mode passthru takes the whole link"),
            "{error}"
        );
    }

    #[test]
    fn a_field_that_a_tenant_may_not_set_is_refused_by_name() {
        assert_eq!(
            refused(json!({}), json!({"ips": ["10.0.0.1"]})),
            "claim config[0].ips: ClaimNetwork \"storage\" does not allow claims to set it: remove it, or have the admin set allow.ips"
        );
        assert!(refused(json!({}), json!({"args": {"a": "b"}})).starts_with("claim config[0].args.a:"));
        assert_eq!(
            refused(json!({"parameters": {"vlan": {"type": "integer"}}}), json!({"parameters": {"vlam": 1}})),
            "claim config[0].parameters.vlam: ClaimNetwork \"storage\" has no such parameter; it has: vlan"
        );
        assert_eq!(
            refused(
                json!({"parameters": {"vlan": {"type": "integer", "maximum": 9}}}),
                json!({"parameters": {"vlan": 10}})
            ),
            "claim config[0].parameters.vlan: 10 is too large: the maximum is 9"
        );
    }

    #[test]
    fn allowed_args_do_not_bring_an_address_with_them() {
        for (key, field) in [("IP", "ips"), ("GATEWAY", "ips"), ("MAC", "mac"), ("ip", "ips")] {
            let all = json!({"args": {"names": ["TENANT"]}, "ips": {}, "mac": {}});
            let error = refused(all, json!({"args": {key: "10.0.0.1"}}));
            assert!(error.starts_with(&format!("claim config[0].args.{key}: plugins take")), "{error}");
            assert!(error.contains(&format!("use the field `{field}`")), "{error}");
        }
        let spec = network(json!({"args": {"names": ["TENANT"]}}));
        let claim = [layer(Author::Claim, json!({"args": {"TENANT": "10.0.0.1"}}))];
        merge(Base::Network(&storage(), &spec), &claim, None).expect("merges");
        let other =
            refused(json!({"args": {"names": ["TENANT"]}}), json!({"args": {"TENANT": "a", "OTHER": "b"}}));
        assert!(
            other.starts_with("claim config[0].args.OTHER: ClaimNetwork \"storage\" does not allow"),
            "{other}"
        );
        let class = [layer(Author::Class, json!({"args": {"IP": "10.0.0.1"}}))];
        merge(Base::Network(&storage(), &spec), &class, None).expect("the admin's");
    }

    #[test]
    fn allowed_port_mappings_leave_the_node_its_own_ports() {
        let mut spec = network(json!({"portMappings": {}}));
        spec.cni["plugins"][0]["capabilities"]["portMappings"] = json!(true);
        let mapped = |author, port: u16| {
            let mappings = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}, {"hostPort": port, "containerPort": 80}]});
            let merged = merge(Base::Network(&storage(), &spec), &[layer(author, mappings)], None);
            merged.map(drop).map_err(|error| error.to_string())
        };
        for port in [22, 1023, 2379, 6443, 10250, 30000, 32767] {
            let error = mapped(Author::Claim, port).expect_err("refused");
            let expected =
                format!("claim config[0].portMappings[1].hostPort: {port} is a port of the node itself");
            assert!(error.starts_with(&expected), "{error}");
            mapped(Author::Class, port).expect("the admin's");
        }
        for port in [1024, 10247, 10261, 29999, 32768, 65535] {
            mapped(Author::Claim, port).expect("merges");
        }
    }

    #[test]
    fn only_a_class_brings_a_cni_configuration() {
        let config = json!({"kind": "CNIConfig", "config": {"cniVersion": "1.0.0", "type": "macvlan", "master": "${uplink.name}"}});
        let base = Base::Uplink(LinkUse::Macvlan);
        let error =
            merge(base, &[layer(Author::Claim, config.clone())], None).expect_err("refused").to_string();
        assert!(
            error.starts_with("claim config[0].kind: a CNIConfig may only come from a DeviceClass"),
            "{error}"
        );
        let merged = merge(base, &[layer(Author::Class, config.clone())], None).expect("merges");
        assert_eq!(merged.template.conflist["plugins"][0]["type"], "macvlan");
        let spec = network(json!({}));
        assert!(merge(Base::Network(&storage(), &spec), &[layer(Author::Class, config)], None).is_err());
    }

    #[test]
    fn a_capability_that_no_plugin_takes_is_refused() {
        let error =
            merge(Base::Uplink(LinkUse::Nic), &[layer(Author::Class, json!({"ips": ["10.0.0.1"]}))], None);
        assert!(
            error.expect_err("refused").to_string().starts_with("ips: no plugin of the network takes it")
        );
    }

    #[test]
    fn a_network_that_refuses_claims_without_a_request_has_no_attachment_for_them() {
        let mut spec = network(json!({}));
        spec.bandwidth.unrequested = crate::network::Unrequested::Refuse;
        let name: NetworkName = "storage".parse().expect("a name");
        let merged = |granted: Option<u64>| {
            merge(Base::Network(&name, &spec), &[], granted.map(Quantity::new)).map(|_| ())
        };
        assert_eq!(merged(Some(1_000_000)), Ok(()));
        for none in [None, Some(0)] {
            let error = merged(none).expect_err("it asks for none").to_string();
            assert!(
                error.starts_with("capacity.requests.bandwidth: is not set, and ClaimNetwork \"storage\""),
                "{error}"
            );
        }
    }

    #[test]
    fn granted_bandwidth_becomes_the_capability_and_bounds_the_claim() {
        let spec = network(json!({"bandwidth": {}}));
        let name = storage();
        let base = Base::Network(&name, &spec);
        let granted = Some("1G".parse().expect("a quantity"));
        let merged = merge(base, &[], granted).expect("merges");
        assert_eq!(bandwidth(&merged).ingress_rate, Some(1_000_000_000));
        assert_eq!(bandwidth(&merged).egress_burst, Some(100_000_000));
        let layers = [layer(Author::Claim, json!({"bandwidth": {"egress": "2G"}}))];
        let error = merge(base, &layers, granted).expect_err("refused").to_string();
        let layers = [layer(Author::Claim, json!({"bandwidth": {"ingress": "500M"}}))];
        let merged = merge(base, &layers, granted).expect("merges");
        assert_eq!(bandwidth(&merged).ingress_rate, Some(500_000_000));
        assert_eq!(bandwidth(&merged).egress_rate, Some(1_000_000_000), "the other one stays limited");
        assert!(error.starts_with("bandwidth.egress: 2G is more than the 1G"), "{error}");
    }

    #[test]
    fn a_plain_uplink_is_limited_to_what_was_granted_or_set_by_the_class() {
        let types = |merged: &Merged| {
            let plugins = merged.template.conflist["plugins"].as_array().expect("a list").iter();
            plugins.map(|plugin| plugin["type"].clone()).collect::<Vec<_>>()
        };
        let base = Base::Uplink(LinkUse::Macvlan);
        let merged = merge(base, &[], Some("1G".parse().expect("a quantity"))).expect("merges");
        assert_eq!(types(&merged), ["macvlan", BANDWIDTH_PLUGIN]);
        assert_eq!(bandwidth(&merged).ingress_rate, Some(1_000_000_000));
        let class = [layer(Author::Class, json!({"bandwidth": {"egress": "5M"}}))];
        let merged = merge(base, &class, None).expect("merges");
        assert_eq!(types(&merged), ["macvlan", BANDWIDTH_PLUGIN]);
        assert_eq!(json!(bandwidth(&merged)), json!({"egressRate": 5_000_000, "egressBurst": 1_000_000}));
        assert_eq!(types(&merge(base, &[], Some(Quantity::new(0))).expect("merges")), ["macvlan"]);
        let own = layer(
            Author::Class,
            json!({"kind": "CNIConfig", "config": {"cniVersion": "1.0.0", "type": "dummy", "ipam": {"type": "static"}}}),
        );
        let merged = merge(base, &[own], Some("1G".parse().expect("a quantity"))).expect("merges");
        assert_eq!(types(&merged), ["dummy"], "the class's configuration is the admin's");
    }

    #[test]
    fn places_are_filled_and_the_list_is_named() {
        let spec = network(json!({"parameters": {"vlan": {"type": "integer", "default": 7}}}));
        let merged = merge(Base::Network(&storage(), &spec), &[], None).expect("merges");
        let scope = template::Scope::from_iter([("uplink.name".to_owned(), json!("eth1"))]);
        let resolved = json_of(&merged.resolve("netclaim-storage", scope).expect("resolves"));
        assert_eq!(resolved["name"], "netclaim-storage");
        assert_eq!(resolved["plugins"][0]["master"], "eth1");
        assert_eq!(resolved["plugins"][0]["vlan"], 7);
        let error = merged.resolve("x", template::Scope::new()).expect_err("no uplink").to_string();
        assert_eq!(error, "plugins[0].master: ${uplink.name} has no value here");
    }

    #[test]
    fn a_class_is_told_everything_that_is_wrong_with_its_configuration() {
        let config = json!({"kind": "CNIConfig", "config": {"cniVersion": "1.0.0", "type": "macvlan",
            "master": "${uplink.ifname}", "mode": "x", "mtuu": 1}});
        let error = merge(Base::Uplink(LinkUse::Macvlan), &[layer(Author::Class, config)], None)
            .expect_err("refused");
        let error = error.to_string();
        assert!(
            error.starts_with(
                "class config[0]: config.plugins[0].master: ${uplink.ifname} is unknown; use one of"
            ),
            "{error}"
        );
        assert!(error.ends_with("; config.plugins[0].mode: \"x\" is not known to the plugin; write one of `bridge`, `private`, `vepa`, `passthru`"), "{error}");
    }

    #[test]
    fn a_class_that_would_let_tenants_write_anything_is_refused() {
        let config = json!({"kind": "CNIConfig", "allow": {"parameters": {"mode": {"type": "string"}}},
            "config": {"cniVersion": "1.0.0", "type": "macvlan", "master": "eth1", "mode": "${parameters.mode}"}});
        let layers =
            [layer(Author::Class, config), layer(Author::Claim, json!({"parameters": {"mode": "vepa"}}))];
        let error = merge(Base::Uplink(LinkUse::Macvlan), &layers, None).expect_err("refused").to_string();
        let expected = "class config[0]: allow.parameters.mode.enum: a string needs the list of the values";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn a_list_of_a_claim_comes_to_the_plugin_as_it_is_written() {
        let mut spec = network(json!({"parameters": {"search": {"type": "array", "maxItems": 2,
            "items": {"type": "string", "pattern": "^[ -~]+$"}, "default": ["lab"]}}}));
        spec.cni["plugins"][0]["dns"] = json!({"search": "${parameters.search}"});
        let name = storage();
        let base = Base::Network(&name, &spec);
        let search = |layers: &[Layer]| {
            let merged = merge(base, layers, None).map_err(|e| e.to_string())?;
            let scope =
                [("uplink.name", json!("eth1")), ("parameters.vlan", json!(1)), ("node.name", json!("n"))];
            let scope = template::Scope::from_iter(scope.map(|(name, value)| (name.to_owned(), value)));
            let resolved = json_of(&merged.resolve("x", scope).map_err(|e| e.to_string())?);
            Ok::<_, String>(resolved["plugins"][0]["dns"]["search"].clone())
        };
        assert_eq!(search(&[]), Ok(json!(["lab"])));
        let claim = |value| [layer(Author::Claim, json!({"parameters": {"search": value}}))];
        let hostile = json!(["${node.name}", "\"], \"type\": [\""]);
        assert_eq!(search(&claim(hostile.clone())), Ok(hostile));
        assert_eq!(
            search(&claim(json!(["lab", "a\n"]))),
            Err("claim config[0].parameters.search[1]: \"a\\n\" does not match ^[ -~]+$".into())
        );
        assert!(search(&claim(json!([["lab"]]))).is_err() && search(&claim(json!("lab"))).is_err());
    }

    #[test]
    fn values_of_a_claim_that_a_plugin_would_refuse_are_refused_before() {
        let mut spec = network(json!({"parameters": {"vlan": {"type": "integer"}}}));
        spec.cni = json!({"cniVersion": "1.1.0", "plugins": [{"type": "vlan", "master": "eth1", "vlanId": "${parameters.vlan}",
            "ipam": {"type": "static", "addresses": [{"address": "10.0.0.${parameters.vlan}/24"}]}}]})
        .as_object()
        .expect("an object")
        .clone();
        let layers = [layer(Author::Claim, json!({"parameters": {"vlan": 5000}}))];
        let merged = merge(Base::Network(&storage(), &spec), &layers, None).expect("merges");
        let error =
            merged.resolve("netclaim-storage", template::Scope::new()).expect_err("refused").to_string();
        assert_eq!(
            error,
            "ClaimNetwork \"storage\": spec.cni.plugins[0].ipam.addresses[0].address: \"10.0.0.5000/24\" is not a network \
             in CIDR notation; write address and prefix length, such as 10.0.0.0/24 or fd00::/64; spec.cni.plugins[0].vlanId: 5000 is \
             out of range; write a number from 0 to 4094"
        );
    }

    #[test]
    fn whereabouts_is_refused_also_where_a_claim_completes_its_name() {
        let mut spec = network(json!({"parameters": {"rest": {"type": "string", "pattern": "^[a-z]+$"}}}));
        spec.cni["plugins"] =
            json!([{"type": "x", "delegate": {"ipam": {"type": "where${parameters.rest}"}}}]);
        let resolved = |rest: &str| {
            let layers = [layer(Author::Claim, json!({"parameters": {"rest": rest}}))];
            let merged = merge(Base::Network(&storage(), &spec), &layers, None).expect("merges");
            merged.resolve("netclaim-storage", template::Scope::new()).map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(resolved("ever"), Ok(()));
        let error = resolved("abouts").expect_err("refused");
        let expected =
            "ClaimNetwork \"storage\": spec.cni.plugins[0].delegate.ipam.type: whereabouts loses addresses";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn the_plain_ways_to_use_an_uplink_are_good_configurations() {
        for (plain, granted) in
            LinkUse::ALL.into_iter().flat_map(|plain| [(plain, None), (plain, Some(Quantity::new(8)))])
        {
            let merged = merge(Base::Uplink(plain), &[], granted).expect("merges");
            let scope = template::Scope::from_iter([("uplink.name".to_owned(), json!("eth1"))]);
            let resolved = merged.resolve("netclaim-x", scope).expect("resolves");
            assert_eq!(validate(resolved.raw().as_bytes()), []);
        }
    }

    #[test]
    fn a_primary_network_has_no_other_name_and_no_route_of_its_own() {
        let class = |config| layer(Author::Class, config);
        let spec = network(json!({}));
        let of = |layers: &[Layer]| merge(Base::Network(&storage(), &spec), layers, None);
        let merged = of(&[class(json!({"primary": true}))]).expect("merges");
        assert!(merged.primary && merged.if_name.is_none());
        let named = layer(Author::Claim, json!({"interfaceName": "data0"}));
        let error = of(&[class(json!({"primary": true})), named]).expect_err("refused").to_string();
        assert_eq!(error, "interfaceName: is eth0 for a primary network: remove it");
        let error = refused(json!({}), json!({"primary": true}));
        assert!(
            error.contains("primary: ClaimNetwork \"storage\" does not allow claims to set it"),
            "{error}"
        );
        let route = layer(Author::Class, json!({"defaultRoute": true}));
        let error = of(&[class(json!({"primary": true})), route]).expect_err("refused").to_string();
        assert_eq!(error, "defaultRoute: comes from the routes of a primary network itself: remove it");
    }

    #[test]
    fn the_default_route_is_the_last_plugin_where_the_admin_allows_it() {
        let asks = |author| [layer(author, json!({"defaultRoute": true}))];
        let (denied, allowed) = (network(json!({})), network(json!({"defaultRoute": {}})));
        let merged = |spec, author| merge(Base::Network(&storage(), spec), &asks(author), None);
        for (spec, author) in [(&allowed, Author::Claim), (&denied, Author::Class)] {
            let merged = merged(spec, author).expect("merges");
            assert!(merged.default_route);
            let scope = [
                (KEPT, json!(["10.244.0.0/16"])),
                ("parameters.vlan", json!(7)),
                ("uplink.name", json!("eth1")),
            ];
            let scope = scope.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let list = merged.resolve("n", scope).expect("resolves");
            let last = json!({"type": "netclaim-route", "keep": ["10.244.0.0/16"]});
            assert_eq!(json_of(&list)["plugins"][1], last);
        }
        let refusal = merged(&denied, Author::Claim).expect_err("refused").to_string();
        let expected = "claim config[0].defaultRoute: ClaimNetwork \"storage\" does not allow claims to set it: remove it, or have \
                        the admin set allow.defaultRoute";
        assert_eq!(refusal, expected);
    }
}
