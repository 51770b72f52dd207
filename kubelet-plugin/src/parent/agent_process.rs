//! A running agent, and how it ended.

use std::env;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

/// The environment variable with the number of earlier starts. An agent has a parent if it is set.
pub(crate) const STARTS: &str = "NETCLAIM_STARTS";
/// The agent's program, in the same folder as the parent's.
const AGENT: &str = "netclaim-kubelet-plugin";
/// What an agent prints when it can take over, so that its parent can register with the kubelet.
pub(crate) const FIT: &[u8] = b"fit\n";

/// A running agent.
pub(super) struct AgentProcess {
    pid: Pid,
    /// Its standard output, until it has printed that it can take over.
    output: Option<pipe::Receiver>,
}

impl AgentProcess {
    /// Starts an agent. Its standard input is the file by whose lock agents take turns.
    pub(super) fn start(starts: u32, lock: File) -> Result<Self> {
        let program = env::current_exe().context("cannot find the agent's program")?.with_file_name(AGENT);
        let mut child = Command::new(&program)
            .args(env::args_os().skip(1))
            .env(STARTS, starts.to_string())
            .stdin(lock)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the agent {}", program.display()))?;
        let output = child.stdout.take().map(|output| pipe::Receiver::from_owned_fd(OwnedFd::from(output)));
        let output = output.transpose().context("cannot read the agent's output")?;
        Ok(Self { pid: Pid::from_raw(i32::try_from(child.id()).context("the agent's process id")?), output })
    }

    /// Waits until the agent can take over; for ever if it ends before.
    pub(super) async fn fit(&mut self) {
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

    /// Tells the agent to stop.
    pub(super) fn stop(&self) {
        // The process id is the agent's until it is reaped.
        let _ = kill(self.pid, Signal::SIGTERM);
    }

    /// Reaps every child that has ended; returns how the agent ended if it is one of them.
    pub(super) fn reap(&self) -> Option<ExitStatus> {
        let mut ended = None;
        loop {
            let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code << 8),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, signal as i32),
                Err(Errno::EINTR) => continue,
                _ => return ended,
            };
            if pid == self.pid {
                ended = Some(ExitStatus::from_raw(status));
            }
        }
    }
}
