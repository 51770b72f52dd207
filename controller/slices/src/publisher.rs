//! The task that writes the desired pools to the API server.
//!
//! One loop: a desired pool or a slice changes -> gather changes -> plan each pool from its slices -> write.
//! A failed write ends the plan of its pool. The next try plans again, without the devices that the server
//! named as the cause. A restart loses only what the server does not store (see [`crate::dropped`]), which
//! the next probe finds out.

mod observed;
mod pace;

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error as _,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{
    observed::Observed,
    pace::{Budget, Failures, Gather},
};
use crate::{
    config::PublisherConfig,
    dropped::{Adopted, ServerFeatures, probe},
    error::{ApiVerb, PublishError},
    kubernetes_version::{InvalidVersion, KubernetesVersion},
    plan::{Plan, Write, plan, publisher_of, withdraw},
    pool::Pool,
    validate::{Fault, Problem, publishable},
};

/// Counts different calls of [`PublisherHandle::publish`]; 0 is before the first.
pub type Revision = u64;

/// The state of all pools.
#[derive(Clone, Debug, Default)]
pub struct PublishStatus {
    /// Revision last processed, successfully or not.
    pub revision: Revision,
    /// By name: the pools of that revision, and those being withdrawn.
    pub pools: BTreeMap<String, PoolStatus>,
    /// The fields that the API server stores; `None` until it was probed.
    pub server: Option<ServerFeatures>,
    /// The devices that were published when this process began, as its first list has them; known when
    /// `server` is.
    pub found: Arc<[Device]>,
}

impl PublishStatus {
    /// Whether all pools of this revision, or a later one, are published.
    #[must_use]
    pub fn is_published(&self, revision: Revision) -> bool {
        self.revision >= revision && self.pools.values().all(|pool| pool.error.is_none())
    }
}

/// The state of one pool.
#[derive(Clone, Debug, Default)]
pub struct PoolStatus {
    /// Generation last published as a whole by this process.
    pub generation: Option<i64>,
    /// Why the pool is not published as desired. Its last slices stay.
    pub error: Option<Arc<PublishError>>,
    /// Why devices and counter sets are left out of the pool.
    pub left_out: Vec<Fault>,
}

/// The result of publishing one pool once.
struct Attempt {
    left_out: Vec<Fault>,
    /// Generation now published.
    result: Result<Option<i64>, PublishError>,
}

impl From<Result<Option<i64>, PublishError>> for Attempt {
    fn from(result: Result<Option<i64>, PublishError>) -> Self {
        Self { left_out: Vec::new(), result }
    }
}

#[derive(Clone, Debug, Default)]
struct Desired {
    revision: Revision,
    /// `None` until the first call, so that an agent that has just started does not withdraw its
    /// predecessor's pools.
    pools: Option<Arc<[Pool]>>,
}

/// Sets what a publisher publishes. Clones share the publisher, which outlives them.
#[derive(Clone, Debug)]
pub struct PublisherHandle {
    desired: watch::Sender<Desired>,
    status: watch::Receiver<PublishStatus>,
}

impl Desired {
    fn pools(&self) -> &[Pool] {
        self.pools.as_deref().unwrap_or_default()
    }
}

impl PublisherHandle {
    /// Sets the pools to publish, and withdraws all others. Never blocks; the last call wins. Returns the
    /// revision to look for in [`PublishStatus`], which is the last one if nothing changed.
    pub fn publish(&self, pools: Vec<Pool>) -> Revision {
        let mut revision = 0;
        self.desired.send_if_modified(|desired| {
            let new = desired.pools.as_deref() != Some(&pools);
            if new {
                *desired = Desired { revision: desired.revision + 1, pools: Some(pools.into()) };
            }
            revision = desired.revision;
            new
        });
        revision
    }

    /// Returns the state of all pools.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<PublishStatus> {
        self.status.clone()
    }
}

/// Keeps pools published.
#[derive(Debug)]
pub struct Publisher;

impl Publisher {
    /// Starts a publisher, which runs until `cancel`. It then leaves the slices as they are, because a
    /// restart must not withdraw devices.
    ///
    /// `client` needs list, watch, create, update and delete on `resourceslices`.
    pub fn spawn(
        client: Client,
        config: PublisherConfig,
        cancel: CancellationToken,
    ) -> (PublisherHandle, JoinHandle<()>) {
        let (desired, updates) = watch::channel(Desired::default());
        let (status_sender, status) = watch::channel(PublishStatus::default());
        let worker = Worker {
            api: Api::all(client.clone()),
            client,
            observed: Observed::default(),
            adopted: Adopted::default(),
            budget: Budget::new(config.budget),
            failures: BTreeMap::new(),
            refused: BTreeMap::new(),
            probe: Probe::Due,
            status: status_sender,
            config,
        };
        let task = tokio::spawn(async move {
            // A cancelled write is like a crash, which every plan can start from.
            cancel.run_until_cancelled(worker.run(updates)).await;
        });
        (PublisherHandle { desired, status }, task)
    }
}

