//! Node autoscalers that the cluster has, and what they make of ClaimNetworks of scope `Cluster`.
//!
//! The pool of such a ClaimNetwork belongs to no node. No form of it is one that the cluster autoscaler can
//! copy for a new node, so the status of the ClaimNetwork has to say it.

use std::error::Error;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use netclaim_api::labels::{SERVED, network_label};
use netclaim_api::network::{ClaimNetworkSpec, Scope};
use netclaim_api::{Invalid, NetworkName};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// ConfigMap in which the cluster autoscaler reports what it does, by its default name. Its age says nothing:
/// it is not written while the autoscaler's rounds fail, and it stays when the autoscaler is uninstalled.
const STATUS: &str = "cluster-autoscaler-status";

/// API group of Karpenter, which every account can discover.
const KARPENTER: &str = "karpenter.sh";

/// On so many nodes a pod with a claim takes a tenth of a second of the scheduler's time, see
/// docs/benchmarks.md.
const MANY_NODES: i64 = 1000;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between looks until the API server has answered once.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where to look for autoscalers, and how often.
#[derive(Debug, Clone)]
pub(crate) struct Lookout {
    /// Namespace of the cluster autoscaler's status.
    pub(crate) namespace: String,
    /// Time between two looks; `None`: never look.
    pub(crate) period: Option<Duration>,
}

/// The autoscalers that the API server knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Autoscalers {
    /// Namespace of the cluster autoscaler's status, if there is one.
    pub(crate) cluster_autoscaler: Option<String>,
    pub(crate) karpenter: bool,
    /// Whether anybody looks for them.
    pub(crate) is_looked_for: bool,
}

impl Autoscalers {
    /// Returns what these autoscalers make a likely mistake of in an accepted ClaimNetwork.
    pub(crate) fn warnings(&self, (name, spec): &(NetworkName, ClaimNetworkSpec)) -> Vec<Invalid> {
        if spec.scope != Scope::Cluster {
            return Vec::new();
        }
        let cluster_autoscaler = self.cluster_autoscaler.as_ref().map(|namespace| {
            format!(
                "the cluster autoscaler is here (ConfigMap {namespace}/{STATUS}), and a pod that owns its claim for this \
                 ClaimNetwork stops it: on the node that is the template of its group, every round fails for all groups \
                 (`can't be sanitized`); use a ClaimNetwork of scope Node, or a ResourceClaim by name that the pod does \
                 not own, or keep such pods off autoscaled node groups; if the autoscaler is gone, delete the ConfigMap"
            )
        });
        let karpenter = self.karpenter.then(|| {
            format!(
                "Karpenter is here (API group {KARPENTER}), and makes nodes for pods of this ClaimNetwork only with \
                 --ignore-dra-requests=false and a NodePool whose requirements have {} In [{SERVED}]; add both, or \
                 keep nodes ready that Karpenter does not make",
                network_label(name)
            )
        });
        let found = cluster_autoscaler.into_iter().chain(karpenter);
        found.map(|message| Invalid::new("spec.scope", message)).collect()
    }

    /// Recommends scope `Cluster` for an accepted ClaimNetwork on so many nodes, where that costs the
    /// scheduler less and no node autoscaler can stumble over it.
    pub(crate) fn advice(
        &self,
        (name, spec): &(NetworkName, ClaimNetworkSpec),
        nodes: i64,
    ) -> Option<Invalid> {
        let is_safe = self.is_looked_for && self.cluster_autoscaler.is_none() && !self.karpenter;
        let of_cluster = || ClaimNetworkSpec { scope: Scope::Cluster, ..spec.clone() };
        let fits = is_safe
            && nodes >= MANY_NODES
            && spec.scope == Scope::Node
            && !spec.is_counted_on_nodes()
            && of_cluster().problems(name.as_ref()).is_empty();
        fits.then(|| {
            // Without the count, which would write the status again with each node that joins.
            let message = format!(
                "at least {MANY_NODES} nodes publish a device each, at all of which the scheduler looks for pods with claims; where no \
                 claim asks for bandwidth, scope Cluster makes one device of them: see the guide for big clusters"
            );
            Invalid::new("spec.scope", message)
        })
    }
}

