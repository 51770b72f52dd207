//! How often the agent writes slices: rarely while links change all the time, and never while nothing
//! changes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::list;
use netclaim_tests::{Plugged, PluggedMany, SliceEvent, Test, eventually, long};
use serde_json::{Value, json};

/// The publisher's budget: writes at once, and per second (`netclaim_slices::PublisherConfig`).
const BURST: u64 = 20;
const PER_SECOND: u64 = 2;
/// Longer than the publisher collects changes before it writes.
const QUIET: Duration = Duration::from_secs(5);
/// Links that need more than one slice, which has room for 64 devices.
const MANY: usize = 100;

/// The names of the written slices, for a message.
fn names(writes: &[SliceEvent]) -> Vec<&str> {
    writes.iter().map(SliceEvent::name).collect()
}

pub fn a_thousand_flaps_of_a_link_cause_few_writes(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth76")?;
    test.is_published("nic-eth76", |device| device["taints"].is_null())?;
    let watch = test.cluster.watch_slices()?;
    watch.until_quiet(QUIET)?;
    let begin = Instant::now();
    // A hundred times: ten flaps at once, and a pause.
    let flaps =
        "for i in 1 2 3 4 5 6 7 8 9 10; do echo link set far-eth76 down; echo link set far-eth76 up; done";
    let storm = format!(
        "for i in $(seq 100); do {flaps}; done | while mapfile -n 20 -t lines && ((${{#lines[@]}})); do \
                         printf '%s\\n' \"${{lines[@]}}\" | ip -batch - || exit 1; sleep 0.1; done"
    );
    test.cluster.on_node(&["bash", "-c", &storm])?;
    let stormed = begin.elapsed();
    test.is_published("nic-eth76", |device| device["taints"].is_null())?;
    link.set(&["far-eth76", "down"])?;
    test.is_published("nic-eth76", |device| device["taints"][0]["key"] == "netclaim.dev/link-down")?;
    let writes = watch.until_quiet(QUIET)?;
    let allowed = BURST + PER_SECOND * (begin.elapsed().as_secs() + 1);
    eprintln!("         1,000 flaps in {:.1} s: {} writes of slices", stormed.as_secs_f64(), writes.len());
    ensure!(
        (1..=allowed).contains(&(writes.len() as u64)),
        "{} writes, {allowed} are allowed: {:?}",
        writes.len(),
        names(&writes)
    );
    let last = writes.iter().rev().find_map(|write| write.device("nic-eth76")).context("never written")?;
    ensure!(last["taints"].is_array(), "the last write was {last}");
    Ok(())
}

pub fn more_devices_than_fit_into_one_slice_are_published(test: &Test<'_>) -> Result<()> {
    let watch = test.cluster.watch_slices()?;
    watch.until_quiet(QUIET)?;
    let begin = Instant::now();
    let links = PluggedMany::new(test, MANY)?;
    let slices = eventually(120, "all links are published", || {
        let mut slices = test.cluster.slices()?;
        slices.retain(|slice| slice["spec"]["pool"]["name"] == "node0");
        let devices: Vec<&Value> = slices.iter().flat_map(|slice| list(&slice["spec"]["devices"])).collect();
        for n in 1000..1000 + MANY {
            let name = format!("nic-eth{n}");
            let device = devices.iter().find(|device| device["name"] == *name);
            let device = device.with_context(|| format!("there is no {name}"))?;
            ensure!(device["taints"].is_null(), "{device}");
            ensure!(device["consumesCounters"].is_null(), "a link in one use has counters: {device}");
        }
        // The pool is complete: each slice has the right count, and all have one generation.
        for slice in &slices {
            let pool = &slice["spec"]["pool"];
            ensure!(
                pool["resourceSliceCount"] == slices.len()
                    && pool["generation"] == slices[0]["spec"]["pool"]["generation"],
                "{} slices, one with {pool}",
                slices.len()
            );
        }
        Ok(slices.len())
    })?;
    eprintln!("         {MANY} links: {slices} slices, after {:.1} s", begin.elapsed().as_secs_f64());
    ensure!(slices == MANY.div_ceil(64), "{slices}");
    links.take_out()?;
    eventually(120, "they are gone", || {
        let slices = json!(test.cluster.slices()?).to_string();
        ensure!(!slices.contains("-eth10") && !slices.contains("-eth11"), "they are not");
        Ok(())
    })?;
    let writes = watch.until_quiet(QUIET)?;
    let allowed = BURST + PER_SECOND * (begin.elapsed().as_secs() + 1);
    ensure!(writes.len() as u64 <= allowed, "{} writes, {allowed} are allowed", writes.len());
    Ok(())
}

pub fn a_node_where_nothing_changes_writes_no_slices(test: &Test<'_>) -> Result<()> {
    let watch = test.cluster.watch_slices()?;
    watch.until_quiet(QUIET)?;
    let idle = Duration::from_secs(if long() { 600 } else { 20 });
    let writes = watch.during(idle);
    ensure!(
        writes.is_empty(),
        "{} s without a change, and these were written: {:?}",
        idle.as_secs(),
        names(&writes)
    );
    // The watch still works.
    let _link = Plugged::new(test, "eth77")?;
    watch.until(QUIET, "a new link is written", |write| write.device("nic-eth77").is_some()).map(drop)
}
