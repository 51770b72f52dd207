//! Alerts and dashboard use the metrics, labels and values that the reference has, and each alert has its
//! runbook.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_process::metrics::{Description, Values};
use serde_json::Value;

use crate::{file, metrics};

/// Labels that Prometheus adds to what it scrapes (deploy/monitoring/podmonitors.yaml).
const OF_TARGETS: [&str; 4] = ["job", "instance", "node", "pod"];
/// Metrics of Prometheus itself.
const OF_PROMETHEUS: [&str; 1] = ["up"];
/// Functions, operators and clauses.
const WORDS: [&str; 22] = [
    "absent",
    "and",
    "by",
    "changes",
    "count",
    "group_left",
    "histogram_quantile",
    "ignoring",
    "increase",
    "label_values",
    "max",
    "min",
    "offset",
    "on",
    "or",
    "rate",
    "sum",
    "time",
    "topk",
    "unless",
    "vector",
    "without",
];

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).expect("a file of the repository")
}

/// Where the pages are, unless a value of the chart says otherwise.
fn pages() -> String {
    let values: Value = serde_saphyr::from_str(&read("deploy/helm/netclaim/values.yaml")).expect("YAML");
    text(&values, "/docsURL").to_owned()
}

/// The rules of all groups.
fn alerts() -> Vec<Value> {
    let manifest: Value = serde_saphyr::from_str(&read("deploy/monitoring/alerts.yaml")).expect("YAML");
    assert_eq!(
        (&manifest["apiVersion"], &manifest["kind"]),
        (&"monitoring.coreos.com/v1".into(), &"PrometheusRule".into())
    );
    let groups = manifest["spec"]["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

/// What an expression is made of.
#[derive(Debug, Clone, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    Sign(char),
}

fn tokens(expression: &str) -> Vec<Token<'_>> {
    let (mut rest, mut tokens) = (expression, Vec::new());
    while let Some(first) = rest.chars().next() {
        let end = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let length = match first {
            '"' => {
                let text = rest.get(1..).and_then(|rest| rest.split('"').next()).unwrap_or_default();
                tokens.push(Token::Text(text));
                text.len() + 2
            }
            // A range, such as [15m].
            '[' => rest.find(']').map_or(rest.len(), |end| end + 1),
            _ if first.is_ascii_digit() => end(|c| c.is_ascii_alphanumeric() || c == '.'),
            _ if first.is_alphabetic() || first == '_' => {
                let length = end(|c| c.is_ascii_alphanumeric() || c == '_');
                tokens.push(Token::Word(rest.get(..length).unwrap_or_default()));
                length
            }
            _ => {
                if !first.is_whitespace() {
                    tokens.push(Token::Sign(first));
                }
                first.len_utf8()
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    tokens
}

/// The metrics by the names of their series.
fn series() -> BTreeMap<String, Description> {
    let of = |metric: Description| {
        let suffixes: &[&str] =
            if metric.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        let names: Vec<String> = suffixes.iter().map(|suffix| metric.name.clone() + suffix).collect();
        names.into_iter().map(move |name| (name, metric.clone()))
    };
    metrics::all().into_iter().flat_map(of).collect()
}

/// Returns what is wrong with an expression, and the labels that its metrics have.
fn problems(expression: &str) -> (Vec<String>, BTreeSet<String>) {
    let (series, tokens) = (series(), tokens(expression));
    let words =
        tokens.iter().filter_map(|token| if let Token::Word(word) = token { Some(*word) } else { None });
    let used: Vec<&Description> = words.filter_map(|word| series.get(word)).collect();
    let mut known: BTreeSet<String> = OF_TARGETS.map(str::to_owned).into();
    known.extend(used.iter().flat_map(|metric| metric.labels.iter().map(|label| label.name.to_owned())));
    if used.iter().any(|metric| metric.kind == "histogram") {
        known.insert("le".to_owned());
    }
    let mut problems = Vec::new();
    let mut metric: Option<&Description> = None;
    for (index, token) in tokens.iter().enumerate() {
        let Token::Word(word) = token else { continue };
        // A matcher: a label, one or two signs, a text.
        let after = tokens.get(index + 1..).unwrap_or_default();
        let (matcher, value) = match after {
            [Token::Sign('='), Token::Text(value), ..] => ("=", Some(*value)),
            [Token::Sign('!' | '='), Token::Sign('=' | '~'), Token::Text(value), ..] => ("~", Some(*value)),
            _ => ("", None),
        };
        if let Some(found) = series.get(*word) {
            metric = Some(found);
        } else if !matcher.is_empty() {
            let label = metric.and_then(|metric| metric.labels.iter().find(|label| label.name == *word));
            match label.map(|label| &label.values) {
                None if OF_TARGETS.contains(word) => {}
                None => problems.push(format!("no label {word}")),
                Some(Values::Any(_)) => {}
                Some(Values::OneOf(values)) => {
                    let wanted = value.unwrap_or_default().split('|');
                    let wrong = wanted.filter(|value| !values.contains(value) && !value.starts_with('$'));
                    problems.extend(wrong.map(|value| format!("{word} is never {value}")));
                }
            }
        } else if !known.contains(*word) && !WORDS.contains(word) && !OF_PROMETHEUS.contains(word) {
            problems.push(format!("unknown: {word}"));
        }
    }
    (problems, known)
}

fn assert_right(whose: &str, expression: &str) {
    let (problems, _) = problems(expression);
    assert!(problems.is_empty(), "{whose}: {problems:?} in {expression}");
}

#[test]
fn the_check_finds_wrong_metrics_labels_and_values() {
    let of = |expression| problems(expression).0.join(", ");
    assert_eq!(
        of(
            r#"sum by (node, le) (rate(netclaim_gate_wait_duration_seconds_bucket{outcome="Open"}[5m])) > 1e3"#
        ),
        ""
    );
    assert_eq!(of(r#"up{job="netclaim-agent"} == 0"#), "");
    assert_eq!(of("netclaim_gate_wait_duration_seconds"), "unknown: netclaim_gate_wait_duration_seconds");
    assert_eq!(of("netclaim_claims"), "unknown: netclaim_claims");
    assert_eq!(of(r#"netclaim_claims_total{network="a"}"#), "no label network");
    assert_eq!(of(r#"netclaim_claims_total{outcome=~"Ok|Failed"}"#), "outcome is never Failed");
    assert_eq!(of("sum by (phase) (netclaim_dels_failing)"), "unknown: phase");
}

#[test]
fn alerts_use_what_the_reference_has() {
    for alert in alerts() {
        let (name, expression) = (text(&alert, "/alert"), text(&alert, "/expr"));
        assert_right(name, expression);
        let known = problems(expression).1;
        for annotation in ["/annotations/summary", "/annotations/description"] {
            let used = text(&alert, annotation).split("$labels.").skip(1);
            for label in used.map(|rest| rest.split([' ', '}']).next().unwrap_or_default()) {
                assert!(known.contains(label), "{name}: no label {label} for {annotation}");
            }
        }
        assert!(["warning", "critical"].contains(&text(&alert, "/labels/severity")), "{name}");
        assert!(text(&alert, "/for").ends_with('m'), "{name}");
    }
}

#[test]
fn each_alert_has_its_runbook_and_each_runbook_its_alert() {
    let runbooks = read("docs/runbooks.md");
    let headings: Vec<&str> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = alerts();
    let names: Vec<&str> = alerts.iter().map(|alert| text(alert, "/alert")).collect();
    assert_eq!(names, headings, "in the same order");
    for alert in &alerts {
        let anchor = text(alert, "/alert").to_lowercase();
        let runbook = format!("{}/runbooks.md#{anchor}", pages());
        assert_eq!(text(alert, "/annotations/runbook_url"), runbook);
    }
}

#[test]
fn the_chart_names_the_repository_as_its_home() {
    let chart: Value = serde_saphyr::from_str(&read("deploy/helm/netclaim/Chart.yaml")).expect("YAML");
    assert_eq!(pages(), format!("{}/blob/main/docs", text(&chart, "/home")));
}

#[test]
fn the_dashboard_uses_what_the_reference_has() {
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{panel}");
        targets.iter().for_each(|target| assert_right(text(panel, "/title"), text(target, "/expr")));
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        assert_right(text(variable, "/name"), text(variable, "/query"));
    }
}

/// Metrics that neither an alert nor a panel uses, and why.
const UNUSED: [(&str, &str); 5] = [
    ("netclaim_cni_plugin_info", "says which program a plugin is, as netclaimctl status --node does"),
    ("netclaim_controller_status_writes_total", "what the controller costs the API server, for measurements"),
    (
        "netclaim_network_set_up",
        "what fails is in netclaim_network_available, and the rest comes and goes with pods",
    ),
    ("netclaim_repairs_total", "a repair that does not help has an event on the Node"),
    ("netclaim_without_counters", "follows from the cluster's version, and an event says it"),
];

#[test]
fn each_metric_is_in_an_alert_or_a_panel_or_has_a_reason_not_to_be() {
    let dashboard = read("deploy/monitoring/dashboard.json");
    let expressions: String = alerts().iter().map(|alert| text(alert, "/expr").to_owned() + "\n").collect();
    let used = |name: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let ends = |rest: &str| {
            !rest.starts_with(is_part) || rest.starts_with("_bucket") || rest.starts_with("_count")
        };
        [&dashboard, &expressions].iter().any(|text| text.split(name).skip(1).any(ends))
    };
    let unused: BTreeSet<String> =
        metrics::all().into_iter().map(|metric| metric.name).filter(|name| !used(name)).collect();
    let excused: BTreeSet<String> = UNUSED.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(unused, excused);
}
