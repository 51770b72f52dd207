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
    log::init(&args.log, "", traces.as_ref().map(|traces| traces.layer(SPANS)));
    run_agent(args, traces).unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}
