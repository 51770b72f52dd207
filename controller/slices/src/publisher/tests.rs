//! The publisher against a fake API server with slices in memory, in paused time.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use http::{Method, Request, Response};
use k8s_openapi::api::resource::v1::{CounterSet, Device, DeviceTaint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{Handle, SendResponse, pair};

use super::*;
use crate::{PUBLISHER_LABEL, config::Scope, dropped::DroppedField, pool::Placement};

type Responder = SendResponse<Response<Body>>;

#[derive(Default)]
struct State {
    slices: BTreeMap<String, ResourceSlice>,
    version: u64,
    /// Version and watch event of each change.
    history: Vec<(u64, Value)>,
    /// Watches that wait for a change after a version.
    watches: Vec<(u64, Responder)>,
    /// Method and place of each write: `POST d0000`.
    writes: Vec<String>,
    /// The gate `DRADeviceTaints` is off.
    drops_taints: bool,
    /// Number of probes, which are not among `writes`.
    probes: usize,
    /// Watches fail.
    refuses_watches: bool,
    /// Its `gitVersion`.
    git_version: Option<&'static str>,
    /// Devices of this name are refused.
    refuses: Option<&'static str>,
    /// The refusal names the device.
    names_refused: bool,
    /// Writes get no answer.
    hangs: bool,
    unanswered: Vec<Responder>,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn start(&self) -> Client {
        let (service, handle) = pair::<Request<Body>, Response<Body>>();
        tokio::spawn(self.clone().serve(handle));
        Client::new(service, "default")
    }

    async fn serve(self, mut handle: Handle<Request<Body>, Response<Body>>) {
        while let Some((request, responder)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let query = parts.uri.query().unwrap_or_default().to_owned();
            let name = parts.uri.path().rsplit('/').next().unwrap().to_owned();
            let mut state = self.state();
            if query.contains("watch=true") {
                assert!(
                    query.contains("fieldSelector=spec.driver%3Dnetclaim.dev%2Cspec.nodeName%3Dn1"),
                    "{query}"
                );
                let since =
                    query.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap().parse();
                state.watches.push((since.unwrap(), responder));
                state.flush();
                continue;
            }
            if state.hangs && parts.method != Method::GET {
                state.unanswered.push(responder);
                continue;
            }
            let (code, answer) = match parts.method {
                Method::GET if name == "version" => {
                    (200, json!({"gitVersion": state.git_version.unwrap_or("v1.37.1")}))
                }
                Method::GET => (200, state.list()),
                method => state.write(method, &name, &body, query.contains("dryRun=All")),
            };
            state.flush();
            drop(state);
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            responder.send_response(Response::builder().status(code).body(body).unwrap());
        }
    }

    /// Lets someone else change slices.
    fn edit(&self, edit: impl FnOnce(&mut State)) {
        let mut state = self.state();
        edit(&mut state);
        state.flush();
    }

    fn wipe(&self) {
        self.edit(|state| {
            while let Some((name, _)) = state.slices.first_key_value() {
                let name = name.clone();
                state.remove(&name);
            }
        });
    }

    fn take_writes(&self) -> String {
        std::mem::take(&mut self.state().writes).join(" ")
    }

    fn devices(&self) -> Vec<String> {
        let state = self.state();
        let devices = state.slices.values().flat_map(|slice| slice.spec.devices.iter().flatten());
        devices.map(|device| device.name.clone()).collect()
    }
}

impl State {
    fn list(&self) -> Value {
        json!({"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "metadata":
            {"resourceVersion": self.version.to_string()}, "items": self.slices.values().collect::<Vec<_>>()})
    }

    fn write(&mut self, method: Method, name: &str, body: &[u8], dry_run: bool) -> (u16, Value) {
        let sent: Option<ResourceSlice> =
            serde_json::from_slice(body).ok().filter(|_| method != Method::DELETE);
        let name =
            sent.as_ref().and_then(|slice| slice.metadata.name.clone()).unwrap_or_else(|| name.to_owned());
        let place = name.rsplit('-').next().unwrap().to_owned();
        if name == "netclaim.dev-probe" {
            assert!(dry_run);
            self.probes += 1;
        } else {
            self.writes.push(format!("{}{method} {place}", if dry_run { "dry " } else { "" }));
        }
        let refuse = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}),
            )
        };
        let known = self.slices.get(&name).map(|slice| slice.metadata.clone());
        match (&sent, &known) {
            (Some(slice), Some(known)) if slice.metadata.resource_version.is_none() => {
                return refuse(409, &format!("AlreadyExists {known:?}"));
            }
            (Some(slice), Some(known)) if slice.metadata.resource_version != known.resource_version => {
                return refuse(409, "Conflict");
            }
            (Some(slice), None) if slice.metadata.resource_version.is_some() => {
                return refuse(404, "NotFound");
            }
            (None, None) => return refuse(404, "NotFound"),
            _ => {}
        }
        let Some(mut slice) = sent else {
            let options: Value = serde_json::from_slice(body).unwrap();
            if options["preconditions"]["resourceVersion"] != json!(known.unwrap().resource_version) {
                return refuse(409, "Conflict");
            }
            self.remove(&name);
            return (200, json!({"kind": "Status", "status": "Success"}));
        };
        let refused = |device: &Device| Some(device.name.as_str()) == self.refuses;
        if let Some(index) = slice.spec.devices.iter().flatten().position(refused) {
            let (code, mut answer) = refuse(422, "Invalid");
            if self.names_refused {
                let field = format!("spec.devices[{index}].attributes[x].string");
                answer["details"] = json!({"causes": [{"reason": "FieldValueTooLong", "message": "Too long", "field": field}]});
            }
            return (code, answer);
        }
        if self.drops_taints {
            slice.spec.devices.iter_mut().flatten().for_each(|device| device.taints = None);
        }
        if !dry_run {
            slice = self.put(slice);
        }
        (200, serde_json::to_value(slice).unwrap())
    }

    fn put(&mut self, mut slice: ResourceSlice) -> ResourceSlice {
        self.version += 1;
        let name = slice.metadata.name.clone().unwrap();
        slice.metadata.uid.get_or_insert_with(|| format!("uid-{}", self.version));
        slice.metadata.resource_version = Some(self.version.to_string());
        let kind = if self.slices.contains_key(&name) { "MODIFIED" } else { "ADDED" };
        self.history.push((self.version, json!({"type": kind, "object": slice})));
        self.slices.insert(name, slice.clone());
        slice
    }

    fn remove(&mut self, name: &str) {
        self.version += 1;
        let mut slice = self.slices.remove(name).unwrap();
        slice.metadata.resource_version = Some(self.version.to_string());
        self.history.push((self.version, json!({"type": "DELETED", "object": slice})));
    }

    /// Answers the watches that have events. Each ends with its answer, and the watcher starts another.
    fn flush(&mut self) {
        let version = self.version;
        let (due, waiting) =
            std::mem::take(&mut self.watches).into_iter().partition(|(since, _)| *since < version);
        self.watches = waiting;
        for (since, responder) in due {
            if self.refuses_watches {
                responder.send_response(Response::builder().status(500).body(Body::empty()).unwrap());
                continue;
            }
            let events = self.history.iter().filter(|(version, _)| *version > since);
            let lines: String = events.map(|(_, event)| format!("{event}\n")).collect();
            responder.send_response(Response::new(Body::from(lines.into_bytes())));
        }
    }
}

