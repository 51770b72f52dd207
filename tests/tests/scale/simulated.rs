//! Thousands of nodes against a real API server, etcd and scheduler: publishing, the controller, its restart, and the
//! scheduler with claims and without. There are no kubelets and no controller manager: Nodes, claims and pods are
//! created here, and nobody says of a node that it is gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config};
use netclaim_api::network::Network;
use netclaim_tests::{Cluster, Usage, objects};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::fleet::{self, AT_ONCE, DEVICES, Fleet, LINKS, NETWORKS};
use crate::report::Report;

/// Nodes, unless `$NETCLAIM_SCALE_NODES` says otherwise.
const NODES: usize = 500;
/// Pods that are scheduled, with a claim each and without.
const PODS: usize = 300;
/// How long all nodes may take to publish.
const PUBLISHING: Duration = Duration::from_secs(600);
/// How long is waited for anything else but pods.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long pods are scheduled at most: the rate is known by then.
const SCHEDULING: Duration = Duration::from_secs(120);
/// How long nobody may write anything once all is published.
const IDLE: Duration = Duration::from_secs(15);

/// The whole measurement, on a cluster of its own.
pub fn nodes_are_published_counted_and_scheduled() -> Result<()> {
    let count = match std::env::var("NETCLAIM_SCALE_NODES") {
        Ok(count) => count.parse().with_context(|| format!("NETCLAIM_SCALE_NODES is {count:?}"))?,
        Err(_) => NODES,
    };
    let dir = PathBuf::from(format!("/var/tmp/netclaim-scale-{}", std::process::id()));
    let cluster = Cluster::start_api_only(&dir)?;
    let measured = tokio::runtime::Runtime::new()?.block_on(measure(&cluster, count));
    Cluster::stop(&dir)?;
    match &measured {
        Ok(()) => std::fs::remove_dir_all(&dir)?,
        Err(_) => eprintln!("logs: {}/log", dir.display()),
    }
    measured
}