/// Looks for autoscalers for ever. Sends what the first look finds, and then each change.
pub(crate) async fn run(client: Client, lookout: Lookout, found: watch::Sender<Autoscalers>) {
    let Some(period) = lookout.period else {
        found.send_replace(Autoscalers::default());
        return std::future::pending().await;
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &lookout.namespace);
    let (mut status, mut group) = (Presence::default(), Presence::default());
    let mut last = None;
    loop {
        let has_status = async {
            let look = async { Ok(config_maps.get_metadata_opt(STATUS).await?.is_some()) };
            status.ask(look, &format!("the ConfigMap {}/{STATUS}", lookout.namespace)).await
        };
        let has_group = async {
            let look = async {
                Ok(client.list_api_groups().await?.groups.iter().any(|group| group.name == KARPENTER))
            };
            group.ask(look, "the API groups").await
        };
        let (Some(has_status), Some(karpenter)) = tokio::join!(has_status, has_group) else {
            // Without an answer, the warnings of before stay in the status, which waits for the first look.
            sleep(FIRST_ANSWER_TIMEOUT.min(period)).await;
            continue;
        };
        let cluster_autoscaler = has_status.then(|| lookout.namespace.clone());
        let now = Autoscalers { cluster_autoscaler, karpenter, is_looked_for: true };
        if last.as_ref() != Some(&now) {
            tracing::info!(
                cluster_autoscaler = now.cluster_autoscaler.is_some(),
                karpenter = now.karpenter,
                "looked for node autoscalers"
            );
            found.send_replace(now.clone());
            last = Some(now);
        }
        sleep(period).await;
    }
}

/// Something that the API server is asked again and again.
#[derive(Debug, Default)]
struct Presence {
    /// The last answer; `None` before the first.
    is_there: Option<bool>,
    /// The log says that there is no answer.
    is_reported: bool,
}

impl Presence {
    /// Asks whether something is there. Without the right to know, it is not; without an answer, what was
    /// known before stands.
    async fn ask(&mut self, look: impl Future<Output = kube::Result<bool>>, what: &str) -> Option<bool> {
        let (error, advice): (Box<dyn Error>, _) = match timeout(REQUEST_TIMEOUT, look).await {
            Ok(Ok(is_there)) => {
                *self = Self { is_there: Some(is_there), is_reported: false };
                return self.is_there;
            }
            Ok(Err(error)) if matches!(&error, kube::Error::Api(status) if status.code == 403) => {
                self.is_there = Some(false);
                (
                    error.into(),
                    "apply the Role netclaim-controller-autoscaler of this version to its namespace",
                )
            }
            Ok(Err(error)) => (error.into(), "will retry"),
            Err(elapsed) => (elapsed.into(), "will retry"),
        };
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(
                error = &*error,
                "cannot read {what}, which would show a node autoscaler beside ClaimNetworks of scope Cluster: {advice}"
            );
        }
        self.is_there
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower_test::mock;

    use super::*;

    type Requests = mock::Handle<Request<Body>, Response<Body>>;

    fn both() -> Autoscalers {
        Autoscalers { cluster_autoscaler: Some("kube-system".into()), karpenter: true, is_looked_for: true }
    }

