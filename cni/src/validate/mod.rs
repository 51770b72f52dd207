//! What is wrong with a network configuration, all of it at once, without running anything.
//!
//! [`validate`] looks at the frame that the specification gives (section 1), at the keys and values of the reference
//! plugins (release 1.9.1), and at what hangs together: a chain's order, address ranges, settings that exclude each
//! other. Of a plugin that is not known only what the specification says is checked.
//!
//! Pure: whether interfaces and binaries exist is for those who can look. What [`NetworkList`](crate::NetworkList) refuses to parse is
//! always an error here; an error here may still be accepted there, and is then the plugin's to refuse.

mod form;
mod node;
mod plugins;
mod rules;

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::BANDWIDTH_PLUGIN;
use crate::keys::{self, is_misspelt, is_reserved, member};
use crate::names::{NetworkName, PluginType};
use crate::version::{self, SpecVersion};
use form::{check_keys, is_similar};
use node::{Members, Node, Open};
use plugins::{Ipam, Plugin, Role};
use rules::Subject;

use crate::placeholder::{self, Part, Place};

/// A problem of a network configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// JSON pointer (RFC 6901) of the faulty value, or of the object in which something is missing. It always leads to
    /// a value of the document; the empty one is the whole.
    pub pointer: String,
    /// What is wrong there.
    pub problem: String,
    /// What to do.
    pub advice: String,
    /// Whether it works nevertheless.
    pub severity: Severity,
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It works, perhaps not as it was meant; or only some nodes, kernels or claims can tell.
    Warning,
    /// The runtime or a plugin refuses it, on every node.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointer, problem, advice, severity } = self;
        write!(f, "{severity} at `{}`: {problem}; {advice}", if pointer.is_empty() { "/" } else { pointer })
    }
}

/// Everything that is wrong with a network configuration list, or a single plugin's configuration, in the order of
/// the document's parts. Empty if nothing is.
pub fn validate(json: &[u8]) -> Vec<Finding> {
    check(json, |node, _| node)
}

/// A `${…}` place that gets no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPlace {
    /// What is wrong with it.
    pub problem: String,
    /// What to do.
    pub advice: String,
}

/// As [`validate`], for a configuration with `${…}` places; `places` says what is known of each by its name. What
/// every value that may come there makes wrong is an error, what only some of them do a warning.
pub fn validate_places(json: &[u8], places: &dyn Fn(&str) -> Result<Place, UnknownPlace>) -> Vec<Finding> {
    check(json, |node, report| node.map_texts("", &mut |text, at| open(text, at, places, report)))
}

fn open(
    text: String,
    at: &str,
    places: &dyn Fn(&str) -> Result<Place, UnknownPlace>,
    report: &mut Report,
) -> Node {
    let parts = match placeholder::parse(&text) {
        Ok(parts) => parts,
        Err(problem) => {
            report.error(at, problem, "close the brace");
            return Node::Open(Open { text, place: Place::Any });
        }
    };
    let alone = parts.len() == 1;
    let mut place = None;
    for part in &parts {
        let Part::Place(name) = part else { continue };
        let known = places(name).unwrap_or_else(|UnknownPlace { problem, advice }| {
            report.error(at, problem, advice);
            Place::Any
        });
        if !alone && matches!(known, Place::List(_)) {
            let problem = format!("${{{name}}} is a list and cannot stand inside a text");
            report.error(at, problem, "write nothing else into the string");
        }
        place = Some(if alone { known } else { Place::Text });
    }
    match place {
        Some(place) => Node::Open(Open { text, place }),
        None => Node::Text(
            parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) | Part::Place(text) => *text,
                })
                .collect(),
        ),
    }
}

fn check(json: &[u8], prepare: impl FnOnce(Node, &mut Report) -> Node) -> Vec<Finding> {
    let mut report = Report::default();
    match serde_json::from_slice::<Node>(json).map(|node| prepare(node, &mut report)) {
        Ok(Node::Object(list)) => {
            if is_single(&list)
                && let Err(error) = serde_json::from_str::<Node>(&as_list(&String::from_utf8_lossy(json)))
            {
                report.error("", format!("cannot become a list of one: {error}"), "nest it less deeply");
            }
            repeated_keys(&list, "", &mut report);
            frame(&list, &mut report);
        }
        Ok(other) => report.error("", format!("must be an object, not {}", other.kind()), "write a conflist"),
        Err(error) => report.error("", format!("is no JSON: {error}"), "correct the syntax"),
    }
    report.findings
}

