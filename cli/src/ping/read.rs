//! Finds out who takes part, and has them probe each other.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::network::ClaimNetwork;
use netclaim_api::node_selector::selects_node;
use netclaim_api::ping::{Endpoint, MAX_ENDPOINTS};
use netclaim_api::question::Answer;
use tokio::time::Instant;

use super::verdict::{Listened, Took};
use super::{Args, PingError};
use crate::asking::exec::exec_all;
use crate::attachments::{self, Chosen};
use crate::cluster::{ReadError, get, list_kept};
use crate::components::{agents, agents_of};
use crate::trim;

/// What the report is made of.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) network: String,
    /// All that were to take part, and what has become of it.
    pub(super) all: Vec<(Endpoint, Took)>,
    /// Whether the user has named them.
    pub(super) are_named: bool,
    pub(super) notes: Vec<String>,
}

/// Reads the cluster and asks the agents.
///
/// # Errors
/// Fails if the cluster cannot be read, and if the ends cannot take part.
pub(super) async fn facts(client: &Client, asking: &Client, args: &Args) -> Result<Facts, PingError> {
    let name = args.network.as_str();
    let network: ClaimNetwork = get(format!("ClaimNetwork {name}"), Api::all(client.clone()), name).await?;
    let nodes = Api::<Node>::all(client.clone());
    let nodes: Vec<Node> = list_kept("Nodes", nodes, &ListParams::default(), trim::node).await?;
    let pods = agents_of(client, &args.netclaim_namespace).await?;
    let agents = agents(&pods);
    let mut notes = Vec::new();
    let endpoints = match (&args.from, &args.to) {
        (Some(from), Some(to)) => {
            let of = async |end: &str| endpoint(client, end, &nodes, args).await;
            between(of(from).await?, of(to).await?)?
        }
        _ => {
            let is_for = |node: &&Node| selects_node(network.spec.node_selector.as_ref(), node.labels());
            let selected = nodes.iter().filter(is_for).map(|node| node.name_any());
            let (with, without): (Vec<_>, Vec<_>) =
                selected.partition(|node| agents.contains_key(node.as_str()));
            let without = without.len();
            if without > 0 {
                notes.push(format!("nodes without an agent of netclaim, which take no part: {without}"));
            }
            all_of(with, &args.network, &mut notes)?
        }
    };
    let asked =
        agents.into_iter().filter(|(node, _)| endpoints.iter().any(|endpoint| endpoint.node == *node));
    let run = fastrand::u64(..).to_string();
    let (vlan, places) =
        (args.vlan.map(|vlan| format!("--vlan={vlan}")), endpoints.iter().map(Endpoint::to_string));
    let words = ["ping".to_owned(), name.to_owned(), format!("--run={run}")];
    let question: Vec<String> = words.into_iter().chain(vlan).chain(places).collect();
    let question: Vec<&str> = question.iter().map(String::as_str).collect();
    let begin = Instant::now();
    let read = |answer| match answer {
        Answer::Ping(probed) => Some((probed, begin.elapsed())),
        _ => None,
    };
    let answers = exec_all(asking, asked.collect(), &question, read).await;
    let all = endpoints.into_iter().enumerate().map(|(place, endpoint)| {
        let took = match answers.get(&endpoint.node) {
            None => Took::no_part("the node has no agent of netclaim"),
            Some(Err(why)) => Took::no_part(why),
            Some(Ok((probed, after))) => {
                let own = probed.iter().find(|probed| probed.place == place).cloned();
                own.map_or_else(|| Took::no_part("its agent says nothing of it"), |own| Took::of(own, *after))
            }
        };
        (endpoint, took)
    });
    Ok(Facts { network: name.to_owned(), all: all.collect(), are_named: args.from.is_some(), notes })
}

impl Took {
    fn no_part(why: impl ToString) -> Self {
        Self::NoPart { why: why.to_string(), is_not_offered: false }
    }

    fn of(probed: netclaim_api::ping::Probed, after: Duration) -> Self {
        match probed.problem {
            Some(why) => Self::NoPart { why, is_not_offered: probed.is_not_offered },
            None => Self::Part(Box::new(Listened { probed, after })),
        }
    }
}

/// Returns the first nodes, and notes that there are more.
fn all_of(
    mut nodes: Vec<String>,
    network: &netclaim_api::NetworkName,
    notes: &mut Vec<String>,
) -> Result<Vec<Endpoint>, PingError> {
    nodes.sort();
    let all = nodes.len();
    if all < 2 {
        return Err(PingError::TooFew(network.clone()));
    }
    if all > MAX_ENDPOINTS {
        notes.push(format!("{MAX_ENDPOINTS} of {all} nodes take part: name others with --from and --to"));
        nodes.truncate(MAX_ENDPOINTS);
    }
    Ok(nodes.into_iter().map(|node| Endpoint { node, pod: None }).collect())
}

/// Returns all that take part for two ends. The nodes of two pods do, too: they say more of what lies
/// between them.
fn between(from: Endpoint, to: Endpoint) -> Result<Vec<Endpoint>, PingError> {
    if from == to {
        return Err(PingError::Same(shown(&from)));
    }
    let own_node = |end: &Endpoint| PingError::OwnNode { pod: shown(end), node: end.node.clone() };
    match (&from.pod, &to.pod) {
        (Some(_), None) if from.node == to.node => return Err(own_node(&from)),
        (None, Some(_)) if from.node == to.node => return Err(own_node(&to)),
        (Some(_), Some(_)) if from.node != to.node => {
            let nodes = [&from, &to].map(|end| Endpoint { node: end.node.clone(), pod: None });
            return Ok([from, to].into_iter().chain(nodes).collect());
        }
        _ => {}
    }
    Ok(vec![from, to])
}