    fn network(name: &str, scope: &str) -> (NetworkName, ClaimNetworkSpec) {
        let spec = json!({"scope": scope, "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}});
        (name.parse().unwrap(), serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn only_a_network_of_the_cluster_gets_a_warning_for_each_autoscaler() {
        let warnings = both().warnings(&network("storage", "Cluster"));
        let texts: Vec<String> = warnings.iter().map(Invalid::to_string).collect();
        let [cluster_autoscaler, karpenter] = &texts[..] else { panic!("{texts:?}") };
        assert!(cluster_autoscaler.starts_with("spec.scope: the cluster autoscaler is here"), "{texts:?}");
        for word in ["kube-system/cluster-autoscaler-status", "can't be sanitized", "scope Node", "by name"] {
            assert!(cluster_autoscaler.contains(word), "no {word} in {cluster_autoscaler}");
        }
        assert!(karpenter.contains("network.netclaim.dev/storage In [up]"), "{karpenter}");
        assert!(karpenter.contains("--ignore-dra-requests=false"), "{karpenter}");
        assert_eq!(both().warnings(&network("storage", "Node")), []);
        assert_eq!(Autoscalers::default().warnings(&network("storage", "Cluster")), []);
    }

    #[test]
    fn scope_cluster_is_recommended_where_nothing_is_counted_on_a_node_and_no_autoscaler_is_there() {
        let none = Autoscalers { is_looked_for: true, ..Autoscalers::default() };
        let advice = |autoscalers: &Autoscalers, change: Value, nodes: i64| {
            let (name, spec) = network("storage", "Node");
            let mut spec = serde_json::to_value(&spec).unwrap();
            spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            autoscalers.advice(&(name, serde_json::from_value(spec).unwrap()), nodes)
        };
        let found = advice(&none, json!({}), 1000).map(|advice| advice.to_string()).unwrap_or_default();
        assert!(found.starts_with("spec.scope: at least 1000 nodes publish a device each"), "{found}");
        assert_eq!(advice(&none, json!({}), 999), None);
        assert_eq!(advice(&none, json!({"scope": "Cluster"}), 5000), None);
        assert_eq!(advice(&none, json!({"capacity": {"interfaces": 5}}), 5000), None);
        let of_nodes = json!({"cni": {"cniVersion": "1.1.0", "plugins": [
            {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.30.0.0/24"}}]}});
        assert_eq!(advice(&none, of_nodes, 5000), None);
        assert_eq!(advice(&both(), json!({}), 5000), None);
        assert_eq!(advice(&Autoscalers::default(), json!({}), 5000), None, "nobody looks");
    }

    #[test]
    fn both_warnings_fit_into_one_event() {
        let warnings = Invalid::list(&both().warnings(&network(&"n".repeat(58), "Cluster")));
        let note = format!("pods can claim the network, but look at {warnings}");
        assert!(note.len() <= crate::objects::events::MAX_NOTE, "{} bytes: {note}", note.len());
    }

    /// Answers one look: the ConfigMap with `status`, and the API groups with this one.
    async fn answer(requests: &mut Requests, status: u16, group: &str) {
        for _ in 0..2 {
            let (request, reply) = requests.next_request().await.unwrap();
            let (code, body): (u16, Value) = match request.uri().path() {
                "/apis" => {
                    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
                    let group = json!({"name": group, "versions": [version]});
                    (200, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}))
                }
                "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status" if status == 200 => (
                    200,
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": STATUS}}),
                ),
                "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status" => {
                    let reason = if status == 404 { "NotFound" } else { "Other" };
                    let failure = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": "no", "reason": reason, "code": status});
                    (status, failure)
                }
                path => panic!("{path}"),
            };
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            reply.send_response(Response::builder().status(code).body(body).unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_between_two_looks_is_sent() {
        let (service, mut requests) = mock::pair();
        let (sender, mut found) = watch::channel(Autoscalers::default());
        let lookout = Lookout { namespace: "kube-system".into(), period: Some(Duration::from_secs(300)) };
        let looks = tokio::spawn(run(Client::new(service, "default"), lookout, sender));
        let status = |is_there: bool| is_there.then(|| "kube-system".to_owned());
        for (code, group, expected) in [
            (404, "apps", Some((false, false))),
            (404, "apps", None),
            (200, "apps", Some((true, false))),
            (200, "karpenter.sh", Some((true, true))),
            // What is not answered stays as it was, and what may not be read is not there.
            (500, "karpenter.sh", None),
            (403, "karpenter.sh", Some((false, true))),
            (403, "karpenter.sh", None),
            (404, "apps", Some((false, false))),
        ] {
            answer(&mut requests, code, group).await;
            // Until the look has ended, which takes no time, or the next one begins.
            let news = timeout(Duration::from_secs(1), found.changed()).await;
            let now = news.is_ok().then(|| found.borrow_and_update().clone());
            let expected = expected.map(|(cluster_autoscaler, karpenter)| Autoscalers {
                cluster_autoscaler: status(cluster_autoscaler),
                karpenter,
                is_looked_for: true,
            });
            assert_eq!(now, expected, "{code} {group}");
        }
        looks.abort();
    }

    #[tokio::test]
    async fn a_controller_that_never_looks_knows_at_once() {
        let (service, _requests) = mock::pair::<Request<Body>, Response<Body>>();
        let (sender, mut found) = watch::channel(both());
        let lookout = Lookout { namespace: "kube-system".into(), period: None };
        let looks = tokio::spawn(run(Client::new(service, "default"), lookout, sender));
        found.changed().await.unwrap();
        assert_eq!(*found.borrow(), Autoscalers::default());
        looks.abort();
    }
}
