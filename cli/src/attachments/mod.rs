//! `netclaimctl attachments`: which networks pods have now.
//!
//! ```text
//!   API server ── claims ──> attachments ── pods, slices: what claims do not say ──┬──> a table, JSON or YAML
//!              └─ exec in agents' pods ──> what they receive and send ─────────────┘
//! ```
//!
//! It reads, with the rights of the user who runs it: to list the claims of a namespace is enough for the
//! table.

mod attachment;
mod rate;
mod read;
mod traffic;

use std::io::Write;
use std::process::ExitCode;

use netclaim_cni::error_chain;

pub(crate) use self::attachment::Attachment;
use self::attachment::Columns;
pub(crate) use self::read::{Chosen, Found, find};
use crate::cluster::Connection;
use crate::colour::Colours;
use crate::kinds::yaml;
use crate::print::{failed, json, say_notes};
use crate::table::table;

/// `netclaimctl attachments`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shows one pod [default: all pods of the namespace]
    pub pod: Option<String>,
    /// Shows one namespace [default: that of the context]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Shows all namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["namespace", "pod"])]
    pub all_namespaces: bool,
    /// Shows the pods of one node
    #[arg(long)]
    pub node: Option<String>,
    /// Shows one ClaimNetwork
    #[arg(long)]
    pub network: Option<String>,
    /// Shows what each attachment receives and sends, in bit/s, beside the bandwidth that its claim was
    /// granted. The agents measure it for a second (pods/exec)
    #[arg(long)]
    pub traffic: bool,
    /// The namespace in which netclaim is installed
    #[arg(long, default_value = "netclaim-system")]
    pub netclaim_namespace: String,
    /// How to print the attachments
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

/// A form of the attachments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For people, with MAC address, link, claim and message
    Wide,
    /// For programs, with everything
    Json,
    /// For programs, with everything
    Yaml,
}

impl Args {
    /// What is read where the context has this namespace.
    fn chosen(&self, of_context: &str) -> Chosen {
        let namespace = self.namespace.as_deref().unwrap_or(of_context).to_owned();
        Chosen {
            namespace: Some(namespace).filter(|_| !self.all_namespaces),
            pod: self.pod.clone(),
            node: self.node.clone(),
            network: self.network.clone(),
            has_links: self.output != Output::Table,
        }
    }
}

/// Prints the attachments. Fails if the claims cannot be read, and if there is no such pod.
pub async fn run(
    args: Args,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
    colours: Colours,
) -> ExitCode {
    let found = match found(&args).await {
        Ok(found) => found,
        Err(error) => return failed(err, error_chain(&error)),
    };
    say_notes(err, &found.notes);
    let is_table = matches!(args.output, Output::Table | Output::Wide);
    if found.attachments.is_empty() && is_table {
        let _ = writeln!(err, "{}", nothing(&args, found.namespace.as_deref()));
        return ExitCode::SUCCESS;
    }
    match text(&found, &args, colours) {
        // A reader that has closed the pipe has what it wants.
        Ok(text) => drop(out.write_all(text.as_bytes())),
        Err(error) => return failed(err, error),
    }
    ExitCode::SUCCESS
}

async fn found(args: &Args) -> Result<Found, crate::cluster::ReadError> {
    let client = args.connection.client().await?;
    let chosen = args.chosen(client.default_namespace());
    let mut found = find(&client, &chosen, |_| true).await?;
    if args.traffic && !found.attachments.is_empty() {
        let asking = args.connection.client_without_retries().await?;
        traffic::add(&client, &asking, &args.netclaim_namespace, &chosen, &mut found).await?;
    }
    Ok(found)
}

/// What kubectl says when it finds nothing, and what else to say of one pod.
fn nothing(args: &Args, namespace: Option<&str>) -> String {
    match (&args.pod, namespace) {
        (Some(pod), Some(namespace)) => format!(
            "pod {namespace}/{pod} has no such attachment: netclaimctl explain pod {pod} --namespace {namespace}"
        ),
        (_, Some(namespace)) => format!("No resources found in {namespace} namespace."),
        (_, None) => "No resources found".to_owned(),
    }
}

fn text(found: &Found, args: &Args, colours: Colours) -> Result<String, String> {
    let object = || serde_json::json!({"attachments": found.attachments});
    match args.output {
        Output::Table | Output::Wide => {
            let columns = Columns {
                namespaces: found.namespace.is_none(),
                traffic: args.traffic,
                wide: args.output == Output::Wide,
            };
            let rows = found.attachments.iter().map(|attachment| attachment.cells(columns));
            Ok(table(&Attachment::head(columns), rows, colours))
        }
        Output::Json => json(&object()),
        Output::Yaml => yaml([&object()]),
    }
}

#[cfg(test)]
mod tests;
