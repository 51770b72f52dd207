//! `netclaimctl status`: what netclaim has on the cluster, who uses it, and what is wrong.
//!
//! ```text
//!   API server ── lists ──────────────────────────> snapshot ──> report, node (pure) ──> a table, or JSON
//!              └─ proxy ──> agents with a problem ──┘                └─> picture (pure) ──> SVG, dot, Mermaid
//! ```
//!
//! It reads, and needs the rights of somebody who may read all namespaces' claims. Without the right to ask
//! agents it says what is not known.

mod agents;
mod lacks;
mod node;
mod older;
mod owed;
mod picture;
mod refused;
mod report;
mod samples;
mod snapshot;

use std::io::Write;
use std::process::ExitCode;

use kube::{Client, ResourceExt as _};
use netclaim_cni::error_chain;

use self::node::NodeReport;
use self::picture::Picture;
use self::report::{Report, questions};
use self::snapshot::Snapshot;
use crate::cluster::{Connection, ReadError};
use crate::colour::Colours;
use crate::print::{failed, json};

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
    #[arg(long, visible_alias = "namespace", short = 'n', default_value = "netclaim-system")]
    pub netclaim_namespace: String,
    /// Show this node: its devices, which program each CNI plugin is, and what it lacks
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// A form of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For programs
    Json,
    /// A picture of the whole cluster, for browsers
    Svg,
    /// The same picture in the language of Graphviz
    Dot,
    /// The same picture in the language of Mermaid
    Mermaid,
}

/// Prints the status. Fails if something is wrong, and if the cluster cannot be read.
pub async fn run(
    args: Args,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
    colours: Colours,
) -> ExitCode {
    let shown = match shown(&args, colours).await {
        Ok(shown) => shown,
        Err(error) => return failed(err, error_chain(&error)),
    };
    // A reader that has closed the pipe has what it wants.
    let _ = out.write_all(shown.text.as_bytes());
    if shown.is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
enum StatusError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("there is no node {0}")]
    NoNode(String),
    #[error("the status cannot be written as JSON: {0}")]
    Json(String),
    #[error("a picture is of the whole cluster: leave out --node, or use --output table or json")]
    PictureOfNode,
}

/// A status as it is printed.
struct Shown {
    text: String,
    is_well: bool,
}

async fn shown(args: &Args, colours: Colours) -> Result<Shown, StatusError> {
    if args.node.is_some() && !matches!(args.output, Output::Table | Output::Json) {
        return Err(StatusError::PictureOfNode);
    }
    let client = args.connection.client().await?;
    let asking = args.connection.client_without_retries().await?;
    match &args.node {
        Some(name) => {
            let report = of_node(&client, &asking, &args.netclaim_namespace, name).await?;
            let text = match args.output {
                Output::Json => json(&report).map_err(StatusError::Json)?,
                _ => report.text(colours),
            };
            Ok(Shown { text, is_well: report.problems.is_empty() })
        }
        None => {
            let (report, snapshot) = of_cluster(&client, &asking, &args.netclaim_namespace).await?;
            let picture = || Picture::of(&report, &snapshot);
            let text = match args.output {
                Output::Table => report.text(colours),
                Output::Json => json(&report).map_err(StatusError::Json)?,
                Output::Svg => picture::svg(&picture()),
                Output::Dot => picture::dot(&picture()),
                Output::Mermaid => picture::mermaid(&picture()),
            };
            Ok(Shown { text, is_well: report.problems.is_empty() })
        }
    }
}

async fn of_cluster(
    client: &Client,
    asking: &Client,
    namespace: &str,
) -> Result<(Report, Snapshot), ReadError> {
    let mut snapshot = snapshot::read(client, namespace).await?;
    let questions = questions(&snapshot);
    snapshot.answers = agents::ask(asking, questions.lack, questions.found).await;
    Ok((Report::of(&snapshot), snapshot))
}

async fn of_node(
    client: &Client,
    asking: &Client,
    namespace: &str,
    name: &str,
) -> Result<NodeReport, StatusError> {
    let mut snapshot: Snapshot = snapshot::read(client, namespace).await?;
    let asked = node::questions(&snapshot, name);
    snapshot.answers = agents::ask(asking, asked.clone(), asked).await;
    let node = snapshot.nodes.iter().find(|node| node.name_any() == name);
    let node = node.ok_or_else(|| StatusError::NoNode(name.to_owned()))?;
    Ok(NodeReport::of(&snapshot, node))
}

/// Returns the status as people see it.
///
/// # Errors
/// Fails if the cluster cannot be read.
pub(crate) async fn text(client: &Client, agents: &Client, namespace: &str) -> Result<String, ReadError> {
    let (report, _) = of_cluster(client, agents, namespace).await?;
    Ok(report.text(Colours::Off))
}

#[cfg(test)]
mod tests;
