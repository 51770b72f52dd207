//! The agent's metrics and probes, and the logs of agent and controller.

use std::io::Write as _;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::list;
use netclaim_tests::{AGENT, CONTROLLER, SYSTEM, Test, eventually};
use serde_json::json;

pub fn metrics_are_served(test: &Test<'_>) -> Result<()> {
    let answer = test.cluster.ask_agent("/metrics")?;
    for words in [
        " 200 OK",
        "application/openmetrics-text",
        "netclaim_nri_connected 1",
        "netclaim_journal_unreadable_files 0",
        "netclaim_journal_writable 1",
        "netclaim_attachment_illegal_moves_total 0",
        "netclaim_dels_failing 0",
        "netclaim_attachments{phase=\"Deleting\"}",
        "# EOF",
    ] {
        ensure!(answer.contains(words), "no {words:?} in {answer}");
    }
    // The harness checks the number after every scenario.
    let restarts = answer.lines().find_map(|line| line.strip_prefix("netclaim_agent_restarts_total "));
    ensure!(restarts.is_some_and(|count| count.parse::<u64>().is_ok()), "no count of restarts in {answer}");
    Ok(())
}

pub fn agent_and_controller_take_another_log_filter_without_a_restart(test: &Test<'_>) -> Result<()> {
    const PROGRAMS: [(&str, &str); 2] = [("agent", AGENT), ("controller", CONTROLLER)];
    let processes = || -> Result<(i32, Vec<Option<i32>>)> {
        let controllers = test.cluster.controllers()?;
        Ok((test.cluster.agent_pid()?, controllers.iter().map(|controller| controller.pid).collect()))
    };
    let before = processes()?;
    ensure!(before.1.len() == 1, "{before:?}");
    let kubectl = |args: &[&str]| test.cluster.kubectl(&[&["-n", SYSTEM], args].concat());
    let logged = |words: &str| {
        PROGRAMS.into_iter().try_for_each(|(program, workload)| {
            eventually(60, &format!("the {program} logs its new filter"), || {
                // The kubelet brings the file up to date when it looks at the pod: once a minute, or when the
                // pod changes.
                test.cluster.wake(program)?;
                let log = kubectl(&["logs", workload, "--tail=20000"])?;
                ensure!(log.contains(words), "no {words:?}");
                Ok(())
            })
        })
    };
    let literals = PROGRAMS.map(|(program, _)| {
        format!("--from-literal={program}=info,netclaim_driver=debug,netclaim_process=trace")
    });
    kubectl(&["create", "configmap", "netclaim-log", &literals[0], &literals[1]])?;
    let followed = logged("netclaim_process=trace");
    let loud = json!({"data": {"agent": "loud", "controller": "loud"}}).to_string();
    kubectl(&["patch", "configmap", "netclaim-log", "--patch", &loud])?;
    let refused = logged("is not a level");
    kubectl(&["delete", "configmap", "netclaim-log"])?;
    followed.and(refused)?;
    let after = processes()?;
    ensure!(after == before, "{after:?} run, before: {before:?}");
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
