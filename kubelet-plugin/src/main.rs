//! The node agent's executable: arguments, log, run.

use std::process::ExitCode;

use clap::Parser as _;
use netclaim_cni::spans::SPANS;
use netclaim_kubelet_plugin::{Args, run_agent, service};
use netclaim_process::log;
use netclaim_process::traces::Traces;

fn main() -> ExitCode {
    let args = Args::parse();
    let traces = Traces::from_env(&service(&args));
    let spans = traces.as_ref().ok().and_then(Option::as_ref).map(|traces| traces.layer(SPANS));
    log::init(&args.log, "", spans);
    let traces = traces.map_err(anyhow::Error::from);
    traces.and_then(|traces| run_agent(args, traces)).unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}
