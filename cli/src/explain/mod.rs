//! `netclaimctl explain`: why a pod waits for its networks, or what it has.
//!
//! ```text
//!   API server ── the pod, its claims ──> what else is needed ──> facts ──> explanation (pure) ──> text, or JSON
//!                                                                              │
//!                                     netclaim_allocation: one node after another ┘
//! ```
//!
//! It reads, with the rights of the user who runs it. What it may not read is said, with what is unknown
//! because of it.

mod explanation;
mod facts;
mod networks;
mod object;
mod read;
mod starting;
mod text;

use std::io::Write;
use std::process::ExitCode;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use netclaim_cni::error_chain;

use self::explanation::Explanation;
pub use self::object::{First, Object};
use crate::cluster::Connection;
use crate::print::{failed, json};

/// `netclaimctl explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The type of the object: pod (po), or claim (resourceclaim). Also TYPE/NAME
    #[arg(value_name = "TYPE", add = ArgValueCandidates::new(types))]
    pub first: First,
    /// The object's name
    pub name: Option<String>,
    /// The object's namespace [default: that of the context]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Shows every node and every device that was looked at
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
    let facts = match read::facts(&object, &args).await {
        Ok(facts) => facts,
        Err(error) => return failed(err, error_chain(&error)),
    };
    let explanation = Explanation::of(&facts, args.details || args.output == Output::Json);
    let text = match args.output {
        Output::Text => explanation.text(args.details),
        Output::Json => match json(&explanation) {
            Ok(json) => json,
            Err(error) => return failed(err, error),
        },
    };
    // A reader that has closed the pipe has what it wants.
    let _ = out.write_all(text.as_bytes());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests;
