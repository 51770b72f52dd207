//! Watches what belongs to NetworkAttachments, and does what the machine wants, one request at a time for
//! each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Namespace, Node, ObjectReference, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, ResourceExt,
};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use netclaim_api::network::ClaimNetwork;
use netclaim_api::network_attachment::{
    DETACH_FINALIZER, NETWORK_ATTACHMENT_LABEL, NetworkAttachment, NetworkAttachmentStatus,
};
use netclaim_api::reasons::{AllocatedReason, AttachedReason, Reason as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::machine::{Change, Memory, Seen, Step, Target, next};
use super::objects::{self, TargetObject};
use crate::metrics::{AttachmentState, Metrics, OfState, ProbeOutcome, Probed};
use crate::networks::published::Evictions;
use crate::objects::conditions::{CONTROLLER, Finding};
use crate::objects::events::Events;
use crate::objects::watches::next as next_event;

/// Requests at once. One that a webhook delays does not stop the others.
const REQUESTS: usize = 16;

/// Time between a failed request and the next try, and between a step and the next look if no watch shows
/// what the step did.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Time between two looks at agents and Nodes.
const LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// An agent is away when it has not been ready for this long.
const AWAY_AFTER: Duration = Duration::from_secs(30);

/// Label of the agents' pods.
const AGENTS: &str = "app.kubernetes.io/name=netclaim-agent";

/// Where claims and probes are, and whose devices they have.
#[derive(Debug, Clone)]
pub(crate) struct HotAttach {
    /// Namespace of the controller.
    pub(crate) namespace: String,
    pub(crate) driver: String,
}

type Uid = String;

/// Keeps NetworkAttachments. Does not return. With `None`, there are none.
pub(crate) async fn run(
    client: Client,
    settings: Option<HotAttach>,
    events: Events,
    metrics: Metrics,
    mut evictions: watch::Receiver<Evictions>,
) {
    let Some(settings) = settings else {
        // Nobody derives what nobody reads.
        drop(evictions);
        return std::future::pending().await;
    };
    let everything = watcher::Config::default;
    let ours = everything().labels(NETWORK_ATTACHMENT_LABEL);
    let objects: Api<DynamicObject> =
        Api::all_with(client.clone(), &ApiResource::erase::<NetworkAttachment>(&()));
    let mut object_events = pin!(watcher(objects, everything()).default_backoff());
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &settings.namespace);
    let mut claim_events = pin!(watcher(claims.clone(), ours.clone()).default_backoff());
    let probes: Api<Pod> = Api::namespaced(client.clone(), &settings.namespace);
    let mut probe_events = pin!(watcher(probes.clone(), ours).default_backoff());
    let agents: Api<TargetObject> =
        Api::namespaced_with(client.clone(), &settings.namespace, &objects::resource());
    let mut agent_events = pin!(watcher(agents, everything().labels(AGENTS)).default_backoff());
    let (send_pods, mut pod_events) = mpsc::channel(64);
    let hands = Hands { client: client.clone(), settings, claims, probes, events, metrics: metrics.clone() };
    let mut keeper = Keeper { watched: Watched::new(client, send_pods), ..Keeper::default() };
    let mut requests = FuturesUnordered::new();
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_synced = keeper.objects.is_synced && keeper.claims.is_synced && keeper.probes.is_synced;
        let due = keeper.due.values().min().copied();
        tokio::select! {
            event = next_event(&mut object_events, "network attachments") => keeper.see_object(event),
            event = next_event(&mut claim_events, "claims of network attachments") => {
                keeper.touched(|keeper| keeper.claims.apply(event, |claim| Some((objects::owner(&claim)?, claim))));
            }
            event = next_event(&mut probe_events, "probes of network attachments") => {
                keeper.touched(|keeper| keeper.probes.apply(event, |probe| Some((objects::owner(&probe)?, probe))));
            }
            event = next_event(&mut agent_events, "agents") => {
                keeper.agents.apply(event, |agent| Some((agent.uid()?, objects::ready_on(&agent))));
            }
            Some((namespace, event)) = pod_events.recv() => keeper.see_pod(&namespace, event),
            Ok(()) = evictions.changed() => {
                keeper.evictions = evictions.borrow_and_update().clone();
                keeper.touch_all();
            }
            _ = looks.tick(), if is_synced && keeper.agents.is_synced => keeper.look(&hands).await,
            Some(done) = requests.next(), if !requests.is_empty() => keeper.finished(done),
            () = sleep_until(due.unwrap_or_else(Instant::now)),
                if is_synced && due.is_some() && requests.len() < REQUESTS => {
                for (uid, step, view) in keeper.steps(REQUESTS - requests.len()) {
                    requests.push(hands.take(uid, step, view));
                }
                keeper.count(&metrics);
            }
        }
    }
}

