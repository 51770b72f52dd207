//! Watches what belongs to NetworkAttachments, and does what the machine wants, one request at a time for
//! each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{self, FuturesUnordered};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, ObjectReference, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, ResourceExt,
};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config, Resource};
use netclaim_api::network::ClaimNetwork;
use netclaim_api::network_attachment::{
    DETACH_FINALIZER, NETWORK_ATTACHMENT_LABEL, NetworkAttachment, NetworkAttachmentStatus,
};
use netclaim_api::reasons::{AllocatedReason, AttachedReason, Reason as _};
use netclaim_process::kubernetes::{self, answered};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::machine::{Change, ClaimNow, Memory, Seen, Step, Target, next};
use super::objects::{self, TargetObject};
use crate::metrics::{AttachmentState, Metrics, OfState, ProbeOutcome, Probed};
use crate::networks::published::Evictions;
use crate::objects::conditions::{CONTROLLER, Finding};
use crate::objects::events::Events;
use crate::objects::watches::next as next_event;

/// Requests at once. One that a webhook delays does not stop the others.
const REQUESTS: usize = 16;

/// Watches of pods on one connection. An API server answers at most a hundred requests at once on one, and a
/// watch is a request that does not end.
const WATCHES: usize = 50;

/// Probes at once: each takes time of the scheduler.
const PROBES: usize = 32;

/// Probes at once for the NetworkAttachments of one namespace, which leave the others their turn.
const PROBES_OF_NAMESPACE: usize = 4;

/// Time until it is seen again whether there may be another probe.
const PROBE_DELAY: Duration = Duration::from_secs(1);

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
    /// Makes the clients of the watches of pods.
    pub(crate) config: Config,
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
    let watched = Watched::new(settings.config.clone(), send_pods);
    let hands = Hands { client, settings, claims, probes, events, metrics: metrics.clone() };
    let mut keeper = Keeper { watched, ..Keeper::default() };
    let (mut requests, mut looking) = (FuturesUnordered::new(), FuturesUnordered::new());
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
                keeper.see_probe(event);
            }
            event = next_event(&mut agent_events, "agents") => {
                keeper.agents.apply(event, |agent| Some((agent.uid()?, objects::ready_on(&agent))));
            }
            Some((namespace, event)) = pod_events.recv() => keeper.see_pod(&namespace, event),
            Ok(()) = evictions.changed() => {
                keeper.evictions = evictions.borrow_and_update().clone();
                keeper.touch_all();
            }
            _ = looks.tick(), if is_synced && keeper.agents.is_synced && looking.is_empty() => {
                looking.extend(keeper.without_agent().map(|nodes| hands.missing(nodes)));
            }
            Some(found) = looking.next(), if !looking.is_empty() => keeper.looked(found),
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
    send: Option<(Config, mpsc::Sender<PodEvent>)>,
    clients: Vec<Client>,
    namespaces: BTreeMap<String, Pods>,
}

/// The pods of a namespace, by name.
struct Pods {
    /// Index of the client that watches them.
    client: usize,
    known: Known<Target>,
    _watch: AbortOnDropHandle<()>,
}

impl Watched {
    fn new(config: Config, send: mpsc::Sender<PodEvent>) -> Self {
        Self { send: Some((config, send)), ..Self::default() }
    }

    /// Watches the pods of these namespaces and of no others.
    fn keep(&mut self, wanted: &BTreeSet<String>) {
        self.namespaces.retain(|namespace, _| wanted.contains(namespace));
        let Some((config, send)) = self.send.clone() else { return };
        for namespace in wanted {
            if self.namespaces.contains_key(namespace) {
                continue;
            }
            let index = self.free_client();
            let client = match self.clients.get(index) {
                Some(client) => client.clone(),
                None => match kubernetes::client(config.clone()) {
                    Ok(client) => {
                        self.clients.push(client.clone());
                        client
                    }
                    Err(error) => {
                        let error = &error as &dyn Error;
                        tracing::warn!(
                            error,
                            namespace,
                            "cannot make a client that watches pods, will retry"
                        );
                        return;
                    }
                },
            };
            let api: Api<TargetObject> = Api::namespaced_with(client, namespace, &objects::resource());
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
            let watch = AbortOnDropHandle::new(tokio::spawn(task));
            let pods = Pods { client: index, known: Known::default(), _watch: watch };
            self.namespaces.insert(namespace.clone(), pods);
        }
    }

