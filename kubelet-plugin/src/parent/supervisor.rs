//! Starts the agent, and starts it again when it ends.

use std::process::{ExitCode, ExitStatus};
use std::time::Instant;

use anyhow::{Context as _, Result};
use netclaim_driver::attach::boot_id;
use nix::sys::prctl::set_child_subreaper;
use tokio::signal::unix::{SignalKind, signal};

use super::agent_process::AgentProcess;
use super::kubelet_sockets::KubeletSockets;
use super::leftovers::end_children;
use super::restarts::{GIVE_UP, Restarts};
use super::runtime_relay::RuntimeRelay;
use crate::args::Args;
use crate::pods::owner::Journal;
use netclaim_process::Stop;

/// Runs the agent until it is told to stop, or until it cannot be started.
///
/// # Errors
/// When the parent cannot be set up.
pub(crate) fn start(args: &Args) -> Result<ExitCode> {
    set_child_subreaper(true).context("cannot adopt the processes that plugins leave running")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(args))
}

async fn run(args: &Args) -> Result<ExitCode> {
    let mut stop = Stop::new()?;
    let mut children = signal(SignalKind::child()).context("cannot watch for the agent's end")?;
    let runtime = RuntimeRelay::start(args, open_journal(args)?)?;
    let mut sockets = KubeletSockets::new(args)?;
    let mut restarts = Restarts::default();
    for starts in 0.. {
        let born = Instant::now();
        // Opened again for each agent: an agent of another parent may have its turn in between.
        let lock = open_journal(args)?.lock_file()?;
        let mut agent =
            AgentProcess::start(starts, lock.try_clone().context("cannot share the journal's lock")?)?;
        let mut is_stopping = false;
        let status = loop {
            if let Some(status) = agent.reap() {
                break status;
            }
            tokio::select! {
                _ = children.recv() => {}
                () = agent.fit(), if !sockets.are_announced() => sockets.announce()?,
                () = stop.requested(), if !is_stopping => {
                    is_stopping = true;
                    agent.stop();
                }
            }
        };
        end_children().await;
        let delay = restarts.delay_after(born.elapsed(), status).filter(|_| !is_stopping);
        if delay.is_none() {
            // Before another agent can have the journal, whose parent connects then.
            runtime.close();
        }
        drop(lock);
        let Some(delay) = delay else {
            if !is_stopping {
                tracing::error!(%status, "the agent ended {GIVE_UP} times in a row");
            }
            sockets.withdraw().await;
            return Ok(exit_code(status));
        };
        tracing::error!(%status, "the agent ended and is started again");
        tokio::select! {
            biased;
            () = stop.requested() => {
                runtime.close();
                sockets.withdraw().await;
                return Ok(ExitCode::SUCCESS);
            }
            () = tokio::time::sleep(delay) => {}
        }
    }
    Ok(ExitCode::FAILURE)
}

fn open_journal(args: &Args) -> Result<Journal> {
    let boot_id = boot_id().context("cannot read the boot id")?;
    Journal::open(args.journal_dir(), args.boot_journal_dir(&boot_id)).context(
        "cannot use the directories of agent.stateDir (--state-dir) and agent.runDir (--run-dir) of the chart",
    )
}

fn exit_code(status: ExitStatus) -> ExitCode {
    match status.code().map(u8::try_from) {
        Some(Ok(code)) => ExitCode::from(code),
        _ => ExitCode::FAILURE,
    }
}
