//! Addresses on thousands of simulated nodes: how soon each has its first block, what pods that come and go
//! cost the API server, and what whereabouts' way of working costs it. Nodes and pods are only simulated; the
//! API server, etcd and the controller are real, and so is what an agent decides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::DRIVER_NAME;
use netclaim_api::addresses::{AddressBlock, AddressPoolSpec};
use netclaim_api::published::Amounts;
use netclaim_tests::{AuditLog, Cluster, SYSTEM, Usage, objects};
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use crate::agents::Agents;
use crate::cluster::{self, Controller, admin, client, on_cluster};
use crate::fleet::{self, AT_ONCE};
use crate::leased::{self, Counts, Event, Seen};
use crate::networks::{self, with_addresses};
use crate::report::{Report, mib, millis};
use crate::{whereabouts, workload};

/// The ClaimNetworks, one after the other, with the prefix length of their blocks; not set is the default,
/// which is /26 here.
const NETWORKS: [(&str, Option<u8>); 2] = [("default", None), ("small", Some(28))];
/// Pods of each node that come and go.
const PODS: usize = 20;
/// The uplink of the nodes.
pub const UPLINK: &str = "eth1";
/// The deadline of waits.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Service accounts, so that the audit log tells requests apart.
pub const CONTROLLER: &str = "netclaim-controller";
/// See [`CONTROLLER`].
pub const AGENTS: &str = "simulated-agents";
const WHEREABOUTS: &str = "whereabouts-model";

/// Measures everything, on its own cluster.
pub fn blocks_are_leased_ahead_of_pods() -> Result<()> {
    on_cluster("addresses", async |cluster, count| measure(cluster, count).await)
}

async fn measure(cluster: &Cluster, count: usize) -> Result<()> {
    let mut report = Report::new("addresses")?;
    let seed = match std::env::var("NETCLAIM_SEED") {
        Ok(seed) => seed.parse().context("NETCLAIM_SEED is not a number")?,
        Err(_) => 1,
    };
    cluster::create_crds(cluster)?;
    let users = Users::create(cluster)?;
    let of_admin = client(&admin(cluster)).await?;
    let nodes = fleet::nodes(&of_admin, count).await?;
    publish(&of_admin, &nodes, &NETWORKS.map(|(name, _)| name.to_owned())).await?;
    let controller = Controller::start(cluster, &users.kubeconfig(CONTROLLER)?)?;
    let world = World {
        cluster,
        networks: networks::api(&of_admin),
        blocks: Api::all(of_admin),
        agents: client(&users.kubeconfig(AGENTS)?).await?,
        nodes: nodes.iter().map(Node::name_any).collect(),
        controller,
        seed,
    };
    world.is_ready().await?;
    report.row("nodes", count as f64, "")?;
    report.row("seed", seed as f64, "")?;
    report.row("controller: memory before", mib(world.controller.usage()?.rss), "MiB")?;
    for (name, prefix) in NETWORKS {
        world.measure(name, prefix, &mut report).await?;
    }
    let World { mut controller, .. } = world;
    controller.stop()?;
    let of_model = client(&users.kubeconfig(WHEREABOUTS)?).await?;
    whereabouts::measure(cluster, &of_model, &user(WHEREABOUTS), &mut report).await
}

/// The name of a service account as a user.
pub fn user(account: &str) -> String {
    format!("system:serviceaccount:{SYSTEM}:{account}")
}

/// Service accounts with tokens. The controller's has the rights of its ClusterRole, the others are admins:
/// the policy for agents needs tokens of pods on nodes.
pub struct Users<'a>(&'a Cluster);

impl<'a> Users<'a> {
    /// Creates the accounts.
    pub fn create(cluster: &'a Cluster) -> Result<Self> {
        let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests");
        cluster.kubectl(&["apply", "-f", &format!("{manifests}/namespace.yaml")])?;
        cluster.kubectl(&["apply", "-f", &format!("{manifests}/controller-rbac.yaml")])?;
        for account in [AGENTS, WHEREABOUTS] {
            cluster.kubectl(&["create", "serviceaccount", "-n", SYSTEM, account])?;
            let subject = format!("--serviceaccount={SYSTEM}:{account}");
            let binding =
                ["create", "clusterrolebinding", account, "--clusterrole=cluster-admin", subject.as_str()];
            cluster.kubectl(&binding)?;
        }
        Ok(Self(cluster))
    }

