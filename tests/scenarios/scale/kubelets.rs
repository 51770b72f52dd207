//! Kubelets and agents that are only requests: a pod that is bound runs as soon as its claim, if it has one,
//! has a status. It ends when its time is over, as a Job's short pod, or when it is deleted. What a watch
//! shows of pods and claims is noted.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::live_agents::LiveAgents;

/// The label of pods and claims that says which pods they are of.
pub const KIND: &str = "kind";
/// The annotation of pods that end by themselves: after how many seconds.
pub const SECONDS: &str = "seconds";

/// When a watch showed what first.
#[derive(Clone, Debug)]
pub struct Life {
    /// The pod's label [`KIND`].
    pub kind: String,
    pub created: Instant,
    /// Bound, or its claim allocated.
    pub decided: Option<Instant>,
    pub running: Option<Instant>,
    pub succeeded: bool,
    /// It is being deleted.
    deleted: CancellationToken,
    /// It is deleted.
    pub gone: Option<Instant>,
}

#[derive(Default)]
struct Seen {
    pods: HashMap<String, Life>,
    claims: HashMap<String, Life>,
    failure: Option<Error>,
}

/// The kubelets and agents of all nodes, until it is dropped.
pub struct Kubelets {
    seen: Arc<Mutex<Seen>>,
    _ends: DropGuard,
}

impl Kubelets {
    /// Starts them; pods and claims that come from now on are noted. With `agents`, each pod with a claim has
    /// an address of its node.
    pub fn start(client: &Client, agents: Option<Arc<LiveAgents>>) -> Self {
        let (seen, ends) = (Arc::new(Mutex::new(Seen::default())), CancellationToken::new());
        let pods = watch_pods(client.clone(), agents, Arc::clone(&seen));
        tokio::spawn(ends.clone().run_until_cancelled_owned(noting(pods, Arc::clone(&seen))));
        let claims = watch_claims(client.clone(), Arc::clone(&seen));
        tokio::spawn(ends.clone().run_until_cancelled_owned(noting(claims, Arc::clone(&seen))));
        Self { seen, _ends: ends.drop_guard() }
    }

    /// What is known of the pods of a kind; an error if a request failed.
    pub fn pods(&self, kind: &str) -> Result<Vec<Life>> {
        let mut seen = lock(&self.seen);
        if let Some(failure) = seen.failure.take() {
            return Err(failure);
        }
        Ok(seen.pods.values().filter(|life| life.kind == kind).cloned().collect())
    }

