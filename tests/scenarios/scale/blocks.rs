//! Blocks of many ClaimNetworks on thousands of simulated nodes: 250,000 objects for 50 on 5,000 nodes. Each
//! node has the watch of its blocks that its agent has; API server, etcd and controller are real.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use netclaim_api::addresses::AddressBlock;
use netclaim_tests::{AuditLog, Cluster, Usage, setting};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::addresses::{AGENTS, CONTROLLER, UPLINK, Users, publish, report_usage, user};
use crate::cluster::{self, Controller, admin, client, on_cluster};
use crate::fleet::{self, AT_ONCE};
use crate::networks::{self, with_addresses};
use crate::report::{Report, mib, millis};

/// ClaimNetworks with addresses of their own, all on each node, unless `$NETCLAIM_SCALE_NETWORKS` says
/// otherwise.
const NETWORKS: usize = 50;
/// The deadline until each node has a block of each.
const LEASING: Duration = Duration::from_secs(1800);
/// The deadline of other waits.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Nodes that ask for more addresses, one after another, and as many at once.
const ASKING: usize = 50;
/// How long nothing happens.
const QUIET: Duration = Duration::from_secs(60);

/// A block that its node's watch shows for the first time.
struct New {
    at: Instant,
    block: AddressBlock,
}

/// Measures everything, on its own cluster.
pub fn many_networks_have_blocks_on_each_node() -> Result<()> {
    on_cluster("blocks", async |cluster, count| measure(cluster, count).await)
}

async fn measure(cluster: &Cluster, count: usize) -> Result<()> {
    let mut report = Report::new("blocks")?;
    cluster::create_crds(cluster)?;
    let users = Users::create(cluster)?;
    let of_admin = client(&admin(cluster)).await?;
    let nodes = fleet::nodes(&of_admin, count).await?;
    let many = setting("NETCLAIM_SCALE_NETWORKS", NETWORKS)?;
    let networks: Vec<String> = (0..many).map(|n| format!("net-{n:02}")).collect();
    publish(&of_admin, &nodes, &networks).await?;
    let mut seen = watch_each(&users, &nodes).await?;
    let mut controller = Controller::start(cluster, &users.kubeconfig(CONTROLLER)?)?;
    let api_server = || Usage::of(cluster.service_pid("apiserver")?);
    report.row("nodes", count as f64, "")?;
    report.row("ClaimNetworks", many as f64, "")?;
    let before = (controller.usage()?, api_server()?);
    report.row("before, API server: memory", mib(before.1.rss), "MiB")?;

    let begin = Instant::now();
    let api = networks::api(&of_admin);
    for (n, name) in networks.iter().enumerate() {
        let range = format!("10.{}.0.0/14", 4 * n);
        let network = with_addresses(name, UPLINK, &range, json!({"ranges": [{"subnet": range}]}));
        api.create(&PostParams::default(), &serde_json::from_value(network)?).await?;
    }
    let all = count * many;
    let (times, blocks) = first_blocks(&mut seen, all, begin).await?;
    report.seconds("each node has a block of each after", times.iter().max().copied().unwrap_or_default())?;
    report.times("first block", "first.csv", &times)?;
    report_usage("first blocks", before, (controller.usage()?, api_server()?), &mut report)?;

    let (before, log) = ((controller.usage()?, api_server()?), AuditLog::from_now(cluster)?);
    sleep(QUIET).await;
    report_usage("a quiet minute", before, (controller.usage()?, api_server()?), &mut report)?;
    let requests: usize = log.requests_of(&user(CONTROLLER))?.into_values().sum();
    report.row("a quiet minute, requests of the controller", requests as f64, "")?;

    let agents: Api<AddressBlock> = Api::all(client(&users.kubeconfig(AGENTS)?).await?);
    // Each of another node and of another ClaimNetwork than its neighbours.
    let mut asking =
        blocks.into_values().step_by(all / (3 * ASKING).min(all)).collect::<Vec<_>>().into_iter();
    let before = controller.usage()?;
    let mut one_by_one = Vec::new();
    for block in asking.by_ref().take(ASKING) {
        one_by_one.extend(more(&agents, &mut seen, &[block]).await?);
    }
    report.times("more addresses for one node", "more.csv", &one_by_one)?;
    let took = millis(controller.usage()?.cpu - before.cpu) / ASKING as f64;
    report.row("the same, controller: CPU for each", took * 1e3, "ms")?;
    let group: Vec<AddressBlock> = asking.by_ref().take(ASKING).collect();
    let at_once = more(&agents, &mut seen, &group).await?;
    report.times("more addresses for many nodes at once", "more-at-once.csv", &at_once)?;

    controller.stop()?;
    let begin = Instant::now();
    let controller = Controller::start(cluster, &users.kubeconfig(CONTROLLER)?)?;
    let last: Vec<AddressBlock> = asking.take(1).collect();
    more(&agents, &mut seen, &last).await?;
    report.seconds("controller started again: it leases after", begin.elapsed())?;
    let again = controller.usage()?;
    report.row("controller started again: CPU", millis(again.cpu), "s")?;
    report.row("controller started again: most memory", mib(again.peak), "MiB")
}

