//! The scheduler with thousands of nodes: how fast it binds pods, and the CPU time that it takes for each.
//!
//! There is no kubelet: pods and claims only get their nodes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::DRIVER_NAME;
use netclaim_api::device::cluster_pool;
use netclaim_tests::{Cluster, Usage, objects, percentile, setting};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::TIMEOUT;
use crate::fleet::{self, AT_ONCE, LINKS, Uses};
use crate::networks::class;
use crate::report::{Report, mib};

/// Pods of each measurement.
const PODS: usize = 300;
/// How long pods are scheduled at most; the rate is known by then.
const SCHEDULING: Duration = Duration::from_secs(120);

/// A cluster whose scheduler is started for each measurement.
pub struct Scheduling<'a> {
    cluster: &'a Cluster,
    client: &'a Client,
}

/// How the scheduler is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Default,
    /// `percentageOfNodesToScore`: it stops at so many percent of the nodes, but at 100 at the earliest.
    Percent(u8),
    /// Without score plugins: it stops at the first node that fits.
    Unscored,
}

/// What one start of the scheduler showed.
struct Round {
    /// Seconds from its start to the first pod that is bound.
    first: f64,
    bound: usize,
    /// Pods bound per second.
    rate: f64,
    /// Its CPU time for a pod, in milliseconds.
    cpu: f64,
    /// Its memory in MiB.
    memory: f64,
}

