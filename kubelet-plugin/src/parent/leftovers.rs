//! Ends the processes that an agent has left running. A plugin that runs beside the next agent's plugins
//! would undo their work, and nobody would undo its own.
//!
//! ```text
//!   the agent ends       its parent adopts its orphans, ends them, and then unlocks the journal
//!   the parent ends too  in a PID namespace the kernel ends all processes; elsewhere the next agent that gets the lock ends
//!                        them, which it finds by the journal's mark in their environment
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

/// The environment variable of plugins, and of processes that they start, with the journal of their agent.
const VARIABLE: &str = "NETCLAIM_JOURNAL";
/// Interval of looks for killed processes and for what they have started meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long to wait for a killed process, which may be in its last system call.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// The mark of the processes that agents of one journal have started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark(String);

impl Mark {
    /// Returns the mark of the journal with this lock file, which is the same in every mount namespace.
    ///
    /// # Errors
    /// When the file's metadata cannot be read.
    pub(crate) fn of(lock: &File) -> io::Result<Self> {
        let lock = lock.metadata()?;
        Ok(Self(format!("{}:{}", lock.dev(), lock.ino())))
    }

    /// Returns name and value of the environment variable.
    pub(crate) fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, &self.0)
    }

    /// Returns whether a process has it, by its `/proc/PID/environ`.
    fn is_in(&self, environ: &[u8]) -> bool {
        let variable = format!("{VARIABLE}={}", self.0);
        environ.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    }

    /// Ends every process that has the mark. Only the agent that owns the journal may call it, before it runs
    /// a plugin.
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

/// Ends and reaps every child, and the orphans that this process, the subreaper, adopts meanwhile.
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

/// Calls `kill_some` until it finds no process, or until [`KILL_WAIT`] is over.
async fn end(kill_some: impl Fn() -> usize) {
    let begin = Instant::now();
    let mut is_logged = false;
    loop {
        let left = kill_some();
        if left == 0 {
            return;
        }
        if !is_logged {
            tracing::warn!(processes = left, "ending processes that an agent has left running");
            is_logged = true;
        }
        if begin.elapsed() >= KILL_WAIT {
            tracing::error!(processes = left, "killed processes do not end, continuing beside them");
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn kill_all(pids: &[Pid]) {
    for pid in pids {
        // It has ended already, or the next look finds it again.
        let _ = kill(*pid, Signal::SIGKILL);
    }
}

/// Reaps every child that has ended, and returns whether there are others.
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

/// Returns the parent in the text of a `/proc/PID/stat`. The program's name may contain spaces and
/// parentheses.
fn parent_in(stat: &str) -> Option<Pid> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_whitespace().nth(1)?.parse().ok().map(Pid::from_raw)
}

/// Returns all processes except this one.
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
    async fn a_process_with_the_journals_mark_is_ended_with_its_descendants() {
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
            tokio::time::sleep(POLL_INTERVAL).await;
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
    fn a_parent_is_found_for_any_name_of_its_child() {
        assert_eq!(parent_in("7 (sh) S 3 7 7 0 -1"), Some(Pid::from_raw(3)));
        assert_eq!(parent_in("7 (a) S 9) R 3 7 7 0 -1"), Some(Pid::from_raw(3)));
        assert_eq!(parent_in(""), None);
    }
}
