//! `netclaimctl migrate`: Networks, classes, claim templates and patches instead of what Multus reads.
//!
//! ```text
//!   files, API server ── read ──> input ── translate (pure) ──> migration ──> YAML, and a report
//!                                   └───── takeover ──> AddressLeases
//! ```
//!
//! Invariants:
//! * It writes nothing but its output; `whereabouts --apply` creates AddressLeases and AddressPools.
//! * Each field of a NetworkAttachmentDefinition and of a pod's annotation is translated or dropped with a note; or what has it is
//!   refused with the field. A workload is translated whole or not at all.
//! * What it prints passes the checks of controller and agent, which are the same code.
//! * What an earlier run has permitted to namespaces and claims stays. Objects of somebody else stay as they are.
//! * Equal input gives equal output, in whatever order it comes.
//!
//! The formats are those of Multus 4.2 and of the Network Plumbing Working Group's standard 1.3.

mod annotation;
mod existing;
mod input;
mod names;
mod network;
mod plugins;
mod read;
mod report;
mod takeover;
mod translate;
mod whereabouts;
mod workload;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use netclaim_api::addresses::Span;
use netclaim_cni::error_chain;

use self::input::Input;
use self::read::ReadError;
use self::report::Migration;
use self::whereabouts::HandedOver;
use crate::cluster::Connection;
use crate::exit_codes;
use crate::kinds::yaml;
use crate::print::{failed, json};

/// `netclaimctl migrate`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Another part of a migration.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Read files instead of a cluster; `-` is standard input
    #[arg(long = "filename", short = 'f', value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Translate one namespace [default: the one of the context; with files, all of them]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Translate all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Addresses that every NetworkAttachmentDefinition with whereabouts excludes: Networks hand them out. Such as
    /// 10.20.2.0/23 or 10.20.2.0-10.20.2.99
    #[arg(long, value_name = "ADDRESSES", value_parser = span)]
    pub handed_over: Vec<Span>,
    /// Networks hand out all that whereabouts handed out: it is stopped, and what pods have is leased (see the command whereabouts)
    #[arg(long, conflicts_with = "handed_over")]
    pub taken_over: bool,
    /// How to print the translation: YAML to apply, with a report on standard error; or JSON with everything
    #[arg(long, short, value_enum, default_value_t = Output::Yaml)]
    pub output: Output,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

/// Parts of a migration beside the translation.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Takes the address ranges of whereabouts over, with the addresses that pods have. Shows what it would lease; --apply does it.
    #[command(after_help = exit_codes!(
        "everything can be taken over, or is",
        "a pool cannot be taken over, whereabouts is not stopped, or the cluster cannot be read"
    ))]
    Whereabouts(takeover::Args),
}

/// A form of the translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// What to apply
    Yaml,
    /// Everything, for programs
    Json,
}

fn span(text: &str) -> Result<Span, String> {
    text.parse().map_err(|error: netclaim_api::Invalid| error.to_string())
}

/// Prints the translation. Fails if something cannot be translated or read.
pub async fn run(args: Args, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    if let Some(Command::Whereabouts(args)) = &args.command {
        return takeover::run(args, out, err).await;
    }
    let migration = match migration(&args).await {
        Ok(migration) => migration,
        Err(error) => return failed(err, error_chain(&error)),
    };
    let text = match args.output {
        Output::Yaml => yaml(&migration.objects),
        Output::Json => json(&migration),
    };
    match text {
        // A reader that has closed the pipe has what it wants.
        Ok(text) => drop(out.write_all(text.as_bytes())),
        Err(error) => return failed(err, error),
    }
    if migration.is_empty() {
        let _ = writeln!(
            err,
            "netclaimctl: no NetworkAttachmentDefinition and no pod with networks is in this namespace"
        );
    } else if args.output == Output::Yaml {
        let _ = write!(err, "{migration}");
    }
    if migration.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn migration(args: &Args) -> Result<Migration, ReadError> {
    let (input, context) = if args.files.is_empty() {
        let (objects, namespace) = read::cluster(&args.connection).await?;
        (Input::of(objects, "default", true), Some(namespace))
    } else {
        let namespace = args.namespace.as_deref().unwrap_or("default");
        (Input::of(read::files(&args.files)?, namespace, false), None)
    };
    let namespace = args.namespace.clone().or(context).filter(|_| !args.all_namespaces);
    let handed_over =
        if args.taken_over { HandedOver::All } else { HandedOver::Parts(args.handed_over.clone()) };
    Ok(translate::migrate(&input, namespace.as_deref(), &handed_over))
}
