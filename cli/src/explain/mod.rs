//! `netclaimctl explain`: why a pod waits for its networks, or what it has; what a ClaimNetwork would give a
//! pod on a node; and why a NetworkAttachment waits.
//!
//! ```text
//!   API server ── the pod, its claims ──> what else is needed ──> facts ──> explanation (pure) ──> text, or JSON
//!                                                                              │
//!                                     netclaim_allocation: one node after another ┘
//! ```
//!
//! It reads, with the rights of the user who runs it. What it may not read is said, with what is unknown
//! because of it.

mod dry_run;
mod explanation;
mod facts;
mod networks;
mod object;
mod primary;
mod read;
mod starting;
mod text;

use std::io::Write;
use std::process::ExitCode;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use netclaim_cni::error_chain;

use self::explanation::Explanation;
pub use self::object::{First, Object};
use crate::cluster::{Connection, ReadError};
use crate::print::{failed, json};

/// `netclaimctl explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The type of the object: pod (po), claim (resourceclaim), network (claimnetwork), or attachment
    /// (networkattachment). Also TYPE/NAME
    #[arg(value_name = "TYPE", add = ArgValueCandidates::new(types))]
    pub first: First,
    /// The object's name
    pub name: Option<String>,
    /// The object's namespace [default: that of the context]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Of a network: shows what an attachment would be on this node, whose agent answers by a program in its
    /// pod (pods/exec). Without it, all nodes in short
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Of a pod or claim: shows every node and every device that was looked at
    #[arg(long)]
    pub details: bool,
    /// How to print the explanation
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// The namespace in which netclaim is installed
    #[arg(long, default_value = "netclaim-system")]
    pub netclaim_namespace: String,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

fn types() -> Vec<CompletionCandidate> {
    let candidate =
        |name: &'static str, help: &'static str| CompletionCandidate::new(name).help(Some(help.into()));
    vec![
        candidate("pod", "Says why a pod waits, why it does not start, or which networks it has"),
        candidate("claim", "Says why a ResourceClaim is not allocated, or what it has"),
        candidate("network", "Says what a ClaimNetwork would give a pod on each node"),
        candidate("attachment", "Says why a NetworkAttachment waits, or what its pod has by it"),
    ]
}

/// The exit code of a command line that is wrong, as clap has it.
const WRONG_LINE: u8 = 2;

/// A form of the explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For programs, with all details
    Json,
}

/// Prints the explanation. Fails if the object cannot be read.
pub async fn run(args: Args, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    let object = match args.first.object(args.name.as_deref()) {
        Ok(object) => object,
        Err(error) => {
            failed(err, error);
            return ExitCode::from(WRONG_LINE);
        }
    };
    if args.node.is_some() && !matches!(object, Object::Network(_)) {
        failed(err, "--node is for networks: write network NAME, or leave it out");
        return ExitCode::from(WRONG_LINE);
    }
    match text(&object, &args).await {
        Ok(text) => {
            // A reader that has closed the pipe has what it wants.
            let _ = out.write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => failed(err, error),
    }
}

/// Returns what is printed.
///
/// # Errors
/// Says why the object cannot be explained.
async fn text(object: &Object, args: &Args) -> Result<String, String> {
    let unread = |error: ReadError| error_chain(&error);
    let facts = match object {
        Object::Pod(name) => read::of_pod(name, args).await.map_err(unread)?,
        Object::Claim(name) => read::of_claim(name, args).await.map_err(unread)?,
        Object::Attachment(name) => read::of_attachment(name, args).await.map_err(unread)?,
        Object::Network(name) => {
            let report = dry_run::report(name, args).await.map_err(unread)?;
            return match args.output {
                Output::Text => Ok(report.text(args.node.is_some())),
                Output::Json => json(&report),
            };
        }
    };
    let explanation = Explanation::of(&facts, args.details || args.output == Output::Json);
    match args.output {
        Output::Text => Ok(explanation.text(args.details)),
        Output::Json => json(&explanation),
    }
}

#[cfg(test)]
mod tests;