impl<'a> Scheduling<'a> {
    /// Has the cluster use the scheduler `$NETCLAIM_SCHEDULER`, or its own, with this profile.
    pub fn new(cluster: &'a Cluster, client: &'a Client, profile: Profile) -> Result<Self> {
        let program = match std::env::var("NETCLAIM_SCHEDULER") {
            Ok(program) => program,
            // It is beside kubectl.
            Err(_) => cluster.kubernetes_program("kube-scheduler").display().to_string(),
        };
        let config = cluster.dir().join("scheduler.json");
        let mut scheduler = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            // The default of 50 requests per second would be the limit that one measures.
            "clientConnection": {"kubeconfig": cluster.dir().join("pki/scheduler.conf"), "qps": 1000, "burst": 2000},
        });
        match profile {
            Profile::Default => {}
            Profile::Percent(percent) => scheduler["percentageOfNodesToScore"] = json!(percent),
            Profile::Unscored => {
                let plugins = json!({"score": {"disabled": [{"name": "*"}]}});
                scheduler["profiles"] = json!([{"schedulerName": "default-scheduler", "plugins": plugins}]);
            }
        }
        std::fs::write(&config, scheduler.to_string())?;
        let command = format!("#!/bin/bash\nexec {program} --config {} --secure-port 0\n", config.display());
        std::fs::write(cluster.dir().join("cmd/scheduler"), command)?;
        Ok(Self { cluster, client })
    }

    /// Measures three times, or `$NETCLAIM_SCALE_ROUNDS`, how fast the scheduler binds pods, each with a
    /// claim of `class`, if any. Reports the median of each number, and the least and the greatest of what
    /// differs most.
    pub async fn measure(
        &self,
        title: &str,
        kind: &str,
        class: Option<&str>,
        report: &mut Report,
    ) -> Result<()> {
        let mut rounds = Vec::new();
        for round in 0..setting("NETCLAIM_SCALE_ROUNDS", 3)? {
            rounds.push(self.round(&format!("{kind}-{round}"), class, report).await?);
        }
        let of = |number: fn(&Round) -> f64| {
            let mut numbers: Vec<f64> = rounds.iter().map(number).collect();
            numbers.sort_unstable_by(f64::total_cmp);
            numbers
        };
        let median = |numbers: &[f64]| percentile(numbers, 50).unwrap_or_default();
        report.row(
            format!("{title}: start of the scheduler to the first bound"),
            median(&of(|round| round.first)),
            "s",
        )?;
        report.row(format!("{title}: bound, of {PODS}"), median(&of(|round| round.bound as f64)), "")?;
        report.row(format!("{title}: memory of the scheduler"), median(&of(|round| round.memory)), "MiB")?;
        for (what, numbers, unit) in [
            ("bound per second", of(|round| round.rate), "1/s"),
            ("CPU of the scheduler for each", of(|round| round.cpu), "ms"),
        ] {
            report.row(format!("{title}: {what}"), median(&numbers), unit)?;
            for (name, number) in [("least", numbers.first()), ("greatest", numbers.last())] {
                report.row(
                    format!("{title}: {what}, {name} of {}", numbers.len()),
                    *number.unwrap_or(&0.0),
                    unit,
                )?;
            }
        }
        Ok(())
    }

    /// Creates pods named `kind`, starts the scheduler, and measures how fast it binds them.
    async fn round(&self, kind: &str, class: Option<&str>, report: &Report) -> Result<Round> {
        create_pods(self.client, kind, class).await?;
        let begin = Instant::now();
        self.cluster.service("start", "scheduler")?;
        let pid = self.cluster.service_pid("scheduler")?;
        let api: Api<Pod> = Api::default_namespaced(self.client.clone());
        let of_kind = watcher::Config::default().labels(&format!("kind={kind}"));
        let mut pods = std::pin::pin!(watcher(api, of_kind).default_backoff().applied_objects());
        let mut names = BTreeSet::new();
        let mut bound: Vec<Instant> = Vec::new();
        let mut first = None;
        let mut end = begin + TIMEOUT;
        while bound.len() < PODS {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(Some(pod)) = timeout(left, pods.next()).await else { break };
            let pod = pod?;
            if pod.spec.is_some_and(|spec| spec.node_name.is_some()) && names.insert(pod.metadata.name) {
                bound.push(Instant::now());
                if first.is_none() {
                    first = Some(Usage::of(pid)?);
                    end = Instant::now() + SCHEDULING;
                }
            }
        }
        let last = Usage::of(pid)?;
        self.cluster.service("stop", "scheduler")?;
        let first = first.with_context(|| format!("the scheduler binds none of the pods {kind}-*"))?;
        ensure!(bound.len() > 1, "the scheduler binds one of the pods {kind}-* only");
        let span = bound[bound.len() - 1] - bound[0];
        let rate = (bound.len() - 1) as f64 / span.as_secs_f64();
        let each = (last.cpu - first.cpu) as f64 / (bound.len() - 1) as f64;
        let since = bound.iter().map(|at| format!("{:.3}", (*at - bound[0]).as_secs_f64()));
        report.raw(&format!("bound-{kind}.csv"), "seconds", since)?;
        // What did not get a node must not be in the way of the next ones.
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let of_kind = ListParams::default().labels(&format!("kind={kind}"));
        pods.delete_collection(&DeleteParams::default().grace_period(0), &of_kind).await?;
        if class.is_some() {
            delete_claims(self.client, kind).await?;
        }
        Ok(Round {
            first: (bound[0] - begin).as_secs_f64(),
            bound: bound.len(),
            rate,
            cpu: each,
            memory: mib(last.rss),
        })
    }

    /// Creates claims with these numbers that are allocated, as by the scheduler, spread over the nodes.
    pub async fn allocate(
        &self,
        nodes: &[Node],
        others: &Others,
        numbers: Range<usize>,
        report: &mut Report,
    ) -> Result<()> {
        let (begin, all) = (Instant::now(), numbers.end);
        let claims: Api<ResourceClaim> = Api::default_namespaced(self.client.clone());
        let allocate = |n: usize| {
            let (claims, node) = (claims.clone(), nodes[n % nodes.len()].name_any());
            async move {
                let name = format!("other-{n}");
                let claim = serde_json::from_value(objects::claim(&name, &others.class))?;
                let mut claim = claims.create(&PostParams::default(), &claim).await?;
                let terms =
                    json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
                let result = (others.result)(&node, n, n / nodes.len());
                let allocation = json!({"allocation": {"devices": {"results": [result]},
                    "nodeSelector": {"nodeSelectorTerms": terms}}});
                claim.status = serde_json::from_value(allocation)?;
                claims.replace_status(&name, &PostParams::default(), &claim).await?;
                Ok::<_, anyhow::Error>(())
            }
        };
        stream::iter(numbers).map(allocate).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        report.seconds(format!("{all} claims allocated to others"), begin.elapsed())
    }
}

