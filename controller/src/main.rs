//! The program `netclaim-controller`. Exits with 0 after SIGTERM or SIGINT, with 1 when it fails or loses its lease, and
//! with 2 on a wrong command line.

use std::process::ExitCode;

use clap::Parser as _;
use netclaim_controller::Args;
use netclaim_process::log;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // kube returns what it logs; the controller logs it with what it was doing.
    log::init(&args.log, "kube_client=off,kube_runtime=off");
    match netclaim_controller::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot go on");
            ExitCode::FAILURE
        }
    }
}
