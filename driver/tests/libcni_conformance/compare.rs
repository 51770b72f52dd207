//! What two runtimes did, side by side: differences are found by JSON pointer and held against the table.

// The tests of the command line share a part of this.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use netclaim_cni::{NetworkList, PluginConf};
use serde_json::{Value, json};

use crate::differences::{DIFFERENCES, Difference, Group};

/// Differences of all groups that ran in this process.
static COMPARISONS: AtomicUsize = AtomicUsize::new(0);

/// The comparisons of one group of cases.
pub struct Report {
    group: Group,
    cases: usize,
    comparisons: usize,
    skipped: Vec<String>,
    /// Rows that need not be shown, since what shows them was skipped.
    excused: BTreeSet<&'static str>,
    shown: BTreeSet<&'static str>,
    failures: Vec<String>,
}

impl Report {
    pub fn new(group: Group) -> Self {
        Self {
            group,
            cases: 0,
            comparisons: 0,
            skipped: Vec::new(),
            excused: BTreeSet::new(),
            shown: BTreeSet::new(),
            failures: Vec::new(),
        }
    }

    /// Compares what came of one case. `explained` names the rows of the table that it shows: each of them,
    /// and no other difference, must be there.
    pub fn compare(&mut self, case: &str, explained: &[&'static str], ours: &Value, libcni: &Value) {
        self.compare_allowing(case, explained, &[], ours, libcni);
    }

    /// The same with rows that the case may show. What follows from a difference counts only where that is.
    pub fn compare_allowing(
        &mut self,
        case: &str,
        explained: &[&'static str],
        possible: &[&'static str],
        ours: &Value,
        libcni: &Value,
    ) {
        self.cases += 1;
        // A list is one of steps; anything else is one comparison.
        self.comparisons += ours.as_array().map_or(1, Vec::len);
        let rows: Vec<&'static Difference> = explained.iter().chain(possible).map(|name| row(name)).collect();
        let mut found = Vec::new();
        diff("", ours, libcni, &mut found);
        let is_there = |row: &&&'static Difference| {
            found.iter().any(|(pointer, ours, libcni)| row.shows(pointer, ours, libcni))
        };
        let shown: BTreeSet<&'static str> = rows.iter().filter(is_there).map(|row| row.name).collect();
        for (pointer, ours, libcni) in &found {
            let covers = |row: &&Difference| {
                row.shows(pointer, ours, libcni) || (shown.contains(row.name) && row.implies(pointer))
            };
            if !rows.iter().any(covers) {
                self.failures.push(format!("{case}: {pointer}\n    ours   {ours}\n    libcni {libcni}"));
            }
        }
        let unseen = explained.iter().filter(|name| !shown.contains(*name));
        self.failures.extend(unseen.map(|name| format!("{case}: does not show difference {name:?}")));
        self.shown.extend(shown);
    }

    /// A case that cannot run here.
    pub fn skip(&mut self, case: &str, explained: &[&'static str], why: &str) {
        say(&format!("SKIPPED CASE: {case}: {why}"));
        self.skipped.push(case.to_owned());
        self.excused.extend(explained);
    }

    /// Says what there was, and fails if anything is not as the table says.
    pub fn finish(self) {
        let rows: BTreeSet<_> =
            DIFFERENCES.iter().filter(|row| row.group == self.group).map(|row| row.name).collect();
        let missing: Vec<_> =
            rows.difference(&self.shown).filter(|name| !self.excused.contains(*name)).collect();
        if self.cases == 0 && !self.skipped.is_empty() {
            say(&format!("SKIPPED: {:?}: no case of it can run here", self.group));
        }
        let total = COMPARISONS.fetch_add(self.comparisons, Ordering::Relaxed) + self.comparisons;
        say(&format!(
            "{:?}: {} cases, {} comparisons ({total} by now), {} wanted differences, {} without a reason, {} skipped",
            self.group,
            self.cases,
            self.comparisons,
            self.shown.len(),
            self.failures.len(),
            self.skipped.len(),
        ));
        assert!(
            self.failures.is_empty(),
            "{} differences without a reason:\n{}",
            self.failures.len(),
            self.failures.join("\n")
        );
        assert!(missing.is_empty(), "no case shows {missing:?}");
        let alien: Vec<_> = self.shown.difference(&rows).collect();
        assert!(alien.is_empty(), "{alien:?} belong to another group");
    }
}

#[test]
fn a_consequence_of_a_difference_does_not_show_it() {
    let mut report = Report::new(Group::Faulty);
    let (ours, libcni) = (json!({"class": "ok", "code": null}), json!({"class": "ok", "code": 3}));
    report.compare("a case", &["unknown-container"], &ours, &libcni);
    assert!(report.shown.is_empty());
    assert_eq!(
        report.failures.len(),
        2,
        "the difference, and that the row is not shown: {:?}",
        report.failures
    );
}

fn row(name: &str) -> &'static Difference {
    DIFFERENCES.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name:?} in the table"))
}

/// What can be seen of a network once it is read, as the program with libcni shows it.
pub fn shown(list: &NetworkList) -> Value {
    let plugin = |plugin: &PluginConf| json!({"type": plugin.plugin_type(), "capabilities": plugin.capabilities(), "ipam": plugin.ipam()});
    json!({
        "name": list.name(),
        "version": list.version(),
        "disableCheck": list.disable_check(),
        "disableGC": list.disable_gc(),
        "plugins": list.plugins().map(plugin).collect::<Value>(),
    })
}

/// The test runner keeps what passing tests print, unless it is written past it.
fn say(line: &str) {
    // At the start of a line, which the test runner has not always ended.
    let _ = std::io::stderr().write_all(format!("\n{line}\n").as_bytes());
}

/// Every place where two values differ, with both. Lists of different lengths differ as a whole.
pub fn diff(pointer: &str, ours: &Value, libcni: &Value, found: &mut Vec<(String, Value, Value)>) {
    match (ours, libcni) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let of =
                    |object: &serde_json::Map<String, Value>| object.get(key).cloned().unwrap_or_default();
                diff(&format!("{pointer}/{key}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                diff(&format!("{pointer}/{index}"), a, b, found);
            }
        }
        _ if ours == libcni => {}
        _ => found.push((pointer.to_owned(), ours.clone(), libcni.clone())),
    }
}

