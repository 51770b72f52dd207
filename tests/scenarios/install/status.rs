//! `netclaimctl status` on a real cluster.

use std::fs;
use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// Runs `netclaimctl status` as the cluster's admin.
fn status(test: &Test<'_>, args: &[&str]) -> Result<Output> {
    test.run_netclaimctl(&[&["status"], args].concat())
}

fn report(test: &Test<'_>) -> Result<(bool, Value)> {
    let output = status(test, &["--output=json"])?;
    let report = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok((output.status.success(), report))
}

pub fn netclaimctl_shows_what_is_used_and_what_is_wrong(test: &Test<'_>) -> Result<()> {
    let subnet = test.subnet(1);
    let network = test.network("a", |network| {
        network["spec"]["addresses"] = json!({"ranges": [{"subnet": subnet}]});
        network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
    })?;
    test.start_pod("p", &network)?;
    eventually(40, "all is well", || {
        let (well, report) = report(test)?;
        ensure!(well && report["problems"] == json!([]), "{report:#}");
        let row =
            list(&report["networks"]).find(|row| row["name"] == network).context("no such ClaimNetwork")?;
        ensure!(row["attachments"] == 1 && row["nodes"] == 3 && row["openNodes"] == 3, "{row}");
        // All of the /24 but its own, its broadcast and its gateway's address, whatever the nodes have
        // leased.
        ensure!(row["capacity"]["addresses"] == json!({"used": 1.0, "total": 253.0}), "{row}");
        let agents: Vec<_> = list(&report["nodes"]).map(|node| &node["agent"]).collect();
        ensure!(agents == ["Ready"; 3], "{agents:?}");
        let devices = test.claim_is_ready("p")?;
        let node = devices.first().context("the claim has no device")?["pool"].clone();
        let row = list(&report["nodes"]).find(|row| row["name"] == node).context("no such node")?;
        ensure!(row["attachments"] == 1, "{row}");
        Ok(())
    })?;
    test.delete_pod("p")?;

    let invalid =
        test.network("b", |network| network["spec"]["cni"]["plugins"][0]["mode"] = json!("bridged"))?;
    eventually(20, "the problem is shown", || {
        let shown = status(test, &[])?;
        let text = String::from_utf8_lossy(&shown.stdout);
        let problem = format!("* ClaimNetwork {invalid} is not accepted: spec.cni.plugins[0].mode");
        ensure!(shown.status.code() == Some(1) && text.contains(&problem), "{text}");
        ensure!(text.starts_with("NETWORK ") && text.contains("\nNODE "), "{text}");
        Ok(())
    })?;

    let nowhere = status(test, &["--context=nowhere"])?;
    let error = String::from_utf8_lossy(&nowhere.stderr);
    ensure!(!nowhere.status.success() && error.contains("--context"), "{error}");
    Ok(())
}

/// Waits until `netclaimctl status ARGS` fails and its text has all of these words.
pub(crate) fn says(test: &Test<'_>, args: &[&str], words: &[&str]) -> Result<()> {
    eventually(60, "netclaimctl status says what is missing", || {
        let shown = status(test, args)?;
        let text = String::from_utf8_lossy(&shown.stdout);
        let missing: Vec<_> = words.iter().filter(|words| !text.contains(**words)).collect();
        ensure!(shown.status.code() == Some(1) && missing.is_empty(), "no {missing:?} in {text}");
        Ok(())
    })
}

pub fn netclaimctl_says_which_plugin_a_node_lacks(test: &Test<'_>) -> Result<()> {
    let network = test.network_by("missing")?;
    let lacks = format!("CNI plugin missing of ClaimNetwork {network} is not installed");
    says(test, &[], &[&format!("* 3 nodes (node0, node1, node2): {lacks}")])?;
    says(
        test,
        &["--node=node1"],
        &[&format!("* node node1: {lacks}"), "host-local ", "/opt/cni/bin/host-local", "eth1 "],
    )?;
    let nowhere = status(test, &["--node=nowhere"])?;
    let error = String::from_utf8_lossy(&nowhere.stderr);
    ensure!(nowhere.status.code() == Some(1) && error.contains("there is no node nowhere"), "{error}");
    Ok(())
}

pub fn netclaimctl_says_that_a_node_has_nri_and_cdi_off(test: &Test<'_>) -> Result<()> {
    let file = test.cluster.dir().join("runtime.toml");
    let config = fs::read_to_string(&file)?;
    let off = config
        .replace("disable = false", "disable = true")
        .replace("enable_cdi = true", "enable_cdi = false");
    if off == config {
        return test.skip("only containerd's configuration is changed here");
    }
    let network = test.macvlan("a")?;
    let runtime = test.cluster.node_named("node1")?.service("runtime");
    fs::write(&file, off)?;
    let shown = || -> Result<()> {
        test.cluster.service("restart", &runtime)?;
        test.pod_on("node1", "p", &network)?;
        let words = [
            "* node node1: the agent is not ready: not connected to the container runtime by NRI: enable NRI"
                .to_owned(),
            format!(
                "* node node1: CDI is off in its container runtime, which refuses the containers of pod {}/p",
                test.namespace()
            ),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        says(test, &[], &words)?;
        let text = status(test, &["--node=node0"])?.stdout;
        ensure!(!String::from_utf8_lossy(&text).contains("PROBLEMS"), "{}", String::from_utf8_lossy(&text));
        says(test, &["--node=node1"], &words)
    }();
    fs::write(&file, config)?;
    test.cluster.service("restart", &runtime)?;
    shown?;
    test.runs("p")?;
    test.cluster.agent_ready()?;
    eventually(40, "no node lacks anything again", || {
        let (_, report) = report(test)?;
        ensure!(!list(&report["problems"]).any(|problem| text(problem).starts_with("node ")), "{report:#}");
        Ok(())
    })
}
