//! The command line `netclaimctl`, also installed as the kubectl plugin `kubectl-netclaim`.
//!
//! ```text
//!   command line, environment ──> netclaim_cnitool ──> CNI plugins, cache of attachments
//!   API server ─────────────────> status, attachments, template-slices
//!   API server <────────────────> attach, detach
//!   API server ─────────────────> bugreport ──> an archive
//!   API server, files ──────────> migrate ────> YAML, or with --apply the API server
//!   API server ─────────────────> explain ────> netclaim_allocation: why a claim is not allocated
//!     └─ exec in agents' pods ──> explain network: what a node would do for a pod
//!                              ├> who: which pods have and had an address
//!                              ├> ping: what the network passes between nodes or pods
//!                              └> capture: what passes through an interface of a pod
//!   files ──────────────────────> validate ───> netclaim_validation: what is wrong with objects
//! ```
//!
//! Invariants:
//! * Standard output has results only, so that programs can read them; messages for people go to standard
//!   error.
//! * `netclaimctl cni` accepts the command line and environment of cnitool, and prints what cnitool prints.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::cluster::Connection;
use self::colour::Colours;

mod asking;
pub mod attachments;
pub mod bugreport;
pub mod capture;
mod claimed;
pub mod cluster;
pub mod colour;
pub mod completion;
mod components;
mod documents;
pub mod explain;
mod files;
pub mod hot_attach;
mod kinds;
pub mod migrate;
#[cfg(test)]
mod mock;
pub mod ping;
mod print;
mod printable;
pub mod proxy;
mod slices;
pub mod status;
mod table;
pub mod template_slices;
mod trim;
pub mod validate;
pub mod who;

/// The end of a command's help: what it exits with.
macro_rules! exit_codes {
    ($success:literal, $failure:literal) => {
        concat!(
            "Exit codes:\n",
            "  0    ",
            $success,
            "\n  1    ",
            $failure,
            "\n  2    the command line is wrong\n",
            "  130  interrupted"
        )
    };
}
pub(crate) use exit_codes;

/// Looks at netclaim and runs CNI plugins by hand.
#[derive(Debug, Parser)]
#[command(name = "netclaimctl", version, after_help = exit_codes!("success", "failure"))]
pub struct Cli {
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// A group of commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists which networks pods have now, with addresses, nodes, and what is not ready.
    #[command(after_help = exit_codes!("the attachments are printed, or there are none", "the claims or the pod cannot be read"))]
    Attachments(attachments::Args),
    /// Packs what a maintainer needs to find a bug into an archive: objects, events, logs and versions.
    /// Secrets are removed as far as they are recognised.
    #[command(after_help = exit_codes!(
        "the archive is written; its README says what could not be read",
        "nothing can be read, or the archive cannot be written"
    ))]
    Bugreport(bugreport::Args),
    /// Runs CNI networks on this node, checks their configurations, shows their attachments.
    #[command(after_help = exit_codes!("success", "the operation has failed, or a configuration has an error"))]
    Cni(netclaim_cnitool::Args),
    /// Prints a completion script for a shell.
    Completion(completion::Args),
    /// Says why a pod waits for its networks, or what it has, and what a network would give a pod.
    #[command(after_help = exit_codes!("the object is explained", "the object cannot be read"))]
    Explain(explain::Args),
    /// Says what a network passes between nodes, also before its first pod, or between pods: VLAN, MAC
    /// addresses, MTU, and addresses that are used twice. The agents send probes to each other for 4 s.
    #[command(after_help = exit_codes!(
        "everything passes",
        "something does not pass, or that is not known, or the cluster cannot be read"
    ))]
    Ping(ping::Args),
    /// Shows networks, nodes, what of them is used, and what is wrong on the cluster.
    #[command(after_help = exit_codes!("all is well", "something is wrong, or the cluster cannot be read"))]
    Status(status::Args),
    /// Prints what a node group's template needs, so that an autoscaler knows what a new node would offer of
    /// ClaimNetworks.
    #[command(after_help = exit_codes!(
        "the ResourceSlices and labels are printed",
        "no node publishes the ClaimNetworks, or the cluster cannot be read"
    ))]
    TemplateSlices(template_slices::Args),
    /// Says what is wrong with ClaimNetworks, classes, claims and policies in files, without a cluster.
    #[command(after_help = exit_codes!("nothing is wrong", "something is wrong, or a file cannot be read"))]
    Validate(validate::Args),
    /// Says which pod has an address now, since when, and which pods had it before.
    #[command(after_help = exit_codes!("what is known is printed", "the cluster cannot be read"))]
    Who(who::Args),
    /// Gives a pod that runs the networks of a ResourceClaimTemplate, by a NetworkAttachment.
    #[command(after_help = exit_codes!(
        "the NetworkAttachment is created, and with --wait the pod is attached",
        "it cannot be created, or the pod is not attached in time"
    ))]
    Attach(hot_attach::AttachArgs),
    /// Takes the networks of a NetworkAttachment from its pod.
    #[command(after_help = exit_codes!(
        "the NetworkAttachment is deleted, and with --wait gone",
        "it cannot be deleted, or is not gone in time"
    ))]
    Detach(hot_attach::DetachArgs),
    /// Copies what passes through an interface of a pod, in the format of tcpdump.
    ///
    /// The agent of the pod's node must allow it (agent.allowCapture), and an event on the pod says so.
    #[command(after_help = exit_codes!("the capture has ended", "nothing can be captured"))]
    Capture(capture::Args),
    /// Translates what Multus reads into ClaimNetworks, classes, claim templates and patches.
    #[command(after_help = exit_codes!(
        "everything is translated, and with --apply applied",
        "something cannot be translated, applied or read"
    ))]
    Migrate(migrate::Args),
    /// Writes a manual page for each command.
    #[command(hide = true)]
    Man {
        /// The folder, which must exist
        folder: PathBuf,
    },
}

