//! The agent's state directory is read-only or full.

use anyhow::{Result, bail, ensure};
use netclaim_tests::{Cluster, Test, eventually};

/// Makes sure that the agent's readiness is `yes`.
pub(super) fn agent_is_ready(test: &Test<'_>, yes: bool) -> Result<()> {
    let answer = test.cluster.ask_agent("/readyz")?;
    ensure!(
        answer.contains(if yes { " 200 OK" } else { " 503 Service Unavailable" }),
        "its answer is {answer}"
    );
    Ok(())
}

pub fn a_read_only_state_directory_delays_only_new_pods(test: &Test<'_>) -> Result<()> {
    let journal = "/var/lib/netclaim/journal";
    let reason = "is its file system full, read-only or gone?";
    let network = test.macvlan("a")?;
    test.start_pod("old", &network)?;
    if let Err(error) = test.cluster.on_node(&["chattr", "+i", journal]) {
        return test.skip(&format!("chattr cannot make a directory read-only here: {error:#}"));
    }
    let held = test.pod("new", &network).and_then(|()| {
        // Its claim is prepared without the disk. No ADD starts before the disk has it.
        test.event("new", &["NetworkAttachFailed", reason])?;
        test.claim_is_not_ready("new", &[reason])?;
        test.does_not_start("new")?;
        agent_is_ready(test, false)?;
        // The agent still runs its DEL, but cannot record it.
        test.kubectl(&["delete", "pod", "old", "--wait=false"])?;
        eventually(30, "the address is released", || {
            let leases = test.cluster.node().leases()?;
            ensure!(leases.is_empty(), "{leases:?}");
            Ok(())
        })
    });
    test.cluster.on_node(&["chattr", "-i", journal])?;
    held?;
    eventually(20, "the agent is ready again", || agent_is_ready(test, true))?;
    test.delete_pod("old")?;
    test.delete_pod("new")?;
    test.start_pod("next", &network)?;
    test.node_has_leases(1)
}

/// A small file system with the content of the agent's state directory, mounted over it in the agent's
/// container.
struct SmallDisk<'a> {
    cluster: &'a Cluster,
    /// The mount point as the node reaches it.
    path: String,
    container: String,
}

const STATE: &str = "/var/lib/netclaim";

impl<'a> SmallDisk<'a> {
    fn mount(cluster: &'a Cluster) -> Result<Self> {
        let pid = cluster.parent_pid()?;
        let (path, container) = (format!("/proc/{pid}/root{STATE}"), format!("--target={pid}"));
        let disk = Self { cluster, path, container };
        // The agent must not write during the copy.
        cluster.pause_agent(true)?;
        let mounted = disk
            .in_agent(&["mount", "-t", "tmpfs", "-o", "size=16m", "disk", STATE])
            .and_then(|()| cluster.on_node(&["cp", "-a", &format!("{STATE}/."), &disk.path]));
        cluster.pause_agent(false)?;
        mounted.map(|_| disk)
    }

    fn fill(&self) -> Result<()> {
        let file = format!("of={}/filler", self.path);
        match self.cluster.on_node(&["dd", "if=/dev/zero", &file, "bs=4096"]) {
            Err(error) if error.to_string().contains("No space left on device") => Ok(()),
            other => bail!("it is not full: {other:?}"),
        }
    }

    fn free(&self) -> Result<()> {
        self.cluster.on_node(&["rm", &format!("{}/filler", self.path)]).map(drop)
    }

    /// Restores the agent's own state directory, with the present content.
    fn unmount(&self) -> Result<()> {
        let copy = format!(
            "rm -f {0}/filler; for dir in journal cni/results; do\n\
             find {STATE}/$dir -type f ! -name .lock -delete && cp -a {0}/$dir/. {STATE}/$dir || exit\n\
             done",
            self.path
        );
        self.cluster.pause_agent(true)?;
        let unmounted = self
            .cluster
            .on_node(&["bash", "-c", &copy])
            .and_then(|_| self.in_agent(&["umount", "-l", STATE]));
        self.cluster.pause_agent(false)?;
        unmounted
    }

    /// Runs a busybox program in the mounts of the agent's container.
    fn in_agent(&self, command: &[&str]) -> Result<()> {
        let enter = ["nsenter", &self.container, "--mount", "/opt/cni/bin/busybox"];
        self.cluster.on_node(&[&enter, command].concat()).map(drop)
    }
}

pub fn a_full_state_directory_delays_only_new_pods(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    test.start_pod("old", &network)?;
    test.start_pod("stays", &network)?;
    let lease = format!("/{}", test.ip("old", "net1")?);
    let disk = SmallDisk::mount(test.cluster)?;
    let shown = || -> Result<()> {
        disk.fill()?;
        test.pod("new", &network)?;
        let reason = "is its file system full, read-only or gone?: No space left on device";
        test.event("new", &["NetworkAttachFailed", reason])?;
        test.claim_is_not_ready("new", &[reason])?;
        test.does_not_start("new")?;
        agent_is_ready(test, false)?;
        let metrics = test.cluster.ask_agent("/metrics")?;
        ensure!(metrics.contains("netclaim_journal_writable 0"), "{metrics}");
        // The next agent has no space, either.
        let full = test.cluster.agent_pid()?;
        test.cluster.kill_agent()?;
        eventually(20, "another agent works", || {
            ensure!(test.cluster.agent_pid()? != full, "it is the killed one");
            test.cluster.ask_agent("/healthz").map(drop)
        })?;
        // What is done to a sandbox is written to memory, and files can still be removed: the agent runs the
        // DEL and removes the record.
        test.delete_pod("old")?;
        // The new pod may have got the space of the record by now, and its address.
        let leases = test.cluster.node().leases()?;
        ensure!(leases.iter().all(|(name, _)| !name.ends_with(&lease)), "{leases:?}");
        disk.free()?;
        eventually(20, "the agent is ready again", || agent_is_ready(test, true))?;
        eventually(60, "the new pod has its network", || test.interface("new", "net1"))?;
        test.runs_with("new", &["net1"])?;
        test.claim_is_ready("new").map(drop)
    }();
    disk.unmount()?;
    // It has locked the journal of the small disk, so that the agent of the next update would work beside it.
    test.cluster.replace_agent()?;
    shown?;
    test.interface("stays", "net1")?;
    test.node_has_leases(2)?;
    test.delete_pod("stays")?;
    test.node_has_leases(1)
}
