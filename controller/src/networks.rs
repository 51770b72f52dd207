//! The loop of the leader: watch Networks and ResourceSlices, and derive from them the Networks' status and the
//! cluster's pools.
//!
//! ```text
//!   Networks ───────┬─> verdict ─┬─> status, event if it is bad news
//!   ResourceSlices ─┼─> nodes    └─> pools ─> netclaim_slices::Publisher
//!   Nodes ──────────┘
//! ```
//!
//! Everything is looked at anew after each change, at most every [`GATHER`]: what is right already is not written,
//! so an idle cluster sees no writes, and nothing is remembered that a restart would lose.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, ResourceExt as _};
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource as _};
use netclaim_api::network::overlap::overlaps;
use netclaim_api::network::{Network, NetworkStatus};
use netclaim_api::shorten;
use netclaim_api::uplink_policy::UplinkPolicy;
use netclaim_slices::{
    DroppedField, Pool, PoolStatus, PublishStatus, Publisher, PublisherConfig, PublisherHandle, Revision,
};
use serde_json::json;
use thiserror::Error;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::metrics::{Accepted, Field, Metrics, Published};
use crate::nodes::{self, DevicesOfSlice, NodeLabels};
use crate::verdict::{ACCEPTED_WITH_WARNINGS, INVALID, Verdict};
use crate::{policies, pools};

/// Field manager of the status, and the reporter of events.
const CONTROLLER: &str = "netclaim-controller";

/// Changes are gathered for this long: when a node starts, its slices come in a burst.
const GATHER: Duration = Duration::from_millis(500);

/// Between two writes that tell nothing but on which nodes a Network is: every agent watches Networks, so that each write
/// goes to every node, and while many nodes start it changes all the time.
const NODES_PERIOD: Duration = Duration::from_secs(10);

/// Between a write that failed and the next try.
const RETRY: Duration = Duration::from_secs(5);

/// The longest note that an event may have, in bytes (`events.k8s.io/v1`).
const MAX_NOTE: usize = 1024;

/// Which slices are ours, and who writes events about them.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Whose slices tell on which nodes a Network is.
    pub(crate) driver: String,
    /// How to publish the cluster's pools.
    pub(crate) publisher: PublisherConfig,
    /// Name of this replica.
    pub(crate) identity: String,
}

/// Runs until `cancel`. What is published stays.
///
/// # Errors
/// The publisher panicked.
pub(crate) async fn run(
    client: Client,
    settings: Settings,
    metrics: Metrics,
    cancel: CancellationToken,
) -> Result<(), JoinError> {
    let config = settings.publisher.clone();
    let (publisher, mut publishing) = Publisher::spawn(client.clone(), config, cancel.clone());
    tokio::select! {
        () = watch(client, settings, metrics, publisher) => Ok(()),
        // It ends with `cancel`, after which nothing is to be written here either.
        result = &mut publishing => result,
    }
}

async fn watch(client: Client, settings: Settings, metrics: Metrics, publisher: PublisherHandle) {
    let resource = ApiResource::erase::<Network>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let (networks, writer) = store(resource);
    let mut network_events = pin!(
        watcher(api.clone(), watcher::Config::default())
            .default_backoff()
            .modify(|network| network.metadata.managed_fields = None)
            .reflect(writer)
    );
    let resource = nodes::resource();
    let selector = watcher::Config::default().fields(&format!("spec.driver={}", settings.driver));
    let slice_api: Api<DevicesOfSlice> = Api::all_with(client.clone(), &resource);
    let (slices, writer) = store(resource);
    let mut slice_events =
        pin!(watcher(slice_api, selector).default_backoff().modify(nodes::strip).reflect(writer));

    let resource = ApiResource::erase::<UplinkPolicy>(&());
    let policy_api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let (policies, writer) = store(resource);
    let mut policy_events = pin!(
        watcher(policy_api.clone(), watcher::Config::default())
            .default_backoff()
            .modify(|policy| policy.metadata.managed_fields = None)
            .reflect(writer)
    );

    let node_api: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let mut node_events = pin!(watcher(node_api, watcher::Config::default()).default_backoff());

    let mut published = publisher.status();
    let mut reconciler = Reconciler {
        api,
        policy_api,
        client,
        settings,
        metrics,
        publisher,
        revision: 0,
        nodes: NodeLabels::default(),
        written: BTreeMap::new(),
        later: None,
    };
    let mut known = Known::default();
    let mut due: Option<Instant> = None;
    loop {
        let ready = known == Known::ALL;
        tokio::select! {
            () = changed(&mut policy_events, "uplink policies", &mut known.policies) => soon(&mut due),
            () = changed(&mut network_events, "networks", &mut known.networks) => soon(&mut due),
            () = changed(&mut slice_events, "resource slices", &mut known.slices) => soon(&mut due),
            () = labels_changed(&mut node_events, &mut reconciler.nodes, &mut known.nodes) => soon(&mut due),
            Ok(()) = published.changed() => reconciler.published(&published.borrow_and_update()),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if ready && due.is_some() => {
                reconciler.metrics.ready.set(true);
                let done = reconciler.reconcile(&networks, &slices).await & reconciler.judge(&policies).await;
                let retry = (!done).then(|| Instant::now() + RETRY);
                due = retry.into_iter().chain(reconciler.later).min();
            }
        }
    }
}

