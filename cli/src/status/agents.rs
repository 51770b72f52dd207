//! Asks agents what they lack and what they have found, through the API server, with the rights of whoever
//! runs the command.
//!
//! ```text
//!   netclaimctl ── get pods/proxy ──> API server ──> agent, port of its metrics: /readyz, /metrics
//! ```
//!
//! Agents are asked within limits of number, time and length.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use kube::core::Status;
use kube::{Client, ResourceExt as _};
use tokio::time::{Instant, timeout};

use super::samples::samples;
use crate::asking::{self, Asked, MAX_ASKED};

/// The port of the metrics, if the agent's pod says no other.
const PORT: u16 = 9177;
/// The variable by which the pod says it.
const ADDRESS: &str = "NETCLAIM_METRICS_ADDRESS";
/// The longest time for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time for all answers.
const ALL_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest answer, in bytes. The metrics of an agent with a hundred ClaimNetworks have a tenth of that.
const MAX_ANSWER: usize = 8 << 20;
/// Most lines of what an agent lacks.
const MAX_LINES: usize = 8;

/// Why it is not known what an agent says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAsked {
    #[error("you may not ask it: that takes the right to get pods/proxy in namespace {namespace}")]
    Forbidden { namespace: String },
    #[error("the API server cannot ask it: {0}")]
    Unreachable(String),
    #[error("it cannot be asked: its --metrics-address is {0}, which only its node reaches")]
    Local(SocketAddr),
    #[error("it cannot be asked: it is of an earlier version")]
    Unknown,
    #[error("it did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Late,
    #[error("it was not asked: {MAX_ASKED} agents are, or as many as answer within {} s", ALL_TIMEOUT.as_secs())]
    TooMany,
}

/// What an agent knows of its node, from its metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The program of each CNI plugin.
    pub(super) plugins: BTreeMap<String, String>,
    /// The ClaimNetworks of which the node has something by `spec.node`, and whether it is all there.
    pub(super) node_networks: BTreeMap<String, bool>,
    /// Whether it publishes no counters, because of the scheduler.
    pub(super) without_counters: bool,
}

impl Found {
    fn of(metrics: &str) -> Self {
        let mut found = Self::default();
        for mut sample in samples(metrics) {
            let mut label = |name: &str| sample.labels.remove(name).unwrap_or_default();
            let is_one = sample.value == 1.0;
            match sample.name.as_str() {
                "netclaim_cni_plugin_info" if is_one => {
                    let (plugin, path) = (label("plugin"), label("path"));
                    found.plugins.insert(plugin, path);
                }
                "netclaim_without_counters" => found.without_counters = is_one,
                "netclaim_network_set_up" => {
                    found.node_networks.insert(label("network"), is_one);
                }
                _ => {}
            }
        }
        found
    }
}

/// What agents have said, by node.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Sentences about what the node's agent lacks.
    pub(super) lacks: BTreeMap<String, Result<Vec<String>, NotAsked>>,
    pub(super) found: BTreeMap<String, Result<Found, NotAsked>>,
}

/// Asks these agents what they `lack`, and those what they have `found`.
pub(super) async fn ask(client: &Client, lack: Asked<'_>, found: Asked<'_>) -> Answers {
    let until = Instant::now() + ALL_TIMEOUT;
    let (lacks, found) =
        tokio::join!(ask_all(client, "/readyz", lack, until), ask_all(client, "/metrics", found, until));
    let lacks = lacks.into_iter().map(|(node, answer)| (node, answer.and_then(lacking)));
    let found = found.into_iter().map(|(node, answer)| (node, answer.and_then(found_by)));
    Answers { lacks: lacks.collect(), found: found.collect() }
}

type Answer = Result<(StatusCode, String), NotAsked>;

async fn ask_all(client: &Client, path: &str, asked: Asked<'_>, until: Instant) -> BTreeMap<String, Answer> {
    let ask = async |pod: &Pod| {
        let answer = timeout(ANSWER_TIMEOUT, ask_one(client, pod, path)).await;
        answer.unwrap_or(Err(NotAsked::Late))
    };
    asking::ask_all(asked, until, || Err(NotAsked::TooMany), ask).await
}

async fn ask_one(client: &Client, pod: &Pod, path: &str) -> Answer {
    let unreachable = |error: &dyn std::error::Error| NotAsked::Unreachable(netclaim_cni::error_chain(error));
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}:{}/proxy{path}", port(pod)?);
    let request = Request::get(uri).body(Body::empty()).map_err(|error| unreachable(&error))?;
    let response = client.send(request).await.map_err(|error| unreachable(&error))?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| NotAsked::Unreachable(error.to_string()))?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    // The API server's own answers are objects; those of agents are texts.
    match serde_json::from_str::<Status>(&text) {
        Ok(status) if status.is_forbidden() => Err(NotAsked::Forbidden { namespace }),
        Ok(status) => Err(NotAsked::Unreachable(status.message)),
        Err(_) => Ok((head.status, text)),
    }
}

