//! `netclaimctl migrate`: Networks, classes, claim templates and patches instead of what Multus reads.
//!
//! ```text
//!   files, API server ── read ──> input ── translate (pure) ──> migration ──> YAML, and a report
//! ```
//!
//! Invariants:
//! * It writes nothing but its output.
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
use crate::cluster::Connection;
use crate::kinds::yaml;

/// `netclaimctl migrate`.
#[derive(Debug, clap::Args)]
pub struct Args {
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
    /// How to print the translation: YAML to apply, with a report on standard error; or JSON with everything
    #[arg(long, short, value_enum, default_value_t = Output::Yaml)]
    pub output: Output,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
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
    let migration = match migration(&args).await {
        Ok(migration) => migration,
        Err(error) => {
            let _ = writeln!(err, "netclaimctl: {}", error_chain(&error));
            return ExitCode::FAILURE;
        }
    };
    let text = match args.output {
        Output::Yaml => yaml(&migration.objects),
        Output::Json => {
            serde_json::to_string_pretty(&migration).map(|json| json + "\n").map_err(|e| e.to_string())
        }
    };
    match text {
        // A reader that has closed the pipe has what it wants.
        Ok(text) => drop(out.write_all(text.as_bytes())),
        Err(error) => {
            let _ = writeln!(err, "netclaimctl: {error}");
            return ExitCode::FAILURE;
        }
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
    Ok(translate::migrate(&input, namespace.as_deref(), &args.handed_over))
}
