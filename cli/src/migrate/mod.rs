//! `netclaimctl migrate`: ClaimNetworks, classes, claim templates and patches instead of what Multus reads.
//!
//! ```text
//!   files, API server ── read ──> input ── translate (pure) ──> migration ──> YAML, and a report
//!                                   │         ▲                     └─ apply ──> the same objects in the cluster
//!                                   │       choice
//!                                   └───── takeover ──> AddressLeases
//! ```
//!
//! Invariants:
//! * It writes nothing but its output. With `--apply`, it creates and updates the objects that it would
//!   print, deletes none, and changes no workload. `whereabouts --apply` creates AddressLeases and
//!   AddressPools.
//! * Each field of a NetworkAttachmentDefinition and of a pod's annotation is translated or dropped with a
//!   note; or what has it is refused with the field. A workload is translated whole or not at all.
//! * What it prints passes the checks of controller and agent, which are the same code.
//! * What an earlier run has permitted to namespaces and claims stays. Objects of other owners stay as they
//!   are.
//! * A ClaimNetwork that exists permits nothing more, and a new one nothing to namespaces that the user did
//!   not name, unless `--widen` says so.
//! * Equal input gives equal output, in whatever order it comes.
//!
//! The formats are those of Multus 4.2 and of the Network Plumbing Working Group's standard 1.3.

mod annotation;
mod apply;
mod choice;
mod existing;
mod input;
mod nad_name;
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
mod fake;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use kube::Client;
use netclaim_api::addresses::Span;
use netclaim_api::labels::LabelSelector;
use netclaim_cni::error_chain;

use self::choice::Choice;
use self::input::Input;
use self::read::ReadError;
use self::report::Migration;
use self::whereabouts::HandedOver;
use crate::cluster::Connection;
use crate::exit_codes;
use crate::kinds::yaml;
use crate::print::{failed, json};
use crate::printable::printable;

/// `netclaimctl migrate`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Another part of a migration.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Read files and directories instead of a cluster; `-` is standard input
    #[arg(long = "filename", short = 'f', value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Look into the directories of directories, too
    #[arg(long, short = 'R', requires = "files")]
    pub recursive: bool,
    /// Create and update the objects by server-side apply, instead of printing them; workloads stay as they
    /// are
    #[arg(long, conflicts_with_all = ["files", "output"])]
    pub apply: bool,
    /// Let the workloads that are translated open ClaimNetworks that exist, and those of other namespaces
    /// than --from: for their namespaces, and for what they set (ips, mac, bandwidth, portMappings,
    /// defaultRoute), which all namespaces of such a ClaimNetwork may set then
    #[arg(long)]
    pub widen: bool,
    /// Translate one namespace [default: the one of the context; with files, all of them]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Translate all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Translate only NetworkAttachmentDefinitions with these labels, such as `import=yes` or `team in (shop,
    /// bank)`
    #[arg(long, short = 'l', value_parser = choice::selector)]
    pub selector: Option<LabelSelector>,
    /// Translate only NetworkAttachmentDefinitions of this namespace; may be repeated [default: of every
    /// namespace]
    #[arg(long, value_name = "NAMESPACE")]
    pub from: Vec<String>,
    /// Addresses that every NetworkAttachmentDefinition with whereabouts excludes: ClaimNetworks hand them
    /// out. Such as 10.20.2.0/23 or 10.20.2.0-10.20.2.99
    #[arg(long, value_name = "ADDRESSES", value_parser = span)]
    pub handed_over: Vec<Span>,
    /// ClaimNetworks hand out all that whereabouts handed out: it is stopped, and what pods have is leased
    /// (see the command whereabouts)
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
    /// Takes the address ranges of whereabouts over, with the addresses that pods have. Shows what it would
    /// lease; --apply does it.
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

