//! The agent's metrics and probes.

use std::io::Write as _;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::list;
use netclaim_tests::{AGENT, SYSTEM, Test, eventually};

pub fn metrics_are_served(test: &Test<'_>) -> Result<()> {
    let answer = test.cluster.ask_agent("/metrics")?;
    for words in [
        " 200 OK",
        "application/openmetrics-text",
        "netclaim_nri_connected 1",
        "netclaim_journal_unreadable_files 0",
        "netclaim_journal_writable 1",
        "netclaim_attachment_illegal_moves 0",
        "netclaim_dels_failing 0",
        "netclaim_attachments{phase=\"Deleting\"}",
        "# EOF",
    ] {
        ensure!(answer.contains(words), "no {words:?} in {answer}");
    }
    // The harness checks the number after every scenario.
    let restarts = answer.lines().find_map(|line| line.strip_prefix("netclaim_agent_restarts "));
    ensure!(restarts.is_some_and(|count| count.parse::<u64>().is_ok()), "no count of restarts in {answer}");
    Ok(())
}

pub fn an_agent_takes_another_log_filter_without_a_restart(test: &Test<'_>) -> Result<()> {
    let agent = test.cluster.agent_pid()?;
    let kubectl = |args: &[&str]| test.cluster.kubectl(&[&["-n", SYSTEM], args].concat());
    let logged = |words: &str| {
        eventually(180, "the agent logs its new filter", || {
            let log = kubectl(&["logs", AGENT, "--tail=20000"])?;
            ensure!(log.contains(words), "no {words:?}");
            Ok(())
        })
    };
    let literal = "--from-literal=agent=info,netclaim_driver=debug,netclaim_process=trace";
    kubectl(&["create", "configmap", "netclaim-log", literal])?;
    let followed = logged("netclaim_process=trace");
    kubectl(&["patch", "configmap", "netclaim-log", "--patch", r#"{"data": {"agent": "loud"}}"#])?;
    let refused = logged("is no level");
    kubectl(&["delete", "configmap", "netclaim-log"])?;
    followed.and(refused)?;
    ensure!(test.cluster.agent_pid()? == agent, "the agent is another one");
    Ok(())
}

pub fn idle_connections_exhaust_neither_the_agents_descriptors_nor_its_probes(test: &Test<'_>) -> Result<()> {
    let node = test.cluster.get(&["node", "node0"])?;
    let addresses = list(&node["status"]["addresses"]);
    let internal = addresses.into_iter().find(|address| address["type"] == "InternalIP");
    let ip: IpAddr =
        internal.and_then(|ip| ip["address"].as_str()).context("node0 has no address")?.parse()?;
    let connect = |port: u16| TcpStream::connect_timeout(&(ip, port).into(), Duration::from_secs(5));
    ensure!(connect(9179).is_err(), "the probes are served on {ip}");
    let agent = test.cluster.agent_pid()?;
    let descriptors = || Ok::<_, anyhow::Error>(std::fs::read_dir(format!("/proc/{agent}/fd"))?.count());
    let before = descriptors()?;
    let mut idle = Vec::new();
    for n in 0..1000 {
        let mut stream = connect(9177).with_context(|| format!("connection {n}"))?;
        if n % 2 == 0 {
            // Some send the beginning of a request. The agent may have closed the connection.
            let _ = stream.write_all(b"GET /metr");
        }
        idle.push(stream);
    }
    let with = descriptors()?;
    ensure!(with < before + 60, "{before} descriptors, with {} connections {with}", idle.len());
    ensure!(test.cluster.ask_agent("/metrics")?.contains("# EOF"), "no metrics");
    for path in ["/healthz", "/readyz"] {
        let answer = test.cluster.ask_agent(path)?;
        ensure!(answer.contains(" 200 OK"), "{path}: {answer}");
    }
    Ok(())
}
