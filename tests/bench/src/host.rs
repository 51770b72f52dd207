//! The contestants' hosts: private mounts, and for each contestant a network namespace with an uplink and
//! containers.
//!
//! Everything is below a private `/run` in memory, so that it always ends with this process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::protocol::{Batch, Order};
use crate::workload::{LANES, UPLINK};

/// The folder of the plugins, including the null plugin.
pub(crate) const BIN_DIR: &str = "/run/plugins";

/// Gives this process and its children a private `/run`. It must be called before there are threads.
pub(crate) fn isolate() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("cannot leave the host's mounts (root is needed)")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    Ok(())
}

/// Links the plugins of the workloads into [`BIN_DIR`]: reference plugins from `plugins`, and busybox as the
/// null plugin.
pub(crate) fn link_plugins(plugins: &Path, busybox: &Path) -> Result<()> {
    fs::create_dir(BIN_DIR)?;
    for entry in fs::read_dir(plugins).with_context(|| format!("no plugins in {}", plugins.display()))? {
        let entry = entry?;
        symlink(entry.path(), Path::new(BIN_DIR).join(entry.file_name()))?;
    }
    symlink(busybox, Path::new(BIN_DIR).join("cat"))?;
    Ok(())
}

/// A running contestant in its own network namespace.
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The network namespaces of its containers.
    netns: Vec<String>,
}

impl Worker {
    /// Starts `command` in a new host of the given name, with an uplink and containers.
    pub(crate) fn start(name: &str, command: &[&str]) -> Result<Self> {
        ip(&["netns", "add", name])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        ip(&["-n", name, "link", "add", UPLINK, "type", "veth", "peer", "name", "up1"])?;
        for link in [UPLINK, "up1"] {
            ip(&["-n", name, "link", "set", link, "up"])?;
        }
        let mut netns = Vec::new();
        for lane in 0..LANES {
            let container = format!("{name}-c{lane}");
            ip(&["netns", "add", &container])?;
            netns.push(format!("/run/netns/{container}"));
        }
        let mut child = Command::new("ip")
            .args(["netns", "exec", name])
            .args(command)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take().context("no standard input")?;
        let answers = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, orders, answers, netns })
    }

    /// Runs `ops` attachments in each of the first `lanes` containers.
    pub(crate) fn run(&mut self, list: &str, lanes: usize, ops: usize) -> Result<Batch> {
        let netns = self.netns.get(..lanes).context("not that many containers")?.to_vec();
        serde_json::to_writer(&mut self.orders, &Order { list: list.to_owned(), netns, ops })?;
        self.orders.write_all(b"\n")?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            bail!("a contestant gave up: {}", self.child.wait()?);
        }
        let batch: Batch = serde_json::from_str(&answer)?;
        ensure!(batch.add_ns.len() == lanes * ops, "a contestant has run another number of attachments");
        Ok(batch)
    }

    /// Ends the contestant.
    pub(crate) fn stop(self) -> Result<()> {
        let Self { mut child, orders, .. } = self;
        drop(orders);
        ensure!(child.wait()?.success(), "a contestant failed at its end");
        Ok(())
    }
}

fn ip(args: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(args).status().context("cannot run ip")?;
    ensure!(status.success(), "ip {} failed", args.join(" "));
    Ok(())
}
