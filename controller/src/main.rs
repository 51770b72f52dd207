//! The program `netclaim-controller`. Exits with 0 after SIGTERM or SIGINT, with 1 when it fails or loses its lease, and
//! with 2 on a wrong command line.

use std::{
    io::{IsTerminal as _, stderr},
    process::ExitCode,
};

use clap::Parser as _;
use netclaim_controller::Args;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // kube returns what it logs; the controller logs it with what it was doing.
    let filter = || EnvFilter::new("info,kube_client=off,kube_runtime=off");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| filter());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal());
    if args.log_json {
        log.json().init();
    } else {
        log.init();
    }
    match netclaim_controller::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot go on");
            ExitCode::FAILURE
        }
    }
}
