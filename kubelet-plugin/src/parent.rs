//! The agent's parent: holds its listening sockets, and starts it again when it dies.
//!
//! ```text
//!   kubelet, hooks ──> sockets ── held by ── parent (this file; PID 1 of the container)
//!                         │                    │  starts, waits, starts again
//!                         └── inherited by ─── agent
//! ```
//!
//! A connection that is made while there is no agent waits in the socket's queue for the next one. Without a socket it
//! would be refused, and the kubelet tries a refused NodePrepareResources again after 60 to 90 s.
//!
//! It does as little as it can, so that there is nothing in it to die of: one thread, no network, no files but the
//! sockets. Children that plugins left behind become its own, and are reaped.

use std::env;
use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use command_fds::{CommandFdExt as _, FdMapping};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::args::Args;
use crate::sockets::{COUNT, Sockets};

/// How often the agent was started before, for the agent.
pub(crate) const STARTS: &str = "NETCLAIM_STARTS";

/// First of the inherited descriptors, by the convention of `LISTEN_FDS`.
const FIRST_FD: i32 = 3;
/// Pause before the second start in a row; doubled for each further one. The first is at once.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause: no longer than pods should wait for an agent that may be well again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// An agent that has lived so long is not in a row with the one before.
const GOOD_LIFE: Duration = Duration::from_secs(10);
/// Agents in a row that give up by themselves before it is left to the kubelet, which shows it to people.
const GIVE_UP: u32 = 5;

/// Runs the agent until it is told to stop, or until it cannot be started.
///
/// # Errors
/// What could not be set up.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block().context("cannot block signals")?;
    let heard = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .context("cannot listen for signals")?;
    let parent = Parent { sockets: Sockets::bind(args)?, heard };

    let mut row = 0;
    for starts in 0.. {
        let born = Instant::now();
        let agent = parent.start(starts)?;
        let (status, told) = parent.wait_for(agent)?;
        if told {
            return Ok(exit_code(status));
        }
        row = if born.elapsed() >= GOOD_LIFE { 0 } else { row + 1 };
        if row >= GIVE_UP && status.code().is_some() {
            tracing::error!(%status, "the agent ended {row} times in a row");
            return Ok(exit_code(status));
        }
        tracing::error!(%status, "the agent ended and is started again");
        if row > 1 && parent.is_told_to_stop_within(pause(row))? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    Ok(ExitCode::FAILURE)
}

fn pause(row: u32) -> Duration {
    PAUSE.saturating_mul(1 << row.saturating_sub(2).min(8)).min(LONGEST_PAUSE)
}

struct Parent {
    sockets: Sockets,
    heard: SignalFd,
}

impl Parent {
    fn start(&self, starts: u32) -> Result<Pid> {
        let mappings = self.sockets.copies().context("cannot copy the sockets")?;
        let mappings = (FIRST_FD..)
            .zip(mappings)
            .map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd })
            .collect();
        let args: Vec<OsString> = env::args_os().skip(1).collect();
        let child = Command::new("/proc/self/exe")
            .args(args)
            .env("LISTEN_FDS", COUNT.to_string())
            .env_remove("LISTEN_PID")
            .env(STARTS, starts.to_string())
            .fd_mappings(mappings)
            .context("cannot pass the sockets")?
            .spawn()
            .context("cannot start the agent")?;
        Ok(Pid::from_raw(i32::try_from(child.id()).context("the agent's process id")?))
    }

    /// How the agent ended, and whether it was told to.
    fn wait_for(&self, agent: Pid) -> Result<(ExitStatus, bool)> {
        let mut told = false;
        loop {
            if let Some(status) = reap(agent) {
                return Ok((status, told));
            }
            self.wait(None)?;
            if self.is_told_to_stop()? {
                told = true;
                // No socket, no new calls.
                if let Some(visible) = &self.sockets.visible {
                    visible.withdraw();
                }
                // It is there until it is reaped.
                let _ = kill(agent, Signal::SIGTERM);
            }
        }
    }

    fn is_told_to_stop_within(&self, time: Duration) -> Result<bool> {
        let end = Instant::now() + time;
        while let left @ 1.. = end.saturating_duration_since(Instant::now()).as_millis() {
            self.wait(Some(left))?;
            if self.is_told_to_stop()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits for a signal, for so many milliseconds or for ever.
    fn wait(&self, milliseconds: Option<u128>) -> Result<()> {
        let timeout = match milliseconds {
            Some(time) => PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        match poll(&mut [PollFd::new(self.heard.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for signals"),
        }
    }

    /// Whether one of the signals that were heard is to stop.
    fn is_told_to_stop(&self) -> Result<bool> {
        let mut told = false;
        while let Some(signal) = self.heard.read_signal().context("cannot read signals")? {
            told |= signal.ssi_signo != Signal::SIGCHLD as u32;
        }
        Ok(told)
    }
}

/// Reaps every child that has ended; returns how the agent has, if it is one of them.
fn reap(agent: Pid) -> Option<ExitStatus> {
    let mut ended = None;
    loop {
        let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, code << 8),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, signal as i32),
            Err(Errno::EINTR) => continue,
            _ => return ended,
        };
        if pid == agent {
            ended = Some(ExitStatus::from_raw(status));
        }
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    match status.code().map(u8::try_from) {
        Some(Ok(code)) => ExitCode::from(code),
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_new_start_is_at_once_and_the_pauses_grow_to_a_limit() {
        let pauses: Vec<_> = (2..9).map(|row| pause(row).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