async fn measure(cluster: &Cluster, count: usize) -> Result<()> {
    let mut report = Report::new("nodes")?;
    let client = client(cluster.dir()).await?;
    let networks = Networks::create(cluster, &client)?;
    let nodes = fleet::nodes(&client, count).await?;
    let mut controller = Controller::start(cluster)?;
    networks.are_on(0).await?;
    report.row("nodes", count as f64, "")?;
    report.row("devices of each", DEVICES as f64, "")?;
    report.row("controller: memory before", mib(controller.usage()?.rss), "MiB")?;

    let log = AuditLog::from_now(cluster)?;
    let before = (controller.usage()?, Usage::of(cluster.service_pid("apiserver")?)?);
    let begin = Instant::now();
    let publishing = timeout(PUBLISHING, Fleet::publish(&client, &nodes)).await;
    let fleet = publishing.with_context(|| format!("not published within {} s", PUBLISHING.as_secs()))??;
    let took = begin.elapsed();
    let writes = log.writes("resourceslices")?;
    report.seconds(format!("published, {AT_ONCE} nodes at once"), took)?;
    report.row("writes of slices", writes as f64, "")?;
    report.row("writes of slices per second", writes as f64 / took.as_secs_f64(), "1/s")?;
    networks.are_on(count).await?;
    report.seconds("every Network's status right, since the beginning", begin.elapsed())?;
    report.row("writes of the Networks' status", log.writes("networks")? as f64, "")?;
    let after = (controller.usage()?, Usage::of(cluster.service_pid("apiserver")?)?);
    report.row("controller: CPU", millis(after.0.cpu - before.0.cpu), "s")?;
    report.row("controller: memory", mib(after.0.rss), "MiB")?;
    report.row("controller: most memory", mib(after.0.peak), "MiB")?;
    report.row("API server: CPU", millis(after.1.cpu - before.1.cpu), "s")?;
    report.row("API server: memory", mib(after.1.rss), "MiB")?;
    report.row("all agents in one process: memory", mib(Usage::of(own_pid()?)?.rss), "MiB")?;

    let log = AuditLog::from_now(cluster)?;
    sleep(IDLE).await;
    let idle = log.writes("resourceslices")? + log.writes("networks")?;
    report.row(format!("writes in {} s without a change", IDLE.as_secs()), idle as f64, "")?;
    ensure!(idle == 0, "{idle} writes while nothing changed");
    drop(fleet);

    controller.stop()?;
    networks.tell_wrong(cluster)?;
    let begin = Instant::now();
    let mut controller = Controller::start(cluster)?;
    networks.are_on(count).await?;
    let resync = begin.elapsed();
    let usage = controller.usage()?;
    report.seconds("controller started again: all right", resync)?;
    report.row("controller started again: CPU", millis(usage.cpu), "s")?;
    report.row("controller started again: memory", mib(usage.rss), "MiB")?;
    report.row("controller started again: most memory", mib(usage.peak), "MiB")?;
    controller.stop()?;

    let plain = schedule(cluster, &client, "plain", false, &mut report).await?;
    let claims = schedule(cluster, &client, "claims", true, &mut report).await?;
    report.row("pods without claims for each with", plain / claims, "")?;
    // The goals are 60 s and 300 MiB; what a busy machine or a debug build adds is no failure.
    ensure!(resync < PATIENCE / 2, "a resync takes {resync:?}");
    ensure!(mib(usage.peak) < 600.0, "a resync takes {} MiB", mib(usage.peak));
    Ok(())
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn millis(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

fn own_pid() -> Result<i32> {
    Ok(std::process::id().try_into()?)
}

async fn client(dir: &Path) -> Result<Client> {
    // Fails where there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(dir.join("kubeconfig"))?;
    Ok(Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?)
}

/// The Networks that every node has.
struct Networks(Api<DynamicObject>);

impl Networks {
    fn create(cluster: &Cluster, client: &Client) -> Result<Self> {
        cluster.kubectl(&["apply", "-k", concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds")])?;
        cluster.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"])?;
        // Nobody else makes one, without a controller manager.
        cluster.kubectl(&["create", "serviceaccount", "default"])?;
        let each = LINKS.iter().enumerate().flat_map(|(place, link)| {
            (0..NETWORKS).map(move |n| {
                objects::network(&fleet::network(link, n), "macvlan", link, &format!("10.{place}.{n}.0/24"))
            })
        });
        let class = objects::class_of_network("net", &fleet::network(LINKS[0], 0));
        let list: Vec<Value> = each.chain([class]).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": list}).to_string();
        cluster.kubectl_with(&["create", "-f", "-"], &list)?;
        Ok(Self(Api::all_with(client.clone(), &ApiResource::erase::<Network>(&()))))
    }

    /// Waits until the controller says of each that so many nodes have it.
    async fn are_on(&self, nodes: usize) -> Result<()> {
        let wanted = json!(nodes);
        let right = async {
            loop {
                let networks = self.0.list(&ListParams::default()).await?;
                let is_right = |network: &DynamicObject| network.data["status"]["nodes"] == wanted;
                if networks.items.len() == LINKS.len() * NETWORKS && networks.items.iter().all(is_right) {
                    return Ok(());
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, right)
            .await
            .with_context(|| format!("the Networks do not come to {nodes} nodes"))?
    }

    /// Makes one's status wrong: only who has looked at all slices can put it right.
    fn tell_wrong(&self, cluster: &Cluster) -> Result<()> {
        let name = fleet::network(LINKS[0], 0);
        let patch = r#"{"status": {"nodes": 1}}"#;
        cluster
            .kubectl(&["patch", "network", &name, "--subresource=status", "--type=merge", "-p", patch])
            .map(drop)
    }
}

/// The controller's program, built like this one.
struct Controller(Child);

impl Controller {
    fn start(cluster: &Cluster) -> Result<Self> {
        let this = std::env::current_exe()?;
        let program = this.ancestors().nth(2).context("no target folder")?.join("netclaim-controller");
        let log = File::options().create(true).append(true).open(cluster.dir().join("log/controller.log"))?;
        let child = Command::new(&program)
            .env("NETCLAIM_KUBECONFIG", cluster.dir().join("kubeconfig"))
            .args(["--metrics-address", "127.0.0.1:0"])
            .stderr(log)
            .spawn();
        Ok(Self(child.with_context(|| {
            format!("cannot run {}: build it (cargo build -p netclaim-controller)", program.display())
        })?))
    }

    fn usage(&self) -> Result<Usage> {
        Usage::of(self.0.id().try_into()?)
    }

    /// Ends it in order, so that the next one need not wait for its lease.
    fn stop(&mut self) -> Result<()> {
        Command::new("kill").arg(self.0.id().to_string()).status()?;
        let status = self.0.wait()?;
        ensure!(status.success(), "the controller ended with {status}: see log/controller.log");
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The API server's log of requests, from a moment on.
struct AuditLog {
    path: PathBuf,
    from: u64,
}

impl AuditLog {
    fn from_now(cluster: &Cluster) -> Result<Self> {
        let path = cluster.dir().join("log/audit.log");
        let from = path.metadata().context("no audit log")?.len();
        Ok(Self { path, from })
    }

    /// Successful writes of a resource since then.
    fn writes(&self, resource: &str) -> Result<usize> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.from))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let is_write = |event: &Value| {
            let verb = event["verb"].as_str().unwrap_or_default();
            event["stage"] == "ResponseComplete"
                && event["objectRef"]["resource"] == resource
                && ["create", "update", "patch", "delete"].contains(&verb)
                && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
        };
        // The last line may be half written.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(is_write).count())
    }
}

/// Creates pods, starts the scheduler, and returns how many it binds in a second.
async fn schedule(
    cluster: &Cluster,
    client: &Client,
    kind: &str,
    claims: bool,
    report: &mut Report,
) -> Result<f64> {
    create_pods(client, kind, claims).await?;
    let begin = Instant::now();
    cluster.service("start", "scheduler")?;
    let pid = cluster.service_pid("scheduler")?;
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let of_kind = watcher::Config::default().labels(&format!("kind={kind}"));
    let mut pods = std::pin::pin!(watcher(api, of_kind).default_backoff().applied_objects());
    let mut names = BTreeSet::new();
    let mut bound: Vec<Instant> = Vec::new();
    let mut first = None;
    let mut end = begin + PATIENCE;
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
    cluster.service("stop", "scheduler")?;
    let first = first.with_context(|| format!("the scheduler binds none of the pods {kind}-*"))?;
    let span = bound[bound.len() - 1] - bound[0];
    ensure!(bound.len() > 1, "the scheduler binds one of the pods {kind}-* only");
    let rate = (bound.len() - 1) as f64 / span.as_secs_f64();
    let prefix = if claims { "pods with a claim" } else { "pods without claims" };
    report.seconds(format!("{prefix}: start of the scheduler to the first bound"), bound[0] - begin)?;
    report.row(format!("{prefix}: bound, of {PODS}"), bound.len() as f64, "")?;
    report.row(format!("{prefix}: bound per second"), rate, "1/s")?;
    let each = (last.cpu - first.cpu) as f64 / (bound.len() - 1) as f64;
    report.row(format!("{prefix}: CPU of the scheduler for each"), each, "ms")?;
    report.row(format!("{prefix}: memory of the scheduler"), mib(last.rss), "MiB")?;
    let since = bound.iter().map(|at| format!("{:.3}", (*at - bound[0]).as_secs_f64()));
    report.raw(&format!("bound-{kind}.csv"), "seconds", since)?;
    Ok(rate)
}

async fn create_pods(client: &Client, kind: &str, claims: bool) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let all_claims: Api<ResourceClaim> = Api::default_namespaced(client.clone());
    let create = |n: usize| {
        let (pods, all_claims) = (pods.clone(), all_claims.clone());
        async move {
            let name = format!("{kind}-{n}");
            let of_pod: Vec<&str> = claims.then_some(name.as_str()).into_iter().collect();
            let mut pod = objects::pod(&name, &of_pod);
            pod["metadata"]["labels"] = json!({"kind": kind});
            // Of nodes that no kubelet speaks for.
            pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
            if claims {
                let claim = serde_json::from_value(objects::claim(&name, "net"))?;
                all_claims.create(&PostParams::default(), &claim).await?;
            }
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
            Ok::<_, anyhow::Error>(())
        }
    };
    stream::iter(0..PODS).map(create).buffer_unordered(32).try_collect().await
}
