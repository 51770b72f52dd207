//! What a program on the node states about a ClaimNetwork, in a file.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{AGENT, SYSTEM, SliceWatch, Test, eventually, holds, output};
use serde_json::{Value, json};

use crate::availability::device_is;

/// The file about one ClaimNetwork, until it is dropped.
struct Facts<'a> {
    test: &'a Test<'a>,
    watch: SliceWatch,
    network: String,
    file: PathBuf,
}

impl<'a> Facts<'a> {
    fn about(test: &'a Test<'a>, network: &str) -> Result<Self> {
        let file = test.cluster.node().path(&format!("/run/netclaim/networks.d/{network}.json"));
        Ok(Self { test, watch: test.cluster.watch_slices()?, network: network.to_owned(), file })
    }

    /// Writes the file as the page says: in full under another name, and then renamed.
    fn write(&self, facts: &Value) -> Result<()> {
        let new = self.file.with_extension("new");
        fs::write(&new, facts.to_string())?;
        Ok(fs::rename(new, &self.file)?)
    }

    /// Makes sure that the device of the ClaimNetwork fits within a second of `change`.
    fn is_seen(
        &self,
        what: &str,
        change: impl FnOnce() -> Result<()>,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let (device, begin) = (format!("net-{}", self.network), Instant::now());
        change()?;
        let event =
            self.watch.until(Duration::from_secs(20), what, |event| event.device(&device).is_some_and(&fits));
        let took = event?.at - begin;
        eprintln!("         {what}: in the slice after {} ms", took.as_millis());
        ensure!(took < Duration::from_secs(1), "{what}: in the slice after {took:?}");
        Ok(())
    }

    /// Waits until the agent's log has a line about the file with these words.
    fn is_logged(&self, words: &str) -> Result<()> {
        let name = format!("networks.d/{}.json", self.network);
        eventually(20, &format!("the agent's log says {words:?} of the file"), || {
            let log = self.test.cluster.kubectl(&["logs", "-n", SYSTEM, AGENT, "--tail=500"])?;
            let lines = log.lines().filter(|line| line.contains(&name) && line.contains(words));
            ensure!(lines.count() == 1, "not in one line: {log}");
            Ok(())
        })
    }
}

impl Drop for Facts<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

fn interfaces(device: &Value) -> &Value {
    &device["capacity"]["interfaces"]["value"]
}

pub fn a_device_follows_the_file_of_a_program_within_a_second(test: &Test<'_>) -> Result<()> {
    // Without STATUS: a plugin of CNI 1.0.0 cannot say it.
    let network = test.network("a", |network| {
        network["spec"]["cni"]["cniVersion"] = json!("1.0.0");
        network["spec"]["capacity"] = json!({"interfaces": 10});
    })?;
    test.is_published(&format!("net-{network}"), |device| interfaces(device) == "10")?;
    for pod in ["p", "q"] {
        test.start_pod(pod, &network)?;
    }
    let facts = Facts::about(test, &network)?;
    facts.watch.until_quiet(Duration::from_secs(3))?;

    let stated = |facts: &Facts<'_>, stated: Value| facts.write(&json!({"capacity": stated}));
    let has = |amount: &'static str| move |device: &Value| interfaces(device) == amount;
    facts.is_seen("a lower capacity", || stated(&facts, json!({"interfaces": 3})), has("3"))?;
    facts.is_seen("none left", || stated(&facts, json!({"interfaces": 0})), has("2"))?;
    facts.is_seen(
        "a higher one",
        || stated(&facts, json!({"interfaces": 4096, "addresses": 1})),
        |device| interfaces(device) == "10" && device["taints"].is_null(),
    )?;

    let down = json!({"status": {"traffic": false, "message": "BGP session down"}});
    facts.is_seen(
        "a status",
        || facts.write(&down),
        |device| device["taints"][0]["key"] == "netclaim.dev/limited",
    )?;
    device_is(test, "p", "Unhealthy", &[&format!("networks.d/{network}.json"), "BGP session down"])?;
    let metric = format!("netclaim_network_available{{network=\"{network}\"}} 0");
    ensure!(test.cluster.ask_agent("/metrics")?.contains(&metric), "there is no {metric}");
    let remove = || Ok(fs::remove_file(&facts.file)?);
    facts.is_seen("a file that is gone", remove, |device| device["taints"].is_null())?;
    device_is(test, "p", "Healthy", &[])
}