/// What was seen once as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    networks: bool,
    slices: bool,
    policies: bool,
    nodes: bool,
}

impl Known {
    const ALL: Self = Self { networks: true, slices: true, policies: true, nodes: true };
}

/// Something changed: the next look is due in [`GATHER`], unless it is due earlier.
fn soon(due: &mut Option<Instant>) {
    let gathered = Instant::now() + GATHER;
    *due = Some(due.map_or(gathered, |due| due.min(gathered)));
}

fn store<K>(resource: ApiResource) -> (Store<K>, Writer<K>)
where
    K: kube::Resource<DynamicType = ApiResource> + Clone + 'static,
{
    let writer = Writer::new(resource);
    (writer.as_reader(), writer)
}

/// Waits until the watch of `what` saw a change. `known` turns true when everything that there is was seen once.
async fn changed<K>(
    events: &mut (impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin),
    what: &str,
    known: &mut bool,
) {
    loop {
        match events.next().await {
            Some(Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_))) => return,
            Some(Ok(watcher::Event::InitDone)) => {
                *known = true;
                return;
            }
            // Parts of a list, which is complete with `InitDone`.
            Some(Ok(watcher::Event::Init | watcher::Event::InitApply(_))) => {}
            Some(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot watch {what}");
            }
            // A watcher never ends.
            None => std::future::pending().await,
        }
    }
}

/// Waits until the watch of nodes saw other labels. `known` turns true when all nodes were seen once.
async fn labels_changed(
    events: &mut (impl Stream<Item = watcher::Result<watcher::Event<PartialObjectMeta<Node>>>> + Unpin),
    labels: &mut NodeLabels,
    known: &mut bool,
) {
    loop {
        match events.next().await {
            Some(Ok(event)) => {
                let is_first = !*known && matches!(event, watcher::Event::InitDone);
                *known |= is_first;
                if labels.seen(event) || is_first {
                    return;
                }
            }
            Some(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot watch nodes");
            }
            // A watcher never ends.
            None => std::future::pending().await,
        }
    }
}

struct Reconciler {
    api: Api<DynamicObject>,
    policy_api: Api<DynamicObject>,
    client: Client,
    settings: Settings,
    metrics: Metrics,
    publisher: PublisherHandle,
    /// Revision last handed to the publisher.
    revision: Revision,
    nodes: NodeLabels,
    /// When the status of a Network was last written, by its UID.
    written: BTreeMap<String, Instant>,
    /// When a status is due that was put off.
    later: Option<Instant>,
}

