//! `netclaimctl status` on a real cluster.

use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::list;
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// Runs `netclaimctl status` as the cluster's admin.
fn status(test: &Test<'_>, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(test.cluster.image_program("netclaimctl")?);
    command.args(["status", "--kubeconfig"]).arg(test.cluster.dir().join("kubeconfig")).args(args);
    Ok(command.output()?)
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
        let row = list(&report["networks"]).find(|row| row["name"] == network).context("no such Network")?;
        ensure!(row["attachments"] == 1 && row["nodes"] == 3 && row["openNodes"] == 3, "{row}");
        ensure!(row["capacity"]["addresses"]["used"] == 1.0, "{row}");
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
        let problem = format!("* Network {invalid} is not accepted: spec.cni.plugins[0].mode");
        ensure!(shown.status.code() == Some(1) && text.contains(&problem), "{text}");
        ensure!(text.starts_with("NETWORK ") && text.contains("\nNODE "), "{text}");
        Ok(())
    })?;

    let nowhere = status(test, &["--context=nowhere"])?;
    let error = String::from_utf8_lossy(&nowhere.stderr);
    ensure!(!nowhere.status.success() && error.contains("--context"), "{error}");
    Ok(())
}