/// Starts the watch of each node's blocks, with a connection of its own.
async fn watch_each(users: &Users<'_>, nodes: &[Node]) -> Result<UnboundedReceiver<New>> {
    let (sender, receiver) = unbounded_channel();
    let kubeconfig = users.kubeconfig(AGENTS)?;
    let start = |node: &Node| {
        let (name, sender, kubeconfig) = (node.name_any(), sender.clone(), kubeconfig.clone());
        async move {
            let api: Api<AddressBlock> = Api::all(client(&kubeconfig).await?);
            let (ready, is_ready) = tokio::sync::oneshot::channel();
            tokio::spawn(watch(api, name, sender, ready));
            is_ready.await.context("a watch has ended")
        }
    };
    stream::iter(nodes).map(start).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(receiver)
}

/// Sends the new blocks of a node; `ready` is told when the watch is on.
async fn watch(
    api: Api<AddressBlock>,
    node: String,
    sender: UnboundedSender<New>,
    ready: tokio::sync::oneshot::Sender<()>,
) {
    let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let mut events = std::pin::pin!(watcher(api, of_node).default_backoff());
    let (mut known, mut ready) = (HashSet::new(), Some(ready));
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(block) | watcher::Event::InitApply(block)) => {
                if known.insert(block.name_any()) && sender.send(New { at: Instant::now(), block }).is_err() {
                    return;
                }
            }
            Ok(watcher::Event::InitDone) => drop(ready.take().map(|ready| ready.send(()))),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Waits for the first blocks; returns after how long each came, and all by name.
async fn first_blocks(
    seen: &mut UnboundedReceiver<New>,
    all: usize,
    begin: Instant,
) -> Result<(Vec<Duration>, BTreeMap<String, AddressBlock>)> {
    let (mut times, mut blocks) = (Vec::new(), BTreeMap::new());
    let mut said = 0;
    while blocks.len() < all {
        let new = timeout(LEASING.saturating_sub(begin.elapsed()), seen.recv()).await;
        let New { at, block } =
            new.with_context(|| format!("{} of {all} blocks", blocks.len()))?.context("no watch")?;
        times.push(at.saturating_duration_since(begin));
        blocks.insert(block.name_any(), block);
        if blocks.len() * 10 / all > said {
            said = blocks.len() * 10 / all;
            eprintln!(
                "         {} of {all} blocks after {:.1} s",
                blocks.len(),
                begin.elapsed().as_secs_f64()
            );
        }
    }
    Ok((times, blocks))
}

/// Asks for more addresses of the ClaimNetworks of these blocks on their nodes, as their agents do; returns
/// how long it takes until each node's watch shows another block.
async fn more(
    agents: &Api<AddressBlock>,
    seen: &mut UnboundedReceiver<New>,
    blocks: &[AddressBlock],
) -> Result<Vec<Duration>> {
    let begin = Instant::now();
    let ask = |block: &AddressBlock| {
        let bits = block.spec.cidr.max_prefix_len() - block.spec.cidr.prefix_len();
        let status = json!({"used": 1, "wanted": (1_u64 << bits) + 1});
        let patch = json!({
            "apiVersion": netclaim_api::API_VERSION, "kind": "AddressBlock",
            "metadata": {"name": block.name_any()}, "status": status,
        });
        let name = block.name_any();
        async move {
            let params = PatchParams::apply("netclaim-agent").force();
            agents.patch_status(&name, &params, &Patch::Apply(patch)).await.map(drop).map_err(Error::from)
        }
    };
    stream::iter(blocks).map(ask).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    let of = |block: &AddressBlock| (block.spec.node.clone(), block.spec.network.clone());
    let mut waiting: Vec<_> = blocks.iter().map(of).collect();
    let mut times = Vec::new();
    while !waiting.is_empty() {
        let new = timeout(TIMEOUT.saturating_sub(begin.elapsed()), seen.recv()).await;
        let New { at, block } =
            new.with_context(|| format!("{} nodes wait", waiting.len()))?.context("no watch")?;
        let place = waiting.iter().position(|waits| *waits == of(&block));
        if let Some(place) = place {
            waiting.swap_remove(place);
            times.push(at.saturating_duration_since(begin));
        }
    }
    Ok(times)
}
