//! `netclaimctl template-slices`: what an autoscaler's template of a new node needs of ClaimNetworks.
//!
//! ```text
//!   API server ── ClaimNetworks, ResourceSlices ──> offers: what each node has of them ──> one of them (pure)
//!                                                                                            │
//!        YAML or JSON <── slices of a node that does not exist yet, labels of its Node <── template (pure)
//! ```
//!
//! It reads, with the rights of the user who runs it: to get ClaimNetworks and AddressPools, and to list
//! ResourceSlices.

mod differences;
mod error;
mod offers;
mod read;
mod template;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;

use kube::Client;
use netclaim_api::NetworkName;
use netclaim_cni::error_chain;
use serde_json::{Value, json};

use self::error::TemplateError;
use self::template::Template;
use crate::cluster::Connection;
use crate::kinds::yaml;
use crate::print::{failed, json as json_text};

/// `netclaimctl template-slices`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The ClaimNetworks of the node group. Name all of them at once: a node has one pool
    #[arg(required = true, value_name = "NETWORK")]
    pub networks: Vec<NetworkName>,
    /// The node whose ResourceSlices are the pattern [default: the first with healthy devices]
    #[arg(long)]
    pub node: Option<String>,
    /// How to print the objects
    #[arg(long, short, value_enum, default_value_t = Output::Yaml)]
    pub output: Output,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

/// A form of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people, a document for each object
    Yaml,
    /// For programs, a List
    Json,
}

/// Prints the objects; notes for people go to standard error. Fails if no node publishes the ClaimNetworks,
/// and if the cluster cannot be read.
pub async fn run(args: Args, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    let template = match connected(&args).await {
        Ok(template) => template,
        Err(error) => return failed(err, error_chain(&error)),
    };
    for note in &template.notes {
        let _ = writeln!(err, "netclaimctl: {note}");
    }
    match text(&template, args.output) {
        // A reader that has closed the pipe has what it wants.
        Ok(text) => drop(out.write_all(text.as_bytes())),
        Err(error) => return failed(err, error),
    }
    ExitCode::SUCCESS
}

async fn connected(args: &Args) -> Result<Template, TemplateError> {
    template(&args.connection.client().await?, args).await
}

async fn template(client: &Client, args: &Args) -> Result<Template, TemplateError> {
    // One that is named twice is one device.
    let names: BTreeSet<&NetworkName> = args.networks.iter().collect();
    let read = read::cluster(client, &names, args.node.as_deref()).await?;
    Template::of(&read, args.node.as_deref())
}

fn text(template: &Template, output: Output) -> Result<String, String> {
    let objects: Vec<Value> = template.objects();
    match output {
        Output::Yaml => yaml(&objects),
        Output::Json => json_text(&json!({"apiVersion": "v1", "kind": "List", "items": objects})),
    }
}

#[cfg(test)]
mod tests;
