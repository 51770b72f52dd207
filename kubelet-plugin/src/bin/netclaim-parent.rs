//! The executable of the agent's parent, which is the image's first process: arguments, log, run.
//!
//! It takes the arguments of the agent and passes them on.

use std::io::stderr;
use std::process::ExitCode;

use clap::Parser as _;
use netclaim_kubelet_plugin::{Args, run_parent};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

fn main() -> ExitCode {
    let args = Args::parse();
    // The agent's filter has regular expressions, which need more memory than the rest of the parent.
    let filter = args.log.log.parse::<Targets>();
    let filter = filter.unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let log = tracing_subscriber::fmt::layer().with_writer(stderr);
    let log = if args.log.log_json { log.json().boxed() } else { log.with_ansi(false).boxed() };
    tracing_subscriber::registry().with(log.with_filter(filter)).init();
    run_parent(&args).unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}