/// The objects of a watch, by the UID of their NetworkAttachment.
struct Known<K> {
    objects: BTreeMap<Uid, K>,
    listing: BTreeMap<Uid, K>,
    is_synced: bool,
}

impl<K> Default for Known<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), listing: BTreeMap::new(), is_synced: false }
    }
}

impl<K> Known<K> {
    /// Takes in an event, and returns whose objects may have changed.
    fn apply<E>(&mut self, event: watcher::Event<E>, read: impl Fn(E) -> Option<(Uid, K)>) -> Vec<Uid> {
        match event {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(object) => self.listing.extend(read(object)),
            watcher::Event::InitDone => {
                self.is_synced = true;
                let before = std::mem::replace(&mut self.objects, std::mem::take(&mut self.listing));
                return before.into_keys().chain(self.objects.keys().cloned()).collect();
            }
            watcher::Event::Apply(object) => {
                let Some((uid, object)) = read(object) else { return Vec::new() };
                self.objects.insert(uid.clone(), object);
                return vec![uid];
            }
            watcher::Event::Delete(object) => {
                let Some((uid, _)) = read(object) else { return Vec::new() };
                self.objects.remove(&uid);
                return vec![uid];
            }
        }
        Vec::new()
    }
}

type PodEvent = (String, watcher::Event<TargetObject>);

/// The watches of pods, one for each namespace that has NetworkAttachments.
#[derive(Default)]
struct Watched {
    send: Option<(Client, mpsc::Sender<PodEvent>)>,
    namespaces: BTreeMap<String, (AbortOnDropHandle<()>, Known<Target>)>,
}

impl Watched {
    fn new(client: Client, send: mpsc::Sender<PodEvent>) -> Self {
        Self { send: Some((client, send)), namespaces: BTreeMap::new() }
    }

    /// Watches the pods of these namespaces and of no others.
    fn keep(&mut self, wanted: &BTreeSet<String>) {
        self.namespaces.retain(|namespace, _| wanted.contains(namespace));
        let Some((client, send)) = &self.send else { return };
        for namespace in
            wanted.iter().filter(|one| !self.namespaces.contains_key(*one)).cloned().collect::<Vec<_>>()
        {
            let api: Api<TargetObject> =
                Api::namespaced_with(client.clone(), &namespace, &objects::resource());
            let (send, of) = (send.clone(), namespace.clone());
            let task = async move {
                let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
                loop {
                    let event = next_event(&mut events, "pods of network attachments").await;
                    if send.send((of.clone(), event)).await.is_err() {
                        return;
                    }
                }
            };
            let task = AbortOnDropHandle::new(tokio::spawn(task));
            self.namespaces.insert(namespace, (task, Known::default()));
        }
    }
}

/// What a request needs of the objects as they were when it was decided.
struct View {
    object: Option<NetworkAttachment>,
    claim: Option<ResourceClaim>,
    probe: Option<Pod>,
}

/// What came of a step.
enum Outcome {
    Done,
    /// The watch is about to show something else.
    Stale,
    /// The devices cannot be had now.
    Problem(Finding<AllocatedReason>),
    Permitted,
    /// The object's namespace may not have what is allocated.
    Forbidden(String),
    Failed(kube::Error),
}