impl Reconciler {
    /// Looks at everything once. Returns whether all writes went well.
    async fn reconcile(&mut self, networks: &Store<DynamicObject>, slices: &Store<DevicesOfSlice>) -> bool {
        let slices = slices.state();
        let (mut nodes, with_agent) = (nodes::tally(&slices), nodes::with_agent(&slices));
        let mut networks = networks.state();
        networks.sort_by_cached_key(|network| network.name_any());
        let mut verdicts: Vec<_> = networks.iter().map(|network| (network, Verdict::of(network))).collect();
        warn_of_overlaps(&mut verdicts);

        let accepted = || verdicts.iter().filter_map(|(_, verdict)| verdict.accepted.as_ref().ok());
        let pools = verdicts.iter().filter_map(|(network, verdict)| {
            let (name, spec) = verdict.accepted.as_ref().ok()?;
            pools::pool(name, spec, network.metadata.uid.as_deref()?)
        });
        self.publish(pools.collect());
        for (name, spec) in accepted() {
            let on = nodes.entry(name.clone()).or_default();
            let selected = self.nodes.selected(spec).filter(|node| with_agent.contains(node.as_str()));
            on.missing = selected.filter(|node| !on.bandwidth.contains_key(*node)).cloned().collect();
        }
        let (good, all) = (accepted().count(), verdicts.len());
        for (accepted, count) in [(true, good), (false, all - good)] {
            let gauge = self.metrics.networks.get_or_create(&Accepted { accepted });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }

        let mut done = true;
        self.later = None;
        let uids: BTreeSet<String> = networks.iter().filter_map(|network| network.uid()).collect();
        self.written.retain(|uid, _| uids.contains(uid));
        for (network, verdict) in &verdicts {
            let name = network.name_any();
            let nodes = name.parse().ok().and_then(|name| nodes.get(&name)).cloned().unwrap_or_default();
            if let Some(status) = verdict.status(&nodes, Time(Timestamp::now())) {
                let (now, uid) = (Instant::now(), network.uid().unwrap_or_default());
                let due = self.written.get(&uid).map(|written| *written + NODES_PERIOD);
                if let Some(due) = due.filter(|due| *due > now && !verdict.is_more_than_nodes(&status)) {
                    self.later = Some(self.later.map_or(due, |later| later.min(due)));
                    continue;
                }
                match self.write(network, verdict, status).await {
                    Ok(()) => {
                        self.written.insert(uid, now);
                    }
                    // It was deleted meanwhile, as the watch is about to tell.
                    Err(WriteError { source: kube::Error::Api(status), .. }) if status.code == 404 => {}
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "will try again");
                        done = false;
                    }
                }
            }
        }
        done
    }

    /// Says of every policy whether it is followed. Returns whether all writes went well.
    async fn judge(&self, policies: &Store<DynamicObject>) -> bool {
        let now = Time(Timestamp::now());
        match policies::write(&self.policy_api, CONTROLLER, &policies.state(), &now).await {
            Ok(written) => {
                self.metrics.status_writes.inc_by(written.count);
                let resource = ApiResource::erase::<UplinkPolicy>(&());
                for (policy, problems) in written.refused {
                    tracing::warn!(policy = policy.name_any(), problems, "nodes cannot follow the policy");
                    self.warn(&policy, &resource, INVALID.to_owned(), problems).await;
                }
                true
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot write the status of an uplink policy, will try again"
                );
                false
            }
        }
    }

    fn publish(&mut self, pools: Vec<Pool>) {
        let count = pools.len();
        let revision = self.publisher.publish(pools);
        if std::mem::replace(&mut self.revision, revision) != revision {
            tracing::info!(pools = count, "publishing the networks of the cluster");
        }
    }

    fn published(&self, status: &PublishStatus) {
        let is_good = |pool: &&PoolStatus| pool.error.is_none() && pool.left_out.is_empty();
        let good = status.pools.values().filter(is_good).count();
        for (published, count) in [(true, good), (false, status.pools.len() - good)] {
            let gauge = self.metrics.pools.get_or_create(&Published { published });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for field in DroppedField::GATED.into_iter().chain([DroppedField::Other]) {
            if let Some(server) = &status.server {
                let gauge = self.metrics.dropped.get_or_create(&Field { field: field.path() });
                gauge.set(i64::from(!server.stores(field)));
            }
        }
    }

    async fn write(
        &self,
        network: &DynamicObject,
        verdict: &Verdict,
        status: NetworkStatus,
    ) -> Result<(), WriteError> {
        let name = network.name_any();
        let patch = json!({
            "apiVersion": netclaim_api::API_VERSION,
            "kind": Network::kind(&()),
            // The UID keeps the verdict away from another Network that has the name by now.
            "metadata": {"name": name, "uid": network.metadata.uid},
            "status": status,
        });
        let params = PatchParams::apply(CONTROLLER).force();
        self.api
            .patch_status(&name, &params, &Patch::Apply(patch))
            .await
            .map_err(|source| WriteError { network: name.clone(), source })?;
        self.metrics.status_writes.inc();
        let Some(condition) = status.conditions.into_iter().next() else {
            return Ok(());
        };
        if !verdict.is_news(&condition) {
            tracing::debug!(network = name, nodes = status.nodes, "status written");
        } else if condition.status == "True" && condition.reason != ACCEPTED_WITH_WARNINGS {
            tracing::info!(network = name, "accepted");
        } else {
            tracing::info!(network = name, reason = condition.reason, problems = condition.message, "judged");
            let resource = ApiResource::erase::<Network>(&());
            self.warn(network, &resource, condition.reason, condition.message).await;
        }
        Ok(())
    }

    /// Tells people that a Network or policy cannot be used, or not as they may mean it. The status says it too, so a failure is not worth a second try.
    async fn warn(&self, object: &DynamicObject, resource: &ApiResource, reason: String, message: String) {
        let event = Event {
            type_: EventType::Warning,
            reason,
            note: Some(shorten(message, MAX_NOTE)),
            action: "Accept".to_owned(),
            secondary: None,
        };
        let reporter =
            Reporter { controller: CONTROLLER.to_owned(), instance: Some(self.settings.identity.clone()) };
        // A new recorder each time: one that remembers the last event counts it up instead of telling the new note.
        let recorder = Recorder::new(self.client.clone(), reporter);
        let about = object.object_ref(resource);
        if let Err(error) = recorder.publish(&event, &about).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot write an event");
        }
    }
}

