//! What a person types: `netclaimctl`, also installed as `kubectl-netclaim`.
//!
//! `netclaimctl cni` runs CNI plugins by hand on a node, with the command line and environment of cnitool.
//!
//! Results go to standard output, for programs too; what is meant for people only goes to standard error.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub mod cni;

/// Looks at netclaim and runs CNI plugins by hand.
#[derive(Debug, Parser)]
#[command(name = "netclaimctl", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs CNI networks on this node, checks their configurations, shows their attachments.
    Cni(cni::Args),
}

impl Cli {
    /// Reads the command line and environment; ends the program where they are wrong, or help was asked for.
    pub fn from_command_line() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let matches = Self::command().bin_name(shown_name(&program)).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// What the user typed to get here: kubectl runs `kubectl-netclaim` for `kubectl netclaim`.
fn shown_name(program: impl AsRef<Path>) -> &'static str {
    match program.as_ref().file_name() {
        Some(name) if name == "kubectl-netclaim" => "kubectl netclaim",
        _ => "netclaimctl",
    }
}

/// Does what the command line asks for.
pub async fn run(cli: Cli, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    match cli.command {
        Command::Cni(args) => cni::run(args, out, err).await,
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
    fn as_a_plugin_of_kubectl_it_shows_itself_as_one() {
        assert_eq!(shown_name("/usr/bin/kubectl-netclaim"), "kubectl netclaim");
        assert_eq!(shown_name("./netclaimctl"), "netclaimctl");
    }
}
