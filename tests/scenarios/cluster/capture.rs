//! `netclaimctl capture`: what passes through a pod's interface.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Test, eventually};

/// netclaimctl, capturing from a pod of the scenario.
fn capture(test: &Test<'_>, args: &[&str]) -> Command {
    let mut command = Command::new(test.cluster.netclaimctl());
    command.args(["capture", "-n", test.namespace()]).args(args);
    command.arg("--kubeconfig").arg(test.cluster.dir().join("kubeconfig"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// How many programs copy frames of the scenario's pods on the node.
fn copying(test: &Test<'_>) -> Result<usize> {
    let mut count = 0;
    for process in fs::read_dir("/proc")? {
        // It may have ended since.
        let line = fs::read(process?.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let has = |word: &str| words.contains(&word.as_bytes());
        count += usize::from(has("--snaplen") && has(test.namespace()));
    }
    Ok(count)
}

/// The kinds of ICMP messages in a file of IPv4 on Ethernet.
fn icmp(file: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(file)?;
    ensure!(bytes.starts_with(&0xa1b2_c3d4_u32.to_ne_bytes()), "{} is not a capture", file.display());
    let (mut at, mut kinds) = (24, Vec::new());
    while let Some(kept) = bytes.get(at + 8..).and_then(|rest| rest.first_chunk()) {
        let end = at + 16 + u32::from_ne_bytes(*kept) as usize;
        let frame = bytes.get(at + 16..end).context("the last frame is cut")?;
        // EtherType, protocol, and the message's type behind a header without options.
        if frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&1) {
            kinds.extend(frame.get(34));
        }
        at = end;
    }
    Ok(kinds)
}

pub fn what_passes_through_a_pod_is_captured_where_the_admin_allows_it(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for pod in ["watched", "other"] {
        test.start_pod(pod, &network)?;
    }
    let refused = capture(test, &["watched"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("agent.allowCapture"), "{said}");
    ensure!(refused.stdout.is_empty(), "it has captured");
    let is_captured = |event: &String| event.starts_with("NetworkCaptured");
    ensure!(!test.events("watched")?.iter().any(is_captured), "{:?}", test.events("watched")?);

    test.cluster.with_agent_env("NETCLAIM_ALLOW_CAPTURE", "true", || {
        let file = test.cluster.dir().join("watched.pcap");
        let path = file.display().to_string();
        let running =
            capture(test, &["watched", "-i", "net1", "-w", &path, "-c", "8", "--duration", "30"]).spawn()?;
        eventually(20, "the capture has begun", || {
            ensure!(fs::metadata(&file)?.len() >= 24, "nothing is written");
            Ok(())
        })?;
        let ip = test.ip("watched", "net1")?;
        test.kubectl(&["exec", "other", "--", "ping", "-q", "-c", "10", "-i", "0.2", &ip])?;
        let ended = running.wait_with_output()?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(ended.status.success() && said.contains("8 frames"), "{said}");
        let kinds = icmp(&file)?;
        ensure!(kinds.contains(&8) && kinds.contains(&0), "no echo and its answer among {kinds:?}");
        test.event("watched", &["NetworkCaptured", "net1"])?;
        // As the page says how to check.
        let events = test.kubectl(&["get", "events", "--field-selector", "reason=NetworkCaptured"])?;
        ensure!(events.contains("pod/watched"), "{events}");

        let none = capture(test, &["watched", "-i", "eth0"]).output()?;
        let said = String::from_utf8_lossy(&none.stderr).into_owned();
        ensure!(!none.status.success() && said.contains("no claimed interface eth0"), "{said}");

        // Nobody reads on: the program on the node ends, although nothing passes through the interface.
        let mut left = capture(test, &["other", "--duration", "600"]).spawn()?;
        eventually(20, "a program on the node copies", || {
            ensure!(copying(test)? == 1, "{} processes", copying(test)?);
            Ok(())
        })?;
        left.kill()?;
        left.wait()?;
        eventually(20, "it has ended with its reader", || {
            ensure!(copying(test)? == 0, "{} processes", copying(test)?);
            Ok(())
        })
    })
}
