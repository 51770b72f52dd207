//! Many configurations, one attachment: classes first, then the claim, field by field.
//!
//! What a claim sets is checked against the admin's [`Allow`] here and nowhere else.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::allow::{arg_problem, host_port_problem};
use crate::network::{NetworkSpec, declares, place_of};
use crate::opaque::Opaque;
use crate::{
    Allow, AttachmentConfig, Bandwidth, IfName, Invalid, IpRequest, MacAddr, PortMapping, Quantity, template,
};
use netclaim_cni::BANDWIDTH_PLUGIN;
use netclaim_cni::validate::{Finding, Severity, validate, validate_template};

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
    /// Its place in the author's own list of configurations, for messages.
    pub index: usize,
    /// What it says.
    pub config: Opaque,
}

impl Layer {
    /// Where the configuration stands, for messages: `claim config[0]`.
    pub fn place(&self) -> String {
        let author = match self.author {
            Author::Class => "class",
            Author::Claim => "claim",
        };
        format!("{author} config[{}]", self.index)
    }
}

/// Where the CNI configuration of a device comes from when no class brings one.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// The device is a Network; its name and spec.
    Network(&'a str, &'a NetworkSpec),
    /// The device is an uplink, used in its plain way, see [`NIC_CONFLIST`](plain_conflist).
    Uplink(PlainUse),
}

/// The plain way to use an uplink device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainUse {
    /// `host-device`: the link itself.
    Nic,
    /// A macvlan child in bridge mode.
    Macvlan,
    /// An ipvlan child in L2 mode.
    Ipvlan,
}

/// One attachment, ready to be resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// Interface name, where someone chose one.
    pub if_name: Option<IfName>,
    /// The conflist with its places.
    pub conflist: Map<String, Value>,
    /// Whose conflist it is, for messages.
    pub owner: String,
    /// Where it stands there.
    pub field: &'static str,
    /// Values for `parameters.NAME`.
    pub parameters: BTreeMap<String, Value>,
    /// CNI_ARGS.
    pub args: BTreeMap<String, String>,
    /// Capability arguments, by capability; every one is declared by a plugin of the conflist.
    pub capability_args: Map<String, Value>,
}

/// Merges `layers` over `base`. `granted` is the bandwidth in bit/s that the scheduler charged for the device.
///
/// # Errors
/// The first problem, with the configuration and the field that it comes from and what to change.
pub fn merge(base: Base<'_>, layers: &[Layer], granted: Option<Quantity>) -> Result<Merged, Invalid> {
    let granted = granted.filter(|rate| rate.value() > 0);
    let asks =
        |layer: &Layer| matches!(&layer.config, Opaque::Attachment(config) if config.bandwidth.is_some());
    let limited = granted.is_some() || layers.iter().any(asks);
    let (conflist, allow, owner) = configuration(base, layers, limited)?;
    let mut merged = Settings::default();
    for layer in layers {
        match &layer.config {
            Opaque::Attachment(config) => {
                if layer.author == Author::Claim {
                    permitted(config, &allow, &owner).map_err(|e| e.within(&layer.place()))?;
                }
                merged.overlay(config);
            }
            Opaque::Cni(config) => merged.if_name = config.if_name.clone().or(merged.if_name),
        }
    }
    let field = match base {
        Base::Network(..) => "spec.cni",
        Base::Uplink(_) => "config",
    };
    merged.finish(conflist, owner, field, &allow, granted)
}