/// Changes are gathered until none comes for this long.
const QUIET: Duration = Duration::from_millis(100);

/// The longest time for which changes are gathered.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// A request that takes longer counts as failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of looks at the API server's version. A watch that an API server ends in good order goes on at
/// another one, which may have been upgraded, without an error.
const VERSION_INTERVAL: Duration = Duration::from_secs(300);

/// The most expensive plan costs as much as this many writes.
const MAX_COST: u32 = 10;

/// Returns the cost of so many writes, at most [`MAX_COST`]: all slices of a pool are written when their
/// number changes, and a big pool must keep up with its devices. Dry runs are free: paid writes or a growing
/// delay follow them.
fn cost(writes: usize) -> u32 {
    u32::try_from(writes).map_or(MAX_COST, |writes| writes.min(MAX_COST))
}

/// Removes managed fields, which are half of a slice's size.
fn strip(slice: &mut ResourceSlice) {
    slice.metadata.managed_fields = None;
}

/// Whether it is known what the API server stores.
enum Probe {
    /// The server may have been replaced or upgraded.
    Due,
    Failed(Failures),
    /// The server's version is read again at this time.
    Done {
        look_at: Instant,
    },
}

impl Probe {
    fn done() -> Self {
        Self::Done { look_at: Instant::now() + VERSION_INTERVAL }
    }
}

struct Worker {
    api: Api<ResourceSlice>,
    client: Client,
    config: PublisherConfig,
    observed: Observed,
    adopted: Adopted,
    budget: Budget,
    failures: BTreeMap<String, Failures>,
    /// By pool: devices that the API server refused, as long as they are desired unchanged.
    refused: BTreeMap<String, Vec<(Device, Fault)>>,
    probe: Probe,
    status: watch::Sender<PublishStatus>,
}

