//! Ends what an agent that is gone has left running. A plugin that goes on beside the next agent's plugins undoes what
//! they do, and what it does itself nobody undoes.
//!
//! ```text
//!   the agent ends      its parent, to which its orphans fall, ends them, and then lets go of the journal's lock
//!   the parent ends too in a container of its own process ids: the kernel ends all of them; elsewhere they live on, and
//!                       the next agent that has the lock ends them: they bear the journal's mark in their environment
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::time::Instant;

/// The variable that every plugin has, and whatever it starts: which journal its agent owned.
const VARIABLE: &str = "NETCLAIM_JOURNAL";
/// How often to look whether killed processes are gone, and what they have started meanwhile.
const BEAT: Duration = Duration::from_millis(2);
/// How long a killed process may be in the kernel: of what it does, one system call at most is left.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// What tells the processes of one journal's agents from all others, the node's other agents included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark(String);

impl Mark {
    /// That of the journal with this lock file, whatever it is called in the mounts of its agents.
    ///
    /// # Errors
    /// When the file cannot be looked at.
    pub(crate) fn of(lock: &File) -> io::Result<Self> {
        let lock = lock.metadata()?;
        Ok(Self(format!("{}:{}", lock.dev(), lock.ino())))
    }

    /// Name and value of the environment variable.
    pub(crate) fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, &self.0)
    }

    /// Whether a process has it, by its `/proc/PID/environ`.
    fn is_in(&self, environ: &[u8]) -> bool {
        let variable = format!("{VARIABLE}={}", self.0);
        environ.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    }

    /// Ends every process that bears it. To be called by the one agent that owns the journal, before it runs a plugin.
    pub(crate) async fn end_bearers(&self) {
        // A process that has ended, reaped or not, has no environment.
        let bears = |pid: Pid| fs::read(of_process(pid, "environ")).is_ok_and(|environ| self.is_in(&environ));
        end(|| {
            let bearers: Vec<Pid> = processes().into_iter().filter(|pid| bears(*pid)).collect();
            kill_all(&bearers);
            bearers.len()
        })
        .await;
    }
}

/// Ends and reaps every child, and what falls to this process, the subreaper, when they end.
pub(crate) async fn end_children() {
    end(|| {
        if !has_children() {
            return 0;
        }
        let children = children_of(Pid::this());
        kill_all(&children);
        children.len().max(1)
    })
    .await;
}

/// Calls `kill_some` until it finds no process any more, or it is no use.
async fn end(kill_some: impl Fn() -> usize) {
    let begin = Instant::now();
    let mut told = false;
    loop {
        let left = kill_some();
        if left == 0 {
            return;
        }
        if !told {
            tracing::warn!(processes = left, "ending what an agent has left running");
            told = true;
        }
        if begin.elapsed() >= KILL_WAIT {
            tracing::error!(processes = left, "killed processes do not end: going on beside them");
            return;
        }
        tokio::time::sleep(BEAT).await;
    }
}

fn kill_all(pids: &[Pid]) {
    for pid in pids {
        // It is gone already, or the next look finds it again.
        let _ = kill(*pid, Signal::SIGKILL);
    }
}

/// Reaps every child that has ended, and says whether there are others.
fn has_children() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let is_child = |pid: &Pid| {
        let stat = fs::read_to_string(of_process(*pid, "stat")).unwrap_or_default();
        parent_in(&stat) == Some(parent)
    };
    processes().into_iter().filter(is_child).collect()
}

/// The parent in the text of a `/proc/PID/stat`. The program's name may have spaces and parentheses in it.
fn parent_in(stat: &str) -> Option<Pid> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_whitespace().nth(1)?.parse().ok().map(Pid::from_raw)
}

/// All processes but this one.
fn processes() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw));
    pids.filter(|pid| *pid != Pid::this()).collect()
}

fn of_process(pid: Pid, file: &str) -> impl AsRef<Path> {
    format!("/proc/{pid}/{file}")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn what_bears_a_journals_mark_is_ended_with_whatever_it_started() {
        let lock = tempfile::tempfile().unwrap();
        let (mark, other) = (Mark::of(&lock).unwrap(), Mark::of(&tempfile::tempfile().unwrap()).unwrap());
        let start = |mark: &Mark| {
            let (name, value) = mark.variable();
            // A grandchild in a session of its own, whose parent is gone.
            let script = "setsid sleep 1000 & echo $!; exec sleep 1000";
            let mut plugin = Command::new("sh");
            let plugin =
                plugin.args(["-c", script]).env_clear().env("PATH", "/usr/bin:/bin").env(name, value);
            plugin.stdout(std::process::Stdio::null()).spawn().unwrap()
        };
        let (mut ours, mut theirs) = (start(&mark), start(&other));
        let bearers = |mark: &Mark| {
            let has = |pid: &Pid| fs::read(of_process(*pid, "environ")).is_ok_and(|e| mark.is_in(&e));
            processes().into_iter().filter(has).count()
        };
        let begin = Instant::now();
        while (bearers(&mark), bearers(&other)) != (2, 2) {
            assert!(begin.elapsed() < Duration::from_secs(10), "they do not start");
            tokio::time::sleep(BEAT).await;
        }
        mark.end_bearers().await;
        assert_eq!((bearers(&mark), bearers(&other)), (0, 2));
        other.end_bearers().await;
        ours.wait().unwrap();
        theirs.wait().unwrap();
    }

    #[test]
    fn a_mark_is_the_whole_value_of_its_variable() {
        let mark = Mark("8:12".into());
        assert!(mark.is_in(b"PATH=/bin\0NETCLAIM_JOURNAL=8:12\0"));
        for other in ["NETCLAIM_JOURNAL=8:123\0", "X=NETCLAIM_JOURNAL=8:12\0", "NETCLAIM_JOURNAL=\0", ""] {
            assert!(!mark.is_in(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_parent_is_found_whatever_its_child_is_called() {
        assert_eq!(parent_in("7 (sh) S 3 7 7 0 -1"), Some(Pid::from_raw(3)));
        assert_eq!(parent_in("7 (a) S 9) R 3 7 7 0 -1"), Some(Pid::from_raw(3)));
        assert_eq!(parent_in(""), None);
    }
}