/// Returns the result of a claim by its node, its number, and its number on the node.
type ResultOf = Box<dyn Fn(&str, usize, usize) -> Value>;

/// Claims of others.
pub struct Others {
    class: String,
    result: ResultOf,
}

impl Others {
    /// Claims that share the devices of all ClaimNetworks but the one with this number on the first link.
    /// Those of a node are of different ClaimNetworks.
    pub fn on_all_networks_but(unused: usize, uses: Uses) -> Self {
        let all = LINKS.into_iter().flat_map(|link| (0..uses.networks()).map(move |n| (link, n)));
        let used = all.filter(|(link, n)| (*link, *n) != (LINKS[0], unused));
        let networks: Vec<String> = used.map(|(link, n)| fleet::network(link, n)).collect();
        let class = class(&networks[0]);
        let result = move |node: &str, n: usize, of_node: usize| {
            let network = &networks[(n + of_node) % networks.len()];
            share(node, network, n, json!({"addresses": "1"}))
        };
        Self { class, result: Box::new(result) }
    }

    /// Claims of one ClaimNetwork, which share its device on their node.
    pub fn on_network(network: &str, consumed: Value) -> Self {
        let class = class(network);
        let network = network.to_owned();
        let result = move |node: &str, n: usize, _: usize| share(node, &network, n, consumed.clone());
        Self { class, result: Box::new(result) }
    }

    /// Claims that share the one device of the ClaimNetwork of scope `Cluster`.
    pub fn on_cluster_wide_network() -> Result<Self> {
        let network = fleet::EVERYWHERE;
        let pool = cluster_pool(&network.parse().map_err(Error::msg)?);
        let result = move |_: &str, n: usize, _: usize| share(&pool, network, n, json!({"interfaces": "1"}));
        Ok(Self { class: class(network), result: Box::new(result) })
    }

    /// Claims of whole devices, the first ones of each node.
    pub fn of_devices(class: &str) -> Self {
        let result = |node: &str, _: usize, n: usize| json!({"request": "net", "driver": DRIVER_NAME, "pool": node, "device": format!("nic-eth{n}")});
        Self { class: class.to_owned(), result: Box::new(result) }
    }
}

/// The result of the claim with this number, which shares the device of a ClaimNetwork.
fn share(pool: &str, network: &str, number: usize, consumed: Value) -> Value {
    json!({
        "request": "net", "driver": DRIVER_NAME, "pool": pool, "device": format!("net-{network}"),
        "shareID": format!("00000000-0000-4000-8000-{number:012x}"), "consumedCapacity": consumed,
    })
}

/// Deletes the claims of pods that are gone: nothing else does without a controller manager, and the next
/// round would find their devices in use.
async fn delete_claims(client: &Client, kind: &str) -> Result<()> {
    let claims: Api<ResourceClaim> = Api::default_namespaced(client.clone());
    let delete = |n: usize| {
        let (claims, name) = (claims.clone(), format!("{kind}-{n}"));
        async move {
            let unprotected = json!({"metadata": {"finalizers": null}});
            claims.patch(&name, &PatchParams::default(), &Patch::Merge(&unprotected)).await?;
            claims.delete(&name, &DeleteParams::default()).await.map(drop)
        }
    };
    Ok(stream::iter(0..PODS).map(delete).buffer_unordered(AT_ONCE).try_collect().await?)
}

async fn create_pods(client: &Client, kind: &str, class: Option<&str>) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let claims: Api<ResourceClaim> = Api::default_namespaced(client.clone());
    let create = |n: usize| {
        let (pods, claims) = (pods.clone(), claims.clone());
        async move {
            let name = format!("{kind}-{n}");
            let of_pod: Vec<&str> = class.map(|_| name.as_str()).into_iter().collect();
            let mut pod = objects::pod(&name, &of_pod);
            pod["metadata"]["labels"] = json!({"kind": kind});
            fleet::tolerate(&mut pod);
            if let Some(class) = class {
                let claim = serde_json::from_value(objects::claim(&name, class))?;
                claims.create(&PostParams::default(), &claim).await?;
            }
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
            Ok::<_, anyhow::Error>(())
        }
    };
    stream::iter(0..PODS).map(create).buffer_unordered(AT_ONCE).try_collect().await
}
