//! What the agent may do, and what it tells.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{AGENT, AGENT_PODS, SYSTEM, Test};
use serde_json::json;

pub fn metrics_are_served(test: &Test<'_>) -> Result<()> {
    let answer = test.cluster.ask_agent("/metrics")?;
    for words in [
        " 200 OK",
        "application/openmetrics-text",
        "netclaim_nri_connected 1",
        "netclaim_journal_unreadable_files 0",
        "netclaim_journal_writable 1",
        "netclaim_attachment_illegal_moves 0",
        "# EOF",
    ] {
        ensure!(answer.contains(words), "no {words:?} in {answer}");
    }
    // The number itself is looked at after every scenario.
    let restarts = answer.lines().find_map(|line| line.strip_prefix("netclaim_agent_restarts "));
    ensure!(restarts.is_some_and(|count| count.parse::<u64>().is_ok()), "no count of restarts in {answer}");
    Ok(())
}

pub fn the_agent_has_the_rights_of_the_manual_and_no_more(test: &Test<'_>) -> Result<()> {
    let agent = test.cluster.get(&["-n", SYSTEM, AGENT])?;
    let spec = &agent["spec"]["template"]["spec"];
    let rights = &spec["containers"][0]["securityContext"];
    ensure!(rights["privileged"] == false && rights["readOnlyRootFilesystem"] == true, "{rights}");
    ensure!(
        rights["capabilities"] == json!({"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]}),
        "{rights}"
    );
    for field in ["hostPID", "hostIPC"] {
        ensure!(spec[field] != json!(true), "{field} is on");
    }
    // What the kernel says counts: capability numbers 12, 13 and 21 of capabilities(7).
    let status = std::fs::read_to_string(format!("/proc/{}/status", test.cluster.agent_pid()?))?;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default().to_owned()
    };
    let expected = format!("{:016x}", 1_u64 << 12 | 1 << 13 | 1 << 21);
    for name in ["CapEff:", "CapPrm:", "CapBnd:"] {
        ensure!(field(name) == expected, "{name} {}, expected {expected}", field(name));
    }
    ensure!(field("Seccomp:") == "2", "no seccomp filter: {}", field("Seccomp:"));
    Ok(())
}

pub fn the_agent_writes_slices_of_its_own_node_only(test: &Test<'_>) -> Result<()> {
    let pods = test.cluster.get(&["-n", SYSTEM, "pods", "-l", AGENT_PODS])?;
    let name = pods["items"][0]["metadata"]["name"].as_str().context("no agent")?;
    let bound = ["--bound-object-kind=Pod", "--bound-object-name", name];
    let create = ["-n", SYSTEM, "create", "token", "netclaim-agent"];
    let token = test.cluster.kubectl(&[create.as_slice(), bound.as_slice()].concat())?;
    let unbound = test.cluster.kubectl(&create)?;
    let slice = |node: &str, pool: &str, driver: &str| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": test.name("slice")},
            "spec": {"driver": driver, "nodeName": node, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "devices": []},
        })
        .to_string()
    };
    let write = |token: &str, slice: &str| {
        test.cluster.kubectl_as(
            token.trim(),
            &["create", "--dry-run=server", "--validate=false", "-f", "-"],
            slice,
        )
    };
    write(&token, &slice("node0", "node0", "netclaim.dev"))?;
    let refused = |token: &str, node: &str, pool: &str, driver: &str, words: &str| -> Result<()> {
        let Err(error) = write(token, &slice(node, pool, driver)) else {
            anyhow::bail!("a slice of {driver} on {node} in pool {pool} was accepted")
        };
        ensure!(error.to_string().contains(words), "{error}");
        Ok(())
    };
    refused(
        &token,
        "node1",
        "node1",
        "netclaim.dev",
        "the netclaim agent of node node0 may only write ResourceSlices of that node, not of node1",
    )?;
    let of_its_pool = "may only write the pool that is named like its node";
    refused(&token, "node0", "node1", "netclaim.dev", of_its_pool)?;
    refused(
        &token,
        "node0",
        "node0",
        "other.dev",
        "may only write ResourceSlices of the driver netclaim.dev",
    )?;
    refused(&unbound, "node0", "node0", "netclaim.dev", "(token without a node)")
}
