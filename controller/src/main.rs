//! The program `netclaim-controller`. Exits with 0 after SIGTERM or SIGINT, with 1 when it fails or loses its
//! lease, and with 2 on a wrong command line.

use std::error::Error;
use std::process::ExitCode;

use clap::Parser as _;
use netclaim_controller::Args;
use netclaim_process::log;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    let args = Args::parse();
    // kube returns what it logs; the controller logs it with what it was doing.
    log::init(&args.log, "kube_client=off,kube_runtime=off", None);
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let outcome = runtime.block_on(netclaim_controller::run(args));
    // A replica that has lost its lease ends at once. What runs in a thread of its own decides nothing:
    // reviews and judgements.
    runtime.shutdown_background();
    outcome.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

fn failed(error: &(dyn Error + 'static)) -> ExitCode {
    tracing::error!(error, "cannot go on");
    ExitCode::FAILURE
}