impl Worker {
    async fn run(mut self, mut updates: watch::Receiver<Desired>) {
        // Lists come from the API server's cache. A consistent list would read all slices of the cluster from
        // etcd, for each node, when the cache lags. A stale slice only leads to a conflict and a new plan.
        let selector = watcher::Config { page_size: None, ..watcher::Config::default() };
        let selector = selector.any_semantic().fields(&self.config.field_selector());
        let mut events = pin!(watcher(self.api.clone(), selector).default_backoff().modify(strip));
        let mut gather = Gather::new(QUIET, MAX_DELAY);
        let mut desired = Desired::default();
        let mut has_handles = true;
        loop {
            let ready = self.observed.is_ready() && desired.pools.is_some();
            let retry = self.failures.values().map(|failures| failures.retry_at).min();
            let due = gather.due().into_iter().chain(retry).min().filter(|_| ready);
            let probe_at = match &self.probe {
                _ if !self.observed.is_ready() => None,
                Probe::Due => Some(Instant::now()),
                Probe::Failed(failures) => Some(failures.retry_at),
                Probe::Done { .. } => None,
            };
            let look_at = match &self.probe {
                Probe::Done { look_at } => Some(*look_at),
                Probe::Due | Probe::Failed(_) => None,
            };
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => if self.watched(event) { gather.changed() },
                    None => return,
                },
                changed = updates.changed(), if has_handles => match changed {
                    Ok(()) => {
                        let next = updates.borrow_and_update().clone();
                        self.reset_retries(desired.pools(), next.pools());
                        desired = next;
                        gather.changed();
                    }
                    Err(_) => has_handles = false,
                },
                () = sleep_until(probe_at.unwrap_or_else(Instant::now)), if probe_at.is_some() => {
                    if self.probe().await {
                        gather.changed();
                    }
                }
                () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {
                    self.probe = self.look_at_version().await;
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    gather.acted();
                    if self.reconcile(&desired).await {
                        gather.changed();
                    }
                }
            }
        }
    }

    /// Probes what the API server stores. Returns whether all pools must be planned again.
    async fn probe(&mut self) -> bool {
        let slice = probe(&self.config);
        let answer = match self.send(&slice.spec.pool.name, &Write::Create(slice.clone()), true).await {
            Ok(answer) => answer,
            // A webhook does not support dry runs, or refuses this slice. Later writes show what is stored.
            Err(PublishError::Api { source, .. }) if is_status(&source, 400) || is_status(&source, 422) => {
                let error = &source as &dyn std::error::Error;
                tracing::warn!(error, "cannot probe what the API server stores");
                None
            }
            Err(error) => {
                self.retry_probe(&error);
                return false;
            }
        };
        match timeout(REQUEST_TIMEOUT, self.client.apiserver_version()).await {
            Ok(Ok(info)) => self.adopted.set_version(version(&info.git_version)),
            // Without permission to read `/version`, assume that the scheduler counts correctly.
            Ok(Err(kube::Error::Api(_))) => self.adopted.set_version(None),
            Ok(Err(error)) => {
                self.retry_probe(&error);
                return false;
            }
            Err(elapsed) => {
                self.retry_probe(&elapsed);
                return false;
            }
        }
        self.probe = Probe::done();
        // An upgraded server may accept what it refused before.
        let refused = std::mem::take(&mut self.refused).into_values().any(|devices| !devices.is_empty());
        let again = answer.is_some_and(|answer| self.adopted.probed(&slice.spec, &answer));
        self.status.send_if_modified(|status| {
            let now = Some(self.adopted.features());
            let changed = status.server != now;
            if status.server.is_none() {
                let devices = self.observed.all().flat_map(|slice| slice.spec.devices.iter().flatten());
                status.found = devices.cloned().collect();
            }
            status.server = now;
            changed
        });
        again || refused
    }

    /// Reads the API server's version. A probe is due if it has changed since the last one.
    async fn look_at_version(&self) -> Probe {
        match timeout(REQUEST_TIMEOUT, self.client.apiserver_version()).await {
            Ok(Ok(info)) if info.git_version.parse().ok() != self.adopted.version() => Probe::Due,
            // The watch fails, too, when the server is away.
            _ => Probe::done(),
        }
    }

    fn retry_probe(&mut self, error: &(dyn std::error::Error + 'static)) {
        let before = match self.probe {
            Probe::Failed(failures) => Some(failures),
            Probe::Due | Probe::Done { .. } => None,
        };
        if before.is_none() {
            tracing::warn!(error, "cannot probe what the API server stores, will retry");
        }
        self.probe = Probe::Failed(Failures::after(before));
    }

    /// Takes in an event of the watch. Returns whether slices changed.
    fn watched(&mut self, event: watcher::Result<watcher::Event<ResourceSlice>>) -> bool {
        match event {
            Ok(event) => self.observed.watched(event),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot watch resource slices");
                self.probe = Probe::Due;
                false
            }
        }
    }

    /// Makes changed pools due at once, even if they failed before.
    fn reset_retries(&mut self, before: &[Pool], now: &[Pool]) {
        self.failures.retain(|name, _| {
            let named = |pool: &&Pool| pool.name == *name;
            before.iter().find(named) == now.iter().find(named)
        });
    }

    /// Publishes and withdraws pools. Returns whether all of them must be planned again.
    async fn reconcile(&mut self, desired: &Desired) -> bool {
        let mut again = false;
        let mut results = BTreeMap::new();
        let ours = self.observed.all().filter(|s| publisher_of(s) == Some(self.config.publisher.as_str()));
        let ours: BTreeSet<_> = ours.map(|slice| slice.spec.pool.name.clone()).collect();
        let mut by_name: BTreeMap<&str, Vec<&Pool>> = BTreeMap::new();
        by_name.extend(ours.iter().map(|name| (name.as_str(), Vec::new())));
        for pool in desired.pools() {
            by_name.entry(&pool.name).or_default().push(pool);
        }
        // A device that moves to another pool must not be in both. Pools that are withdrawn come first, the
        // others by name.
        let (withdrawn, kept): (Vec<_>, Vec<_>) =
            by_name.into_iter().partition(|(_, pools)| pools.is_empty());
        for (name, pools) in withdrawn.into_iter().chain(kept) {
            let result = match pools[..] {
                [] => self.reconcile_pool(name, None, &mut again).await,
                [pool] => self.reconcile_pool(name, Some(pool), &mut again).await,
                _ => {
                    self.failures.remove(name);
                    let (pool, problem) = (name.to_owned(), Problem::Duplicate(name.to_owned()));
                    let fault = Fault { pool, device: None, field: "name".into(), problem };
                    Some(Err(PublishError::Invalid { faults: vec![fault] }).into())
                }
            };
            results.insert(name.to_owned(), result);
        }
        self.failures.retain(|name, _| results.contains_key(name));
        self.refused.retain(|name, _| results.contains_key(name));
        self.report(desired.revision, results);
        again
    }

    /// Plans and writes one pool. Returns `None` until its retry is due.
    async fn reconcile_pool(&mut self, name: &str, pool: Option<&Pool>, again: &mut bool) -> Option<Attempt> {
        if self.failures.get(name).is_some_and(|failures| failures.retry_at > Instant::now()) {
            return None;
        }
        let (mut pool, mut left_out) =
            match pool.map(|pool| publishable(pool, &self.config.scope)).transpose() {
                Ok(Some((pool, left_out))) => (Some(pool), left_out),
                Ok(None) => (None, Vec::new()),
                Err(faults) => {
                    // A retry is useless until the pool changes.
                    self.failures.remove(name);
                    return Some(Err(PublishError::Invalid { faults }).into());
                }
            };
        if let (Some(pool), Some(refused)) = (&mut pool, self.refused.get_mut(name)) {
            refused.retain(|(device, _)| pool.devices.contains(device));
            leave_out(pool, refused, &mut left_out);
        }
        let result = loop {
            let existing = self.observed.pool(name);
            let plan = match &pool {
                Some(pool) => plan(&self.config, pool, &existing, &self.adopted),
                None => Ok(withdraw(&self.config, &existing)),
            };
            let plan = match plan {
                Ok(plan) => plan,
                Err(error) => break Err(error),
            };
            let result = self.execute(name, &plan, again).await;
            let refused = result.as_ref().err().map(|error| refused(name, &plan, error)).unwrap_or_default();
            let is_smaller = pool.as_mut().is_some_and(|pool| leave_out(pool, &refused, &mut left_out));
            if !is_smaller {
                break result;
            }
            self.refused.entry(name.to_owned()).or_default().extend(refused);
        };
        match &result {
            Ok(_) => {
                self.failures.remove(name);
            }
            Err(_) => {
                let failures = Failures::after(self.failures.get(name).copied());
                self.failures.insert(name.to_owned(), failures);
            }
        }
        Some(Attempt { left_out, result })
    }

    async fn execute(
        &mut self,
        pool: &str,
        plan: &Plan,
        again: &mut bool,
    ) -> Result<Option<i64>, PublishError> {
        if plan.rewrites() {
            for write in plan.puts() {
                self.send(pool, write, true).await?;
            }
        }
        // Before the first: the pool may be incomplete until the last.
        self.budget.spend(cost(plan.writes.len())).await;
        for write in &plan.writes {
            tracing::debug!(
                pool,
                slice = write.name(),
                generation = plan.generation,
                "writing a resource slice"
            );
            let stored = self.send(pool, write, false).await?;
            match (write, stored) {
                (Write::Create(sent) | Write::Update(sent), Some(mut stored)) => {
                    *again |= self.adopted.record(write.name(), &sent.spec, &stored);
                    strip(&mut stored);
                    self.observed.stored(stored);
                }
                (Write::Delete(slice), _) => {
                    self.adopted.forget(write.name());
                    self.observed.deleted(slice);
                }
                _ => {}
            }
        }
        // Counters may be left that no device needs any more.
        *again |= plan.writes.len() > 1;
        Ok(plan.generation)
    }

    /// Sends one write. A slice that does not exist any more counts as deleted.
    async fn send(
        &mut self,
        pool: &str,
        write: &Write,
        dry_run: bool,
    ) -> Result<Option<ResourceSlice>, PublishError> {
        let (pool, slice) = (pool.to_owned(), write.name().to_owned());
        let verb = match write {
            _ if dry_run => ApiVerb::DryRun,
            Write::Create(_) => ApiVerb::Create,
            Write::Update(_) => ApiVerb::Update,
            Write::Delete(_) => ApiVerb::Delete,
        };
        match timeout(REQUEST_TIMEOUT, self.request(write, dry_run)).await {
            Ok(Ok(stored)) => Ok(stored),
            Ok(Err(source)) => {
                if let (Write::Update(known), true) = (write, is_status(&source, 404)) {
                    self.observed.deleted(known);
                }
                Err(PublishError::Api { verb, pool, slice, source })
            }
            Err(_) => Err(PublishError::Timeout { verb, pool, slice, after: REQUEST_TIMEOUT }),
        }
    }

    async fn request(&self, write: &Write, dry_run: bool) -> kube::Result<Option<ResourceSlice>> {
        let name = write.name();
        let post = PostParams { dry_run, field_manager: Some(self.config.driver.clone()) };
        let stored = match write {
            Write::Create(slice) => self.api.create(&post, slice).await?,
            Write::Update(slice) => self.api.replace(name, &post, slice).await?,
            Write::Delete(slice) => {
                let preconditions = Preconditions {
                    uid: slice.metadata.uid.clone(),
                    resource_version: slice.metadata.resource_version.clone(),
                };
                let params = DeleteParams { dry_run, ..DeleteParams::default() }.preconditions(preconditions);
                return match self.api.delete(name, &params).await {
                    Err(error) if !is_status(&error, 404) => Err(error),
                    _ => Ok(None),
                };
            }
        };
        Ok(Some(stored))
    }

    fn report(&self, revision: Revision, results: BTreeMap<String, Option<Attempt>>) {
        self.status.send_modify(|status| {
            status.revision = revision;
            if status.server.is_some() {
                status.server = Some(self.adopted.features());
            }
            let mut before = std::mem::take(&mut status.pools);
            for (name, attempt) in results {
                let mut pool = before.remove(&name).unwrap_or_default();
                let Some(Attempt { left_out, result }) = attempt else {
                    status.pools.insert(name, pool);
                    continue;
                };
                for fault in left_out.iter().filter(|fault| !pool.left_out.contains(fault)) {
                    tracing::warn!(%fault, "left out of what is published");
                }
                pool.left_out = left_out;
                match result {
                    Ok(None) => continue,
                    Ok(generation) => (pool.generation, pool.error) = (generation, None),
                    Err(error) => {
                        let tries = self.failures.get(&name).map_or(0, |failures| failures.count);
                        let message = |error: &PublishError| {
                            (error.to_string(), error.source().map(ToString::to_string))
                        };
                        let known = pool.error.is_some_and(|known| message(&known) == message(&error));
                        // A conflict or two is normal, and a repeated warning says nothing new.
                        let quiet = if error.is_conflict() { tries != 3 } else { known };
                        let cause = &error as &dyn std::error::Error;
                        if quiet {
                            tracing::debug!(error = cause, tries, "cannot publish a pool");
                        } else {
                            tracing::warn!(error = cause, tries, "cannot publish a pool");
                        }
                        pool.error = Some(Arc::new(error));
                    }
                }
                status.pools.insert(name, pool);
            }
        });
    }
}

