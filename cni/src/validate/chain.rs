//! The plugins of a configuration: each by itself, and in their order.

use super::finding::{Report, Severity};
use super::form::{Form, check_keys};
use super::node::{Members, Node, Open, wrong};
use super::plugins::{self, Ipam, Plugin, Role};
use super::rules::{self, BANDWIDTH_PLUGIN, Subject};
use crate::keys::{self, is_misspelt, is_reserved, member};
use crate::names::PluginType;
use crate::placeholder::PlaceholderValue;
use crate::version::SpecVersion;

/// Checks the plugins of a list; each comes with its pointer.
pub(super) fn chain(plugins: &[(String, &Members)], version: Option<SpecVersion>, report: &mut Report) {
    let first = |at: &str| at.is_empty() || at == "/plugins/0";
    let mut maker: Option<&str> = None;
    let mut past_ingress = false;
    let mut shaper: Option<&str> = None;
    for (at, plugin) in plugins {
        let name = type_of(plugin, at, report);
        protocol(plugin, at, report);
        let known = name.and_then(plugins::find);
        let ipam = ipam(plugin, at, version, report);
        capabilities(plugin, at, known, &ipam, report);
        let Some(known) = known else { continue };

        let subject = Subject { conf: plugin, at, plugin, version, is_known: true };
        report.unread = rules::unread(known.name, &subject);
        let whose = format!("plugin `{}`", known.name);
        // An IPAM plugin reads its keys from `ipam`, wherever it stands.
        let keys: &[_] = if known.role == Role::IpamOnly { &[] } else { known.keys };
        check_keys(&without_protocol(plugin), at, &[plugins::COMMON, keys], &whose, report);
        too_old(known, &member(at, "type"), version, report);
        if known.role != Role::IpamOnly {
            (known.rule)(&subject, report);
        }
        report.unread.clear();
        let type_at = member(at, "type");
        match known.role {
            Role::Chained if first(at) && !report.has_prev => {
                let problem =
                    format!("`{}` works on the result of a plugin before it, and is the first", known.name);
                report.error(&type_at, problem, "put the plugin that makes the interface before it");
            }
            // ipvlan may take its master from the plugin before it.
            Role::Interface if known.name != "ipvlan" => {
                if let Some(first) = maker {
                    let problem =
                        format!("`{}` makes the interface that `{first}` has made already", known.name);
                    report.warning(&type_at, problem, "keep one of them in this network");
                }
            }
            _ => {}
        }
        if known.role == Role::Interface {
            maker = maker.or(Some(known.name));
        }
        past_ingress |= known.name == "ipvlan" && plugin.text("mode") == Some("l3s");
        if let "bandwidth" | BANDWIDTH_PLUGIN = known.name {
            if let Some(first) = shaper.replace(known.name) {
                report.warning(&type_at, two_shapers(first, known.name), "keep one of them");
            }
            limits_in_vain(plugin, known, maker, past_ingress, &type_at, report);
        }
        match known.ipam {
            Ipam::Required if matches!(ipam, IpamIs::None) => {
                let problem = format!("`ipam` is missing, which `{}` requires", known.name);
                report.error(at, problem, "write \"ipam\": {\"type\": …}");
            }
            Ipam::Unused if known.role != Role::IpamOnly && !matches!(ipam, IpamIs::None) => {
                let problem = format!("`{}` calls no IPAM plugin: `ipam` has no effect", known.name);
                report.warning(&member(at, "ipam"), problem, "remove it");
            }
            _ => {}
        }
    }
}

fn two_shapers(first: &str, second: &str) -> String {
    match (first, second) {
        (BANDWIDTH_PLUGIN, BANDWIDTH_PLUGIN) => {
            format!("`{BANDWIDTH_PLUGIN}` stands twice: the later one removes what the earlier one sets")
        }
        ("bandwidth", "bandwidth") => {
            "a network can have `bandwidth` once: both would use one device".to_owned()
        }
        _ => format!("`{second}` limits what `{first}` limits already"),
    }
}

/// Reports a bandwidth plugin that cannot limit the interface of the plugins before it.
fn limits_in_vain(
    plugin: &Members,
    known: &Plugin,
    maker: Option<&str>,
    past_ingress: bool,
    type_at: &str,
    report: &mut Report,
) {
    if known.name == BANDWIDTH_PLUGIN {
        if past_ingress {
            let problem =
                "what `ipvlan` in mode l3s receives is not limited: it does not pass traffic control";
            report.warning(type_at, problem, "use its mode l2 or l3");
        }
    } else if let Some(maker) = maker.filter(|maker| !matches!(*maker, "bridge" | "ptp")) {
        // Without a limit to set it does not look.
        let always = rules::always_limits(plugin);
        let severity = if always { Severity::Error } else { Severity::Warning };
        let problem = format!("`bandwidth` limits veth pairs only, and `{maker}` makes none");
        let advice = format!("use `{BANDWIDTH_PLUGIN}`, which takes the same keys, or `bridge` or `ptp`");
        report.push(severity, type_at, problem, advice);
    }
}

fn type_of<'a>(object: &'a Members, at: &str, report: &mut Report) -> Option<&'a str> {
    let here = member(at, "type");
    match object.exact("type") {
        None => report.error(at, "`type` is missing", "name the plugin's binary"),
        Some(Node::Open(Open { value: PlaceholderValue::Any | PlaceholderValue::OneOf(_), .. })) => {}
        Some(Node::Open(Open { text, .. })) => {
            let problem = format!("`{text}` may become any plugin that is installed");
            report.error(&here, problem, "name the plugin's binary");
        }
        Some(Node::Text(name)) => match PluginType::try_from(name.clone()) {
            Ok(_) => return Some(name),
            Err(error) => {
                report.error(&here, error.to_string(), "write the file name of the plugin's binary")
            }
        },
        Some(other) => report.error(&here, wrong("a string", other), "name the plugin's binary"),
    }
    None
}

