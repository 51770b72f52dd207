//! The agent's parent: what the kubelet talks to, and what starts the agent again when it dies.
//!
//! ```text
//!   kubelet ──> front ──> relay ──> the agent that owns the node's journal
//!                 parent (this file; PID 1 of the container) ── starts, waits, starts again ──> its own agent
//! ```
//!
//! The kubelet's calls wait here while there is no agent: refused or dropped, they would cost their pods 60 to 90 s.
//! The agent of a parent need not be the one that works: during a rolling update it stands by until the other ends.
//!
//! It does as little as it can, so that there is nothing in it to die of: one thread, no network. Children that
//! plugins left behind become its own, and are reaped.

use std::env;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Args;
use crate::front::Front;
use crate::stop::Stop;

/// How often the agent was started before, for the agent, which knows by it that it has a parent.
pub(crate) const STARTS: &str = "NETCLAIM_STARTS";
/// What the agent says on its standard output when it can take over: the kubelet may be told of us.
pub(crate) const FIT: &[u8] = b"fit\n";

/// Pause before the second start in a row; doubled for each further one. The first is at once.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause: no longer than pods should wait for an agent that may be well again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// An agent that has lived so long is not in a row with the one before. Pods come and go in less.
const GOOD_LIFE: Duration = Duration::from_secs(2);
/// Agents in a row that give up by themselves before it is left to the kubelet, which shows it to people.
const GIVE_UP: u32 = 5;

/// Runs the agent until it is told to stop, or until it cannot be started.
///
/// # Errors
/// What could not be set up.
pub(crate) fn start(args: &Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(args))
}

async fn run(args: &Args) -> Result<ExitCode> {
    let mut stop = Stop::new()?;
    let mut children = signal(SignalKind::child()).context("cannot hear of the agent's end")?;
    let mut front = Front::new(args)?;
    let mut row = 0;
    for starts in 0.. {
        let born = Instant::now();
        let mut agent = Agent::start(starts)?;
        let mut told = false;
        let status = loop {
            if let Some(status) = reap(agent.pid) {
                break status;
            }
            tokio::select! {
                _ = children.recv() => {}
                () = agent.fit(), if !front.is_shown() => front.show()?,
                () = stop.told(), if !told => {
                    told = true;
                    // It is there until it is reaped.
                    let _ = kill(agent.pid, Signal::SIGTERM);
                }
            }
        };
        row = if born.elapsed() >= GOOD_LIFE { 0 } else { row + 1 };
        let given_up = row >= GIVE_UP && status.code().is_some();
        if told || given_up {
            if given_up {
                tracing::error!(%status, "the agent ended {row} times in a row");
            }
            front.withdraw().await;
            return Ok(exit_code(status));
        }
        tracing::error!(%status, "the agent ended and is started again");
        if row > 1 {
            tokio::select! {
                () = tokio::time::sleep(pause(row)) => {}
                () = stop.told() => {
                    front.withdraw().await;
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }
    Ok(ExitCode::FAILURE)
}

fn pause(row: u32) -> Duration {
    PAUSE.saturating_mul(1 << row.saturating_sub(2).min(8)).min(LONGEST_PAUSE)
}

/// A running agent.
struct Agent {
    pid: Pid,
    /// Its standard output, until it has said that it is fit.
    output: Option<pipe::Receiver>,
}

impl Agent {
    fn start(starts: u32) -> Result<Self> {
        let mut args = env::args_os();
        let name = args.next().unwrap_or_else(|| "netclaim-kubelet-plugin".into());
        let mut child = Command::new("/proc/self/exe")
            .arg0(name)
            .args(args)
            .env(STARTS, starts.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the agent")?;
        let output = child.stdout.take().map(|output| pipe::Receiver::from_owned_fd(OwnedFd::from(output)));
        let output = output.transpose().context("cannot hear the agent")?;
        Ok(Self { pid: Pid::from_raw(i32::try_from(child.id()).context("the agent's process id")?), output })
    }

    /// Waits until it has said that it is fit; for ever with one that ends without a word.
    async fn fit(&mut self) {
        let mut word = [0; FIT.len()];
        if let Some(output) = &mut self.output
            && output.read_exact(&mut word).await.is_ok()
            && word == FIT
        {
            self.output = None;
            return;
        }
        std::future::pending().await
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