/// Takes away the differences that are wanted everywhere; the group [`Group::Everywhere`] shows them.
pub fn settle(seen: &mut Value) {
    match seen {
        Value::Object(members) => {
            for (key, value) in members.iter_mut() {
                match key.as_str() {
                    "stdin" => settle_input(value),
                    "result" => settle_result(value),
                    _ => settle(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        _ => {}
    }
}

fn settle_input(stdin: &mut Value) {
    let Some(members) = stdin.as_object_mut() else { return };
    members.remove("capabilities");
    if members.get("type") == Some(&json!("bandwidth"))
        && let Some((network, _)) =
            members.get("name").and_then(Value::as_str).and_then(|name| name.rsplit_once('.'))
    {
        members.insert("name".into(), network.into());
    }
    if members.get("cniVersion") == Some(&json!("")) {
        members.insert("cniVersion".into(), "0.1.0".into());
    }
    if let Some(prev) = members.get_mut("prevResult") {
        settle_result(prev);
    }
}

pub fn settle_result(result: &mut Value) {
    match result {
        Value::Object(members) => {
            members.values_mut().for_each(settle_result);
            let empty = [Value::Null, json!({}), json!([]), json!("")];
            members.retain(|_, value| !empty.contains(value));
        }
        Value::Array(items) => items.iter_mut().for_each(settle_result),
        _ => {}
    }
}

/// Replaces what differs from one run to the next: hardware addresses that the kernel made up, and names that
/// plugins did, in the order in which they occur.
pub fn settle_names(seen: &Value) -> Value {
    let text = seen.to_string();
    let mut out = String::with_capacity(text.len());
    let mut names: Vec<&str> = Vec::new();
    // Up to where the text is in `out`, and up to where it was looked at.
    let (mut copied, mut at) = (0, 0);
    while at < text.len() {
        let Some((found, new)) = mac(&text, at).or_else(|| made_up(&text, at, &mut names)) else {
            at += 1;
            continue;
        };
        out.push_str(&text[copied..at]);
        out.push_str(&new);
        at += found.len();
        copied = at;
    }
    out.push_str(&text[copied..]);
    let mut settled = serde_json::from_str(&out).unwrap();
    sort_texts(&mut settled);
    settled
}

/// Lists of what there is were in the order of the old names.
fn sort_texts(seen: &mut Value) {
    match seen {
        Value::Object(members) => members.iter_mut().for_each(|(key, value)| match (key.as_str(), value) {
            ("addresses" | "routes" | "rules" | "queues", Value::Array(lines)) => {
                lines.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            }
            (_, value) => sort_texts(value),
        }),
        Value::Array(items) => items.iter_mut().for_each(sort_texts),
        _ => {}
    }
}

/// A hardware address that begins there, and what to write for it.
fn mac(text: &str, at: usize) -> Option<(&str, String)> {
    let bytes = text.as_bytes();
    // Most places are none, and there are many.
    if bytes.get(at + 2) != Some(&b':') || bytes.get(at + 5) != Some(&b':') {
        return None;
    }
    let mac = text.get(at..at + 17)?;
    let fits = mac.bytes().enumerate().all(|(index, byte)| match index % 3 {
        2 => byte == b':',
        _ => byte.is_ascii_hexdigit(),
    });
    let goes_on = text[at + 17..].starts_with(|c: char| c == ':' || c.is_ascii_hexdigit());
    // Cases give addresses of this form.
    let given = mac.starts_with("02:00:00:00:00:") || mac == "00:00:00:00:00:00";
    (fits && !goes_on && !given).then(|| (mac, "<mac>".to_owned()))
}

/// A name that a plugin made up for its veth, or for the device by which it limits bandwidth, which is
/// numbered.
fn made_up<'a>(text: &'a str, at: usize, known: &mut Vec<&'a str>) -> Option<(&'a str, String)> {
    let (kind, digits) = match text.as_bytes()[at] {
        b'v' => ("veth", 8),
        b'b' => ("bwp", 12),
        _ => return None,
    };
    let name = text.get(at..at + kind.len() + digits)?;
    if !name.strip_prefix(kind)?.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let index = known.iter().position(|other| *other == name).unwrap_or_else(|| {
        known.push(name);
        known.len() - 1
    });
    Some((name, format!("<{kind} {index}>")))
}
