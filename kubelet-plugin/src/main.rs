//! The node agent's executable: log, crypto, arguments, run.

use std::process::ExitCode;

use clap::Parser as _;
use netclaim_kubelet_plugin::{Args, run};
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
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: Args) -> anyhow::Result<()> {
    // Before anything is opened: CNI plugins inherit what our own parent left open.
    netclaim_driver::cni::close_inherited_descriptors()?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("no TLS crypto provider"))?;
    // Two threads: the work is in the plugins, and the agent's memory is counted.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args))
}
