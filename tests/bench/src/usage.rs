//! The time, CPU time and memory that this process has used.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use serde::{Deserialize, Serialize};

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) user_ns: u64,
    pub(crate) sys_ns: u64,
}

impl Cpu {
    pub(crate) fn total(self) -> u64 {
        self.user_ns + self.sys_ns
    }

    fn of(who: UsageWho) -> Result<Self> {
        let usage = getrusage(who)?;
        let ns = |time: TimeVal| u64::try_from(time.num_nanoseconds()).unwrap_or_default();
        Ok(Self { user_ns: ns(usage.user_time()), sys_ns: ns(usage.system_time()) })
    }

    fn since(self, before: Self) -> Self {
        Self { user_ns: self.user_ns - before.user_ns, sys_ns: self.sys_ns - before.sys_ns }
    }
}

/// A moment.
pub(crate) struct Usage {
    at: Instant,
    own: Cpu,
    children: Cpu,
}

/// What was used between two moments.
pub(crate) struct Used {
    pub(crate) wall_ns: u64,
    pub(crate) own: Cpu,
    /// CPU time of the processes that were waited for, and of their children.
    pub(crate) children: Cpu,
}

impl Usage {
    pub(crate) fn now() -> Result<Self> {
        Ok(Self {
            at: Instant::now(),
            own: Cpu::of(UsageWho::RUSAGE_SELF)?,
            children: Cpu::of(UsageWho::RUSAGE_CHILDREN)?,
        })
    }

    /// Returns the usage since `before`, after waiting for all children to be reaped.
    pub(crate) fn after_children(before: &Self) -> Result<Used> {
        let at = Instant::now();
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while waitid(Id::All, look) != Err(Errno::ECHILD) {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { at, ..Self::now()? }.since(before))
    }

    fn since(&self, before: &Self) -> Used {
        Used {
            wall_ns: nanos(before.at, self.at),
            own: self.own.since(before.own),
            children: self.children.since(before.children),
        }
    }
}

/// Nanoseconds from one moment to another.
pub(crate) fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

/// Memory in KiB, as the kernel counts it for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Resident, shared pages of the program file included.
    pub(crate) rss_kib: u64,
    /// Resident and this process's alone.
    pub(crate) anon_kib: u64,
    /// The most that was ever resident.
    pub(crate) peak_kib: u64,
}

impl Memory {
    pub(crate) fn now() -> Result<Self> {
        Self::parse(&fs::read_to_string("/proc/self/status")?)
    }

    fn parse(status: &str) -> Result<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.with_context(|| format!("no {name} in /proc/self/status"))
        };
        Ok(Self { rss_kib: field("VmRSS")?, anon_kib: field("RssAnon")?, peak_kib: field("VmHWM")? })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn memory_is_read_from_the_kernels_words() {
        let memory =
            Memory::parse("VmHWM:\t   5120 kB\nVmRSS:\t   4096 kB\nRssAnon:\t     900 kB\n").unwrap();
        assert_eq!(memory, Memory { rss_kib: 4096, anon_kib: 900, peak_kib: 5120 });
        assert!(Memory::parse("VmRSS:\t 1 kB\n").is_err());
    }

    #[test]
    fn a_waited_for_child_counts_as_child() {
        let before = Usage::now().unwrap();
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().unwrap().success());
        let used = Usage::after_children(&before).unwrap();
        assert!(used.children.total() > 0 && used.wall_ns > 0);
    }
}