/// Adds what is wrong with accepted Networks beside each other.
fn warn_of_overlaps(verdicts: &mut [(&Arc<DynamicObject>, Verdict)]) {
    let accepted = verdicts.iter().filter_map(|(_, verdict)| verdict.accepted.as_ref().ok());
    let found = overlaps(accepted.map(|(name, spec)| (name, spec)));
    let found: Vec<_> = found.into_iter().map(|(name, warning)| (name.clone(), warning)).collect();
    for (name, warning) in found {
        let is_it =
            |verdict: &Verdict| verdict.accepted.as_ref().is_ok_and(|(accepted, _)| *accepted == name);
        if let Some((_, verdict)) = verdicts.iter_mut().find(|(_, verdict)| is_it(verdict)) {
            verdict.warnings.push(warning);
        }
    }
}

#[derive(Debug, Error)]
#[error("cannot write the status of network {network}")]
struct WriteError {
    network: String,
    #[source]
    source: kube::Error,
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use netclaim_slices::Scope;
    use serde_json::Value;
    use tokio::time::timeout;
    use tower_test::mock;

    use super::*;

    type Requests = mock::Handle<Request<Body>, Response<Body>>;

    fn reconciler() -> (Reconciler, Requests) {
        let (service, requests) = mock::pair();
        let client = Client::new(service, "default");
        let publisher = PublisherConfig::new("netclaim.dev", "controller", Scope::Cluster).unwrap();
        // Cancelled: its requests are none of these tests' business.
        let cancel = CancellationToken::new();
        cancel.cancel();
        let (handle, _) = Publisher::spawn(client.clone(), publisher.clone(), cancel);
        let settings = Settings { driver: "netclaim.dev".into(), publisher, identity: "pod-1".into() };
        let reconciler = Reconciler {
            api: Api::all_with(client.clone(), &ApiResource::erase::<Network>(&())),
            policy_api: Api::all_with(client.clone(), &ApiResource::erase::<UplinkPolicy>(&())),
            client,
            settings,
            metrics: Metrics::default(),
            publisher: handle,
            revision: 0,
            nodes: NodeLabels::default(),
            written: BTreeMap::new(),
            later: None,
        };
        (reconciler, requests)
    }

    fn networks(network: &Value) -> Store<DynamicObject> {
        let (networks, mut writer) = store(ApiResource::erase::<Network>(&()));
        let network = serde_json::from_value(network.clone()).unwrap();
        writer.apply_watcher_event(&watcher::Event::Apply(network));
        networks
    }

    fn slices() -> Store<DevicesOfSlice> {
        store(nodes::resource()).0
    }

