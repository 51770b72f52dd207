//! Runs the agent: takes over from the last one, starts the parts in order, takes them down in order.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use netclaim_cni::close_inherited_descriptors;
use netclaim_driver::attach::boot_id;
use netclaim_driver::attach::journal::for_its_owner;
use netclaim_process::traces::{Counters, Traces};
use netclaim_process::{Stop, kubernetes};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use super::metrics::Metrics;
use super::{Agent, cni_plugins, make_run_dir, memory, mounts};
use crate::args::Args;
use crate::parent::FIT;
use crate::parent::turn::Turn;
use crate::pods::owner::Journal;

/// How long the last spans may delay the end of the agent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the agent until it is told to stop, or until a part of it ends.
///
/// # Errors
/// The setup that failed, or the part that ended. The parent starts another agent.
pub(crate) fn start(args: Args, traces: Option<Traces>) -> Result<ExitCode> {
    // Where the parent is not the first process of a container, its end does not end the agent.
    set_pdeathsig(Signal::SIGKILL).context("cannot tie the agent's life to its parent's")?;
    // Before the agent opens anything: CNI plugins would inherit what its parent left open.
    close_inherited_descriptors()?;
    memory::share_one_heap();
    // Two threads: plugins do the work, and each thread costs memory.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run_traced(args, traces))?;
    Ok(ExitCode::SUCCESS)
}

async fn run_traced(args: Args, traces: Option<Traces>) -> Result<()> {
    let counters = traces.as_ref().map(Traces::counters).unwrap_or_default();
    let sending = traces.map(Traces::start).transpose().context("cannot send traces")?;
    let ended = run(args, counters).await;
    if let Some(sending) = sending {
        sending.stop(FLUSH_TIMEOUT).await;
    }
    ended
}

async fn run(args: Args, of_spans: Counters) -> Result<()> {
    let mut stop = Stop::new()?;
    mounts::prepare_for_plugins();
    let config = kubernetes::config("netclaim-agent", args.kubeconfig.as_deref()).await?;
    let client = kubernetes::client(config)?;
    let boot_id = boot_id().context("cannot read the boot id")?;
    let turn = Turn::from_stdin()?;
    let metrics = Arc::new(Metrics::new(of_spans));
    let plugins = || cni_plugins(&args, turn.mark(), metrics.runs.clone());
    let plugins = (Arc::new(plugins()?), plugins()?.on_host());
    let journal = Journal::open(args.journal_dir(), args.boot_journal_dir(&boot_id))?;
    // The kubelet makes the directory of a volume for everybody, and file names have UIDs of pods.
    for_its_owner(&args.state_dir, 0o700);
    make_run_dir(&args.run_dir)?;
    io::stdout().write_all(FIT).context("cannot report to the parent that the agent is fit")?;

    // One agent at a time: the next one stands by until the last one has ended.
    tokio::select! {
        taken = turn.take() => taken?,
        () = stop.requested() => return Ok(()),
    }
    turn.mark().end_bearers().await;

    let (reports, reported) = mpsc::unbounded_channel();
    let mut agent = Agent::take_over(args, client, boot_id, metrics, plugins, journal, reports)?;
    let (inventory, node_uid) = agent.watch_node();
    let health = agent.publish_devices(inventory.clone(), node_uid.clone())?;
    agent.keep_addresses(inventory.clone());
    agent.guarantee_bandwidth(inventory.clone());
    agent.write_statuses(reported, health.clone());
    agent.wake_pods();
    let (sandboxes, readiness) = agent.follow_runtime()?;
    agent.sweep(&sandboxes, inventory.clone());
    agent.repair(inventory.clone(), node_uid);
    agent.serve_kubelet(inventory.clone(), sandboxes, health)?;
    agent.serve_process(inventory, readiness);
    tracing::info!(node = agent.args.node_name, driver = agent.args.driver_name, "netclaim agent started");

    let ended = tokio::select! {
        () = stop.requested() => None,
        part = agent.parts.any_ended() => Some(part),
    };
    agent.stop().await;
    match ended {
        None => Ok(()),
        Some(part) => bail!("{part} has ended: restart the agent"),
    }
}