/// The conflist, what claims may set in it, and whose decision that is. `limited`: bandwidth was granted or asked for.
fn configuration(
    base: Base<'_>,
    layers: &[Layer],
    limited: bool,
) -> Result<(Map<String, Value>, Allow, String), Invalid> {
    let mut class_config = None;
    for layer in layers {
        let Opaque::Cni(config) = &layer.config else {
            continue;
        };
        if layer.author == Author::Claim {
            let problem = "a CNIConfig may only come from a DeviceClass, because it runs as root on the node: \
                           use an AttachmentConfig, or ask the admin for a class";
            return Err(Invalid::new("kind", problem).within(&layer.place()));
        }
        if let Base::Network(name, _) = base {
            let problem = format!(
                "a CNIConfig needs an uplink device, but this is Network {name:?}, which has its own"
            );
            return Err(Invalid::new("kind", problem).within(&layer.place()));
        }
        class_config = Some((layer, config));
    }
    match (class_config, base) {
        (Some((layer, config)), _) => {
            let conflist = as_conflist(&config.config);
            let mut named = conflist.clone();
            named.entry("name").or_insert_with(|| json!("netclaim"));
            let findings = validate_template(Value::Object(named).to_string().as_bytes(), &|name| {
                place_of(name, &config.allow)
            });
            let rules = config.allow.problems().into_iter().map(|problem| problem.within("allow")).collect();
            refused(findings, "config", rules).map_err(|problems| Invalid::new(layer.place(), problems))?;
            Ok((conflist, config.allow.clone(), "the DeviceClass".to_owned()))
        }
        (None, Base::Network(name, spec)) => {
            Ok((spec.cni.clone(), spec.allow.clone(), format!("Network {name:?}")))
        }
        (None, Base::Uplink(plain)) => {
            Ok((plain_conflist(plain, limited), Allow::default(), "an uplink without a Network".to_owned()))
        }
    }
}

/// A single plugin's configuration is a chain of one.
fn as_conflist(config: &Map<String, Value>) -> Map<String, Value> {
    if config.contains_key("plugins") || !config.contains_key("type") {
        return config.clone();
    }
    let mut plugin = config.clone();
    let mut list = Map::new();
    for key in ["cniVersion", "name"] {
        list.extend(plugin.remove(key).map(|value| (key.to_owned(), value)));
    }
    list.insert("plugins".into(), json!([plugin]));
    list
}

/// What an uplink device is attached with when its class says nothing: layer 2 only, no address.
fn plain_conflist(plain: PlainUse, limited: bool) -> Map<String, Value> {
    let plugin = match plain {
        PlainUse::Nic => json!({"type": "host-device", "device": "${uplink.ifName}"}),
        PlainUse::Macvlan => json!({"type": "macvlan", "master": "${uplink.ifName}", "mode": "bridge"}),
        PlainUse::Ipvlan => json!({"type": "ipvlan", "master": "${uplink.ifName}", "mode": "l2"}),
    };
    let shaper = json!({"type": BANDWIDTH_PLUGIN, "capabilities": {"bandwidth": true}});
    let plugins: Vec<Value> = [plugin].into_iter().chain(limited.then_some(shaper)).collect();
    Map::from_iter([("cniVersion".to_owned(), json!("1.0.0")), ("plugins".to_owned(), json!(plugins))])
}

/// Every error among the findings in the configuration at `path`, after those that are known already.
fn refused(findings: Vec<Finding>, path: &str, mut errors: Vec<Invalid>) -> Result<(), String> {
    let found = findings.into_iter().filter(|finding| finding.severity == Severity::Error);
    errors.extend(found.map(|error| Invalid::from(error).within(path)));
    if errors.is_empty() { Ok(()) } else { Err(Invalid::list(&errors)) }
}

/// Refuses the first field of a claim's config that the admin does not allow.
fn permitted(config: &AttachmentConfig, allow: &Allow, owner: &str) -> Result<(), Invalid> {
    // Destructured, so that a new field cannot be forgotten here.
    let AttachmentConfig { if_name: _, ips, mac, bandwidth, port_mappings, args, parameters } = config;
    let used = [
        ("ips", !ips.is_empty() && !allow.ips),
        ("mac", mac.is_some() && !allow.mac),
        ("bandwidth", bandwidth.is_some() && !allow.bandwidth),
        ("portMappings", !port_mappings.is_empty() && !allow.port_mappings),
        ("args", !args.is_empty() && !allow.args),
    ];
    if let Some((field, _)) = used.into_iter().find(|(_, refused)| *refused) {
        let problem = format!(
            "{owner} does not allow claims to set it: remove it, or have the admin set allow.{field}"
        );
        return Err(Invalid::new(field, problem));
    }
    for (i, mapping) in port_mappings.iter().enumerate() {
        if let Some(problem) = host_port_problem(mapping.host_port) {
            return Err(Invalid::new(format!("portMappings[{i}].hostPort"), problem));
        }
    }
    for key in args.keys() {
        if let Some(problem) = arg_problem(key) {
            return Err(Invalid::new(format!("args.{key}"), problem));
        }
    }
    for (name, value) in parameters {
        let field = format!("parameters.{name}");
        let Some(rule) = allow.parameters.get(name) else {
            let known: Vec<&str> = allow.parameters.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Invalid::new(field, format!("{owner} has no such parameter; it has: {known}")));
        };
        rule.check(value).map_err(|problem| problem.within(&field))?;
    }
    Ok(())
}