#[derive(Default)]
struct Keeper {
    objects: Known<NetworkAttachment>,
    claims: Known<ResourceClaim>,
    probes: Known<Pod>,
    watched: Watched,
    /// The nodes of ready agents, by the UID of the agent's pod.
    agents: Known<Option<String>>,
    memories: BTreeMap<Uid, Memory>,
    /// When to look at what.
    due: BTreeMap<Uid, Instant>,
    /// A request is on its way; whether to look again at once when it is back.
    busy: BTreeMap<Uid, bool>,
    evictions: Evictions,
    /// Nodes of attachments without a ready agent, with the time since then.
    away: BTreeMap<String, Instant>,
    /// Nodes of attachments that do not exist.
    gone: BTreeSet<String>,
}

impl Keeper {
    fn touch(&mut self, uid: Uid) {
        match self.busy.get_mut(&uid) {
            Some(again) => *again = true,
            None => drop(self.due.insert(uid, Instant::now())),
        }
    }

    fn touched(&mut self, change: impl FnOnce(&mut Self) -> Vec<Uid>) {
        change(self).into_iter().for_each(|uid| self.touch(uid));
    }

    fn touch_all(&mut self) {
        self.touched(|keeper| keeper.objects.objects.keys().cloned().collect());
    }

    fn see_object(&mut self, event: watcher::Event<DynamicObject>) {
        let is_whole = !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_));
        self.touched(|keeper| keeper.objects.apply(event, read));
        if is_whole {
            let objects = self.objects.objects.values();
            let namespaces = objects.filter_map(ResourceExt::namespace).collect();
            self.watched.keep(&namespaces);
        }
    }

    fn see_pod(&mut self, namespace: &str, event: watcher::Event<TargetObject>) {
        let Some((_, pods)) = self.watched.namespaces.get_mut(namespace) else { return };
        // A list also says which pods are not there.
        let is_list = matches!(event, watcher::Event::InitDone);
        // By name: the NetworkAttachments name them.
        let names = pods.apply(event, |pod| Some((pod.name_any(), objects::target(&pod))));
        let is_of = |object: &&NetworkAttachment| {
            object.namespace().as_deref() == Some(namespace)
                && (is_list || names.iter().any(|name| name == object.spec.pod_name.as_str()))
        };
        let uids: Vec<Uid> =
            self.objects.objects.values().filter(is_of).filter_map(ResourceExt::uid).collect();
        uids.into_iter().for_each(|uid| self.touch(uid));
    }

    /// Returns the next steps, at most so many, each with what it is about.
    fn steps(&mut self, most: usize) -> Vec<(Uid, Step, View)> {
        let now = Instant::now();
        let mut steps = Vec::new();
        let due: Vec<Uid> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            if steps.len() == most {
                break;
            }
            self.due.remove(&uid);
            match self.step(&uid, now) {
                Step::Wait(until) => {
                    self.due.extend(until.map(|until| (uid, until)));
                }
                step => {
                    let view = View {
                        object: self.objects.objects.get(&uid).cloned(),
                        claim: self.claims.objects.get(&uid).cloned(),
                        probe: self.probes.objects.get(&uid).cloned(),
                    };
                    self.busy.insert(uid.clone(), false);
                    steps.push((uid, step, view));
                }
            }
        }
        steps
    }

    fn step(&mut self, uid: &str, now: Instant) -> Step {
        let object = self.objects.objects.get(uid);
        let claim = self.claims.objects.get(uid);
        let probe = self.probes.objects.get(uid).map(objects::probe_now);
        if object.is_none() && claim.is_none() && probe.is_none() {
            self.memories.remove(uid);
            return Step::Wait(None);
        }
        let namespace = object.and_then(ResourceExt::namespace).unwrap_or_default();
        let pods = self.watched.namespaces.get(&namespace).map(|(_, pods)| pods);
        let Some(pods) = pods.filter(|pods| pods.is_synced) else {
            if object.is_some() {
                return Step::Wait(None);
            }
            let claim = claim.and_then(|claim| objects::claim_now(claim, uid));
            let memory = self.memories.entry(uid.to_owned()).or_default();
            let seen = Seen { claim: claim.as_ref(), probe: probe.as_ref(), ..Seen::default() };
            return next(&seen, memory, now);
        };
        let pod = object.and_then(|object| pods.objects.get(object.spec.pod_name.as_str()));
        let node = object.and_then(node_of).unwrap_or_default();
        let evicted = claim.and_then(|claim| objects::evicted(claim, &self.evictions));
        let claim = claim.and_then(|claim| objects::claim_now(claim, uid));
        let seen = Seen {
            object,
            pod,
            claim: claim.as_ref(),
            probe: probe.as_ref(),
            is_agent_away: self.away.get(&node).is_some_and(|since| *since + AWAY_AFTER <= now),
            is_node_gone: self.gone.contains(&node),
            evicted: evicted.as_deref(),
        };
        next(&seen, self.memories.entry(uid.to_owned()).or_default(), now)
    }

    /// Takes in what came of a step.
    fn finished(&mut self, (uid, outcome): (Uid, Outcome)) {
        let now = Instant::now();
        let again = self.busy.remove(&uid).unwrap_or_default();
        let memory = self.memories.entry(uid.clone()).or_default();
        let claim = self.claims.objects.get(&uid).and_then(|claim| objects::claim_now(claim, &uid));
        let soon = match outcome {
            Outcome::Done | Outcome::Stale => again,
            Outcome::Problem(problem) => {
                memory.failed(problem, now);
                true
            }
            Outcome::Permitted => {
                claim.iter().for_each(|claim| memory.permit(&claim.place));
                true
            }
            Outcome::Forbidden(why) => {
                claim.iter().for_each(|claim| memory.refuse(&claim.place, why.clone(), now));
                true
            }
            Outcome::Failed(error) => {
                let error = &error as &dyn Error;
                tracing::warn!(error, uid, "cannot go on with a network attachment, will retry");
                false
            }
        };
        self.due.insert(uid, if soon { now } else { now + RETRY_DELAY });
    }

    /// Looks which nodes of attachments have no agent, and which do not exist.
    async fn look(&mut self, hands: &Hands) {
        let nodes: BTreeSet<String> = self.objects.objects.values().filter_map(node_of).collect();
        let served: BTreeSet<&String> = self.agents.objects.values().flatten().collect();
        let away: BTreeSet<String> = nodes.into_iter().filter(|node| !served.contains(node)).collect();
        if away.is_empty() && self.away.is_empty() {
            return;
        }
        match hands.missing(&away).await {
            Ok(gone) => {
                let now = Instant::now();
                self.away = away
                    .into_iter()
                    .map(|node| {
                        let since = self.away.get(&node).copied().unwrap_or(now);
                        (node, since)
                    })
                    .collect();
                self.gone = gone;
                self.touch_all();
            }
            Err(error) => {
                let error = &error as &dyn Error;
                tracing::warn!(error, "cannot see which Nodes exist, will retry");
            }
        }
    }

    fn count(&self, metrics: &Metrics) {
        for &state in AttachmentState::ALL {
            let count = self.objects.objects.values().filter(|object| state_of(object) == state).count();
            metrics
                .attachments
                .get_or_create(&OfState { state })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

fn state_of(object: &NetworkAttachment) -> AttachmentState {
    let is_true = |condition: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>| {
        condition.is_some_and(|condition| condition.status == "True")
    };
    if node_of(object).is_none() {
        AttachmentState::Waiting
    } else if !is_true(object.condition::<AllocatedReason>()) {
        AttachmentState::Detaching
    } else if is_true(object.condition::<AttachedReason>()) {
        AttachmentState::Attached
    } else {
        AttachmentState::Allocated
    }
}

fn node_of(object: &NetworkAttachment) -> Option<String> {
    Some(object.status.as_ref()?.node.as_ref()?.as_str().to_owned())
}

/// Reads an object by itself: one that cannot be read does not hide the others.
fn read(object: DynamicObject) -> Option<(Uid, NetworkAttachment)> {
    let uid = object.uid()?;
    match object.try_parse::<NetworkAttachment>() {
        Ok(object) => Some((uid, object)),
        Err(error) => {
            tracing::warn!(error = &error as &dyn Error, uid, "cannot read a NetworkAttachment, ignoring it");
            None
        }
    }
}

/// Does requests.
struct Hands {
    client: Client,
    settings: HotAttach,
    claims: Api<ResourceClaim>,
    probes: Api<Pod>,
    events: Events,
    metrics: Metrics,
}

impl Hands {
    async fn take(&self, uid: Uid, step: Step, view: View) -> (Uid, Outcome) {
        tracing::debug!(uid, ?step, "a step of a network attachment");
        let outcome = self.done(step, &view).await.unwrap_or_else(|error| match &error {
            kube::Error::Api(status) if [404, 409].contains(&status.code) => Outcome::Stale,
            _ => Outcome::Failed(error),
        });
        (uid, outcome)
    }

    async fn done(&self, step: Step, view: &View) -> kube::Result<Outcome> {
        let View { object, claim, probe } = view;
        match (step, object, claim, probe) {
            (Step::DeleteProbe, _, _, Some(probe)) => delete(&self.probes, probe).await,
            (Step::DeleteClaim, _, Some(claim), _) => delete(&self.claims, claim).await,
            (Step::Deallocate, _, Some(claim), _) => self.patch_claim(claim, objects::release(claim)).await,
            (Step::Reserve, Some(object), Some(claim), _) => {
                self.patch_claim(claim, objects::reservation(claim, object)).await
            }
            (Step::Judge, Some(object), Some(claim), _) => self.judge(object, claim).await,
            (Step::CreateClaim, Some(object), ..) => self.create_claim(object).await,
            (Step::CreateProbe(pod), Some(object), ..) => {
                let probe = objects::probe_of(object, &pod, &self.settings.namespace);
                create(&self.probes, probe, "probe pod").await
            }
            (Step::Finalize, Some(object), ..) => self.finalize(object, true).await,
            (Step::LetGo, Some(object), ..) => self.finalize(object, false).await,
            (Step::Write(change), Some(object), ..) => self.write(change, object).await,
            _ => Ok(Outcome::Stale),
        }
    }

    async fn patch_claim(&self, claim: &ResourceClaim, patch: Value) -> kube::Result<Outcome> {
        let params = PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() };
        self.claims.patch_status(&claim.name_any(), &params, &Patch::Merge(patch)).await?;
        Ok(Outcome::Done)
    }

    async fn create_claim(&self, object: &NetworkAttachment) -> kube::Result<Outcome> {
        let namespace = object.namespace().unwrap_or_default();
        let name = object.spec.resource_claim_template_name.as_str();
        let resource = ApiResource::erase::<ResourceClaimTemplate>(&());
        let templates: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, &resource);
        let refused = |why| Ok(Outcome::Problem(Finding::new(AllocatedReason::Refused, why)));
        let Some(template) = templates.get_opt(name).await? else {
            return refused(format!("there is no ResourceClaimTemplate {name} in this namespace: create it"));
        };
        match objects::claim_of(object, &template, &self.settings.namespace, &self.settings.driver) {
            Ok(claim) => create(&self.claims, claim, "ResourceClaim").await,
            Err(why) => refused(why),
        }
    }

    /// Whether the devices are ours, and their ClaimNetworks for the namespace of the object. The policy
    /// netclaim-namespaces looks at the namespace of a claim, which is the controller's here.
    async fn judge(&self, object: &NetworkAttachment, claim: &ResourceClaim) -> kube::Result<Outcome> {
        let namespace = object.namespace().unwrap_or_default();
        let networks = match objects::networks_of(claim, &self.settings.driver) {
            Ok(networks) => networks,
            Err(driver) => {
                return Ok(Outcome::Forbidden(format!(
                    "the template asks for a device of the driver {driver}: only those of {} can be attached",
                    self.settings.driver
                )));
            }
        };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let labels = namespaces.get_metadata(&namespace).await?.labels().clone();
        let api: Api<ClaimNetwork> = Api::all(self.client.clone());
        for name in networks {
            let network = api.get_opt(name.as_str()).await?;
            if !network.is_some_and(|network| network.spec.namespaces.include(&labels)) {
                return Ok(Outcome::Forbidden(format!(
                    "ClaimNetwork {name} is not for namespace {namespace}: its admin says for which in spec.namespaces"
                )));
            }
        }
        self.count_probe(ProbeOutcome::Allocated);
        Ok(Outcome::Permitted)
    }

    async fn finalize(&self, object: &NetworkAttachment, wanted: bool) -> kube::Result<Outcome> {
        let mut finalizers = object.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != DETACH_FINALIZER);
        finalizers.extend(wanted.then(|| DETACH_FINALIZER.to_owned()));
        let mut metadata = objects::version(object);
        metadata["finalizers"] = json!(finalizers);
        let patch = Patch::Merge(json!({"metadata": metadata}));
        self.api(object).patch_metadata(&object.name_any(), &PatchParams::default(), &patch).await?;
        Ok(Outcome::Done)
    }

    fn api(&self, object: &NetworkAttachment) -> Api<NetworkAttachment> {
        Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default())
    }

    async fn write(&self, change: Change, object: &NetworkAttachment) -> kube::Result<Outcome> {
        let warning = match &change {
            Change::Waiting(why) | Change::Revoked(why) => warning(why),
            _ => None,
        };
        let at = Time(Timestamp::now());
        let status = change.status(object, &at);
        let params = PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() };
        let patch = json!({"metadata": objects::version(object), "status": replacing(object, &status)});
        self.api(object).patch_status(&object.name_any(), &params, &Patch::Merge(patch)).await?;
        if let Some(why) = warning {
            match why.reason {
                AllocatedReason::NotAllocated => self.count_probe(ProbeOutcome::NotAllocated),
                AllocatedReason::Refused | AllocatedReason::ProbeRefused => {
                    self.count_probe(ProbeOutcome::Refused)
                }
                _ => {}
            }
            let about = ObjectReference { resource_version: None, ..object.object_ref(&()) };
            self.events.warn(&about, why.reason.as_str(), "Attach", why.message).await;
        }
        Ok(Outcome::Done)
    }

    fn count_probe(&self, outcome: ProbeOutcome) {
        self.metrics.probes.get_or_create(&Probed { outcome }).inc();
    }

    /// Returns which of these Nodes do not exist.
    async fn missing(&self, nodes: &BTreeSet<String>) -> kube::Result<BTreeSet<String>> {
        let (api, mut gone): (Api<Node>, _) = (Api::all(self.client.clone()), BTreeSet::new());
        for node in nodes {
            if api.get_metadata_opt(node).await?.is_none() {
                gone.insert(node.clone());
            }
        }
        Ok(gone)
    }
}