/// The port at which the API server reaches the agent.
fn port(pod: &Pod) -> Result<u16, NotAsked> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let address =
        variables.find(|variable| variable.name == ADDRESS).and_then(|variable| variable.value.as_deref());
    match address.and_then(|address| address.parse::<SocketAddr>().ok()) {
        Some(address) if address.ip().is_loopback() => Err(NotAsked::Local(address)),
        Some(address) => Ok(address.port()),
        None => Ok(PORT),
    }
}

/// What an agent says at `/readyz`.
fn lacking((status, text): (StatusCode, String)) -> Result<Vec<String>, NotAsked> {
    match status {
        StatusCode::OK => Ok(Vec::new()),
        StatusCode::SERVICE_UNAVAILABLE => {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            Ok(lines.take(MAX_LINES).map(str::to_owned).collect())
        }
        _ => Err(NotAsked::Unknown),
    }
}

fn found_by((status, text): (StatusCode, String)) -> Result<Found, NotAsked> {
    if status == StatusCode::OK { Ok(Found::of(&text)) } else { Err(NotAsked::Unknown) }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use http::Response;
    use serde_json::json;
    use tower_test::mock::pair;

    use super::*;
    use crate::mock::{api_server, status};

    fn pod(name: &str, address: &str) -> Pod {
        let env = json!([{"name": ADDRESS, "value": address}]);
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "netclaim-system"},
            "spec": {"containers": [{"name": "agent", "env": env}]}}))
        .unwrap()
    }

    async fn lacks(client: &Client, pod: &Pod) -> Result<Vec<String>, NotAsked> {
        ask(client, vec![("a", pod)], Vec::new()).await.lacks.remove("a").unwrap()
    }

    #[tokio::test]
    async fn an_agent_is_asked_at_the_port_of_its_metrics() {
        let client = api_server(|uri| match uri {
            "/api/v1/namespaces/netclaim-system/pods/agent-x:9277/proxy/readyz" => {
                (503, json!("no NRI\n\nno kubelet\n"))
            }
            "/api/v1/namespaces/netclaim-system/pods/agent-x:9277/proxy/metrics" => (
                200,
                json!(
                    "netclaim_cni_plugin_info{plugin=\"sriov\",path=\"/opt/cni/bin/sriov\"} 1\n\
                    netclaim_without_counters 1\n\
                    netclaim_network_set_up{network=\"lab\"} 1\n\
                    netclaim_network_set_up{network=\"office\"} 0\n"
                ),
            ),
            _ => status(404, "NotFound"),
        });
        let agent = pod("agent-x", "[::]:9277");
        let mut answers = ask(&client, vec![("a", &agent)], vec![("a", &agent)]).await;
        assert_eq!(answers.lacks.remove("a"), Some(Ok(vec!["no NRI".to_owned(), "no kubelet".to_owned()])));
        let found = Found {
            plugins: [("sriov".to_owned(), "/opt/cni/bin/sriov".to_owned())].into(),
            node_networks: [("lab".to_owned(), true), ("office".to_owned(), false)].into(),
            without_counters: true,
        };
        assert_eq!(answers.found.remove("a"), Some(Ok(found)));
    }

    #[tokio::test]
    async fn an_agent_that_cannot_be_asked_has_a_reason() {
        let agent = pod("agent-x", "0.0.0.0:9177");
        let of = async |code, reason| lacks(&api_server(move |_| status(code, reason)), &agent).await;
        let namespace = "netclaim-system".to_owned();
        assert_eq!(of(403, "Forbidden").await, Err(NotAsked::Forbidden { namespace }));
        let unreachable = NotAsked::Unreachable("ServiceUnavailable is why".to_owned());
        assert_eq!(of(503, "ServiceUnavailable").await, Err(unreachable));
        let old = api_server(|_| (404, json!("")));
        assert_eq!(lacks(&old, &agent).await, Err(NotAsked::Unknown));
        let ready = api_server(|_| (200, json!("ok")));
        assert_eq!(lacks(&ready, &agent).await, Ok(Vec::new()));
        let local = pod("agent-x", "127.0.0.1:9177");
        assert!(matches!(lacks(&ready, &local).await, Err(NotAsked::Local(_))));
        let wild = api_server(|_| (200, json!("x".repeat(MAX_ANSWER + 1))));
        assert!(matches!(lacks(&wild, &agent).await, Err(NotAsked::Unreachable(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn agents_that_do_not_answer_hold_nobody_up() {
        let (service, mut requests) = pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Some(request) = requests.next_request().await {
                kept.push(request);
            }
            pending::<()>().await;
        });
        let (client, agent) = (Client::new(service, "shop"), pod("agent-x", "0.0.0.0:9177"));
        let names: Vec<String> = (0..100).map(|number| format!("node{number}")).collect();
        let nodes: Asked<'_> = names.iter().map(|name| (name.as_str(), &agent)).collect();
        let start = Instant::now();
        let answers = ask(&client, nodes.clone(), nodes).await;
        assert!(start.elapsed() <= ALL_TIMEOUT, "{:?}", start.elapsed());
        assert_eq!((answers.lacks.len(), answers.found.len()), (100, 100));
        let count =
            |error: NotAsked| answers.lacks.values().filter(|answer| **answer == Err(error.clone())).count();
        assert!(count(NotAsked::Late) > 0 && count(NotAsked::TooMany) >= 100 - MAX_ASKED);
    }
}
