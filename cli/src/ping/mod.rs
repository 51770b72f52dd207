//! `netclaimctl ping`: what the network passes between nodes, also before there is a pod, and between pods.
//!
//! ```text
//!   API server ── the ClaimNetwork, Nodes, claims ──> who takes part ───────┐
//!              └─ exec in agents' pods ──> what they have heard of each other ──> verdicts (pure) ──> report
//! ```
//!
//! All agents are asked at once. Each sends and listens for the same time, and no clocks are compared: what
//! was not heard counts only where both have listened together for long enough.

mod read;
mod report;
mod verdict;

use std::io::Write;
use std::process::ExitCode;

use netclaim_api::NetworkName;
use netclaim_cni::error_chain;

use self::report::Report;
use crate::cluster::{Connection, ReadError};
use crate::colour::Colours;
use crate::print::{Output, failed, say_notes};

/// How often the agents are asked where one has answered other questions meanwhile.
const ATTEMPTS: usize = 3;

/// `netclaimctl ping`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The ClaimNetwork
    #[arg(long, value_name = "NAME")]
    pub network: NetworkName,
    /// One end: a node, or a pod that has the network: its name, or NAMESPACE/NAME [default: every node that
    /// offers the network, at most 8]
    #[arg(long, value_name = "NODE|POD", requires = "to")]
    pub from: Option<String>,
    /// The other end
    #[arg(long, value_name = "NODE|POD", requires = "from")]
    pub to: Option<String>,
    /// The VLAN id with which nodes probe [default: that of the network, the lowest if it has several]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// The pods' namespace [default: that of the context]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// How to print the verdicts
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// The namespace in which netclaim is installed
    #[arg(long, default_value = "netclaim-system")]
    pub netclaim_namespace: String,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

/// Prints what passes. Fails if something does not, or if that is not known.
pub async fn run(
    args: Args,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
    colours: Colours,
) -> ExitCode {
    let report = match found(&args).await {
        Ok(report) => report,
        Err(error) => return failed(err, error_chain(&error)),
    };
    let text = match args.output.of(&report, || report.text(colours)) {
        Ok(text) => text,
        Err(error) => return failed(err, error),
    };
    say_notes(err, &report.notes);
    // A reader that has closed the pipe has what it wants.
    let _ = out.write_all(text.as_bytes());
    if report.passes { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Why nobody is asked.
#[derive(Debug, thiserror::Error)]
enum PingError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{0} is neither a node nor a pod of namespace {1}: write NODE, POD or NAMESPACE/POD")]
    NoEnd(String, String),
    #[error("--from and --to are both {0}: name two nodes or pods")]
    Same(String),
    #[error(
        "pod {pod} is on node {node} itself: pods and the uplink below them do not reach each other by macvlan, so name another \
         node"
    )]
    OwnNode { pod: String, node: String },
    #[error(
        "pod {namespace}/{pod} has no interface of ClaimNetwork {network}: netclaimctl explain pod {pod} --namespace {namespace}"
    )]
    NotAttached { namespace: String, pod: String, network: NetworkName },
    #[error(
        "fewer than two nodes that ClaimNetwork {0} selects have an agent of netclaim: nothing can be probed"
    )]
    TooFew(NetworkName),
}

async fn found(args: &Args) -> Result<Report, PingError> {
    let client = args.connection.client().await?;
    let asking = args.connection.client_without_retries().await?;
    let mut report = Report::of(read::facts(&client, &asking, args).await?);
    for _ in 1..ATTEMPTS {
        if report.is_known() {
            break;
        }
        report = Report::of(read::facts(&client, &asking, args).await?);
    }
    Ok(report)
}