    /// What is known of the claims of the pods of a kind.
    pub fn claims(&self, kind: &str) -> Vec<Life> {
        lock(&self.seen).claims.values().filter(|life| life.kind == kind).cloned().collect()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the first failure, for [`Kubelets::pods`].
async fn noting(work: impl Future<Output = Result<()>>, seen: Arc<Mutex<Seen>>) {
    if let Err(error) = work.await {
        lock(&seen).failure.get_or_insert(error);
    }
}

fn first_seen(labels: &BTreeMap<String, String>) -> Life {
    let kind = labels.get(KIND).cloned().unwrap_or_default();
    Life {
        kind,
        created: Instant::now(),
        decided: None,
        running: None,
        succeeded: false,
        deleted: CancellationToken::new(),
        gone: None,
    }
}

async fn watch_pods(client: Client, agents: Option<Arc<LiveAgents>>, seen: Arc<Mutex<Seen>>) -> Result<()> {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.try_next().await? {
        let pod = match event {
            Event::Apply(pod) | Event::InitApply(pod) => pod,
            Event::Delete(pod) => {
                if let Some(life) = lock(&seen).pods.get_mut(&pod.name_any()) {
                    life.gone.get_or_insert_with(Instant::now);
                }
                continue;
            }
            Event::Init | Event::InitDone => continue,
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let mut now = lock(&seen);
        let life = now.pods.entry(pod.name_any()).or_insert_with(|| first_seen(pod.labels()));
        if phase == "Running" {
            life.running.get_or_insert_with(Instant::now);
        }
        life.succeeded |= phase == "Succeeded";
        if pod.metadata.deletion_timestamp.is_some() {
            life.deleted.cancel();
        }
        if let Some(node) = node
            && life.decided.is_none()
        {
            life.decided = Some(Instant::now());
            let deleted = life.deleted.clone();
            drop(now);
            let pod = OnNode { client: client.clone(), agents: agents.clone(), node, pod, deleted };
            tokio::spawn(noting(pod.run(), Arc::clone(&seen)));
        }
    }
    Ok(())
}

async fn watch_claims(client: Client, seen: Arc<Mutex<Seen>>) -> Result<()> {
    let api: Api<ResourceClaim> = Api::default_namespaced(client);
    let config = watcher::Config::default().labels(KIND);
    let mut claims = std::pin::pin!(watcher(api, config).default_backoff().applied_objects());
    while let Some(claim) = claims.try_next().await? {
        let mut now = lock(&seen);
        let life = now.claims.entry(claim.name_any()).or_insert_with(|| first_seen(claim.labels()));
        if claim.status.is_some_and(|status| status.allocation.is_some()) {
            life.decided.get_or_insert_with(Instant::now);
        }
    }
    Ok(())
}

/// A pod that is bound to a node.
struct OnNode {
    client: Client,
    agents: Option<Arc<LiveAgents>>,
    node: String,
    pod: Pod,
    deleted: CancellationToken,
}

impl OnNode {
    /// Makes the requests for its life.
    async fn run(self) -> Result<()> {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let name = self.pod.name_any();
        let phase = async |phase: &str| {
            let status = json!({"status": {"phase": phase}});
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.map(drop)
        };
        let address = match self.claim()? {
            Some(claim) => self.prepare(claim).await?,
            None => None,
        };
        phase("Running").await?;
        match self.pod.annotations().get(SECONDS) {
            Some(seconds) => sleep(Duration::from_secs_f64(seconds.parse()?)).await,
            None => self.deleted.cancelled().await,
        }
        if let (Some(agents), Some(address)) = (&self.agents, address) {
            agents.give(&self.node, address)?;
        }
        phase("Succeeded").await?;
        if self.deleted.is_cancelled() {
            let uid = Preconditions { uid: self.pod.uid(), resource_version: None };
            let now = DeleteParams { preconditions: Some(uid), ..DeleteParams::default().grace_period(0) };
            pods.delete(&name, &now).await?;
        }
        Ok(())
    }

    /// The name of its claim, if it asks for one: from its template, or made by the scheduler.
    fn claim(&self) -> Result<Option<&str>> {
        let status = self.pod.status.as_ref();
        let by_line = status.and_then(|status| status.extended_resource_claim_status.as_ref());
        if let Some(by_line) = by_line {
            return Ok(Some(&by_line.resource_claim_name));
        }
        if self.pod.spec.as_ref().is_none_or(|spec| spec.resource_claims.is_none()) {
            return Ok(None);
        }
        let of_templates = status.and_then(|status| status.resource_claim_statuses.as_ref());
        let claim =
            of_templates.into_iter().flatten().find_map(|status| status.resource_claim_name.as_deref());
        claim.map(Some).with_context(|| format!("the pod {} is bound and has no claim", self.pod.name_any()))
    }

    /// Kubelet and agent read the claim, and the agent writes its status with the pod's address.
    async fn prepare(&self, claim: &str) -> Result<Option<Ipv4Addr>> {
        let claims: Api<ResourceClaim> = Api::default_namespaced(self.client.clone());
        let _of_kubelet = claims.get(claim).await?;
        let of_agent = claims.get(claim).await?;
        let address = match &self.agents {
            Some(agents) => Some(agents.take(&self.node).await?),
            None => None,
        };
        let ip = format!("{}/24", address.unwrap_or(Ipv4Addr::new(10, 0, 0, 2)));
        let allocation = of_agent.status.and_then(|status| status.allocation).and_then(|all| all.devices);
        let results = allocation.and_then(|devices| devices.results).unwrap_or_default();
        let devices: Vec<Value> = results.iter().map(|result| {
            json!({"driver": result.driver, "pool": result.pool, "device": result.device, "shareID": result.share_id,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Attached", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "networkData": {"interfaceName": "net1", "hardwareAddress": "02:00:00:00:00:01", "ips": [ip]}})
        }).collect();
        let status = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "status": {"devices": devices}});
        let as_agent = PatchParams::apply("netclaim.dev-agent").force();
        claims.patch_status(claim, &as_agent, &Patch::Apply(&status)).await?;
        Ok(address)
    }
}
