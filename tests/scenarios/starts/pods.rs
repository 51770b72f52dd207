//! Pods that are created, watched and deleted in this process: a kubectl for each would use the processors
//! that are measured.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use netclaim_tests::Test;
use serde_json::Value;
use tokio::runtime::Runtime;

/// How often a wait looks at what the watch has seen. The times are the watch's.
const LOOK: Duration = Duration::from_millis(5);
/// How long pods may take to end.
const END: Duration = Duration::from_secs(120);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The time of day, as logs have it.
pub fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::new(now.as_secs() % DAY.as_secs(), now.subsec_nanos())
}

/// The milliseconds from one time of day to the next other one.
pub fn millis_between(from: Duration, to: Duration) -> f64 {
    let between = if to >= from { to - from } else { to + DAY - from };
    between.as_secs_f64() * 1000.0
}

/// What the watch has seen of a pod, by time of day.
#[derive(Default)]
struct Seen {
    uid: String,
    running: Option<Duration>,
    gone: Option<Duration>,
}

/// A pod that has started.
pub struct Started {
    pub name: String,
    pub uid: String,
    /// When the request that creates it was sent.
    pub created: Duration,
    /// When a watch reported its phase `Running`.
    pub running: Duration,
}

impl Started {
    /// Milliseconds from the request to `Running`.
    pub fn took(&self) -> f64 {
        millis_between(self.created, self.running)
    }
}

/// The pods of one scenario's namespace.
pub struct Pods {
    runtime: Runtime,
    api: Api<Pod>,
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
}

impl Pods {
    /// Connects, and watches the pods from now on.
    pub fn of(test: &Test<'_>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let kubeconfig = test.cluster.dir().join("kubeconfig");
        let client = runtime.block_on(async {
            anyhow::Ok(Client::try_from(
                netclaim_process::kubernetes::config("netclaim-tests", Some(&kubeconfig)).await?,
            )?)
        })?;
        let api: Api<Pod> = Api::namespaced(client, test.namespace());
        let pods = Self { runtime, api, seen: Arc::default() };
        pods.watch();
        Ok(pods)
    }

    fn watch(&self) {
        let (api, seen) = (self.api.clone(), Arc::clone(&self.seen));
        self.runtime.spawn(async move {
            let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let now = now();
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                        let of_pod = seen.entry(pod.name_any()).or_default();
                        of_pod.uid = pod.uid().unwrap_or_default();
                        if pod.status.is_some_and(|status| status.phase.as_deref() == Some("Running")) {
                            of_pod.running.get_or_insert(now);
                        }
                    }
                    Ok(Event::Delete(pod)) => seen.entry(pod.name_any()).or_default().gone = Some(now),
                    Ok(Event::Init | Event::InitDone) => {}
                    Err(error) => eprintln!("the watch of pods is interrupted: {error}"),
                }
            }
        });
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates pods at once; returns the name and the time of the request of each.
    pub fn create(&self, pods: &[Value]) -> Result<Vec<(String, Duration)>> {
        let parameters = PostParams::default();
        let create = |pod: Pod| {
            let (api, parameters) = (&self.api, &parameters);
            async move {
                let begin = now();
                api.create(parameters, &pod).await?;
                anyhow::Ok((pod.name_any(), begin))
            }
        };
        let pods: Vec<Pod> =
            pods.iter().map(|pod| serde_json::from_value(pod.clone())).collect::<Result<_, _>>()?;
        self.runtime.block_on(try_join_all(pods.into_iter().map(create)))
    }

    /// Waits until created pods run.
    pub fn running(&self, created: &[(String, Duration)], limit: Duration) -> Result<Vec<Started>> {
        self.wait_for(created.len(), "run", limit, |seen| {
            let started = created.iter().filter_map(|(name, created)| {
                let of_pod = seen.get(name)?;
                let (name, uid) = (name.clone(), of_pod.uid.clone());
                Some(Started { name, uid, created: *created, running: of_pod.running? })
            });
            started.collect()
        })
    }

    /// Waits until `count` pods are found in what the watch has seen; `what` they do then.
    fn wait_for<T>(
        &self,
        count: usize,
        what: &str,
        limit: Duration,
        find: impl Fn(&BTreeMap<String, Seen>) -> Vec<T>,
    ) -> Result<Vec<T>> {
        let end = Instant::now() + limit;
        loop {
            let found = find(&self.seen());
            if found.len() == count {
                return Ok(found);
            }
            let (n, seconds) = (found.len(), limit.as_secs());
            ensure!(Instant::now() < end, "{n} of {count} pods {what} after {seconds} s");
            std::thread::sleep(LOOK);
        }
    }

    /// Whether a pod was seen running.
    pub fn runs(&self, name: &str) -> bool {
        self.seen().get(name).is_some_and(|seen| seen.running.is_some())
    }

    /// Creates pods at once, and waits until they run.
    pub fn start(&self, pods: &[Value], limit: Duration) -> Result<Vec<Started>> {
        self.running(&self.create(pods)?, limit)
    }

    /// Deletes pods at once, and waits until they are gone; returns the milliseconds that each took.
    pub fn delete(&self, names: &[String]) -> Result<Vec<(String, f64)>> {
        let parameters = DeleteParams::default();
        let begin = now();
        let deleted =
            self.runtime.block_on(join_all(names.iter().map(|name| self.api.delete(name, &parameters))));
        for result in deleted {
            result.context("a pod cannot be deleted")?;
        }
        self.wait_for(names.len(), "are gone", END, |seen| {
            let gone = |name: &String| Some((name.clone(), millis_between(begin, seen.get(name)?.gone?)));
            names.iter().filter_map(gone).collect()
        })
    }
}
