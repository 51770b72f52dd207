//! The command line `netclaimctl`, also installed as the kubectl plugin `kubectl-netclaim`.
//!
//! ```text
//!   command line, environment ──> settings ──┐
//!   network configurations ─────> networks ──┴──> netclaim_cni ──> CNI plugins, cache of attachments
//!   API server ─────────────────> status, attachments
//!   API server ─────────────────> bugreport ──> an archive without secrets
//!   API server, files ──────────> migrate
//!   API server ─────────────────> explain ────> netclaim_allocation: why a claim is not allocated
//!   files ──────────────────────> validate ───> netclaim_validation: what is wrong with objects
//! ```
//!
//! Invariants:
//! * Standard output has results only, so that programs can read them; messages for people go to standard error.
//! * `netclaimctl cni` accepts the command line and environment of cnitool, and prints what cnitool prints.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::colour::Colours;

pub mod attachments;
pub mod bugreport;
pub mod cluster;
pub mod cni;
pub mod colour;
mod components;
mod documents;
pub mod explain;
mod kinds;
pub mod migrate;
#[cfg(test)]
mod mock;
mod printable;
pub mod status;
mod table;
pub mod validate;

/// Looks at netclaim and runs CNI plugins by hand.
#[derive(Debug, Parser)]
#[command(name = "netclaimctl", version)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// A group of commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists which networks pods have now, with addresses, nodes, and what is not ready.
    Attachments(attachments::Args),
    /// Packs what a maintainer needs to find a bug into an archive: objects, events, logs and versions, without secrets.
    Bugreport(bugreport::Args),
    /// Runs CNI networks on this node, checks their configurations, shows their attachments.
    Cni(cni::Args),
    /// Says why a pod waits for its networks, or what it has.
    Explain(explain::Args),
    /// Shows networks, nodes, what of them is used, and what is wrong on the cluster. Exits with 1 if something is.
    Status(status::Args),
    /// Says what is wrong with Networks, classes, claims and policies in files, without a cluster. Exits with 1 if something is, and
    /// with 2 if the command line is wrong.
    Validate(validate::Args),
    /// Translates what Multus reads into Networks, classes, claim templates and patches. Exits with 1 if something cannot be
    /// translated.
    Migrate(migrate::Args),
}

impl Cli {
    /// Parses the command line and environment. Exits if they are wrong or ask for help.
    pub fn from_command_line() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let matches = Self::command().bin_name(shown_name(&program)).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Returns what the user typed: kubectl runs `kubectl-netclaim` for `kubectl netclaim`.
fn shown_name(program: impl AsRef<Path>) -> &'static str {
    match program.as_ref().file_name() {
        Some(name) if name == "kubectl-netclaim" => "kubectl netclaim",
        _ => "netclaimctl",
    }
}

/// Runs the command. Its texts for people have these colours.
pub async fn run(
    cli: Cli,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
    colours: Colours,
) -> ExitCode {
    match cli.command {
        Command::Attachments(args) => attachments::run(args, out, err, colours).await,
        Command::Bugreport(args) => bugreport::run(args, out, err).await,
        Command::Cni(args) => cni::run(args, out, err).await,
        Command::Explain(args) => explain::run(args, out, err).await,
        Command::Status(args) => status::run(args, out, err, colours).await,
        Command::Validate(args) => validate::run(&args, out, err),
        Command::Migrate(args) => migrate::run(args, out, err).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_kubectl_plugin_shows_itself_as_one() {
        assert_eq!(shown_name("/usr/bin/kubectl-netclaim"), "kubectl netclaim");
        assert_eq!(shown_name("./netclaimctl"), "netclaimctl");
    }
}
