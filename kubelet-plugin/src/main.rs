//! The node agent's executable: arguments, log, run.

use std::process::ExitCode;

use clap::Parser as _;
use netclaim_kubelet_plugin::{Args, run_agent};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("NETCLAIM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if args.log_json {
        log.json().init()
    } else {
        log.with_ansi(false).init()
    }
    run_agent(args).unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}
