//! `netclaimctl validate`: what is wrong with the objects in files, before they are applied. It asks no
//! cluster.
//!
//! ```text
//!   files ── read ──> objects ── netclaim_validation::review_set ──> report ──> lines, or JSON
//! ```

mod report;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use netclaim_api::DRIVER_NAME;

use self::report::Report;
use crate::files;
use crate::print::{failed, json};

/// `netclaimctl validate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or directories to look at; `-` is standard input. May be repeated
    #[arg(long = "filename", short = 'f', value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Look into the directories of directories, too
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// How to print what is wrong
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Exit with 1 also if there are only warnings
    #[arg(long)]
    pub strict: bool,
    /// The driver's name, if netclaim is installed under another one
    #[arg(long, value_name = "NAME", default_value = DRIVER_NAME)]
    pub driver_name: String,
}

/// A form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A line for each problem, FILE: KIND/NAME: FIELD: PROBLEM
    Text,
    /// Every object with its problems, for programs
    Json,
}

/// Prints what is wrong. Fails if anything is.
pub fn run(args: &Args, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    let report = Report::of(files::read(&args.files, args.recursive), &args.driver_name);
    // A reader that has closed the pipe has what it wants.
    match args.output {
        Output::Text => {
            let _ = write!(out, "{report}");
            let _ = writeln!(err, "netclaimctl: {}", report.summary());
        }
        Output::Json => match json(&report) {
            Ok(json) => drop(out.write_all(json.as_bytes())),
            Err(error) => return failed(err, error),
        },
    }
    if report.is_fine(args.strict) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