impl Command {
    /// The flags that choose the cluster of the command, if it asks one.
    fn connection(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Attach(args) => Some(&mut args.waiting.connection),
            Self::Attachments(args) => Some(&mut args.connection),
            Self::Detach(args) => Some(&mut args.waiting.connection),
            Self::Bugreport(args) => Some(&mut args.connection),
            Self::Explain(args) => Some(&mut args.connection),
            Self::Ping(args) => Some(&mut args.connection),
            Self::Status(args) => Some(&mut args.connection),
            Self::TemplateSlices(args) => Some(&mut args.connection),
            Self::Capture(args) => Some(&mut args.connection),
            Self::Who(args) => Some(&mut args.connection),
            Self::Migrate(args) => match &mut args.command {
                Some(migrate::Command::Whereabouts(args)) => Some(&mut args.connection),
                None => Some(&mut args.connection),
            },
            Self::Cni(_) | Self::Completion(_) | Self::Validate(_) | Self::Man { .. } => None,
        }
    }

    /// Whether a signal ends the command by itself: it waits for nothing but files and standard input, whose
    /// reads cannot be cancelled, or it listens for signals.
    pub fn is_ended_by_signals(&self) -> bool {
        match self {
            Self::Cni(_) | Self::Completion(_) | Self::Man { .. } | Self::Validate(_) => true,
            Self::Migrate(args) => !args.files.is_empty(),
            Self::Attach(_)
            | Self::Attachments(_)
            | Self::Detach(_)
            | Self::Bugreport(_)
            | Self::Explain(_)
            | Self::Ping(_)
            | Self::Status(_)
            | Self::TemplateSlices(_)
            | Self::Capture(_)
            | Self::Who(_) => false,
        }
    }
}

/// Returns the definition of the command line. A command that says no exit codes of its own has those of its
/// parent.
pub fn command() -> clap::Command {
    with_exit_codes(Cli::command(), None)
}

fn with_exit_codes(command: clap::Command, inherited: Option<&StyledStr>) -> clap::Command {
    let Some(codes) = command.get_after_help().or(inherited).cloned() else { return command };
    command.after_help(codes.clone()).mut_subcommands(|command| with_exit_codes(command, Some(&codes)))
}