/// How people write one that takes part.
pub(super) fn shown(endpoint: &Endpoint) -> String {
    match &endpoint.pod {
        Some((namespace, pod)) => format!("{namespace}/{pod}"),
        None => endpoint.node.clone(),
    }
}

/// Returns what the user has named: a node, or else a pod and where it is.
async fn endpoint(client: &Client, end: &str, nodes: &[Node], args: &Args) -> Result<Endpoint, PingError> {
    if nodes.iter().any(|node| node.name_any() == end) {
        return Ok(Endpoint { node: end.to_owned(), pod: None });
    }
    let (namespace, pod) = end
        .split_once('/')
        .unwrap_or_else(|| (args.namespace.as_deref().unwrap_or_else(|| client.default_namespace()), end));
    let chosen = Chosen {
        namespace: Some(namespace.to_owned()),
        pod: Some(pod.to_owned()),
        network: Some(args.network.to_string()),
        ..Chosen::default()
    };
    let no_end = || PingError::NoEnd(end.to_owned(), namespace.to_owned());
    let of_pod = |node: &str| format!("{node}:{namespace}/{pod}").parse::<Endpoint>().map_err(|_| no_end());
    of_pod("")?;
    let found = attachments::find(client, &chosen, |attachment| attachment.interface.is_some()).await;
    let found = found.map_err(|error| match error {
        ReadError::Missing { .. } => no_end(),
        other => other.into(),
    })?;
    let node = found.attachments.into_iter().find_map(|attachment| attachment.node);
    let not_attached = || PingError::NotAttached {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        network: args.network.clone(),
    };
    let node = node.ok_or_else(not_attached)?;
    of_pod(&node)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::mock::{api_server, items, status};
    use crate::{Cli, Command};

    fn args(line: &[&str]) -> Args {
        let line = ["netclaimctl", "ping", "--network=storage"].iter().chain(line);
        let Command::Ping(args) = Cli::try_parse_from(line).unwrap().command else { panic!("ping") };
        args
    }

    fn ends(all: &[Endpoint]) -> Vec<String> {
        all.iter().map(Endpoint::to_string).collect()
    }

    #[test]
    fn pods_bring_their_nodes_along() {
        let of = |from: &str, to: &str| {
            between(from.parse().unwrap(), to.parse().unwrap())
                .map(|all| ends(&all))
                .map_err(|error| error.to_string())
        };
        assert_eq!(of("a:shop/web", "b:shop/db").unwrap(), ["a:shop/web", "b:shop/db", "a", "b"]);
        assert_eq!(of("a:shop/web", "a:shop/db").unwrap(), ["a:shop/web", "a:shop/db"]);
        assert_eq!(of("a", "b:shop/db").unwrap(), ["a", "b:shop/db"]);
        assert!(of("a", "a").unwrap_err().contains("both a"));
        assert!(of("a:shop/web", "a").unwrap_err().contains("pod shop/web is on node a itself"));
    }

    #[test]
    fn at_most_eight_nodes_take_part() {
        let (network, mut notes) = ("storage".parse().unwrap(), Vec::new());
        let nodes = |many: usize| (0..many).rev().map(|n| format!("node{n}")).collect();
        assert_eq!(all_of(nodes(9), &network, &mut notes).unwrap().len(), 8);
        assert_eq!(notes, ["8 of 9 nodes take part: name others with --from and --to"]);
        assert!(all_of(nodes(1), &network, &mut notes).is_err());
    }

    #[tokio::test]
    async fn an_end_is_a_node_or_a_pod_that_has_the_network() {
        let claim = json!({"metadata": {"name": "c", "namespace": "shop"}, "spec": {}, "status": {
            "reservedFor": [{"resource": "pods", "name": "web", "uid": "u"}],
            "allocation": {"devices": {"results": [{"driver": "netclaim.dev", "request": "r", "pool": "node2", "device": "net-storage"}]}},
            "devices": [{"driver": "netclaim.dev", "pool": "node2", "device": "net-storage", "networkData": {"interfaceName": "net1"}}]}});
        let client = api_server(move |uri| match uri.contains("resourceclaims") {
            true => items([claim.clone()]),
            false if uri.contains("networkattachments") => items([]),
            false if uri.ends_with("gone") => status(404, "NotFound"),
            false => (200, json!({"metadata": {"name": uri.rsplit('/').next(), "namespace": "shop"}})),
        });
        let nodes: Vec<Node> = vec![serde_json::from_value(json!({"metadata": {"name": "node1"}})).unwrap()];
        let of = async |end: &str| {
            let found = endpoint(&client, end, &nodes, &args(&["-n", "shop"])).await;
            found.map(|endpoint| endpoint.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(of("node1").await.unwrap(), "node1");
        assert_eq!(of("web").await.unwrap(), "node2:shop/web");
        assert_eq!(of("shop/web").await.unwrap(), "node2:shop/web");
        assert!(of("db").await.unwrap_err().contains("pod shop/db has no interface of ClaimNetwork storage"));
        let gone = of("gone").await.unwrap_err();
        assert!(gone.starts_with("gone is neither a node nor a pod of namespace shop"), "{gone}");
        assert!(of("Web!").await.unwrap_err().contains("neither a node nor a pod"));
    }
}
