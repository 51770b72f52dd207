//! What is offered of a link: its ClaimNetworks, or the link in one way, or what a policy lists.

use anyhow::{Result, ensure};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::Value;

/// Whether any slice has counters of the link.
fn has_counters(test: &Test<'_>, link: &str) -> Result<bool> {
    let slices = test.cluster.slices()?;
    let counts = |slice: &Value| slice["spec"]["sharedCounters"].to_string().contains(&format!("{link:?}"));
    Ok(slices.iter().any(counts))
}

fn taint(key: &'static str) -> impl Fn(&Value) -> bool {
    move |device| device["taints"][0]["key"] == format!("netclaim.dev/{key}")
}

pub fn a_link_with_a_network_is_offered_only_through_it(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth41")?;
    test.is_published("nic-eth41", |_| true)?;
    ensure!(test.cluster.device("macvlan-eth41")?.is_none(), "a link is offered in one way by default");
    ensure!(!has_counters(test, "eth41")?, "one way needs no counters");
    let network = test.network_on("eth41", "a", |_| {})?;
    test.is_published(&format!("net-{network}"), |_| true)?;
    test.is_not_published("nic-eth41")?;
    ensure!(!has_counters(test, "eth41")?, "a ClaimNetwork needs no counters");
    // A class of any NIC does not get it.
    let nic = test.class_of_links("nic", &["eth41"])?;
    test.pod("whole", &nic)?;
    test.is_unschedulable("whole")?;
    test.start_pod("p", &network)?;
    test.cluster.kubectl(&["delete", "claimnetwork", &network])?;
    test.is_published(&format!("net-{network}"), taint("withdrawn"))?;
    ensure!(test.cluster.device("nic-eth41")?.is_none(), "the link is offered whole while a pod has it");
    test.delete_pod("p")?;
    test.runs_with("whole", &["net1"])?;
    test.is_not_published(&format!("net-{network}"))?;
    test.delete_pod("whole")
}

pub fn a_mode_that_is_offered_no_more_stays_while_a_pod_has_it(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth42")?;
    let policy = test.modes(&["eth42"], &["macvlan"])?;
    test.is_published("macvlan-eth42", |_| true)?;
    let macvlan = test.class_of_links("macvlan", &["eth42"])?;
    test.start_pod("first", &macvlan)?;
    test.cluster.kubectl(&["delete", "uplinkpolicy", &policy])?;
    test.is_published("macvlan-eth42", taint("withdrawn"))?;
    ensure!(test.cluster.device("nic-eth42")?.is_none(), "the link is offered whole while a pod has it");
    test.pod("second", &macvlan)?;
    test.is_unschedulable("second")?;
    test.delete_pod("first")?;
    test.is_not_published("macvlan-eth42")?;
    test.is_published("nic-eth42", |_| true)
}

pub fn exclusive_uses_of_a_link_come_and_go_while_pods_have_it(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth43")?;
    let network = test.network_on("eth43", "a", |_| {})?;
    let (device, nic) = (format!("net-{network}"), test.class_of_links("nic", &["eth43"])?);
    test.start_pod("first", &network)?;
    ensure!(!has_counters(test, "eth43")?, "a link with one use has counters");
    let policy = test.modes(&["eth43"], &["nic", "macvlan"])?;
    for device in ["macvlan-eth43", "nic-eth43", &device] {
        test.is_published(device, |_| true)?;
    }
    ensure!(has_counters(test, "eth43")?, "the uses are not kept apart");
    // The scheduler charges the pod from before.
    test.pod("whole", &nic)?;
    test.is_unschedulable("whole")?;
    test.delete_pod("first")?;
    test.runs_with("whole", &["net1"])?;
    test.claim_is_ready("whole")?;
    test.pod("second", &network)?;
    test.is_unschedulable("second")?;
    test.delete_pod("whole")?;
    test.runs_with("second", &["net1"])?;
    // Back to one use, beside a pod that has it.
    test.cluster.kubectl(&["delete", "uplinkpolicy", &policy])?;
    test.is_not_published("nic-eth43")?;
    test.is_published(&device, |_| true)?;
    eventually(10, "the counters are gone", || {
        ensure!(!has_counters(test, "eth43")?, "they are not");
        Ok(())
    })?;
    test.start_pod("third", &network)?;
    test.delete_pod("second")?;
    test.delete_pod("third")
}

pub fn a_network_waits_for_the_link_that_a_pod_has_whole(test: &Test<'_>) -> Result<()> {
    let _link = Plugged::new(test, "eth44")?;
    let nic = test.class_of_links("nic", &["eth44"])?;
    test.start_pod("whole", &nic)?;
    let network = test.network_on("eth44", "a", |_| {})?;
    test.pod("p", &network)?;
    test.is_unschedulable("p")?;
    test.is_published("nic-eth44", |_| true)?;
    test.pod("another", &nic)?;
    test.is_unschedulable("another")?;
    test.cluster.kill_agent()?;
    test.cluster.agent_ready()?;
    test.is_published("nic-eth44", |_| true)?;
    ensure!(test.cluster.device(&format!("net-{network}"))?.is_none(), "the link is in a pod");
    test.delete_pod("whole")?;
    test.runs_with("p", &["net1"])?;
    test.is_not_published("nic-eth44")?;
    test.is_unschedulable("another")?;
    test.delete_pod("p")
}