impl Args {
    /// Returns where networks were looked for; `context` is the namespace of the cluster's context.
    fn place(&self, context: Option<&str>) -> String {
        let chosen = if self.from.is_empty() && self.selector.is_none() {
            ""
        } else {
            " that --from and --selector choose"
        };
        match self.namespace.as_deref().or(context).filter(|_| !self.all_namespaces) {
            Some(namespace) if context.is_some() => {
                format!("in namespace {namespace}{chosen}: -A looks into all, --context into another cluster")
            }
            Some(namespace) => format!("of namespace {namespace} in the files{chosen}"),
            None if context.is_some() => format!("in the cluster{chosen}: --context looks into another one"),
            None => format!("in the files{chosen}"),
        }
    }

    /// Returns what is translated; `context` is the namespace of the cluster's context.
    fn choice(&self, context: Option<&str>) -> Choice {
        let namespace = self.namespace.as_deref().or(context).filter(|_| !self.all_namespaces);
        Choice {
            namespace: namespace.map(str::to_owned),
            from: self.from.iter().cloned().collect(),
            selector: self.selector.clone().unwrap_or_default(),
            widen: self.widen,
        }
    }
}

/// Prints or applies the translation. Fails if something cannot be translated, applied or read.
pub async fn run(args: Args, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    if let Some(Command::Whereabouts(args)) = &args.command {
        return takeover::run(args, out, err).await;
    }
    let client = if args.files.is_empty() { args.connection.client().await.map(Some) } else { Ok(None) };
    match client {
        Ok(client) => translate(client.as_ref(), &args, out, err).await,
        Err(error) => failed(err, error_chain(&error)),
    }
}

/// Translates once.
async fn translate(
    client: Option<&Client>,
    args: &Args,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> ExitCode {
    let migration = match migration(client, args).await {
        Ok(migration) => migration,
        Err(error) => return failed(err, error_chain(&error)),
    };
    let is_done = match client.filter(|_| args.apply) {
        Some(client) => apply_all(client, &migration, out, err).await,
        None => match args.output.text(&migration) {
            Ok(text) => {
                // A reader that has closed the pipe has what it wants.
                let _ = out.write_all(text.as_bytes());
                true
            }
            Err(error) => return failed(err, error),
        },
    };
    if migration.is_empty() {
        let place = args.place(client.map(Client::default_namespace));
        let _ =
            writeln!(err, "netclaimctl: no NetworkAttachmentDefinition and no pod with networks is {place}");
    } else if args.output == Output::Yaml {
        let _ = write!(err, "{migration}");
    }
    if is_done && migration.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Applies what is translated. Returns whether everything is applied.
async fn apply_all(
    client: &Client,
    migration: &Migration,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> bool {
    let mut is_applied = true;
    for applied in apply::apply(client, &migration.objects.iter().collect::<Vec<_>>()).await {
        let line = printable(&applied.to_string());
        if applied.result.is_ok() {
            let _ = writeln!(out, "{line}");
        } else {
            is_applied = false;
            failed(err, line);
        }
    }
    is_applied
}

impl Output {
    fn text(self, migration: &Migration) -> Result<String, String> {
        match self {
            Self::Yaml => yaml(&migration.objects),
            Self::Json => json(migration),
        }
    }
}

/// Translates what the cluster of the client has, or the files.
async fn migration(client: Option<&Client>, args: &Args) -> Result<Migration, ReadError> {
    let (input, context) = match client {
        Some(client) => {
            let objects = read::objects(client).await?;
            (Input::of(objects, "default", true), Some(client.default_namespace()))
        }
        None => {
            let namespace = args.namespace.as_deref().unwrap_or("default");
            (Input::of(read::from_files(&args.files, args.recursive)?, namespace, false), None)
        }
    };
    let handed_over =
        if args.taken_over { HandedOver::All } else { HandedOver::Parts(args.handed_over.clone()) };
    Ok(translate::migrate(&input, &args.choice(context), &handed_over))
}