fn config() -> PublisherConfig {
    PublisherConfig::new("netclaim.dev", "agent", Scope::Node("n1".into())).unwrap()
}

fn pool(devices: impl IntoIterator<Item = String>) -> Pool {
    let device = |name| Device { name, ..Device::default() };
    Pool::new("n1", Placement::Node("n1".into()), devices.into_iter().map(device).collect())
}

fn nets(n: usize) -> Pool {
    pool((0..n).map(|i| format!("net-{i:03}")))
}

fn start(server: &Server) -> PublisherHandle {
    Publisher::spawn(server.start(), config(), CancellationToken::new()).0
}

async fn published(handle: &PublisherHandle, pools: Vec<Pool>) -> PublishStatus {
    let revision = handle.publish(pools);
    processed(handle, |status| status.is_published(revision)).await
}

async fn processed(handle: &PublisherHandle, done: impl FnMut(&PublishStatus) -> bool) -> PublishStatus {
    let mut status = handle.status();
    let wait = tokio::time::timeout(Duration::from_secs(600), status.wait_for(done));
    wait.await.expect("the status does not arrive").unwrap().clone()
}

/// What the fake server has by default.
fn all_features() -> ServerFeatures {
    features_without([])
}

fn features_without<const N: usize>(dropped: [DroppedField; N]) -> ServerFeatures {
    dropped.into_iter().collect::<ServerFeatures>().of("v1.37.1".parse().unwrap())
}