    fn network(cni: Value) -> Value {
        json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "Network",
            "metadata": {"name": "storage", "uid": "u1", "generation": 1}, "spec": {"cni": cni},
        })
    }

    /// Answers one request with `status` and an echo of its body, which is returned with its method and path.
    async fn answer(requests: &mut Requests, status: u16) -> (String, Value) {
        let next = timeout(Duration::from_secs(5), requests.next_request());
        let (request, reply) = next.await.unwrap().unwrap();
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let json: Value = serde_json::from_slice(&body).unwrap();
        let echo = match status {
            200 => body.to_vec(),
            code => serde_json::to_vec(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": "X", "code": code}))
            .unwrap(),
        };
        reply.send_response(Response::builder().status(status).body(Body::from(echo)).unwrap());
        (format!("{} {}", head.method, head.uri.path()), json)
    }

    const STATUS: &str = "PATCH /apis/netclaim.dev/v1alpha1/networks/storage/status";

    #[tokio::test]
    async fn a_bad_network_is_told_once_in_its_status_and_by_an_event() {
        let (mut reconciler, mut requests) = reconciler();
        let mut bad = network(json!({}));
        let (store, slices) = (networks(&bad), slices());
        let server = async {
            let status = answer(&mut requests, 200).await;
            (status, answer(&mut requests, 200).await)
        };
        let (done, ((request, status), (event_request, event))) =
            tokio::join!(reconciler.reconcile(&store, &slices), server);
        assert!(done);
        assert_eq!(request, STATUS);
        assert_eq!(status["metadata"], json!({"name": "storage", "uid": "u1"}));
        assert_eq!(status["status"]["conditions"][0]["reason"], "Invalid");
        assert_eq!(event_request, "POST /apis/events.k8s.io/v1/namespaces/default/events");
        assert_eq!(event["note"], status["status"]["conditions"][0]["message"]);

        bad["status"] = status["status"].clone();
        assert!(reconciler.reconcile(&networks(&bad), &slices).await);
        assert_eq!(reconciler.metrics.status_writes.get(), 1);
    }

    #[tokio::test]
    async fn what_may_not_be_meant_comes_as_an_event_too() {
        let (mut reconciler, mut requests) = reconciler();
        let plugins = json!([{"type": "bridge", "colour": "red"}]);
        let odd = networks(&network(json!({"cniVersion": "1.1.0", "plugins": plugins})));
        let server = async {
            let status = answer(&mut requests, 200).await.1;
            (status, answer(&mut requests, 200).await.1)
        };
        let slices = slices();
        let (done, (status, event)) = tokio::join!(reconciler.reconcile(&odd, &slices), server);
        assert!(done);
        assert_eq!(status["status"]["conditions"][0]["status"], "True");
        assert_eq!(event["reason"], "AcceptedWithWarnings");
        assert!(event["note"].as_str().unwrap().contains("spec.cni.plugins[0].colour"), "{event}");
    }

    fn slice_of(node: &str) -> watcher::Event<DevicesOfSlice> {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
            "spec": {"driver": "netclaim.dev", "nodeName": node, "devices": [{"name": "net-storage"}]}
        });
        watcher::Event::Apply(serde_json::from_value(slice).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_come_one_after_the_other_are_not_a_write_each() {
        let (mut reconciler, mut requests) = reconciler();
        let mut good = network(json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}));
        let (slices, mut writer) = store(nodes::resource());
        let mut writes = 0;
        for node in 0..50 {
            writer.apply_watcher_event(&slice_of(&format!("n{node}")));
            let networks = networks(&good);
            let mut status = None;
            tokio::select! {
                biased;
                done = reconciler.reconcile(&networks, &slices) => assert!(done),
                (_, body) = answer(&mut requests, 200) => status = Some(body["status"].clone()),
            }
            if let Some(status) = status {
                good["status"] = status;
                writes += 1;
                reconciler.written.insert("u1".into(), Instant::now());
            }
            tokio::time::advance(Duration::from_millis(500)).await;
        }
        assert!((3..=4).contains(&writes), "{writes} writes in 25 s");
        assert!(
            reconciler.later.is_some_and(|later| later <= Instant::now() + NODES_PERIOD),
            "the last is due"
        );
    }

    #[tokio::test]
    async fn networks_that_hand_out_the_same_addresses_warn_of_each_other() {
        let ipam = json!({"type": "host-local", "subnet": "10.30.0.0/24"});
        let plugins = json!([{"type": "bridge", "bridge": "br0", "ipam": ipam}]);
        let one = network(json!({"cniVersion": "1.1.0", "plugins": plugins}));
        let mut other = one.clone();
        other["metadata"] = json!({"name": "backup", "uid": "u2", "generation": 1});
        let objects = [one, other].map(|object| Arc::new(serde_json::from_value(object).unwrap()));
        let mut verdicts: Vec<_> = objects.iter().map(|object| (object, Verdict::of(object))).collect();
        warn_of_overlaps(&mut verdicts);
        for ((_, verdict), other) in verdicts.iter().zip(["Network backup ", "Network storage "]) {
            let status = verdict.status(&Default::default(), Time(Timestamp::now())).unwrap();
            let Some(accepted) = status.conditions.first() else { panic!("{status:?}") };
            assert_eq!(
                (accepted.status.as_str(), accepted.reason.as_str()),
                ("True", ACCEPTED_WITH_WARNINGS)
            );
            assert!(accepted.message.contains(other), "{}", accepted.message);
        }
    }

    #[tokio::test]
    async fn only_a_write_that_may_succeed_later_is_tried_again() {
        for (code, expected) in [(404, true), (500, false)] {
            let (mut reconciler, mut requests) = reconciler();
            let good = network(json!({"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}));
            let (store, slices) = (networks(&good), slices());
            let (done, (request, _)) =
                tokio::join!(reconciler.reconcile(&store, &slices), answer(&mut requests, code));
            assert_eq!((request.as_str(), done), (STATUS, expected));
        }
    }
}