/// Returns what people have to know.
fn warning(why: &Finding<AllocatedReason>) -> Option<Finding<AllocatedReason>> {
    use AllocatedReason::{Evicted, NotAllocated, ProbeRefused, Refused};
    matches!(why.reason, Refused | NotAllocated | ProbeRefused | Evicted).then(|| why.clone())
}

/// Returns the status for a merge patch: what is not in it any more is removed.
fn replacing(object: &NetworkAttachment, status: &NetworkAttachmentStatus) -> Value {
    let mut patch = json!(status);
    let before = json!(object.status);
    let fields = before.as_object().into_iter().flat_map(|fields| fields.keys());
    for field in fields {
        if let Some(patch) = patch.as_object_mut() {
            patch.entry(field.clone()).or_insert(Value::Null);
        }
    }
    patch
}

/// Deletes this very object at once.
async fn delete<K: Resource + Clone + DeserializeOwned + std::fmt::Debug>(
    api: &Api<K>,
    object: &K,
) -> kube::Result<Outcome> {
    let uid = object.meta().uid.clone();
    let preconditions = Preconditions { uid, resource_version: None };
    let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    api.delete(&object.name_any(), &params.preconditions(preconditions)).await?;
    Ok(Outcome::Done)
}

/// Creates an object. What the API server refuses is a problem that its author has to know.
async fn create<K: Clone + DeserializeOwned + std::fmt::Debug + serde::Serialize>(
    api: &Api<K>,
    object: Value,
    what: &str,
) -> kube::Result<Outcome> {
    let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(Outcome::Done),
        Err(kube::Error::Api(status)) if (400..429).contains(&status.code) && status.code != 409 => {
            let message = format!("the API server refuses the {what}: {}", status.message);
            Ok(Outcome::Problem(Finding::new(AllocatedReason::ProbeRefused, message)))
        }
        Err(error) => Err(error),
    }
}
