//! `netclaimctl who`: which pod has an address now, and which had it before.
//!
//! ```text
//!   API server ── claims ─────────────────────────────> who has it now ─────────┐
//!              ├─ AddressLeases, AddressBlocks ───────> for whom it is kept ────┼──> report (pure)
//!              └─ exec in agents' pods ──> histories ─> since when, and before ─┘
//! ```
//!
//! It reads. Without the right to ask agents it says who has the address now.

mod read;
mod report;

use std::io::Write;
use std::process::ExitCode;

use netclaim_api::history::Subject;
use netclaim_cni::error_chain;

use self::report::Report;
use crate::cluster::{Connection, ReadError};
use crate::colour::Colours;
use crate::print::{Output, failed, say_notes};

/// `netclaimctl who`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An IP address, a MAC address, or a pod: its name, or NAMESPACE/NAME
    #[arg(value_name = "ADDRESS|MAC|POD")]
    pub subject: String,
    /// The pod's namespace [default: that of the context]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Asks the agent of this node only for who had it before
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// How to print what is found
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// The namespace in which netclaim is installed
    #[arg(long, default_value = "netclaim-system")]
    pub netclaim_namespace: String,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

/// Prints who has and had the address. Fails if the cluster cannot be read.
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
    say_notes(err, report.notes());
    // A reader that has closed the pipe has what it wants.
    let _ = out.write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Why nobody can be found.
#[derive(Debug, thiserror::Error)]
enum WhoError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Subject(#[from] netclaim_api::history::InvalidSubject),
}

async fn found(args: &Args) -> Result<Report, WhoError> {
    let client = args.connection.client().await?;
    let subject = subject(args, client.default_namespace())?;
    let asking = args.connection.client_without_retries().await?;
    let facts = read::facts(&client, &asking, subject, args).await?;
    Ok(Report::of(facts))
}

/// What is looked for: a name alone is a pod's.
fn subject(args: &Args, of_context: &str) -> Result<Subject, netclaim_api::history::InvalidSubject> {
    match args.subject.parse() {
        Err(_) if !args.subject.contains('/') => {
            let namespace = args.namespace.as_deref().unwrap_or(of_context);
            format!("{namespace}/{}", args.subject).parse()
        }
        parsed => parsed,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{Cli, Command};

    #[test]
    fn a_name_alone_is_a_pod() {
        let of = |line: &[&str]| {
            let line = ["netclaimctl", "who"].iter().chain(line);
            let Command::Who(args) = Cli::try_parse_from(line).unwrap().command else { panic!("who") };
            subject(&args, "shop").map(|subject| subject.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["web-0"]).unwrap(), "shop/web-0");
        assert_eq!(of(&["web-0", "-n", "bank"]).unwrap(), "bank/web-0");
        assert_eq!(of(&["bank/web-0"]).unwrap(), "bank/web-0");
        assert_eq!(of(&["10.0.0.7"]).unwrap(), "10.0.0.7");
        assert_eq!(of(&["02:00:5e:10:00:01"]).unwrap(), "02:00:5e:10:00:01");
        assert!(of(&["10.0.0.7/24"]).unwrap_err().contains("10.0.0.7/24"));
        assert!(of(&["Web"]).is_err());
    }
}