/// Lets a second pass, in which the publisher does all that is due.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn wiped_slices_come_back_within_a_second() {
    let server = Server::default();
    let handle = start(&server);
    let status = published(&handle, vec![nets(100)]).await;
    assert_eq!(status.pools["n1"].generation, Some(1));
    assert_eq!(server.take_writes(), "POST d0000 POST d0001");

    for _ in 0..3 {
        server.wipe();
        assert_eq!(server.devices(), [""; 0]);
        settle().await;
        assert_eq!(server.take_writes(), "POST d0000 POST d0001");
        assert_eq!(server.devices().len(), 100);
    }
}

#[tokio::test(start_paused = true)]
async fn the_publisher_writes_nothing_while_nothing_changes() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(3)]).await;
    server.take_writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    published(&handle, vec![nets(3)]).await;
    assert_eq!(server.take_writes(), "");
}

#[tokio::test(start_paused = true)]
async fn a_restart_with_the_same_pools_writes_nothing() {
    let server = Server::default();
    let cancel = CancellationToken::new();
    let (handle, task) = Publisher::spawn(server.start(), config(), cancel.clone());
    published(&handle, vec![nets(3)]).await;
    cancel.cancel();
    task.await.unwrap();
    server.take_writes();

    let handle = start(&server);
    settle().await;
    assert_eq!(server.take_writes(), "", "before the first call");
    published(&handle, vec![nets(3)]).await;
    assert_eq!(server.take_writes(), "", "after it");
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_starts_says_what_the_one_before_has_published() {
    let server = Server::default();
    let first = start(&server);
    assert!(published(&first, vec![nets(100)]).await.found.is_empty());
    let second = processed(&start(&server), |status| status.server.is_some()).await;
    let found: Vec<&str> = second.found.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(found, server.devices());
    assert_eq!(found.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_edit_is_undone() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(3)]).await;
    server.edit(|state| {
        let mut slice = state.slices.first_entry().unwrap().get().clone();
        slice.spec.devices.get_or_insert_default().clear();
        state.put(slice);
    });
    settle().await;
    assert_eq!(server.devices(), ["net-000", "net-001", "net-002"]);
}

#[tokio::test(start_paused = true)]
async fn omitted_pools_are_withdrawn_unless_another_publisher_has_them() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(3)]).await;
    server.edit(|state| {
        let mut slice = state.slices.first_entry().unwrap().get().clone();
        slice.metadata.name = Some("foreign-d0007".into());
        slice.metadata.uid = None;
        slice.metadata.labels = Some([(PUBLISHER_LABEL.to_owned(), "other".to_owned())].into());
        slice.spec.pool.name = "theirs".into();
        state.put(slice);
    });
    server.take_writes();
    let status = published(&handle, Vec::new()).await;
    assert_eq!(server.take_writes(), "DELETE d0000");
    assert!(status.pools.is_empty());
    settle().await;
    assert_eq!(server.state().slices.keys().collect::<Vec<_>>(), ["foreign-d0007"]);
}

#[tokio::test(start_paused = true)]
async fn a_device_leaves_its_old_pool_before_it_is_in_the_new_one() {
    let server = Server::default();
    let handle = start(&server);
    let named = |name: &str| Pool { name: name.to_owned(), ..nets(1) };
    published(&handle, vec![named("n1"), named("n1/eth1")]).await;
    server.take_writes();
    published(&handle, vec![named("n1")]).await;
    published(&handle, vec![Pool { name: "n1".to_owned(), ..pool([]) }, named("n1/eth1")]).await;
    assert_eq!(server.take_writes(), "DELETE d0000 PUT d0000 POST d0000");
    published(&handle, vec![named("n1")]).await;
    assert_eq!(server.take_writes(), "DELETE d0000 PUT d0000", "the other way");
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_calls_is_one_write() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(1)]).await;
    server.take_writes();
    for i in 2..60 {
        handle.publish(vec![nets(i)]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    settle().await;
    assert_eq!(server.take_writes(), "PUT d0000");
    assert_eq!(server.devices().len(), 59);
}

#[tokio::test(start_paused = true)]
async fn an_update_after_a_conflict_is_planned_again() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(1)]).await;
    server.take_writes();
    // The watch reports this only with the next change.
    {
        let mut state = server.state();
        let mut slice = state.slices.first_entry().unwrap().get().clone();
        slice.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
        state.put(slice);
    }
    published(&handle, vec![nets(2)]).await;
    assert_eq!(server.take_writes(), "PUT d0000 PUT d0000");
    let state = server.state();
    let slice = state.slices.values().next().unwrap();
    assert!(slice.metadata.annotations.as_ref().unwrap().contains_key("a"), "the other's change is kept");
}