#[derive(Default)]
struct Settings {
    if_name: Option<IfName>,
    ips: Vec<IpRequest>,
    mac: Option<MacAddr>,
    bandwidth: Option<Bandwidth>,
    port_mappings: Vec<PortMapping>,
    args: BTreeMap<String, String>,
    parameters: BTreeMap<String, Value>,
}

impl Settings {
    /// Later configs win, field by field; maps are merged by key.
    fn overlay(&mut self, config: &AttachmentConfig) {
        let AttachmentConfig { if_name, ips, mac, bandwidth, port_mappings, args, parameters } =
            config.clone();
        self.if_name = if_name.or_else(|| self.if_name.take());
        if !ips.is_empty() {
            self.ips = ips;
        }
        self.mac = mac.or(self.mac);
        if let Some(Bandwidth { ingress, egress }) = bandwidth {
            let known = self.bandwidth.unwrap_or(Bandwidth { ingress: None, egress: None });
            self.bandwidth =
                Some(Bandwidth { ingress: ingress.or(known.ingress), egress: egress.or(known.egress) });
        }
        if !port_mappings.is_empty() {
            self.port_mappings = port_mappings;
        }
        self.args.extend(args);
        self.parameters.extend(parameters);
    }

    fn finish(
        mut self,
        conflist: Map<String, Value>,
        owner: String,
        field: &'static str,
        allow: &Allow,
        granted: Option<Quantity>,
    ) -> Result<Merged, Invalid> {
        for (name, rule) in &allow.parameters {
            if let Some(default) = &rule.default {
                self.parameters.entry(name.clone()).or_insert_with(|| default.clone());
            }
        }
        let capability_args = self.capability_args(&conflist, granted)?;
        let Self { if_name, args, parameters, .. } = self;
        Ok(Merged { if_name, conflist, owner, field, parameters, args, capability_args })
    }

    fn capability_args(
        &self,
        conflist: &Map<String, Value>,
        granted: Option<Quantity>,
    ) -> Result<Map<String, Value>, Invalid> {
        let mut args = Map::new();
        let mut asked = |name: &str, value: Value| -> Result<(), Invalid> {
            if !declares(conflist, name) {
                let problem = format!(
                    "no plugin of the network takes it: one needs \"capabilities\": {{{name:?}: true}}"
                );
                return Err(Invalid::new(name, problem));
            }
            args.insert(name.to_owned(), value);
            Ok(())
        };
        if !self.ips.is_empty() {
            asked("ips", json!(self.ips))?;
        }
        if let Some(mac) = self.mac {
            asked("mac", json!(mac))?;
        }
        if !self.port_mappings.is_empty() {
            asked("portMappings", json!(self.port_mappings))?;
        }
        if let Some(bandwidth) = self.bandwidth {
            for (field, rate) in
                [("bandwidth.ingress", bandwidth.ingress), ("bandwidth.egress", bandwidth.egress)]
            {
                if let (Some(rate), Some(granted)) = (rate, granted)
                    && rate > granted
                {
                    let problem = format!(
                        "{rate} is more than the {granted} that the claim was granted: raise capacity.requests.bandwidth"
                    );
                    return Err(Invalid::new(field, problem));
                }
            }
            // What was granted is the limit of a direction that nobody set.
            let (ingress, egress) = (bandwidth.ingress.or(granted), bandwidth.egress.or(granted));
            asked("bandwidth", bandwidth_capability(Bandwidth { ingress, egress }))?;
        } else if let Some(rate) = granted
            && declares(conflist, "bandwidth")
        {
            args.insert("bandwidth".into(), bandwidth_capability(Bandwidth::both(rate)));
        }
        Ok(args)
    }
}