    /// Writes the kubeconfig of an account.
    pub fn kubeconfig(&self, account: &str) -> Result<PathBuf> {
        let token = ["create", "token", "-n", SYSTEM, "--duration=12h", account];
        let token = self.0.kubectl(&token)?.trim().to_owned();
        let server = self.0.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
        let ca = self.0.dir().join("pki/ca.crt");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": account, "namespace": SYSTEM}}],
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": ca}}],
            "users": [{"name": account, "user": {"token": token}}],
        });
        let path = self.0.dir().join(format!("{account}.kubeconfig"));
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

/// Creates one slice for each node, with a device of each ClaimNetwork. The ClaimNetworks come later, so that
/// no agent's publishing is part of the times.
pub async fn publish(client: &Client, nodes: &[Node], networks: &[String]) -> Result<()> {
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let create = |node: &Node| {
        let (api, node) = (api.clone(), node.name_any());
        async move {
            let of_network = |name: &String| fleet::device_of_network(name, UPLINK, Amounts::default());
            let devices = networks.iter().map(of_network).collect::<Result<Vec<_>>>()?;
            let slice = serde_json::from_value(json!({
                "metadata": {"name": format!("{node}-netclaim")},
                "spec": {"driver": DRIVER_NAME, "nodeName": node, "devices": devices,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
            }))?;
            Ok::<_, Error>(api.create(&PostParams::default(), &slice).await.map(drop)?)
        }
    };
    stream::iter(nodes).map(create).buffer_unordered(AT_ONCE).try_collect().await
}

struct World<'a> {
    cluster: &'a Cluster,
    networks: Api<DynamicObject>,
    blocks: Api<AddressBlock>,
    agents: Client,
    nodes: Vec<String>,
    controller: Controller,
    seed: u64,
}

impl World<'_> {
    /// Waits until the controller works: it counts all nodes of a ClaimNetwork without addresses.
    async fn is_ready(&self) -> Result<()> {
        let (name, _) = NETWORKS[0];
        let network = objects::network(name, "macvlan", UPLINK, "192.168.0.0/24");
        self.networks.create(&PostParams::default(), &serde_json::from_value(network)?).await?;
        let counted = async {
            while self.networks.get(name).await?.data["status"]["nodes"]["publishing"] != self.nodes.len() {
                sleep(Duration::from_millis(100)).await;
            }
            Ok::<_, Error>(())
        };
        timeout(TIMEOUT, counted).await.context("the controller does not count all nodes")??;
        self.delete_network(name).await
    }

    async fn delete_network(&self, name: &str) -> Result<()> {
        self.networks.delete(name, &DeleteParams::default()).await.map(drop).map_err(Error::from)
    }

    /// Creates a ClaimNetwork, lets pods come and go, and deletes it.
    async fn measure(&self, name: &str, prefix: Option<u8>, report: &mut Report) -> Result<()> {
        let title = prefix.map_or_else(|| "default".to_owned(), |prefix| format!("/{prefix}"));
        let mut addresses = json!({"ranges": [{"subnet": "10.0.0.0/9"}]});
        if let Some(prefix) = prefix {
            addresses["blockSize"] = json!({"ipv4": prefix});
        }
        let pool: AddressPoolSpec = serde_json::from_value(addresses.clone())?;
        let network = with_addresses(name, UPLINK, "10.0.0.0/9", addresses);

        let mut seen = leased::watch(self.agents.clone(), watcher::Config::default());
        let log = AuditLog::from_now(self.cluster)?;
        let before = self.usage()?;
        let begin = Instant::now();
        self.networks.create(&PostParams::default(), &serde_json::from_value(network)?).await?;
        let first = self.first_blocks(&mut seen, begin).await?;
        let times: Vec<Duration> = first.1.into_values().collect();
        report.times(&format!("{title}: first block"), &format!("first-{name}.csv"), &times)?;
        let (soonest, last) = (times.iter().min(), times.iter().max());
        let (soonest, last) = (*soonest.context("no nodes")?, *last.context("no nodes")?);
        report.seconds(format!("{title}: first block of the first node"), soonest)?;
        report.seconds(format!("{title}: first block of all nodes"), last)?;
        let rate = times.len() as f64 / (last - soonest).as_secs_f64();
        report.row(format!("{title}: creates per second"), rate, "1/s")?;
        report_usage(&format!("{title}: first blocks"), before, self.usage()?, report)?;
        self.report_requests(&log, &format!("{title}: first blocks"), times.len(), report)?;

        let log = AuditLog::from_now(self.cluster)?;
        let before = self.usage()?;
        let begin = Instant::now();
        let arrivals = workload::arrivals(self.nodes.len(), self.nodes.len() * PODS, self.seed);
        let arrivals = self.nodes.iter().cloned().zip(arrivals);
        let mut agents = Agents::new(self.agents.clone(), name, pool, arrivals, seen, first.0)?;
        let counts = agents.run().await?;
        report.seconds(format!("{title}: churn, real time"), begin.elapsed())?;
        report_counts(&format!("{title}: churn"), name, &counts, report)?;
        report_usage(&format!("{title}: churn"), before, self.usage()?, report)?;
        self.report_requests(&log, &format!("{title}: churn"), counts.pods, report)?;
        ensure!(counts.pods == self.nodes.len() * PODS, "{} pods got an address", counts.pods);

        let log = AuditLog::from_now(self.cluster)?;
        let begin = Instant::now();
        self.delete_network(name).await?;
        agents.let_go(TIMEOUT).await?;
        let left = self.blocks.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} blocks are left");
        report.seconds(format!("{title}: ClaimNetwork deleted, no block left after"), begin.elapsed())?;
        self.report_requests(&log, &format!("{title}: end"), self.nodes.len(), report)
    }

    /// Waits until each node has a block; returns the events, and the times.
    async fn first_blocks(
        &self,
        seen: &mut UnboundedReceiver<Seen>,
        begin: Instant,
    ) -> Result<(Vec<Seen>, BTreeMap<String, Duration>)> {
        let (mut events, mut times) = (Vec::new(), BTreeMap::new());
        let all: BTreeSet<&String> = self.nodes.iter().collect();
        while times.len() < all.len() {
            let event = timeout(TIMEOUT.saturating_sub(begin.elapsed()), seen.recv()).await;
            let event = event.with_context(|| format!("only {} nodes have a block", times.len()))?;
            let (at, event) = event.context("the watch has ended")?;
            if let Event::Applied(block) = &event {
                times.entry(block.spec.node.clone()).or_insert_with(|| at.saturating_duration_since(begin));
            }
            events.push((at, event));
        }
        Ok((events, times))
    }

    fn usage(&self) -> Result<(Usage, Usage)> {
        Ok((self.controller.usage()?, Usage::of(self.cluster.service_pid("apiserver")?)?))
    }

    /// Reports the requests for blocks, without watches, of agents and controller.
    fn report_requests(&self, log: &AuditLog, title: &str, each: usize, report: &mut Report) -> Result<()> {
        let mut all = 0;
        for (who, account) in [("agents", AGENTS), ("controller", CONTROLLER)] {
            for (request, count) in log.requests_of(&user(account))? {
                let is_watch = request.starts_with("watch ") || request.starts_with("list ");
                if request.contains(" addressblocks") && !is_watch {
                    report.row(format!("{title}, {who}: {request}"), count as f64, "")?;
                    all += count;
                } else if request.starts_with("patch networks status") {
                    report.row(format!("{title}, {who}: {request}"), count as f64, "")?;
                }
            }
        }
        report.row(format!("{title}, requests for each of {each}, x1000"), all as f64 / each as f64 * 1e3, "")
    }
}

