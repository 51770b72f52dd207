//! Workloads move from Multus to netclaim, with both on one node: one there and back, and those of a pool of
//! whereabouts.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{deployment_of_multus, list};
use netclaim_tests::{RawNumbers, Test, eventually};
use serde_json::{Value, json};

use crate::contestants::Contestant as _;
use crate::daemon::Programs;
use crate::multus::{Multus, NETWORK};
use crate::whereabouts::Whereabouts;

/// What stops whereabouts.
const STOPPED: &str = "deploy/whereabouts-stopped";

/// The address of `net1` in the pod of a Deployment.
fn address(test: &Test<'_>, deployment: &str) -> Result<String> {
    test.kubectl(&["rollout", "status", &format!("deployment/{deployment}"), "--timeout=120s"])?;
    let of = format!("deployment/{deployment}");
    let shown = test.kubectl(&["exec", &of, "--", "ip", "-o", "-4", "addr", "show", "net1"])?;
    let address = shown.split_whitespace().nth(3).and_then(|address| address.split('/').next());
    address.map(str::to_owned).with_context(|| format!("{deployment} has no net1: {shown}"))
}

fn reaches(test: &Test<'_>, from: &str, to: &str) -> Result<()> {
    let from = format!("deployment/{from}");
    eventually(20, &format!("{from} reaches {to}"), || {
        test.kubectl(&["exec", &from, "--", "ping", "-c1", "-W2", "-I", "net1", to]).map(drop)
    })
}

/// The claims of the scenario.
fn claims(test: &Test<'_>) -> Result<usize> {
    let found: Value = serde_json::from_str(&test.kubectl(&["get", "resourceclaims", "-o", "json"])?)?;
    Ok(list(&found["items"]).count())
}

pub fn a_deployment_moves_from_multus_to_netclaim_and_back(test: &Test<'_>) -> Result<()> {
    let logs = RawNumbers::new(env!("CARGO_TARGET_TMPDIR"), "peers", "moving")?;
    let multus = Multus::new(test, &Programs::build()?, logs.dir())?;
    test.create([deployment_of_multus("stays", NETWORK), deployment_of_multus("moves", NETWORK)])?;
    let (stays, before) = (address(test, "stays")?, address(test, "moves")?);
    reaches(test, "moves", &stays)?;

    let migration = test.migrate(&[])?;
    test.create(list(&migration["objects"]).cloned())?;
    test.move_deployment(&migration, "moves")?;
    let after = address(test, "moves")?;
    ensure!(claims(test)? == 1, "its pod has no claim");
    // The plugin keeps the leases of both under the network's name.
    ensure!(after != stays, "both have {stays}");
    reaches(test, "moves", &stays)?;
    reaches(test, "stays", &after)?;
    eprintln!("         {NETWORK}: {stays} by Multus; {before} by Multus, {after} by netclaim");

    test.kubectl(&["rollout", "undo", "deployment/moves"])?;
    let back = address(test, "moves")?;
    ensure!(claims(test)? == 0, "its pod has a claim still");
    ensure!(back != stays, "both have {stays}");
    reaches(test, "moves", &stays)?;

    test.kubectl(&["delete", "deployment", "--all", "--timeout=60s"])?;
    test.kubectl(&["wait", "--for=delete", "pods", "--all", "--timeout=60s"])?;
    eventually(30, "every address is free", || {
        ensure!(multus.left()? == 0, "addresses are left");
        Ok(())
    })
}

pub fn deployments_with_addresses_of_whereabouts_move_from_multus_to_netclaim(test: &Test<'_>) -> Result<()> {
    let numbers = RawNumbers::new(env!("CARGO_TARGET_TMPDIR"), "peers", "whereabouts")?;
    let programs = Programs::build()?;
    let _whereabouts = Whereabouts::new(test, &programs)?;
    let _multus = Multus::new(test, &programs, numbers.dir())?;
    let moved = moved_with_their_range(test, &numbers);
    test.cluster.kustomization_gone(STOPPED)?;
    moved
}

/// Moves two Deployments one after the other, and takes the times of an admin who types without a pause.
fn moved_with_their_range(test: &Test<'_>, numbers: &RawNumbers) -> Result<()> {
    let config = json!({"cniVersion": "0.3.1", "name": "lan", "type": "macvlan", "master": "eth1", "mode": "bridge",
        "ipam": Whereabouts::ipam(&test.subnet(3))});
    test.create([json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "lan"}, "spec": {"config": config.to_string()}})])?;
    let names = ["first", "second"];
    test.create(names.map(|name| deployment_of_multus(name, "lan")))?;
    let [first, second] = [address(test, "first")?, address(test, "second")?];
    reaches(test, "first", &second)?;

    let mut times = Vec::new();
    let mut timed = |step: &str, begin: Instant| {
        eprintln!("         {step}: {:.1} s", begin.elapsed().as_secs_f64());
        times.push(format!("{step},{:.3}", begin.elapsed().as_secs_f64()));
    };
    let begin = Instant::now();
    test.cluster.kustomization("apply", STOPPED)?;
    let apply = ["migrate", "whereabouts", "--apply", "--output=json"];
    let done = eventually(30, "the range is taken over", || test.netclaimctl(&apply))?;
    ensure!(done["applied"]["leases"] == 2, "{done}");
    timed("whereabouts stopped and its addresses leased", begin);
    let begin = Instant::now();
    let migration = test.migrate(&["--taken-over"])?;
    test.create(list(&migration["objects"]).cloned())?;
    timed("translated and applied", begin);

    let begin = Instant::now();
    test.move_deployment(&migration, "first")?;
    let moved = address(test, "first")?;
    timed("first Deployment moved: old pod ended, new pod runs with its network", begin);
    // A pod that stays with Multus for now keeps its address, and both reach each other.
    ensure!(moved != second && address(test, "second")? == second, "{moved}, {second}");
    reaches(test, "first", &second)?;
    reaches(test, "second", &moved)?;

    let begin = Instant::now();
    test.move_deployment(&migration, "second")?;
    let last = address(test, "second")?;
    timed("second Deployment moved", begin);
    ensure!(claims(test)? == 2, "a pod has no claim");
    let addresses = BTreeSet::from([&moved, &second, &last]);
    eprintln!("         {first} and {second} by whereabouts; then {moved} and {last} by netclaim");
    ensure!(addresses.len() == 3 || last == second, "{addresses:?}");
    reaches(test, "first", &last)?;
    // What pods of Multus had becomes free when they are gone.
    eventually(60, "nothing is leased any more", || {
        let leases = test.cluster.get(&["addressleases"])?;
        let left =
            list(&leases["items"]).filter(|lease| lease["spec"]["holder"]["namespace"] == test.namespace());
        ensure!(left.count() == 0, "{leases}");
        Ok(())
    })?;
    numbers.write("times.csv", "step,seconds", times)?;
    test.kubectl(&["delete", "deployment", "--all", "--timeout=60s"])?;
    test.kubectl(&["wait", "--for=delete", "pods", "--all", "--timeout=60s"]).map(drop)
}