/// The CNI `bandwidth` capability: rates in bit/s, bursts in bits. A tenth of a second's worth of burst, since
/// the plugin refuses a rate without one; both fields are 32 bits wide in older versions of the plugin.
fn bandwidth_capability(bandwidth: Bandwidth) -> Value {
    let mut capability = Map::new();
    for (direction, rate) in [("ingress", bandwidth.ingress), ("egress", bandwidth.egress)] {
        if let Some(rate) = rate.map(Quantity::value).filter(|rate| *rate > 0) {
            capability.insert(format!("{direction}Rate"), json!(rate));
            capability.insert(
                format!("{direction}Burst"),
                json!((rate / 10).clamp(1_000_000, u64::from(u32::MAX) / 2)),
            );
        }
    }
    Value::Object(capability)
}

impl Merged {
    /// The conflist with every place filled from `scope` and the parameters, under `name` unless the
    /// configuration has a name of its own.
    ///
    /// # Errors
    /// Names the path in the conflist and the place without a value, or everything that the runtime or a plugin will
    /// refuse with these values.
    pub fn resolve(&self, name: &str, mut scope: template::Scope) -> Result<Map<String, Value>, Invalid> {
        scope.extend(self.parameters.iter().map(|(key, value)| (format!("parameters.{key}"), value.clone())));
        let mut resolved = Map::new();
        for (key, value) in &self.conflist {
            let value = template::resolve(value, &scope).map_err(|e| e.within(key))?;
            resolved.insert(key.clone(), value);
        }
        resolved.entry("name").or_insert_with(|| Value::String(name.to_owned()));
        let findings = validate(Value::Object(resolved.clone()).to_string().as_bytes());
        refused(findings, self.field, Vec::new())
            .map_err(|problems| Invalid::new(self.owner.clone(), problems))?;
        Ok(resolved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(allow: Value) -> NetworkSpec {
        serde_json::from_value(json!({
            "uplink": {"interfaces": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.ifName}", "vlan": "${parameters.vlan}",
                 "capabilities": {"ips": true, "mac": true, "bandwidth": true}}]},
            "allow": allow,
        }))
        .expect("a network")
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
        merge(Base::Network("storage", &spec), &layers, None).expect_err("refused").to_string()
    }

    #[test]
    fn the_claim_wins_over_the_class_field_by_field() {
        let spec = network(json!({"mac": true}));
        let layers = [
            layer(Author::Class, json!({"ifName": "a", "ips": ["10.0.0.1"], "args": {"x": "1", "y": "1"}})),
            layer(Author::Class, json!({"args": {"y": "2"}})),
            layer(Author::Claim, json!({"ifName": "b", "mac": "02:00:00:00:00:01"})),
        ];
        let merged = merge(Base::Network("storage", &spec), &layers, None).expect("merges");
        assert_eq!(merged.if_name.as_ref().map(IfName::as_str), Some("b"));
        assert_eq!(
            Value::Object(merged.capability_args),
            json!({"ips": ["10.0.0.1"], "mac": "02:00:00:00:00:01"})
        );
        assert_eq!(merged.args, BTreeMap::from([("x".into(), "1".into()), ("y".into(), "2".into())]));
    }

    #[test]
    fn what_a_tenant_may_not_set_is_refused_by_name() {
        assert_eq!(
            refused(json!({}), json!({"ips": ["10.0.0.1"]})),
            "claim config[0].ips: Network \"storage\" does not allow claims to set it: remove it, or have the admin set allow.ips"
        );
        assert!(refused(json!({}), json!({"args": {"a": "b"}})).starts_with("claim config[0].args:"));
        assert_eq!(
            refused(json!({"parameters": {"vlan": {"type": "integer"}}}), json!({"parameters": {"vlam": 1}})),
            "claim config[0].parameters.vlam: Network \"storage\" has no such parameter; it has: vlan"
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
            let all = json!({"args": true, "ips": true, "mac": true});
            let error = refused(all, json!({"args": {key: "10.0.0.1"}}));
            assert!(error.starts_with(&format!("claim config[0].args.{key}: plugins take")), "{error}");
            assert!(error.contains(&format!("use the field `{field}`")), "{error}");
        }
        let spec = network(json!({"args": true}));
        let claim = [layer(Author::Claim, json!({"args": {"TENANT": "10.0.0.1"}}))];
        merge(Base::Network("storage", &spec), &claim, None).expect("merges");
        let class = [layer(Author::Class, json!({"args": {"IP": "10.0.0.1"}}))];
        merge(Base::Network("storage", &spec), &class, None).expect("the admin's");
    }

    #[test]
    fn allowed_port_mappings_leave_the_node_its_own_ports() {
        let mut spec = network(json!({"portMappings": true}));
        spec.cni["plugins"][0]["capabilities"]["portMappings"] = json!(true);
        let mapped = |author, port: u16| {
            let mappings = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}, {"hostPort": port, "containerPort": 80}]});
            let merged = merge(Base::Network("storage", &spec), &[layer(author, mappings)], None);
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
        let config = json!({"kind": "CNIConfig", "config": {"cniVersion": "1.0.0", "type": "macvlan", "master": "${uplink.ifName}"}});
        let base = Base::Uplink(PlainUse::Macvlan);
        let error =
            merge(base, &[layer(Author::Claim, config.clone())], None).expect_err("refused").to_string();
        assert!(
            error.starts_with("claim config[0].kind: a CNIConfig may only come from a DeviceClass"),
            "{error}"
        );
        let merged = merge(base, &[layer(Author::Class, config.clone())], None).expect("merges");
        assert_eq!(merged.conflist["plugins"][0]["type"], "macvlan");
        let spec = network(json!({}));
        assert!(merge(Base::Network("storage", &spec), &[layer(Author::Class, config)], None).is_err());
    }

    #[test]
    fn a_capability_that_nobody_takes_is_refused() {
        let error =
            merge(Base::Uplink(PlainUse::Nic), &[layer(Author::Class, json!({"ips": ["10.0.0.1"]}))], None);
        assert!(
            error.expect_err("refused").to_string().starts_with("ips: no plugin of the network takes it")
        );
    }

    #[test]
    fn granted_bandwidth_becomes_the_capability_and_bounds_the_claim() {
        let spec = network(json!({"bandwidth": true}));
        let base = Base::Network("storage", &spec);
        let granted = Some("1G".parse().expect("a quantity"));
        let merged = merge(base, &[], granted).expect("merges");
        assert_eq!(merged.capability_args["bandwidth"]["ingressRate"], 1_000_000_000);
        assert_eq!(merged.capability_args["bandwidth"]["egressBurst"], 100_000_000);
        let layers = [layer(Author::Claim, json!({"bandwidth": {"egress": "2G"}}))];
        let error = merge(base, &layers, granted).expect_err("refused").to_string();
        let layers = [layer(Author::Claim, json!({"bandwidth": {"ingress": "500M"}}))];
        let merged = merge(base, &layers, granted).expect("merges");
        assert_eq!(merged.capability_args["bandwidth"]["ingressRate"], 500_000_000);
        assert_eq!(
            merged.capability_args["bandwidth"]["egressRate"], 1_000_000_000,
            "the other one stays limited"
        );
        assert!(error.starts_with("bandwidth.egress: 2G is more than the 1G"), "{error}");
    }

    #[test]
    fn a_plain_uplink_is_limited_to_what_was_granted_or_set_by_the_class() {
        let types = |merged: &Merged| {
            let plugins = merged.conflist["plugins"].as_array().expect("a list").iter();
            plugins.map(|plugin| plugin["type"].clone()).collect::<Vec<_>>()
        };
        let base = Base::Uplink(PlainUse::Macvlan);
        let merged = merge(base, &[], Some("1G".parse().expect("a quantity"))).expect("merges");
        assert_eq!(types(&merged), ["macvlan", BANDWIDTH_PLUGIN]);
        assert_eq!(merged.capability_args["bandwidth"]["ingressRate"], 1_000_000_000);
        let class = [layer(Author::Class, json!({"bandwidth": {"egress": "5M"}}))];
        let merged = merge(base, &class, None).expect("merges");
        assert_eq!(types(&merged), ["macvlan", BANDWIDTH_PLUGIN]);
        assert_eq!(
            merged.capability_args["bandwidth"],
            json!({"egressRate": 5_000_000, "egressBurst": 1_000_000})
        );
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
        let merged = merge(Base::Network("storage", &spec), &[], None).expect("merges");
        let scope = template::Scope::from_iter([("uplink.ifName".to_owned(), json!("eth1"))]);
        let resolved = merged.resolve("netclaim-storage", scope).expect("resolves");
        assert_eq!(resolved["name"], "netclaim-storage");
        assert_eq!(resolved["plugins"][0]["master"], "eth1");
        assert_eq!(resolved["plugins"][0]["vlan"], 7);
        let error = merged.resolve("x", template::Scope::new()).expect_err("no uplink").to_string();
        assert_eq!(error, "plugins[0].master: ${uplink.ifName} has no value here");
    }

    #[test]
    fn a_class_is_told_everything_that_is_wrong_with_its_configuration() {
        let config = json!({"kind": "CNIConfig", "config": {"cniVersion": "1.0.0", "type": "macvlan",
            "master": "${uplink.ifname}", "mode": "x", "mtuu": 1}});
        let error = merge(Base::Uplink(PlainUse::Macvlan), &[layer(Author::Class, config)], None)
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
        let error = merge(Base::Uplink(PlainUse::Macvlan), &layers, None).expect_err("refused").to_string();
        let expected = "class config[0]: allow.parameters.mode.enum: a string needs the list of the values";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn a_list_of_a_claim_comes_to_the_plugin_as_it_is_written() {
        let mut spec = network(json!({"parameters": {"search": {"type": "array", "maxItems": 2,
            "items": {"type": "string", "pattern": "^[ -~]+$"}, "default": ["lab"]}}}));
        spec.cni["plugins"][0]["dns"] = json!({"search": "${parameters.search}"});
        let base = Base::Network("storage", &spec);
        let search = |layers: &[Layer]| {
            let merged = merge(base, layers, None).map_err(|e| e.to_string())?;
            let scope =
                [("uplink.ifName", json!("eth1")), ("parameters.vlan", json!(1)), ("node.name", json!("n"))];
            let scope = template::Scope::from_iter(scope.map(|(name, value)| (name.to_owned(), value)));
            let resolved = merged.resolve("x", scope).map_err(|e| e.to_string())?;
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
    fn what_the_plugins_would_refuse_with_the_values_of_a_claim_is_refused_before() {
        let mut spec = network(json!({"parameters": {"vlan": {"type": "integer"}}}));
        spec.cni = json!({"cniVersion": "1.1.0", "plugins": [{"type": "vlan", "master": "eth1", "vlanId": "${parameters.vlan}",
            "ipam": {"type": "static", "addresses": [{"address": "10.0.0.${parameters.vlan}/24"}]}}]})
        .as_object()
        .expect("an object")
        .clone();
        let layers = [layer(Author::Claim, json!({"parameters": {"vlan": 5000}}))];
        let merged = merge(Base::Network("storage", &spec), &layers, None).expect("merges");
        let error =
            merged.resolve("netclaim-storage", template::Scope::new()).expect_err("refused").to_string();
        assert_eq!(
            error,
            "Network \"storage\": spec.cni.plugins[0].ipam.addresses[0].address: \"10.0.0.5000/24\" is no network \
             in CIDR notation; write address and prefix length, such as 10.0.0.0/24 or fd00::/64; spec.cni.plugins[0].vlanId: 5000 is \
             out of range; write a number from 0 to 4094"
        );
    }

    #[test]
    fn the_plain_ways_to_use_an_uplink_are_good_configurations() {
        let uses = [PlainUse::Nic, PlainUse::Macvlan, PlainUse::Ipvlan];
        for (plain, granted) in
            uses.into_iter().flat_map(|plain| [(plain, None), (plain, Some(Quantity::new(8)))])
        {
            let merged = merge(Base::Uplink(plain), &[], granted).expect("merges");
            let scope = template::Scope::from_iter([("uplink.ifName".to_owned(), json!("eth1"))]);
            let resolved = merged.resolve("netclaim-x", scope).expect("resolves");
            assert_eq!(validate(Value::Object(resolved).to_string().as_bytes()), []);
        }
    }
}
