//! The reference is what the code says. `make generate` writes it again. Alerts, dashboard and runbooks use
//! only what it has.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

mod api;
mod bad_inputs;
mod chart;
mod commands;
mod devices;
mod events;
mod flags;
mod metrics;
mod monitoring;
mod table;

use std::path::PathBuf;

/// A file of the repository.
fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn assert_fresh(path: &str, content: &str) {
    let file = file(path);
    if std::env::var_os("NETCLAIM_GENERATE").is_some() {
        std::fs::write(&file, content).expect("writable");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == content, "{path} is stale: run `make generate` and commit the result");
}

#[test]
fn the_reference_of_metrics_is_fresh() {
    assert_fresh("docs/reference/metrics.md", &metrics::page());
}

#[test]
fn the_reference_of_bad_inputs_is_fresh() {
    assert_fresh("docs/reference/bad-inputs.md", &bad_inputs::page());
}

#[test]
fn the_reference_of_flags_is_fresh() {
    assert_fresh("docs/reference/flags.md", &flags::page());
}

#[test]
fn the_reference_of_netclaimctl_is_fresh() {
    assert_fresh("docs/reference/netclaimctl.md", &commands::page());
}

#[test]
fn the_reference_of_events_and_conditions_is_fresh() {
    let page = events::page();
    for condition in netclaim_api::reasons::NETWORK_CONDITIONS {
        assert!(page.contains(&format!("### `{condition}` of")), "the page lacks {condition}");
    }
    assert_fresh("docs/reference/events-and-conditions.md", &page);
}

#[test]
fn the_reference_of_fields_is_fresh() {
    assert_fresh("docs/reference/api.md", &api::page());
}

#[test]
fn the_reference_of_devices_is_fresh() {
    assert_fresh("docs/reference/devices.md", &devices::page());
}

#[test]
fn the_readme_of_the_chart_is_fresh() {
    assert_fresh("deploy/helm/netclaim/README.md", &chart::readme());
}