fn version(text: &str) -> Option<KubernetesVersion> {
    let warn = |error: &InvalidVersion| {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "cannot tell whether the scheduler handles counters"
        );
    };
    text.parse().inspect_err(warn).ok()
}

/// Returns the devices of `plan` that the API server names as the cause of its refusal.
fn refused(pool: &str, plan: &Plan, error: &PublishError) -> Vec<(Device, Fault)> {
    let PublishError::Api { slice, source: kube::Error::Api(status), .. } = error else { return Vec::new() };
    let sent = plan.puts().find(|write| write.name() == slice);
    let (Some(Write::Create(sent) | Write::Update(sent)), 422) = (sent, status.code) else {
        return Vec::new();
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut found: Vec<(Device, Fault)> = Vec::new();
    for cause in causes {
        let named = || {
            let (index, field) = cause.field.strip_prefix("spec.devices[")?.split_once(']')?;
            Some((sent.spec.devices.as_ref()?.get(index.parse::<usize>().ok()?)?, field))
        };
        let Some((device, field)) = named() else { continue };
        if found.iter().all(|(_, fault)| fault.device.as_ref() != Some(&device.name)) {
            let (pool, field) = (pool.to_owned(), field.trim_start_matches('.').to_owned());
            let problem = Problem::Refused(cause.message.clone());
            let fault = Fault { pool, device: Some(device.name.clone()), field, problem };
            let mut device = device.clone();
            // As desired: the server sets the times.
            device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
            found.push((device, fault));
        }
    }
    found
}

/// Removes refused devices from `pool` and adds their faults. Returns whether there were any.
fn leave_out(pool: &mut Pool, refused: &[(Device, Fault)], left_out: &mut Vec<Fault>) -> bool {
    let before = pool.devices.len();
    pool.devices.retain(|device| refused.iter().all(|(known, _)| known != device));
    left_out.extend(refused.iter().map(|(_, fault)| fault.clone()));
    pool.devices.len() < before
}

fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

#[cfg(test)]
mod tests;