/// Reports misspelt keys of the protocol, and keys that only the runtime writes.
fn protocol(plugin: &Members, at: &str, report: &mut Report) {
    misspelt(plugin, at, &keys::PROTOCOL, report);
    for (key, _) in plugin.iter().filter(|(key, _)| is_reserved(key)) {
        let problem = format!("`{key}` is the runtime's to write: the plugin does not get this value");
        report.warning(
            &member(at, key),
            problem,
            "remove it; what a plugin should get goes into keys of its own",
        );
    }
    if at.is_empty() {
        return;
    }
    for key in ["name", "cniVersion"] {
        if plugin.exact(key).is_some() {
            let problem = format!("`{key}` is replaced by the list's");
            report.warning(&member(at, key), problem, "remove it");
        }
    }
}

fn misspelt(object: &Members, at: &str, known: &[&str], report: &mut Report) {
    for (key, _) in object.iter() {
        if let Some(expected) = known.iter().find(|known| is_misspelt(key, known)) {
            let problem =
                format!("is spelt differently from `{expected}`, which some plugins would take it for");
            report.error(&member(at, key), problem, format!("write `{expected}`"));
        }
    }
}

/// Returns the keys that are neither the protocol's nor the runtime's; those have been reported in any
/// spelling.
fn without_protocol(plugin: &Members) -> Members {
    let protocol = |key: &str| is_reserved(key) || keys::PROTOCOL.iter().any(|known| is_misspelt(key, known));
    plugin.without(protocol)
}

/// The plugin that `ipam` names.
enum IpamIs {
    None,
    Known(&'static Plugin),
    /// Another plugin, or one that is not known yet.
    Other,
}

fn ipam(plugin: &Members, at: &str, version: Option<SpecVersion>, report: &mut Report) -> IpamIs {
    let here = member(at, "ipam");
    let conf = match plugin.exact("ipam") {
        None | Some(Node::Null) => return IpamIs::None,
        Some(Node::Open(_)) => return IpamIs::Other,
        Some(Node::Object(conf)) => conf,
        Some(other) => {
            report.error(&here, wrong("an object", other), "write {\"type\": …}");
            return IpamIs::Other;
        }
    };
    misspelt(conf, &here, &["type"], report);
    if !conf.has("type") {
        if conf.iter().any(|(key, _)| key != "type") {
            report.warning(&here, "has no effect without `type`", "name the IPAM plugin, or remove it");
        }
        return IpamIs::None;
    }
    let Some(known) = type_of(conf, &here, report).and_then(plugins::find) else { return IpamIs::Other };
    let type_at = member(&here, "type");
    if known.role != Role::IpamOnly {
        let problem = format!("`{}` gives no addresses", known.name);
        // Those that make an interface find the one that the plugin made which calls them.
        let severity = if known.role == Role::Interface { Severity::Error } else { Severity::Warning };
        let advice = "use an IPAM plugin: host-local, static, dhcp";
        report.push(severity, &type_at, problem, advice.to_owned());
        return IpamIs::Other;
    }
    let whose = format!("IPAM plugin `{}`", known.name);
    let typed = &[("type", Form::Any)];
    let is_known = plugin.text("type").and_then(plugins::find).is_some();
    let subject = Subject { conf, at: &here, plugin, version, is_known };
    report.unread = rules::unread(known.name, &subject);
    check_keys(conf, &here, &[typed, known.keys], &whose, report);
    too_old(known, &type_at, version, report);
    (known.rule)(&subject, report);
    report.unread.clear();
    IpamIs::Known(known)
}

fn capabilities(
    plugin: &Members,
    at: &str,
    known: Option<&'static Plugin>,
    ipam: &IpamIs,
    report: &mut Report,
) {
    let here = member(at, "capabilities");
    let declared = match plugin.exact("capabilities") {
        None | Some(Node::Null | Node::Open(_)) => return,
        Some(Node::Object(declared)) => declared,
        Some(other) => return report.error(&here, wrong("an object", other), "write {\"name\": true}"),
    };
    let from_ipam = match ipam {
        IpamIs::None => Some(&[] as &[&str]),
        IpamIs::Known(ipam) => Some(ipam.capabilities),
        IpamIs::Other => None,
    };
    for (name, node) in declared.iter() {
        let here = member(&here, name);
        match node {
            Node::Null | Node::Open(_) | Node::Bool(false) => {}
            Node::Bool(true) => {
                let (Some(known), Some(from_ipam)) = (known, from_ipam) else { continue };
                let taken: Vec<&str> = known.capabilities.iter().chain(from_ipam).copied().collect();
                if !taken.contains(&name) {
                    let advice = match taken.as_slice() {
                        [] => "remove it: the plugin takes none".to_owned(),
                        taken => format!("remove it; taken are: {}", taken.join(", ")),
                    };
                    let problem = format!("`{}` does not take the capability `{name}`", known.name);
                    report.warning(&here, problem, advice);
                }
            }
            other => report.error(&here, wrong("true or false", other), "write true or false"),
        }
    }
}

fn too_old(known: &Plugin, at: &str, version: Option<SpecVersion>, report: &mut Report) {
    if let Some(version) = version.filter(|version| *version < known.since) {
        let problem = format!("`{}` does not support CNI {version}", known.name);
        report.error(at, problem, format!("raise the list's `cniVersion` to {} or newer", known.since));
    }
}
