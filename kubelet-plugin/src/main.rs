//! The node agent's executable: arguments, log, run.

use std::process::ExitCode;

use clap::Parser as _;
use netclaim_kubelet_plugin::{Args, run_agent};
use netclaim_process::log;

fn main() -> ExitCode {
    let args = Args::parse();
    log::init(&args.log, "");
    run_agent(args).unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}