fn report_counts(title: &str, name: &str, counts: &Counts, report: &mut Report) -> Result<()> {
    report.row(format!("{title}: pods"), counts.pods as f64, "")?;
    report.row(format!("{title}: most pods at once"), counts.most as f64, "")?;
    report.row(format!("{title}: pods that found no address"), counts.waited.len() as f64, "")?;
    report.row(format!("{title}: reports: more is wanted"), counts.more as f64, "")?;
    report.row(format!("{title}: reports: less is wanted"), counts.less as f64, "")?;
    report.row(format!("{title}: reports: settled"), counts.settled as f64, "")?;
    report.row(format!("{title}: blocks given back"), counts.given_back as f64, "")?;
    report.row(format!("{title}: windows without an answer"), counts.unanswered as f64, "")?;
    let waited = counts.waited.iter().map(|time| format!("{:.1}", time.as_secs_f64()));
    report.raw(&format!("waited-{name}.csv"), "simulated seconds", waited)?;
    report.times(&format!("{title}: answer to more"), &format!("answers-{name}.csv"), &counts.answers)
}

/// Reports what controller and API server have used meanwhile.
pub fn report_usage(
    title: &str,
    before: (Usage, Usage),
    after: (Usage, Usage),
    report: &mut Report,
) -> Result<()> {
    report.row(format!("{title}, controller: CPU"), millis(after.0.cpu - before.0.cpu), "s")?;
    report.row(format!("{title}, controller: memory"), mib(after.0.rss), "MiB")?;
    report.row(format!("{title}, controller: most memory"), mib(after.0.peak), "MiB")?;
    report.row(format!("{title}, API server: CPU"), millis(after.1.cpu - before.1.cpu), "s")?;
    report.row(format!("{title}, API server: memory"), mib(after.1.rss), "MiB")
}