impl Cli {
    /// Parses the command line and environment. Exits if they are wrong or ask for help.
    pub fn from_command_line() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let matches = command().bin_name(shown_name(&program)).get_matches();
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
    let Cli { connection: before, mut command } = cli;
    if let Some(connection) = command.connection() {
        connection.inherit(before);
    }
    match command {
        Command::Attach(args) => hot_attach::attach(args, out, err).await,
        Command::Attachments(args) => attachments::run(args, out, err, colours).await,
        Command::Detach(args) => hot_attach::detach(args, out, err).await,
        Command::Bugreport(args) => bugreport::run(args, out, err).await,
        Command::Cni(args) => netclaim_cnitool::run("netclaimctl", args, out, err).await,
        Command::Completion(args) => completion::run(&args, out),
        Command::Explain(args) => explain::run(args, out, err).await,
        Command::Ping(args) => ping::run(args, out, err, colours).await,
        Command::Status(args) => status::run(args, out, err, colours).await,
        Command::TemplateSlices(args) => template_slices::run(args, out, err).await,
        Command::Validate(args) => validate::run(&args, out, err),
        Command::Capture(args) => capture::run(args, out, err).await,
        Command::Who(args) => who::run(args, out, err, colours).await,
        Command::Migrate(args) => migrate::run(args, out, err).await,
        Command::Man { folder } => match clap_mangen::generate_to(self::command(), &folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => print::failed(err, format_args!("cannot write into {}: {error}", folder.display())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn commands_that_ask_a_cluster_are_not_ended_by_signals_themselves() {
        let is_ended = |line: &[&str]| {
            let line = ["netclaimctl"].iter().chain(line);
            Cli::try_parse_from(line).unwrap().command.is_ended_by_signals()
        };
        for line in [
            &["validate", "-f", "-"][..],
            &["migrate", "-f", "a.yaml"],
            &["completion", "bash"],
            &["cni", "add", "net", "a"],
        ] {
            assert!(is_ended(line), "{line:?}");
        }
        for line in [&["status"][..], &["migrate"], &["bugreport"], &["template-slices", "storage"]] {
            assert!(!is_ended(line), "{line:?}");
        }
    }

    #[test]
    fn flags_of_the_cluster_are_accepted_before_and_after_the_command() {
        let of = |line: &[&str]| {
            let Cli { connection: before, mut command } =
                Cli::try_parse_from(["netclaimctl"].iter().chain(line)).unwrap();
            let connection = command.connection().unwrap();
            connection.inherit(before);
            std::mem::take(connection)
        };
        for line in [
            &["--context", "x", "--as", "jane", "--as-group=a", "status"][..],
            &["status", "--context", "x", "--as=jane", "--as-group", "a"],
            &["--context=y", "--as-group=a", "explain", "pod/web", "--as=jane", "--context=x"],
            &["--context=x", "--as=jane", "--as-group=a", "migrate", "whereabouts"],
            &["--as=jane", "migrate", "--context=x", "--as-group=a"],
            &["--as=jane", "template-slices", "storage", "--context=x", "--as-group=a"],
        ] {
            let connection = of(line);
            assert_eq!(connection.context.as_deref(), Some("x"), "{line:?}");
            assert_eq!(connection.user.as_deref(), Some("jane"), "{line:?}");
            assert_eq!(connection.groups, ["a"], "{line:?}");
        }
    }

    #[test]
    fn objects_are_explained_by_every_name_of_their_type() {
        let of = |line: &[&str]| {
            let line = ["netclaimctl", "explain"].iter().chain(line);
            let Command::Explain(args) = Cli::try_parse_from(line).ok()?.command else { return None };
            args.first.object(args.name.as_deref()).ok()
        };
        let (pod, claim) = (explain::Object::Pod("web".to_owned()), explain::Object::Claim("web".to_owned()));
        for line in [
            &["pod", "web"][..],
            &["po", "web"],
            &["Pods", "web"],
            &["pod/web"],
            &["-n", "shop", "po/web", "--details"],
            &["pod", "-n", "shop", "web"],
        ] {
            assert_eq!(of(line).as_ref(), Some(&pod), "{line:?}");
        }
        for line in
            [&["claim", "web"][..], &["resourceclaim", "web"], &["resourceclaims/web"], &["claim/web"]]
        {
            assert_eq!(of(line).as_ref(), Some(&claim), "{line:?}");
        }
        let network = explain::Object::Network("web".to_owned());
        for line in [&["network", "web"][..], &["claimnetworks/web"], &["network/web", "--node", "a"]] {
            assert_eq!(of(line).as_ref(), Some(&network), "{line:?}");
        }
        for line in [&["pod"][..], &["pod/"], &["pod/web", "x"], &["web"], &["node", "a"], &["node/a"], &[]] {
            assert_eq!(of(line), None, "{line:?}");
        }
    }

    #[test]
    fn the_namespace_of_netclaim_has_one_name_in_all_commands() {
        let of =
            |line: &[&str]| match Cli::try_parse_from(["netclaimctl"].iter().chain(line)).unwrap().command {
                Command::Status(args) => args.netclaim_namespace,
                Command::Bugreport(args) => args.netclaim_namespace,
                Command::Explain(args) => args.netclaim_namespace,
                other => panic!("{other:?}"),
            };
        for command in [&["status"][..], &["bugreport"], &["explain", "pod/web"]] {
            assert_eq!(of(&[command, &["--netclaim-namespace", "x"]].concat()), "x");
        }
        for flag in ["-n", "--namespace"] {
            assert_eq!(of(&["status", flag, "x"]), "x");
            assert_eq!(of(&["bugreport", flag, "x"]), "x");
        }
    }

    #[test]
    fn every_command_says_its_exit_codes() {
        let command = command();
        for path in [
            &["status"][..],
            &["cni", "add"],
            &["template-slices"],
            &["completion"],
            &["migrate", "whereabouts"],
        ] {
            let found = path.iter().try_fold(&command, |command, name| command.find_subcommand(name));
            let codes = found.unwrap().get_after_help().unwrap().to_string();
            for line in [
                "Exit codes:",
                "  0    ",
                "  1    ",
                "  2    the command line is wrong",
                "  130  interrupted",
            ] {
                assert!(codes.contains(line), "{path:?}: {codes}");
            }
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(command(), &folder).unwrap();
        for page in ["netclaimctl.1", "netclaimctl-status.1", "netclaimctl-cni-add.1"] {
            let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
            assert!(text.contains("Exit codes:"), "{text}");
        }
        assert!(!folder.path().join("netclaimctl-man.1").exists(), "the command is hidden");
    }

    #[test]
    fn a_kubectl_plugin_shows_itself_as_one() {
        assert_eq!(shown_name("/usr/bin/kubectl-netclaim"), "kubectl netclaim");
        assert_eq!(shown_name("./netclaimctl"), "netclaimctl");
    }
}
