//! `netclaimctl explain network`: what an attachment to a ClaimNetwork would be on each node, before there is
//! a pod.
//!
//! ```text
//!   API server ── the ClaimNetwork, Nodes, slices ──────────────┐
//!              └─ exec in agents' pods ──> what they would do ──┴──> report (pure) ──> text, or JSON
//! ```

mod report;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use netclaim_api::DRIVER_NAME;
use netclaim_api::dry_run::DryRun;
use netclaim_api::network::ClaimNetwork;
use netclaim_api::node_selector::selects_node;
use netclaim_api::question::Answer;

pub(super) use self::report::Report;
use super::Args;
use crate::asking::exec::{NotAsked, exec_all};
use crate::cluster::{ReadError, get, list_kept};
use crate::components::{agents, agents_of};
use crate::trim;

/// What an agent answers.
type Asked = Result<DryRun, NotAsked>;

/// What the report is made of.
struct Facts {
    network: ClaimNetwork,
    nodes: Vec<Node>,
    /// `None` if the user may not read them.
    slices: Option<Vec<ResourceSlice>>,
    /// What agents say, by node. A node without an agent is not there.
    answers: BTreeMap<String, Asked>,
}

/// Reads the cluster and asks the agents.
///
/// # Errors
/// Fails if ClaimNetwork, Nodes or netclaim's Pods cannot be read.
pub(super) async fn report(name: &str, args: &Args) -> Result<Report, ReadError> {
    let client = args.connection.client().await?;
    let network: ClaimNetwork = get(format!("ClaimNetwork {name}"), Api::all(client.clone()), name).await?;
    let nodes = Api::<Node>::all(client.clone());
    let nodes = match &args.node {
        Some(node) => vec![get(format!("node {node}"), nodes, node).await?],
        None => list_kept("Nodes", nodes, &ListParams::default(), trim::node).await?,
    };
    let ours = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}"));
    let slices = match list_kept("ResourceSlices", Api::all(client.clone()), &ours, trim::whole).await {
        Ok(slices) => Some(slices),
        Err(error) if error.is_forbidden() => None,
        Err(error) => return Err(error),
    };
    let pods = agents_of(&client, &args.netclaim_namespace).await?;
    let agents = agents(&pods);
    let is_for = |node: &&Node| selects_node(network.spec.node_selector.as_ref(), node.labels());
    let asked = nodes.iter().filter(is_for);
    let asked = asked.filter_map(|node| agents.get_key_value(node.name_any().as_str()));
    let asked = asked.map(|(node, pod)| (*node, *pod)).collect();
    let client = args.connection.client_without_retries().await?;
    let read = |answer| match answer {
        Answer::DryRun(found) => Some(*found),
        _ => None,
    };
    let answers = exec_all(&client, asked, &["network", name], read).await;
    Ok(Report::of(&Facts { network, nodes, slices, answers }))
}
