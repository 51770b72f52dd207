//! Addresses under load, in the form of a comparison of address managers that others have published: many
//! Deployments at once, with exactly as many addresses as pods. They are created, restarted and deleted.
//!
//! There 100 Deployments of 10 pods ran on 10 nodes; the best took 207 s until all pods ran, others 343 to
//! 405 s, and whereabouts did not get there. Here a node has at most 250 pods. They are spread evenly, so
//! that those of a node have exactly six blocks: what is free in a node's block is for its pods alone.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim_template, container, list, text};
use netclaim_tests::{RawNumbers, Test, eventually, long};
use serde_json::{Value, json};

use crate::addresses::network;

const DEPLOYMENTS: usize = 96;
const REPLICAS: usize = 3;
const PODS: usize = DEPLOYMENTS * REPLICAS;
/// As many addresses.
const RANGE: [&str; 2] = ["10.92.0.16", "10.92.1.47"];
/// Seconds for each step.
const TIMEOUT: u64 = 600;

/// A Deployment whose pods have an address each; none has more pods at a time than it will have.
fn deployment(n: usize) -> Value {
    let labels = json!({"app": format!("d{n}"), "load": "all"});
    let mut shell = container("shell");
    shell["resources"] = json!({"claims": [{"name": "net"}]});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": format!("d{n}")}, "spec": {
        "replicas": REPLICAS, "selector": {"matchLabels": {"app": format!("d{n}")}},
        "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": REPLICAS}},
        "template": {"metadata": {"labels": labels}, "spec": {
            "terminationGracePeriodSeconds": 2, "automountServiceAccountToken": false, "containers": [shell],
            "resourceClaims": [{"name": "net", "resourceClaimTemplateName": "net"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"load": "all"}}}]}}}})
}

/// The UIDs of the pods that run and do not end.
fn running(test: &Test<'_>) -> Result<BTreeSet<String>> {
    let pods: Value = serde_json::from_str(&test.kubectl(&["get", "pods", "-l", "load=all", "-o", "json"])?)?;
    let runs =
        |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] == "Running";
    Ok(list(&pods["items"]).filter(runs).map(|pod| text(&pod["metadata"]["uid"])).collect())
}

/// Waits until all pods run that are not of `before`; returns the seconds since `begin`.
fn all_run(test: &Test<'_>, begin: Instant, before: &BTreeSet<String>) -> Result<f64> {
    eventually(TIMEOUT, "all pods run", || {
        let running = running(test)?;
        let new = running.difference(before).count();
        ensure!(new == PODS, "{new} of {PODS} run");
        Ok(begin.elapsed().as_secs_f64())
    })
}

pub fn as_many_pods_as_addresses_are_created_restarted_and_deleted(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make bench-addresses");
    }
    let raw = RawNumbers::new(env!("CARGO_TARGET_TMPDIR"), "load", "addresses")?;
    let range = json!({"subnet": "10.92.0.0/23", "rangeStart": RANGE[0], "rangeEnd": RANGE[1]});
    let network = network(test, json!({"ranges": [range], "blockSize": {"ipv4": 28}}), 3)?;
    test.create([claim_template("net", &network)])?;

    let begin = Instant::now();
    test.create((0..DEPLOYMENTS).map(deployment))?;
    let created = all_run(test, begin, &BTreeSet::new())?;

    let before = running(test)?;
    let begin = Instant::now();
    test.kubectl(&["delete", "pods", "-l", "load=all", "--wait=false"])?;
    let restarted = all_run(test, begin, &before)?;

    let begin = Instant::now();
    test.kubectl(&["delete", "deployments", "--all", "--wait=false"])?;
    let deleted = eventually(TIMEOUT, "all pods are gone", || {
        let pods = test.kubectl(&["get", "pods", "-l", "load=all", "-o", "name"])?;
        ensure!(pods.is_empty(), "{} are there", pods.lines().count());
        Ok(begin.elapsed().as_secs_f64())
    })?;
    test.nodes_are_clean()?;
    test.no_claim_was_refused()?;
    let rows = [("created", created), ("restarted", restarted), ("deleted", deleted)];
    for (step, seconds) in rows {
        eprintln!(
            "         {PODS} pods with the last {PODS} addresses on three nodes {step}: {seconds:.1} s"
        );
    }
    raw.write(
        "addresses.csv",
        "step,pods,seconds",
        rows.map(|(step, seconds)| format!("{step},{PODS},{seconds:.1}")),
    )
}