/// A single plugin's configuration, which says nothing of a list but its name and version.
fn is_single(list: &Members) -> bool {
    list.exact("plugins").is_none() && list.exact("type").is_some()
}

/// As deep as the list that a single plugin's configuration becomes.
fn as_list(json: &str) -> String {
    format!(r#"{{"plugins":[{json}]}}"#)
}

/// Findings as they are made.
#[derive(Default)]
struct Report {
    findings: Vec<Finding>,
    /// The same, to tell each once.
    told: BTreeSet<Finding>,
    /// Pointers to values that the plugin may never look at.
    unread: Vec<String>,
}

impl Report {
    fn error(&mut self, at: &str, problem: impl Into<String>, advice: impl Into<String>) {
        self.push(Severity::Error, at, problem.into(), advice.into());
    }

    fn warning(&mut self, at: &str, problem: impl Into<String>, advice: impl Into<String>) {
        self.push(Severity::Warning, at, problem.into(), advice.into());
    }

    /// What the plugin refuses if it looks at the value at all.
    fn value_error(&mut self, at: &str, problem: impl Into<String>, advice: impl Into<String>) {
        let below = |unread: &String| {
            at.strip_prefix(unread.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let severity = if self.unread.iter().any(below) { Severity::Warning } else { Severity::Error };
        self.push(severity, at, problem.into(), advice.into());
    }

    fn push(&mut self, severity: Severity, at: &str, problem: String, advice: String) {
        let finding = Finding { pointer: at.to_owned(), problem, advice, severity };
        if self.told.insert(finding.clone()) {
            self.findings.push(finding);
        }
    }
}

fn repeated_keys(members: &Members, at: &str, report: &mut Report) {
    let mut seen = BTreeSet::new();
    for (key, node) in members.iter() {
        let here = member(at, key);
        if !seen.insert(key) {
            report.error(
                &here,
                format!("key `{key}` stands more than once"),
                "keep one: readers differ in which counts",
            );
        }
        repeated_in(node, &here, report);
    }
}

fn repeated_in(node: &Node, at: &str, report: &mut Report) {
    match node {
        Node::Object(members) => repeated_keys(members, at, report),
        Node::List(items) => {
            for (index, item) in items.iter().enumerate() {
                repeated_in(item, &format!("{at}/{index}"), report);
            }
        }
        _ => {}
    }
}

fn frame(list: &Members, report: &mut Report) {
    let single = is_single(list);
    match list.exact("name") {
        None => report.error("", "`name` is missing", "name the network"),
        Some(Node::Text(name)) => {
            if let Err(error) = NetworkName::try_from(name.clone()) {
                report.error("/name", error.to_string(), "choose another name");
            }
        }
        Some(Node::Open(_)) => {}
        Some(other) => report.error("/name", wrong("a string", other), "write it in quotes"),
    }
    let version = versions(list, report);
    if single {
        let advice = "write a conflist: {\"cniVersion\": …, \"name\": …, \"plugins\": [{…}]}";
        report.warning("", "a single plugin's configuration is deprecated since CNI 1.0.0", advice);
        chain(&[(String::new(), list)], version, report);
        return;
    }

    const KEYS: [&str; 7] = [
        "name",
        "cniVersion",
        "cniVersions",
        "disableCheck",
        "disableGC",
        "loadOnlyInlinedPlugins",
        "plugins",
    ];
    for (key, node) in list.iter() {
        let here = member("", key);
        if !KEYS.contains(&key) {
            let advice = match KEYS.into_iter().find(|known| is_similar(key, known)) {
                Some(known) => format!("write `{known}` if that is meant, else remove it"),
                None => "remove it, or move it into the plugin that reads it".to_owned(),
            };
            report.warning(&here, format!("a conflist has no key `{key}`: it has no effect"), advice);
        } else if matches!(key, "disableCheck" | "disableGC" | "loadOnlyInlinedPlugins") {
            let text_flag = |text: &str| ["true", "false"].iter().any(|flag| text.eq_ignore_ascii_case(flag));
            match node {
                Node::Bool(_) | Node::Open(_) => {}
                Node::Text(text) if text_flag(text) => {}
                other => report.error(&here, wrong("true or false", other), "write true or false"),
            }
        }
    }

    let items = match list.exact("plugins") {
        None => return report.error("", "`plugins` is missing", "list the plugins to run"),
        Some(Node::Open(_)) => return,
        Some(Node::List(items)) if items.is_empty() => {
            return report.error("/plugins", "is empty", "name at least one plugin");
        }
        Some(Node::List(items)) => items,
        Some(other) => return report.error("/plugins", wrong("a list", other), "write [{…}]"),
    };
    let mut plugins = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let at = format!("/plugins/{index}");
        match item {
            Node::Object(plugin) => plugins.push((at, plugin)),
            Node::Open(_) => {}
            other => report.error(&at, wrong("an object", other), "write {\"type\": …}"),
        }
    }
    chain(&plugins, version, report);
}

/// The version that the runtime would choose, as far as it can be told.
fn versions(list: &Members, report: &mut Report) -> Option<SpecVersion> {
    let several = list.exact("cniVersions").filter(|_| !is_single(list));
    let mut known = BTreeSet::new();
    let mut open = false;
    let mut one = |node: &Node, at: &str, report: &mut Report| match node {
        Node::Open(_) => open = true,
        Node::Text(text) if text.is_empty() && several.is_some() && at == "/cniVersion" => {}
        Node::Text(text) => match SpecVersion::parse(text) {
            Ok(version) => {
                known.insert(version);
            }
            Err(_) if several.is_some() && version::is_well_formed(text) => {
                let problem = format!("version {text} is not known to this runtime, which skips it");
                report.warning(at, problem, "remove it, unless another runtime uses it");
            }
            Err(error) => {
                let advice = format!("write a released version, at best {}", SpecVersion::CURRENT);
                report.error(at, error.to_string(), advice);
            }
        },
        other => report.error(at, wrong("a string", other), "write it in quotes"),
    };
    let single = list.exact("cniVersion");
    if let Some(node) = single {
        one(node, "/cniVersion", report);
    }
    match several {
        Some(Node::List(items)) => {
            for (index, item) in items.iter().enumerate() {
                one(item, &format!("/cniVersions/{index}"), report);
            }
            if known.is_empty() && !open {
                let advice = format!("add {}", SpecVersion::CURRENT);
                report.error("/cniVersions", "names no version this runtime supports", advice);
            }
        }
        Some(Node::Open(_)) => open = true,
        Some(other) => report.error("/cniVersions", wrong("a list", other), "write it as [\"1.1.0\"]"),
        None if single.is_none() => {
            let problem = "`cniVersion` is missing, which means 0.1.0: without CHECK, STATUS and GC";
            report.warning("", problem, format!("write \"cniVersion\": \"{}\"", SpecVersion::CURRENT));
            known.insert(SpecVersion::V0_1_0);
        }
        None => {}
    }
    known.last().copied().filter(|_| !open)
}

/// The plugins of a list with their places.
fn chain(plugins: &[(String, &Members)], version: Option<SpecVersion>, report: &mut Report) {
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

        let subject = Subject { conf: plugin, at, plugin, version, asked_by: Some(known) };
        report.unread = rules::unread(known, &subject);
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
            Role::Chained if first(at) => {
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
                let problem = format!("`ipam` is missing, and `{}` does not go without", known.name);
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

/// What is made before may be out of reach for a plugin that limits bandwidth.
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
        Some(Node::Open(Open { place: Place::Any | Place::OneOf(_), .. })) => {}
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

/// Keys that belong to the protocol: their spelling, and those that are the runtime's to write.
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

/// What is left after the frame's and the runtime's keys, which have been reported in whatever spelling.
fn without_protocol(plugin: &Members) -> Members {
    let protocol = |key: &str| is_reserved(key) || keys::PROTOCOL.iter().any(|known| is_misspelt(key, known));
    plugin.without(protocol)
}

/// What `ipam` leads to.
enum IpamIs {
    None,
    Known(&'static Plugin),
    /// Another plugin, or not to be told.
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
    let typed = &[("type", form::Form::Any)];
    let asked_by = plugin.text("type").and_then(plugins::find);
    let subject = Subject { conf, at: &here, plugin, version, asked_by };
    report.unread = rules::unread(known, &subject);
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

fn wrong(expected: &str, found: &Node) -> String {
    format!("must be {expected}, not {}", found.kind())
}
