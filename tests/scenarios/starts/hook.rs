//! What the hook costs by itself: no other driver has one. The runtime starts it for each container that
//! names a claim.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Test, Usage};
use serde_json::json;

use crate::samples::Samples;

const RUNS: usize = 500;
const SANDBOX: &str = "measured";
const POD: &str = "pod-uid";

pub fn the_hook_of_an_attached_pod_takes_little(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "hook")?;
    let hook = test.cluster.image_program("netclaim-hook")?;
    let markers = samples.dir().join("ready");
    std::fs::create_dir_all(&markers)?;
    std::fs::write(markers.join(SANDBOX), "")?;
    let annotations = json!({"io.kubernetes.cri.sandbox-id": SANDBOX, "io.kubernetes.cri.sandbox-uid": POD});
    let state = json!({"ociVersion": "1.2.1", "id": "c", "status": "creating", "annotations": annotations})
        .to_string();
    let own = i32::try_from(std::process::id())?;
    let before = Usage::of(own)?;
    for run in 0..RUNS {
        let begin = Instant::now();
        let mut child = Command::new(&hook)
            .args(["/nonexistent.sock".as_ref(), markers.as_os_str(), POD.as_ref(), "another pod's".as_ref()])
            .env_clear()
            .stdin(Stdio::piped())
            .spawn()?;
        child.stdin.take().context("no input")?.write_all(state.as_bytes())?;
        ensure!(child.wait()?.success(), "the hook failed");
        samples.add(run, "hook", "from start to end ms", "run", begin.elapsed().as_secs_f64() * 1000.0);
    }
    let cpu = (Usage::of(own)?.programs - before.programs) as f64 / RUNS as f64;
    samples.add(0, "hook", "CPU ms", "run", cpu);
    samples.save()?;
    let times = samples.cell("hook", "from start to end ms");
    samples.publish(
        "table.md",
        &format!("The hook, {RUNS} times: {times} ms from start to end, {cpu:.2} ms of CPU\n"),
    )
}
