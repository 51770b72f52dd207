//! The frame that the specification gives a configuration (section 1): all but what is in its plugins.

use std::collections::BTreeSet;

use super::chain::chain;
use super::finding::Report;
use super::form::is_similar;
use super::node::{Members, Node, wrong};
use crate::keys::member;
use crate::names::ListName;
use crate::version::{self, SpecVersion};

/// A single plugin's configuration, which says nothing of a list but its name and version.
pub(super) fn is_single(list: &Members) -> bool {
    list.exact("plugins").is_none() && list.exact("type").is_some()
}

/// As deep as the list that a single plugin's configuration becomes.
pub(super) fn as_list(json: &str) -> String {
    format!(r#"{{"plugins":[{json}]}}"#)
}

/// Reports keys that stand more than once, at any depth.
pub(super) fn repeated_keys(members: &Members, at: &str, report: &mut Report) {
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

/// Checks a whole configuration.
pub(super) fn frame(list: &Members, report: &mut Report) {
    let single = is_single(list);
    match list.exact("name") {
        None => report.error("", "`name` is missing", "name the network"),
        Some(Node::Text(name)) => {
            if let Err(error) = ListName::try_from(name.clone()) {
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
