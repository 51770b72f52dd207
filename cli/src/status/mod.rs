//! `netclaimctl status`: what netclaim has on the cluster, who uses it, and what is wrong.
//!
//! ```text
//!   API server ── lists ──> snapshot ──> report (pure) ──> a table, or JSON
//! ```
//!
//! It reads, and needs the rights of somebody who may read all namespaces' claims.

mod report;
mod snapshot;

use std::io::Write;
use std::process::ExitCode;

use kube::Client;
use netclaim_cni::error_chain;

use self::report::Report;
use crate::cluster::{Connection, ReadError};
use crate::colour::Colours;

/// `netclaimctl status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How to print the status
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
    /// The namespace in which netclaim is installed
    #[arg(long, short, default_value = "netclaim-system")]
    pub namespace: String,
}

/// A form of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Prints the status. Fails if something is wrong, and if the cluster cannot be read.
pub async fn run(
    args: Args,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
    colours: Colours,
) -> ExitCode {
    let report = match report(&args).await {
        Ok(report) => report,
        Err(error) => {
            let _ = writeln!(err, "netclaimctl: {}", error_chain(&error));
            return ExitCode::FAILURE;
        }
    };
    let text = match args.output {
        Output::Table => report.text(colours),
        Output::Json => match serde_json::to_string_pretty(&report) {
            Ok(json) => json + "\n",
            Err(error) => {
                let _ = writeln!(err, "netclaimctl: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    // A reader that has closed the pipe has what it wants.
    let _ = out.write_all(text.as_bytes());
    if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn report(args: &Args) -> Result<Report, ReadError> {
    let client = args.connection.client().await?;
    Ok(Report::of(&snapshot::read(&client, &args.namespace).await?))
}

/// Returns the status as people see it.
///
/// # Errors
/// Fails if the cluster cannot be read.
pub(crate) async fn text(client: &Client, namespace: &str) -> Result<String, ReadError> {
    Ok(Report::of(&snapshot::read(client, namespace).await?).text(Colours::Off))
}