#[tokio::test(start_paused = true)]
async fn a_refused_rewrite_keeps_the_last_slices_and_other_pools_go_on() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(64)]).await;
    server.take_writes();
    server.state().refuses = Some("net-099");
    let other = Pool { name: "other".into(), ..pool([]) };
    let revision = handle.publish(vec![nets(100), other.clone()]);
    let status = processed(&handle, |status| status.revision == revision).await;
    assert_eq!(server.take_writes(), "dry PUT d0000 dry POST d0001 POST d0000");
    assert_eq!(server.devices().len(), 64);
    assert_eq!(status.pools["n1"].generation, Some(1));
    let error = status.pools["n1"].error.as_ref().unwrap();
    assert!(error.to_string().starts_with("cannot dry-run resource slice n1-netclaim.dev-"), "{error}");
    assert!(status.pools["other"].error.is_none());

    server.state().refuses = None;
    let status = processed(&handle, |status| status.is_published(revision)).await;
    assert_eq!(status.pools["n1"].generation, Some(2));
    assert_eq!(server.devices().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn only_the_faulty_device_is_left_out() {
    let server = Server::default();
    let handle = start(&server);
    let mut exhausted = nets(2);
    let capacity = json!({"addresses": {"value": "0", "requestPolicy": {"default": "1"}}});
    exhausted.devices[0].capacity = serde_json::from_value(capacity).unwrap();
    let status = published(&handle, vec![exhausted]).await;
    assert_eq!(server.devices(), ["net-001"]);
    let left_out: Vec<_> = status.pools["n1"].left_out.iter().map(Fault::to_string).collect();
    let fault =
        "pool n1, device net-000, capacity[addresses].requestPolicy.default: 1 is above the capacity 0";
    assert_eq!(left_out, [fault]);
    let status = published(&handle, vec![nets(2)]).await;
    assert!(status.pools["n1"].left_out.is_empty());
    assert_eq!(server.devices().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refused_device_is_left_out_until_it_or_the_server_changes() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(64)]).await;
    server.edit(|state| (state.refuses, state.names_refused) = (Some("net-070"), true));
    let status = published(&handle, vec![nets(100)]).await;
    assert_eq!(server.devices().len(), 99);
    let left_out: Vec<_> = status.pools["n1"].left_out.iter().map(Fault::to_string).collect();
    let fault = "pool n1, device net-070, attributes[x].string: the API server refuses it: Too long";
    assert_eq!(left_out, [fault]);
    server.take_writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(server.take_writes(), "", "it is not retried");

    server.edit(|state| {
        state.refuses = None;
        state.refuses_watches = true;
        state.version += 1;
    });
    settle().await;
    server.edit(|state| state.refuses_watches = false);
    processed(&handle, |status| status.pools["n1"].left_out.is_empty()).await;
    assert_eq!(server.devices().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn slices_follow_a_recreated_owner() {
    let server = Server::default();
    let handle = start(&server);
    let owned = |uid: &str| {
        let (api_version, kind, name) = ("v1".into(), "Node".into(), "n1".into());
        let owner = OwnerReference { api_version, kind, name, uid: uid.into(), ..Default::default() };
        Pool { owner: Some(owner), ..nets(1) }
    };
    for uid in ["old", "new"] {
        published(&handle, vec![owned(uid)]).await;
        let state = server.state();
        let owners = state.slices.values().map(|slice| slice.metadata.owner_references.clone().unwrap());
        assert_eq!(owners.map(|owners| owners[0].uid.clone()).collect::<Vec<_>>(), [uid]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_pool_is_not_sent_and_keeps_its_slices() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(2)]).await;
    server.take_writes();
    let elsewhere = Pool { placement: Placement::AllNodes, ..nets(1) };
    for invalid in [vec![elsewhere], vec![nets(1), nets(3)]] {
        let revision = handle.publish(invalid);
        let status = processed(&handle, |status| status.revision == revision).await;
        assert!(matches!(**status.pools["n1"].error.as_ref().unwrap(), PublishError::Invalid { .. }));
        assert_eq!(status.pools["n1"].generation, Some(1));
    }
    settle().await;
    assert_eq!(server.take_writes(), "");
    assert_eq!(server.devices().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_field_is_reported_and_not_sent_again() {
    let server = Server::default();
    server.state().drops_taints = true;
    let handle = start(&server);
    let mut tainted = nets(2);
    let taint = DeviceTaint { key: "k".into(), effect: "NoSchedule".into(), ..DeviceTaint::default() };
    tainted.devices[0].taints = Some(vec![taint]);
    let status = published(&handle, vec![tainted.clone()]).await;
    assert_eq!(status.server, Some(features_without([DroppedField::Taints])));
    settle().await;
    assert_eq!(server.take_writes(), "POST d0000");

    server.state().drops_taints = false;
    tainted.devices.pop();
    let status = published(&handle, vec![tainted]).await;
    assert_eq!(status.server, Some(all_features()), "the gate is on again");
}

#[tokio::test(start_paused = true)]
async fn counters_are_written_before_devices() {
    let server = Server::default();
    let handle = start(&server);
    let counters = vec![CounterSet { name: "eth1".into(), ..CounterSet::default() }];
    published(&handle, vec![Pool { counters, ..nets(1) }]).await;
    assert_eq!(server.take_writes(), "POST c0000 POST d0000");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_is_retried() {
    let server = Server::default();
    server.state().hangs = true;
    let handle = start(&server);
    let revision = handle.publish(vec![nets(1)]);
    let status = processed(&handle, |status| status.revision == revision).await;
    let error = status.pools["n1"].error.as_ref().unwrap();
    assert!(error.to_string().starts_with("no answer within 30 s: create resource slice n1-"), "{error}");

    server.state().hangs = false;
    processed(&handle, |status| status.is_published(revision)).await;
    assert_eq!(server.devices(), ["net-000"]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_another_publisher_is_reported_and_left_alone() {
    let server = Server::default();
    published(&start(&server), vec![nets(1)]).await;
    server.take_writes();
    let config = PublisherConfig::new("netclaim.dev", "other", Scope::Node("n1".into())).unwrap();
    let (handle, _task) = Publisher::spawn(server.start(), config, CancellationToken::new());
    let revision = handle.publish(vec![nets(2)]);
    let status = processed(&handle, |status| status.revision == revision).await;
    assert!(matches!(**status.pools["n1"].error.as_ref().unwrap(), PublishError::Taken { .. }));
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(server.take_writes(), "");
}

#[tokio::test(start_paused = true)]
async fn the_server_is_probed_before_anything_is_published() {
    let server = Server::default();
    server.state().drops_taints = true;
    let handle = start(&server);
    let status = processed(&handle, |status| status.server.is_some()).await;
    assert_eq!(status.server, Some(features_without([DroppedField::Taints])));
    assert_eq!((server.take_writes().as_str(), server.state().probes), ("", 1));
    published(&handle, vec![nets(3)]).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(server.state().probes, 1, "probed once");
}

#[tokio::test(start_paused = true)]
async fn the_server_is_probed_again_after_a_failed_watch() {
    let server = Server::default();
    server.state().drops_taints = true;
    let handle = start(&server);
    processed(&handle, |status| status.server.is_some()).await;
    server.edit(|state| {
        state.drops_taints = false;
        state.refuses_watches = true;
        state.version += 1;
    });
    settle().await;
    server.edit(|state| state.refuses_watches = false);
    let all = Some(all_features());
    processed(&handle, |status| status.server == all).await;
}

#[tokio::test(start_paused = true)]
async fn an_old_version_is_reported_until_the_server_is_upgraded() {
    let server = Server::default();
    server.state().git_version = Some("v1.36.6-distribution.7");
    let handle = start(&server);
    let status = processed(&handle, |status| status.server.is_some()).await;
    assert!(status.server.unwrap().without_counters().is_some());
    server.edit(|state| {
        state.git_version = Some("v1.37.0");
        state.refuses_watches = true;
        state.version += 1;
    });
    settle().await;
    server.edit(|state| state.refuses_watches = false);
    let counts = |status: &PublishStatus| {
        status.server.as_ref().is_some_and(|server| server.without_counters().is_none())
    };
    processed(&handle, counts).await;
}

#[tokio::test(start_paused = true)]
async fn another_version_behind_a_watch_that_goes_on_is_seen_within_minutes() {
    let server = Server::default();
    server.state().git_version = Some("v1.36.6");
    server.state().drops_taints = true;
    let handle = start(&server);
    processed(&handle, |status| status.server.is_some()).await;
    server.edit(|state| {
        state.git_version = Some("v1.37.1");
        state.drops_taints = false;
    });
    let begin = Instant::now();
    processed(&handle, |status| status.server == Some(all_features())).await;
    assert!(begin.elapsed() <= VERSION_INTERVAL, "{:?}", begin.elapsed());
    assert_eq!(server.state().probes, 2);
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_many_slices_is_rewritten_within_a_second() {
    let server = Server::default();
    let handle = start(&server);
    published(&handle, vec![nets(40 * 64)]).await;
    let start = tokio::time::Instant::now();
    published(&handle, vec![nets(40 * 64 + 1)]).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(server.take_writes().matches("PUT").count(), 2 * 40, "each has a dry run and a write");
}
