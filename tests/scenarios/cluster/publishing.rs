//! How often the agent writes its slices: seldom while links change all the time, and never while nothing does.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Plugged, PluggedMany, SliceEvent, Test, eventually, long};
use serde_json::Value;

use crate::devices::is_published;

/// What the agent's publisher may write at once, and per second in the long run (`netclaim_slices::PublisherConfig`).
const BURST: u64 = 20;
const PER_SECOND: u64 = 2;
/// Longer than the publisher gathers changes for.
const QUIET: Duration = Duration::from_secs(5);
/// Links of a node that has many: 120 devices, in more than one slice.
const MANY: usize = 60;

/// The names of the slices that were written, for a message.
fn names(writes: &[SliceEvent]) -> Vec<&str> {
    writes.iter().map(SliceEvent::name).collect()
}

pub fn a_thousand_flaps_of_a_link_are_few_writes(test: &Test<'_>) -> Result<()> {
    let link = Plugged::new(test, "eth76")?;
    is_published(test, "nic-eth76", |device| device["taints"].is_null())?;
    let watch = test.cluster.watch_slices()?;
    watch.until_quiet(QUIET)?;
    let begin = Instant::now();
    // Ten at once and a pause, a hundred times.
    let flaps =
        "for i in 1 2 3 4 5 6 7 8 9 10; do echo link set far-eth76 down; echo link set far-eth76 up; done";
    let storm = format!(
        "for i in $(seq 100); do {flaps}; done | while mapfile -n 20 -t lines && ((${{#lines[@]}})); do \
                         printf '%s\\n' \"${{lines[@]}}\" | ip -batch - || exit 1; sleep 0.1; done"
    );
    test.cluster.on_node(&["bash", "-c", &storm])?;
    let stormed = begin.elapsed();
    is_published(test, "nic-eth76", |device| device["taints"].is_null())?;
    link.set(&["far-eth76", "down"])?;
    is_published(test, "nic-eth76", |device| device["taints"][0]["key"] == "netclaim.dev/link-down")?;
    is_published(test, "macvlan-eth76", |device| device["attributes"]["linkState"]["string"] == "down")?;
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

pub fn more_devices_than_one_slice_takes_are_published(test: &Test<'_>) -> Result<()> {
    let watch = test.cluster.watch_slices()?;
    watch.until_quiet(QUIET)?;
    let begin = Instant::now();
    let links = PluggedMany::new(test, MANY)?;
    let slices = eventually(120, "all links are published", || {
        let slices = test.cluster.get(&["resourceslices"])?;
        let slices = slices["items"].as_array().cloned().unwrap_or_default();
        let of = |field: &'static str| {
            move |slice: &&Value| slice["spec"][field].as_array().is_some_and(|some| !some.is_empty())
        };
        let devices = slices.iter().filter(of("devices"));
        let devices: Vec<&Value> =
            devices.flat_map(|slice| slice["spec"]["devices"].as_array()).flatten().collect();
        for mode in ["nic", "macvlan"] {
            for n in 1000..1000 + MANY {
                let name = format!("{mode}-eth{n}");
                let device = devices.iter().find(|device| device["name"] == *name);
                let device = device.with_context(|| format!("there is no {name}"))?;
                let counters = &device["consumesCounters"][0]["counterSet"];
                ensure!(*counters == format!("eth{n}"), "{device}");
                ensure!(device["taints"].is_null(), "{device}");
            }
        }
        // Whole: every slice says of how many it is one, and all are of one generation.
        let ours: Vec<&Value> =
            slices.iter().filter(|slice| slice["spec"]["driver"] == "netclaim.dev").collect();
        for slice in &ours {
            let pool = &slice["spec"]["pool"];
            ensure!(
                pool["resourceSliceCount"] == ours.len()
                    && pool["generation"] == ours[0]["spec"]["pool"]["generation"],
                "{} slices, of which one says {pool}",
                ours.len()
            );
        }
        Ok((ours.iter().filter(|slice| of("sharedCounters")(slice)).count(), ours.len()))
    })?;
    eprintln!(
        "         {MANY} links: {} slices, {} of them counters, after {:.1} s",
        slices.1,
        slices.0,
        begin.elapsed().as_secs_f64()
    );
    // A slice takes 64 devices and 8 counter sets, and each link is at least two devices and a set.
    ensure!(slices.0 >= MANY / 8 && slices.1 >= slices.0 + 2 * MANY / 64, "{slices:?}");
    links.take_out()?;
    eventually(120, "they are gone", || {
        let slices = test.cluster.get(&["resourceslices"])?.to_string();
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
    let idle = Duration::from_secs(if long() { 600 } else { 60 });
    let writes = watch.during(idle);
    ensure!(
        writes.is_empty(),
        "{} s without a change, and these were written: {:?}",
        idle.as_secs(),
        names(&writes)
    );
    // The watch is still there.
    let _link = Plugged::new(test, "eth77")?;
    watch
        .until(QUIET, "a link that is plugged in is written", |write| write.device("nic-eth77").is_some())
        .map(drop)
}