pub fn a_hostile_file_of_facts_changes_nothing_and_is_logged_once(test: &Test<'_>) -> Result<()> {
    let network = test.network("a", |network| network["spec"]["capacity"] = json!({"interfaces": 10}))?;
    test.is_published(&format!("net-{network}"), |device| interfaces(device) == "10")?;
    let facts = Facts::about(test, &network)?;
    facts.watch.until_quiet(Duration::from_secs(3))?;
    output(Command::new("mkfifo").arg(&facts.file))?;
    facts.is_logged("not a regular file")?;
    fs::remove_file(&facts.file)?;
    facts.write(&json!({"capacity": {"interfaces": -1}}))?;
    facts.is_logged("it is negative")?;
    facts.write(&json!({"capacity": {"interfaces": 1}, "taints": ["all"]}))?;
    facts.is_logged("unknown field `taints`")?;
    facts.write(&json!({"check": vec!["a/net1"; 2000]}))?;
    facts.is_logged("has 2000 items")?;
    facts.write(&json!({"status": {"message": "x".repeat(40_000)}}))?;
    facts.is_logged("longer than")?;
    let written: Vec<_> = facts.watch.during(Duration::from_secs(3));
    let device = format!("net-{network}");
    let changed = written.iter().find(|event| event.device(&device).is_some_and(|it| interfaces(it) != "10"));
    ensure!(changed.is_none(), "{changed:?}");
    // The agent goes on.
    let stated = || facts.write(&json!({"capacity": {"interfaces": 1}}));
    facts.is_seen("a file after hostile ones", stated, |device| interfaces(device) == "1")
}

pub fn a_file_has_attachments_checked_once_by_their_plugins(test: &Test<'_>) -> Result<()> {
    let calls = "/var/lib/cni/netclaim-test-checks";
    let note = format!("echo \"$CNI_CONTAINERID/$CNI_IFNAME\" >>{calls}");
    let script = format!("[ \"$CNI_COMMAND\" != CHECK ] || {note}\nexec /opt/cni/bin/macvlan");
    let network = test.network_by(&test.plugin("plugin", &script)?)?;
    for pod in ["p", "q"] {
        test.start_pod(pod, &network)?;
    }
    let attachment = format!("{}/net1", test.sandbox("p")?.sandbox);
    let file = test.cluster.node().path(calls);
    let checks = || {
        let checks = fs::read_to_string(&file).unwrap_or_default();
        checks.lines().filter(|line| *line == attachment).count()
    };
    let facts = Facts::about(test, &network)?;
    // Each attachment has a CHECK in a period, too, which may come meanwhile.
    let mut periodic = 0;
    let mut before = checks();
    // The second time a look into the pod could stand for the CHECK.
    for time in 1..=3 {
        let begin = Instant::now();
        facts.write(&json!({"check": [attachment, "no-such-sandbox/net1"]}))?;
        eventually(5, "the plugin is asked", || {
            ensure!(checks() > before, "it is not");
            Ok(())
        })?;
        eprintln!("         time {time}: CHECK within {} ms", begin.elapsed().as_millis());
        before = checks();
        holds(2, "the plugin is asked once", || {
            ensure!(periodic + checks() <= before + 1, "{} times", checks() - before + 1);
            Ok(())
        })?;
        periodic += checks() - before;
        before = checks();
    }
    fs::remove_file(&file).context("cannot remove the notes")
}
