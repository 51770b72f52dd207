//! The node agent's executable: arguments, log, run. Its command `cni` is for people in its container.

use std::env;
use std::io::{stderr, stdout};
use std::process::ExitCode;

use clap::Parser as _;
use netclaim_cni::spans::SPANS;
use netclaim_kubelet_plugin::{Args, run_agent, service};
use netclaim_process::log;
use netclaim_process::traces::Traces;

/// CNI networks by hand, as `netclaimctl cni`, which the agent's image does not have.
#[derive(clap::Parser)]
#[command(name = "netclaim-kubelet-plugin cni")]
struct CniByHand {
    #[command(flatten)]
    args: netclaim_cnitool::Args,
}

fn main() -> ExitCode {
    if env::args_os().nth(1).is_some_and(|word| word == "cni") {
        return cni_by_hand();
    }
    let args = Args::parse();
    let traces = Traces::from_env(&service(&args));
    log::init(&args.log, "", traces.as_ref().map(|traces| traces.layer(SPANS)));
    run_agent(args, traces).unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}

#[tokio::main(flavor = "current_thread")]
async fn cni_by_hand() -> ExitCode {
    let CniByHand { args } = CniByHand::parse_from(env::args_os().skip(1));
    netclaim_cnitool::run("netclaim-kubelet-plugin", args, &mut stdout(), &mut stderr()).await
}