    /// Returns the index of a client that can take another watch, which may be one that is not made yet.
    fn free_client(&self) -> usize {
        let watches = |index: usize| self.namespaces.values().filter(|pods| pods.client == index).count();
        (0..self.clients.len()).find(|index| watches(*index) < WATCHES).unwrap_or(self.clients.len())
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
    /// The status is written: the object has this version no more, but is as the answer has it.
    Written(Option<String>, Box<NetworkAttachment>),
    /// The object's namespace may have what is allocated.
    Permitted(ClaimNow),
    /// It may not.
    Forbidden(ClaimNow, String),
    Failed(kube::Error),
}

/// Nodes without an agent.
struct Away {
    nodes: BTreeSet<String>,
    /// Those of them that do not exist.
    gone: BTreeSet<String>,
}

#[derive(Default)]
struct Keeper {
    /// `None`: it exists and cannot be read.
    objects: Known<Option<NetworkAttachment>>,
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
    /// Objects whose probe is being made and not seen yet, with the time since then.
    asking: BTreeMap<Uid, Instant>,
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
            self.watch_pods();
        }
    }

    fn watch_pods(&mut self) {
        let namespaces = self.readable().filter_map(ResourceExt::namespace).collect();
        self.watched.keep(&namespaces);
    }

    fn object(&self, uid: &str) -> Option<&NetworkAttachment> {
        self.objects.objects.get(uid)?.as_ref()
    }

    fn readable(&self) -> impl Iterator<Item = &NetworkAttachment> {
        self.objects.objects.values().flatten()
    }

    fn see_probe(&mut self, event: watcher::Event<Pod>) {
        self.touched(|keeper| keeper.probes.apply(event, |probe| Some((objects::owner(&probe)?, probe))));
        let probes = &self.probes.objects;
        self.asking.retain(|uid, _| !probes.contains_key(uid));
    }

    /// Whether there are as many probes as there may be for an object of this namespace.
    fn has_all_probes(&self, namespace: &str) -> bool {
        let probes: BTreeSet<&Uid> = self.probes.objects.keys().chain(self.asking.keys()).collect();
        let is_of =
            |uid: &&&Uid| self.object(uid).and_then(ResourceExt::namespace).is_some_and(|of| of == namespace);
        probes.len() >= PROBES || probes.iter().filter(is_of).count() >= PROBES_OF_NAMESPACE
    }

    fn see_pod(&mut self, namespace: &str, event: watcher::Event<TargetObject>) {
        let Some(Pods { known: pods, .. }) = self.watched.namespaces.get_mut(namespace) else { return };
        // A list also says which pods are not there.
        let is_list = matches!(event, watcher::Event::InitDone);
        // By name: the NetworkAttachments name them.
        let names = pods.apply(event, |pod| Some((pod.name_any(), objects::target(&pod))));
        let is_of = |object: &&NetworkAttachment| {
            object.namespace().as_deref() == Some(namespace)
                && (is_list || names.iter().any(|name| name == object.spec.pod_name.as_str()))
        };
        let uids: Vec<Uid> = self.readable().filter(is_of).filter_map(ResourceExt::uid).collect();
        uids.into_iter().for_each(|uid| self.touch(uid));
    }

    /// Returns the next steps, at most so many, each with what it is about.
    fn steps(&mut self, most: usize) -> Vec<(Uid, Step, View)> {
        let now = Instant::now();
        let mut steps = Vec::new();
        // Without a watch event, the probe was there for a moment only.
        self.asking.retain(|uid, since| self.busy.contains_key(uid) || now < *since + RETRY_DELAY);
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
                Step::CreateProbe(_) if self.has_all_probes(&self.namespace(&uid)) => {
                    self.due.insert(uid, now + PROBE_DELAY);
                }
                step => {
                    if matches!(step, Step::CreateProbe(_)) {
                        self.asking.insert(uid.clone(), now);
                    }
                    let view = View {
                        object: self.object(&uid).cloned(),
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

    fn namespace(&self, uid: &str) -> String {
        self.object(uid).and_then(ResourceExt::namespace).unwrap_or_default()
    }

    fn step(&mut self, uid: &str, now: Instant) -> Step {
        let object = match self.objects.objects.get(uid) {
            // It is not gone: a pod may have its devices.
            Some(None) => return Step::Wait(None),
            object => object.and_then(Option::as_ref),
        };
        let claim = self.claims.objects.get(uid);
        let probe = self.probes.objects.get(uid).map(objects::probe_now);
        if object.is_none() && claim.is_none() && probe.is_none() {
            self.memories.remove(uid);
            return Step::Wait(None);
        }
        let namespace = object.and_then(ResourceExt::namespace).unwrap_or_default();
        let pods = self.watched.namespaces.get(&namespace).map(|pods| &pods.known);
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
        if !matches!(outcome, Outcome::Done) {
            self.asking.remove(&uid);
        }
        let soon = match outcome {
            Outcome::Done | Outcome::Stale => again,
            Outcome::Written(before, written) => {
                // The next step must not be decided on what the watch still has.
                let known = self.objects.objects.get_mut(&uid).and_then(Option::as_mut);
                let known = known.filter(|known| known.metadata.resource_version == before);
                known.into_iter().for_each(|known| *known = (*written).clone());
                again
            }
            Outcome::Problem(problem) => {
                memory.failed(problem, now);
                true
            }
            Outcome::Permitted(claim) => {
                memory.permit(&claim);
                true
            }
            Outcome::Forbidden(claim, why) => {
                memory.refuse(&claim, why, now);
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

    /// Returns the nodes of attachments that have no agent; `None` if there are none, as before.
    fn without_agent(&mut self) -> Option<BTreeSet<String>> {
        // Those for which there was no client.
        self.watch_pods();
        let nodes: BTreeSet<String> = self.readable().filter_map(node_of).collect();
        let served: BTreeSet<&String> = self.agents.objects.values().flatten().collect();
        let away: BTreeSet<String> = nodes.into_iter().filter(|node| !served.contains(node)).collect();
        (!away.is_empty() || !self.away.is_empty()).then_some(away)
    }

    /// Takes in which nodes have no agent, and which of these do not exist.
    fn looked(&mut self, found: kube::Result<Away>) {
        match found {
            Ok(Away { nodes, gone }) => {
                let now = Instant::now();
                self.away = nodes
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
            let count = self.readable().filter(|object| state_of(object) == state).count();
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
fn read(object: DynamicObject) -> Option<(Uid, Option<NetworkAttachment>)> {
    let uid = object.uid()?;
    match object.try_parse::<NetworkAttachment>() {
        Ok(object) => Some((uid, Some(object))),
        Err(error) => {
            let error = &error as &dyn Error;
            tracing::warn!(
                error,
                uid,
                "cannot read a NetworkAttachment, leaving what belongs to it as it is"
            );
            Some((uid, None))
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
            (Step::Deallocate, object, Some(claim), _) => {
                if let Some(object) = object {
                    self.confirm(object).await?;
                }
                self.patch_claim(claim, objects::release(claim)).await
            }
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
        self.claims.patch_status(&claim.name_any(), &of_controller(), &Patch::Merge(patch)).await?;
        Ok(Outcome::Done)
    }

    /// Fails with 409 if the object has another version. The claim's does not change when the object becomes
    /// Allocated, so that a replica that is late could release what an agent attaches.
    async fn confirm(&self, object: &NetworkAttachment) -> kube::Result<()> {
        let patch = Patch::Merge(json!({"metadata": objects::version(object)}));
        self.api(object).patch_status(&object.name_any(), &of_controller(), &patch).await.map(drop)
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
        let judged = object.uid().and_then(|uid| objects::claim_now(claim, &uid));
        let Some(judged) = judged else { return Ok(Outcome::Stale) };
        let networks = match objects::networks_of(claim, &self.settings.driver) {
            Ok(networks) => networks,
            Err(driver) => {
                let why = format!(
                    "the template asks for a device of the driver {driver}: only those of {} can be attached",
                    self.settings.driver
                );
                return Ok(Outcome::Forbidden(judged, why));
            }
        };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let labels = namespaces.get_metadata(&namespace).await?.labels().clone();
        let api: Api<ClaimNetwork> = Api::all(self.client.clone());
        for name in networks {
            let network = api.get_opt(name.as_str()).await?;
            if !network.is_some_and(|network| network.spec.namespaces.include(&labels)) {
                let why = format!(
                    "ClaimNetwork {name} is not for namespace {namespace}: its admin says for which in spec.namespaces"
                );
                return Ok(Outcome::Forbidden(judged, why));
            }
        }
        self.count_probe(ProbeOutcome::Allocated);
        Ok(Outcome::Permitted(judged))
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
        let patch = json!({"metadata": objects::version(object), "status": replacing(object, &status)});
        let written =
            self.api(object).patch_status(&object.name_any(), &of_controller(), &Patch::Merge(patch)).await?;
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
        Ok(Outcome::Written(object.metadata.resource_version.clone(), Box::new(written)))
    }

    fn count_probe(&self, outcome: ProbeOutcome) {
        self.metrics.probes.get_or_create(&Probed { outcome }).inc();
    }

    /// Asks which of these Nodes do not exist.
    async fn missing(&self, nodes: BTreeSet<String>) -> kube::Result<Away> {
        let api: Api<Node> = Api::all(self.client.clone());
        let missing = stream::iter(nodes.clone()).map(|node| {
            let api = api.clone();
            async move {
                let found = answered(api.get_metadata_opt(&node)).await?;
                Ok::<_, kube::Error>(found.is_none().then_some(node))
            }
        });
        let missing: Vec<Option<String>> = missing.buffer_unordered(REQUESTS).try_collect().await?;
        Ok(Away { nodes, gone: missing.into_iter().flatten().collect() })
    }
}

fn of_controller() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(uid: &str, namespace: &str) -> NetworkAttachment {
        let object = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
            "metadata": {"name": uid, "namespace": namespace, "uid": uid, "resourceVersion": "1"},
            "spec": {"podName": "web-0", "resourceClaimTemplateName": "backup"},
        });
        serde_json::from_value(object).unwrap()
    }

    fn keeper(objects: &[(&str, &str)]) -> Keeper {
        let mut keeper = Keeper::default();
        for (uid, namespace) in objects {
            keeper.objects.objects.insert((*uid).to_owned(), Some(attachment(uid, namespace)));
        }
        keeper
    }

    #[test]
    fn an_object_that_cannot_be_read_is_not_gone() {
        let object = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
            "metadata": {"name": "a", "namespace": "shop", "uid": "u"}, "spec": {"podName": 1},
        });
        let mut keeper = Keeper::default();
        keeper.see_object(watcher::Event::Apply(serde_json::from_value(object).unwrap()));
        let claim = json!({"metadata": {"name": "attachment-u", "namespace": "netclaim-system", "uid": "c"}, "spec": {}});
        keeper.claims.objects.insert("u".to_owned(), serde_json::from_value(claim).unwrap());
        assert!(matches!(keeper.step("u", Instant::now()), Step::Wait(None)));
        keeper.objects.objects.clear();
        assert!(matches!(keeper.step("u", Instant::now()), Step::DeleteClaim));
    }

    #[tokio::test]
    async fn a_list_of_pods_has_all_objects_of_the_namespace_looked_at() {
        let mut keeper = keeper(&[("a", "shop"), ("b", "bank")]);
        let watch = AbortOnDropHandle::new(tokio::spawn(async {}));
        let pods = Pods { client: 0, known: Known::default(), _watch: watch };
        keeper.watched.namespaces.insert("shop".to_owned(), pods);
        let other = json!({"metadata": {"name": "other", "uid": "p"}, "spec": {}});
        keeper.see_pod("shop", watcher::Event::Init);
        keeper.see_pod("shop", watcher::Event::InitApply(serde_json::from_value(other).unwrap()));
        assert!(keeper.due.is_empty());
        keeper.see_pod("shop", watcher::Event::InitDone);
        assert_eq!(keeper.due.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn one_namespace_does_not_take_all_probes() {
        let mut keeper = keeper(&[("a", "shop"), ("b", "shop"), ("c", "shop"), ("d", "shop"), ("e", "bank")]);
        for uid in ["a", "b", "c"] {
            keeper.asking.insert(uid.to_owned(), Instant::now());
        }
        assert!(!keeper.has_all_probes("shop"));
        keeper.probes.objects.insert("c".to_owned(), Pod::default());
        assert!(!keeper.has_all_probes("shop"), "one probe counts once");
        keeper.probes.objects.insert("d".to_owned(), Pod::default());
        assert!(keeper.has_all_probes("shop") && !keeper.has_all_probes("bank"));
        for i in 0..PROBES {
            keeper.asking.insert(format!("other-{i}"), Instant::now());
        }
        assert!(keeper.has_all_probes("bank"));
    }

    #[test]
    fn a_written_status_counts_before_the_watch_shows_it_and_not_after() {
        let mut keeper = keeper(&[("a", "shop")]);
        let mut written = attachment("a", "shop");
        written.metadata.resource_version = Some("2".to_owned());
        let version = |keeper: &Keeper| keeper.object("a").unwrap().metadata.resource_version.clone();
        let outcome = || Outcome::Written(Some("1".to_owned()), Box::new(written.clone()));
        keeper.finished(("a".to_owned(), outcome()));
        assert_eq!(version(&keeper).as_deref(), Some("2"));
        let newer = keeper.objects.objects.get_mut("a").unwrap().as_mut().unwrap();
        newer.metadata.resource_version = Some("3".to_owned());
        keeper.finished(("a".to_owned(), outcome()));
        assert_eq!(version(&keeper).as_deref(), Some("3"));
    }
}
