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
//! It does as little as it can, so that there is nothing in it to die of: one thread, no network. What its agent leaves
//! running falls to it, and is ended before the journal's lock is let go, which it holds together with its agent.

pub mod kubelet_sockets;
pub mod leftovers;
pub mod relay;

use std::env;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netclaim_driver::attach::journal::Journal;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use crate::parent::kubelet_sockets::Front;
use crate::parent::leftovers::end_children;
use crate::process::args::Args;
use crate::process::stop::Stop;

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
    set_child_subreaper(true).context("cannot become the parent of what plugins leave behind")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(args))
}

async fn run(args: &Args) -> Result<ExitCode> {
    let mut stop = Stop::new()?;
    let mut children = signal(SignalKind::child()).context("cannot hear of the agent's end")?;
    let mut front = Front::new(args)?;
    let mut row = Row::default();
    for starts in 0.. {
        let born = Instant::now();
        // Opened anew for each agent: another one may have its turn in between.
        let lock = Journal::open(args.journal_dir())?.lock_file()?;
        let mut agent = Agent::start(starts, lock.try_clone().context("cannot share the journal's lock")?)?;
        let mut told = false;
        let status = loop {
            if let Some(status) = reap(agent.pid) {
                break status;
            }
            tokio::select! {
                _ = children.recv() => {}
                () = agent.fit(), if !front.is_shown() => front.show()?,
                () = stop.requested(), if !told => {
                    told = true;
                    // It is there until it is reaped.
                    let _ = kill(agent.pid, Signal::SIGTERM);
                }
            }
        };
        end_children().await;
        drop(lock);
        let pause = row.ended(born.elapsed(), status);
        let Some(pause) = pause.filter(|_| !told) else {
            if !told {
                tracing::error!(%status, "the agent ended {GIVE_UP} times in a row");
            }
            front.withdraw().await;
            return Ok(exit_code(status));
        };
        tracing::error!(%status, "the agent ended and is started again");
        tokio::select! {
            biased;
            () = stop.requested() => {
                front.withdraw().await;
                return Ok(ExitCode::SUCCESS);
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
    Ok(ExitCode::FAILURE)
}

/// How many agents in a row have ended soon.
#[derive(Default)]
struct Row(u32);

impl Row {
    /// The pause before the next start after an agent that has lived for `life`; `None` to give up. Those that were killed
    /// are not given up: it was not their doing.
    fn ended(&mut self, life: Duration, status: ExitStatus) -> Option<Duration> {
        self.0 = if life >= GOOD_LIFE { 0 } else { self.0 + 1 };
        match self.0 {
            GIVE_UP.. if status.code().is_some() => None,
            0 | 1 => Some(Duration::ZERO),
            row => Some(PAUSE.saturating_mul(1 << (row - 2).min(8)).min(LONGEST_PAUSE)),
        }
    }
}

/// A running agent.
struct Agent {
    pid: Pid,
    /// Its standard output, until it has said that it is fit.
    output: Option<pipe::Receiver>,
}

impl Agent {
    /// Gives it the file by whose lock agents take turns as its standard input.
    fn start(starts: u32, lock: File) -> Result<Self> {
        let mut args = env::args_os();
        let name = args.next().unwrap_or_else(|| "netclaim-kubelet-plugin".into());
        let mut child = Command::new("/proc/self/exe")
            .arg0(name)
            .args(args)
            .env(STARTS, starts.to_string())
            .stdin(lock)
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

    const KILLED: i32 = 9;
    const FAILED: i32 = 1 << 8;

    fn pauses(lives: impl IntoIterator<Item = (u64, i32)>) -> Vec<Option<u128>> {
        let mut row = Row::default();
        let ended = |(life, status)| row.ended(Duration::from_millis(life), ExitStatus::from_raw(status));
        lives.into_iter().map(ended).map(|pause| pause.map(|pause| pause.as_millis())).collect()
    }

    #[test]
    fn the_first_new_start_is_at_once_and_the_pauses_grow_to_a_limit() {
        let killed = pauses([(0, KILLED); 9]);
        assert_eq!(killed, [0, 100, 200, 400, 800, 1600, 2000, 2000, 2000].map(Some));
        assert_eq!(
            Row(u32::MAX - 1).ended(Duration::ZERO, ExitStatus::from_raw(KILLED)),
            Some(LONGEST_PAUSE)
        );
    }

    #[test]
    fn an_agent_that_fails_again_and_again_is_given_up_and_one_that_is_killed_is_not() {
        let failed = [(10, FAILED); 5];
        assert_eq!(pauses(failed), [Some(0), Some(100), Some(200), Some(400), None]);
        assert_eq!(
            pauses([failed.as_slice()[..4].to_vec(), vec![(10, KILLED)]].concat()).last(),
            Some(&Some(800))
        );
        let lived = u64::try_from(GOOD_LIFE.as_millis()).unwrap();
        let one_good_life = [&failed[..4], &[(lived, FAILED)], &failed[..4]].concat();
        assert_eq!(pauses(one_good_life)[4..], [0, 0, 100, 200, 400].map(Some));
    }
}
