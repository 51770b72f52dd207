//! The form of a value: the JSON type that a plugin reads it into, and the values that it accepts.

use std::net::IpAddr;

use ipnet::IpNet;

use serde::Deserialize as _;

use super::finding::{Report, Severity};
use super::node::{Members, Node, Open};
use crate::keys::{is_misspelt, member};
use crate::names::{IfName, is_hex};
use crate::placeholder::PlaceholderValue;

/// Smallest MTU the kernel gives an interface of the kinds that plugins create, in bytes.
const MIN_MTU: i128 = 68;
const MAX_MTU: i128 = 65535;

/// The form of a key's value. `null` counts as a missing key, and so does the empty text in most forms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Any,
    Bool,
    Text,
    /// From and to, both included: the plugin refuses others.
    Int(i128, i128),
    /// As `Int`, but the plugin hands others to the kernel.
    Usual(i128, i128),
    /// In bytes; 0 leaves it to the kernel.
    Mtu,
    /// The name of a network interface that is there, or another name that it has.
    Link,
    /// The name of a network interface that is to be made.
    NewLink,
    /// A hardware address that an interface can be given.
    Mac,
    Address,
    /// Address and prefix length.
    Cidr,
    /// A path, from the root on: where a plugin runs is not defined.
    Path,
    OneOf(&'static [&'static str]),
    List(&'static Form),
    /// Text by text.
    Map,
    Object(&'static [Key]),
}

/// A key and the form of its value.
pub(super) type Key = (&'static str, Form);

impl Form {
    pub(super) fn check(self, node: &Node, at: &str, report: &mut Report) {
        match (self, node) {
            (Self::Any, _) | (_, Node::Null) => {}
            (form, Node::Open(open)) => form.check_open(open, at, report),
            (Self::Bool, Node::Bool(_)) | (Self::Text, Node::Text(_)) => {}
            (Self::Int(min, max), Node::Int(number)) => {
                if *number < min || *number > max {
                    let problem = format!("{number} is out of range");
                    report.value_error(at, problem, format!("write a number from {min} to {max}"));
                }
            }
            (Self::Usual(min, max), Node::Int(number)) => {
                if *number < min || *number > max {
                    let problem = format!("{number} is out of range");
                    report.push(beyond(*number), at, problem, format!("write a number from {min} to {max}"));
                }
            }
            (Self::Mtu, Node::Int(number)) => {
                if *number != 0 && (*number < MIN_MTU || *number > MAX_MTU) {
                    let advice =
                        format!("write a number of bytes from {MIN_MTU} to {MAX_MTU}, or leave it out");
                    report.push(beyond(*number), at, format!("{number} is not a possible MTU"), advice);
                }
            }
            (Self::List(form), Node::List(items)) => {
                for (index, item) in items.iter().enumerate() {
                    form.check(item, &format!("{at}/{index}"), report);
                }
            }
            (Self::Map, Node::Object(members)) => {
                for (key, node) in members.iter() {
                    Self::Text.check(node, &member(at, key), report);
                }
            }
            (Self::Object(keys), Node::Object(members)) => {
                check_keys(members, at, &[keys], "this object", report)
            }
            (form, Node::Text(text)) if form.is_text() => form.check_text(text, at, report),
            (form, found) => {
                let problem = format!("must be {}, not {}", form.expected(), found.kind());
                let quoted = (form == Self::Bool || form.is_number()) && matches!(found, Node::Text(_));
                report.error(at, problem, if quoted { "write it without quotes" } else { "change its type" });
            }
        }
    }

    /// Checks the possible values of an open value.
    fn check_open(self, open: &Open, at: &str, report: &mut Report) {
        // Whether no other value than those may come.
        let (values, all) = match &open.value {
            PlaceholderValue::Any => return,
            PlaceholderValue::Text | PlaceholderValue::Like { .. }
                if self != Self::Text && !self.is_text() =>
            {
                let problem = format!("must be {}, and `{}` becomes a string", self.expected(), open.text);
                return report.error(at, problem, "change its type");
            }
            PlaceholderValue::Text => return,
            // Any text may be a word that the plugin knows.
            PlaceholderValue::Like { example, stands_for_all } => {
                (vec![Node::Text((*example).to_owned())], *stands_for_all)
            }
            PlaceholderValue::List(item) => {
                let Self::List(form) = self else {
                    let problem = format!("must be {}, and `{}` becomes a list", self.expected(), open.text);
                    return report.error(at, problem, "change its type");
                };
                let item = Open { text: format!("{}[*]", open.text), value: item.as_ref().clone() };
                return form.check(&Node::Open(item), at, report);
            }
            PlaceholderValue::Between(min, max) => {
                (vec![Node::Int((*min).into()), Node::Int((*max).into())], !self.is_number() || min == max)
            }
            PlaceholderValue::OneOf(values) => {
                (values.iter().filter_map(|value| Node::deserialize(value).ok()).collect(), true)
            }
        };
        let judge = |value: &Node| {
            let mut report = Report::default();
            self.check(value, at, &mut report);
            report.findings.into_iter().next().map(|finding| (value.clone(), finding))
        };
        let bad: Vec<_> = values.iter().filter_map(judge).collect();
        let certain =
            all && bad.len() == values.len() && bad.iter().all(|(_, f)| f.severity == Severity::Error);
        if let Some((value, finding)) = bad.into_iter().next() {
            let severity = if certain { Severity::Error } else { Severity::Warning };
            let problem = format!("`{}` may become {value}: {}", open.text, finding.problem);
            report.push(severity, at, problem, finding.advice);
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Int(..) | Self::Usual(..) | Self::Mtu)
    }

    fn is_text(self) -> bool {
        matches!(
            self,
            Self::Link | Self::NewLink | Self::Mac | Self::Address | Self::Cidr | Self::Path | Self::OneOf(_)
        )
    }

    fn check_text(self, text: &str, at: &str, report: &mut Report) {
        match self {
            Self::OneOf(allowed) if !allowed.contains(&text) => {
                let choices = allowed.iter().filter(|choice| !choice.is_empty());
                let choices = choices.map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", ");
                report.value_error(
                    at,
                    format!("{text:?} is not known to the plugin"),
                    format!("write one of {choices}"),
                );
            }
            Self::Cidr if text.parse::<IpNet>().is_err() => {
                let advice = "write address and prefix length, such as 10.0.0.0/24 or fd00::/64";
                report.value_error(at, format!("{text:?} is not a network in CIDR notation"), advice);
            }
            _ if text.is_empty() => {}
            Self::Address if text.parse::<IpAddr>().is_err() => {
                let advice = "write an IPv4 or IPv6 address without prefix length";
                report.error(at, format!("{text:?} is not an IP address"), advice);
            }
            Self::Link | Self::NewLink => {
                if let Err(error) = text.parse::<IfName>() {
                    // The kernel allows more in the alternative names of an interface.
                    let severity = if self == Self::Link { Severity::Warning } else { Severity::Error };
                    let advice = "write the name of an interface as `ip link` shows it".to_owned();
                    report.push(severity, at, error.to_string(), advice);
                }
            }
            Self::Mac => {
                if let Some(problem) = mac_problem(text) {
                    let advice = "write six octets such as 02:00:00:00:00:01, the first of them even";
                    report.value_error(at, format!("{text:?} {problem}"), advice);
                }
            }
            Self::Path if !text.starts_with('/') => {
                let advice = "write an absolute path: where a plugin runs is not defined";
                report.warning(at, format!("path {text:?} is relative"), advice);
            }
            _ => {}
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Any => "anything",
            Self::Bool => "true or false",
            Self::Int(..) | Self::Usual(..) | Self::Mtu => "a whole number",
            Self::List(_) => "a list",
            Self::Map | Self::Object(_) => "an object",
            _ => "a string",
        }
    }
}

/// Reports the keys of an object that no program reads, and values of a wrong form.
pub(super) fn check_keys(members: &Members, at: &str, known: &[&[Key]], whose: &str, report: &mut Report) {
    let all = || known.iter().flat_map(|keys| keys.iter());
    for (key, node) in members.iter() {
        let here = member(at, key);
        if let Some((_, form)) = all().find(|(known, _)| *known == key) {
            form.check(node, &here, report);
        } else if let Some((known, form)) = all().find(|(known, _)| is_misspelt(key, known)) {
            // Only Go takes it for the known key.
            let problem =
                format!("key is spelt differently from `{known}`, which plugins written in Go take it for");
            report.warning(&here, problem, format!("write `{known}`"));
            form.check(node, &here, report);
        } else {
            let similar = all().map(|(known, _)| *known).find(|known| is_similar(key, known));
            let advice = match similar {
                Some(known) => format!("write `{known}` if that is meant, else remove it"),
                None => "remove it".to_owned(),
            };
            report.warning(&here, format!("{whose} has no key `{key}`: it has no effect"), advice);
        }
    }
}

/// Returns the severity of an unusual number: plugins read 64 bits.
fn beyond(number: i128) -> Severity {
    if i64::try_from(number).is_ok() { Severity::Warning } else { Severity::Error }
}

/// Why a text is not a hardware address for an interface.
fn mac_problem(text: &str) -> Option<&'static str> {
    let octets: Option<Vec<u8>> = match text.chars().find(|c| matches!(c, ':' | '-' | '.')) {
        Some('.') => {
            let groups =
                text.split('.').map(|group| is_hex(group, 4).then(|| u16::from_str_radix(group, 16).ok())?);
            groups
                .map(|group| group.map(u16::to_be_bytes))
                .collect::<Option<Vec<_>>>()
                .map(|groups| groups.concat())
        }
        Some(separator) => text
            .split(separator)
            .map(|octet| is_hex(octet, 2).then(|| u8::from_str_radix(octet, 16).ok())?)
            .collect(),
        None => None,
    };
    match octets.as_deref() {
        Some([first, _, _, _, _, _]) if first & 1 == 1 => Some("is a multicast address"),
        Some([0, 0, 0, 0, 0, 0]) => Some("is the zero address"),
        Some(octets) if matches!(octets.len(), 6 | 8 | 20) => None,
        _ => Some("is not a hardware address"),
    }
}

/// Whether one was probably typed for the other: at most two letters differ, case aside.
pub(super) fn is_similar(a: &str, b: &str) -> bool {
    const SLIPS: usize = 2;
    if a.len().min(b.len()) <= SLIPS || a.len().abs_diff(b.len()) > SLIPS {
        return false;
    }
    let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
    strsim::levenshtein(&a, &b) <= SLIPS
}
