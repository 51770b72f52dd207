//! Simulated nodes that use blocks of addresses as agents do: `UseHistory` decides, as in the agent, and the
//! requests that follow go to the real API server. What the agent's keeper and `host-local` do around it is
//! repeated here.
//!
//! Time is simulated: nodes advance in windows of [`WINDOW`], each by its own events. What the controller
//! answers becomes visible at the end of a window, and the next one begins when every node has what it asked
//! for.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use ipnet::IpNet;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::addresses::{AddressBlock, AddressBlockStatus, AddressPoolSpec, BLOCK_FINALIZER};
use netclaim_kubelet_plugin::addresses::wanted::{BlockNow, Report as StatusReport, UseHistory};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant as Moment, timeout};

use crate::fleet::AT_ONCE;
use crate::workload::Arrival;

/// Simulated time after which answers of the controller become visible.
const WINDOW: Duration = Duration::from_secs(10);
/// The keeper gathers changes for this long.
const GATHER: Duration = Duration::from_millis(100);
/// Real time for which a window waits for the controller at most.
const ANSWER: Duration = Duration::from_secs(10);
/// Simulated time after the last pod, in which nodes give back what they do not need.
const AFTERWARDS: Duration = Duration::from_secs(1200);
/// Field manager of the agent.
const MANAGER: &str = "netclaim-agent";

/// What the watch of all blocks shows, with the time.
pub type Seen = (Instant, Event);

/// An event of the watch.
pub enum Event {
    /// The block is there or has changed.
    Applied(Box<AddressBlock>),
    /// The block of this name is gone.
    Gone(String),
}

/// Starts one watch of all blocks for all simulated nodes.
pub fn watch(client: Client) -> UnboundedReceiver<Seen> {
    let (sender, receiver) = unbounded_channel();
    let api: Api<AddressBlock> = Api::all(client);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let (mut known, mut listed) = (BTreeSet::new(), BTreeSet::new());
        while let Some(event) = events.next().await {
            let Ok(event) = event else { continue };
            let seen: Vec<Event> = match event {
                watcher::Event::Init => {
                    listed.clear();
                    Vec::new()
                }
                watcher::Event::InitApply(block) => {
                    listed.insert(block.name_any());
                    vec![Event::Applied(Box::new(block))]
                }
                watcher::Event::InitDone => {
                    let before = std::mem::replace(&mut known, std::mem::take(&mut listed));
                    before.difference(&known).cloned().map(Event::Gone).collect()
                }
                watcher::Event::Apply(block) => {
                    known.insert(block.name_any());
                    vec![Event::Applied(Box::new(block))]
                }
                watcher::Event::Delete(block) => {
                    known.remove(&block.name_any());
                    vec![Event::Gone(block.name_any())]
                }
            };
            let now = Instant::now();
            if seen.into_iter().any(|event| sender.send((now, event)).is_err()) {
                return;
            }
        }
    });
    receiver
}

/// What the simulated agents share.
struct Shared {
    api: Api<AddressBlock>,
    network: String,
    pool: AddressPoolSpec,
    /// The beginning of the simulated time.
    begin: Moment,
    /// Who has each address.
    holders: RefCell<HashMap<Ipv4Addr, String>>,
    counts: RefCell<Counts>,
}

/// What the agents have done.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    /// Pods that got an address.
    pub pods: usize,
    /// Pods that found no address when they came, and the simulated time until they had one.
    pub waited: Vec<Duration>,
    /// The most pods at once on all nodes.
    pub most: usize,
    /// Status writes because the node needs more, needs less, or because the numbers had settled.
    pub more: usize,
    /// See `more`.
    pub less: usize,
    /// See `more`.
    pub settled: usize,
    /// Blocks given back.
    pub given_back: usize,
    /// Real time from a write that asks for more to a watch that shows the blocks.
    pub answers: Vec<Duration>,
    /// Windows that ended before a node had what it asked for.
    pub unanswered: usize,
}

/// All simulated nodes.
pub struct Agents {
    shared: Shared,
    nodes: BTreeMap<String, Node>,
    /// Names of the node of each block.
    blocks: BTreeMap<String, String>,
    seen: UnboundedReceiver<Seen>,
}

#[derive(Default)]
struct Node {
    blocks: BTreeMap<String, Block>,
    history: UseHistory,
    coming: VecDeque<Arrival>,
    /// Pods for which there was no address, with the time at which they came.
    waiting: VecDeque<Arrival>,
    pods: BinaryHeap<Reverse<(Duration, Ipv4Addr)>>,
    /// UIDs of blocks that it has let go of: the watch is late.
    gone: BTreeSet<String>,
    look: Option<Duration>,
    /// Real time of the write that asks for more.
    asked: Option<Instant>,
}

struct Block {
    uid: String,
    version: u64,
    cidr: IpNet,
    addresses: Vec<Ipv4Addr>,
    used: BTreeSet<Ipv4Addr>,
    /// The address handed out last: `host-local` goes on after it.
    last: Option<Ipv4Addr>,
    status: AddressBlockStatus,
    is_deleting: bool,
    finalizer: Option<usize>,
}

impl Agents {
    /// Takes over the nodes. `seen` continues after `first`.
    pub fn new(
        client: Client,
        network: &str,
        pool: AddressPoolSpec,
        arrivals: impl IntoIterator<Item = (String, VecDeque<Arrival>)>,
        seen: UnboundedReceiver<Seen>,
        first: Vec<Seen>,
    ) -> Result<Self> {
        let nodes = arrivals
            .into_iter()
            .map(|(name, coming)| (name, Node { coming, look: Some(Duration::ZERO), ..Node::default() }))
            .collect();
        let shared = Shared {
            api: Api::all(client),
            network: network.to_owned(),
            pool,
            begin: Moment::now(),
            holders: RefCell::default(),
            counts: RefCell::default(),
        };
        let mut agents = Self { shared, nodes, blocks: BTreeMap::new(), seen };
        for seen in first {
            agents.take_in(seen, Duration::ZERO)?;
        }
        Ok(agents)
    }

    /// Lets all pods come and go.
    pub async fn run(&mut self) -> Result<Counts> {
        let mut now = Duration::ZERO;
        let mut end = None;
        loop {
            let next = self.nodes.values().filter_map(Node::next).min();
            let has_pods = self.nodes.values().any(Node::has_pods);
            if !has_pods && end.is_none() {
                end = Some(now + AFTERWARDS);
            }
            let Some(next) = next.filter(|next| end.is_none_or(|end| *next < end)) else { break };
            now = next.max(now) + WINDOW;
            let shared = &self.shared;
            let due = self.nodes.iter_mut().filter(|(_, node)| node.next().is_some_and(|next| next <= now));
            stream::iter(due.map(|(name, node)| node.advance(shared, name, now)))
                .buffer_unordered(AT_ONCE)
                .try_collect::<()>()
                .await?;
            self.answers(now).await?;
            let pods = self.shared.holders.borrow().len();
            let mut counts = self.shared.counts.borrow_mut();
            counts.most = counts.most.max(pods);
        }
        ensure!(self.shared.holders.borrow().is_empty(), "addresses are left");
        Ok(self.shared.counts.borrow().clone())
    }

    /// Takes in what the watch shows, until every node has what it asked for.
    async fn answers(&mut self, now: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            while let Ok(seen) = self.seen.try_recv() {
                self.take_in(seen, now)?;
            }
            if !self.nodes.values().any(|node| node.asked.is_some()) {
                return Ok(());
            }
            let Ok(seen) = timeout(ANSWER.saturating_sub(begin.elapsed()), self.seen.recv()).await else {
                self.shared.counts.borrow_mut().unanswered += 1;
                return Ok(());
            };
            self.take_in(seen.context("the watch has ended")?, now)?;
        }
    }

    fn take_in(&mut self, (at, event): Seen, now: Duration) -> Result<()> {
        match event {
            Event::Applied(object) if object.spec.network.as_str() == self.shared.network => {
                let name = object.name_any();
                self.blocks.insert(name.clone(), object.spec.node.clone());
                let node = self.nodes.get_mut(&object.spec.node);
                let node = node.with_context(|| format!("{name} is of no node"))?;
                if node.apply(&self.shared.pool, &object)? {
                    node.look = Some(node.look.map_or(now, |look| look.min(now)));
                }
                if let Some(asked) = node.asked
                    && !node.wants_more()
                {
                    node.asked = None;
                    self.shared.counts.borrow_mut().answers.push(at.saturating_duration_since(asked));
                }
            }
            Event::Applied(_) => {}
            Event::Gone(name) => {
                let Some(node) = self.blocks.remove(&name) else { return Ok(()) };
                let node = self.nodes.get_mut(&node).context("the block was of a node")?;
                if let Some(block) = node.blocks.remove(&name) {
                    ensure!(block.used.is_empty(), "{name} is gone, and pods have {:?}", block.used);
                }
            }
        }
        Ok(())
    }

    /// Lets go of all blocks, which the controller deletes because their ClaimNetwork is gone.
    pub async fn let_go(&mut self, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        while !self.blocks.is_empty() {
            let left = self.blocks.len();
            let seen = timeout(limit.saturating_sub(begin.elapsed()), self.seen.recv()).await;
            let seen = seen.with_context(|| format!("{left} blocks are left"))?;
            self.take_in(seen.context("the watch has ended")?, Duration::ZERO)?;
            while let Ok(seen) = self.seen.try_recv() {
                self.take_in(seen, Duration::ZERO)?;
            }
            let shared = &self.shared;
            let is_due = |node: &&mut Node| node.blocks.values().any(|block| block.is_deleting);
            stream::iter(self.nodes.values_mut().filter(is_due).map(|node| node.let_go(shared)))
                .buffer_unordered(AT_ONCE)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
    }
}

impl Node {
    fn has_pods(&self) -> bool {
        !(self.coming.is_empty() && self.waiting.is_empty() && self.pods.is_empty())
    }

    /// When something happens next on the node.
    fn next(&self) -> Option<Duration> {
        let going = self.pods.peek().map(|pod| pod.0.0);
        [self.coming.front().map(|pod| pod.at), going, self.look].into_iter().flatten().min()
    }

    /// Whether it asked for more than it has.
    fn wants_more(&self) -> bool {
        let usable = self.usable_blocks().map(|(_, block)| block.addresses.len()).sum::<usize>();
        let wanted = self.usable_blocks().next().and_then(|(_, block)| block.status.wanted);
        wanted.is_some_and(|wanted| usize::try_from(wanted).is_ok_and(|wanted| wanted > usable))
    }

    fn usable_blocks(&self) -> impl Iterator<Item = (&String, &Block)> {
        self.blocks.iter().filter(|(_, block)| !block.is_deleting)
    }

    /// Takes in an object, unless a newer one is known. Returns whether anything has changed.
    fn apply(&mut self, pool: &AddressPoolSpec, object: &AddressBlock) -> Result<bool> {
        let uid = object.uid().context("a block without a UID")?;
        let version: u64 = object.resource_version().context("a block without a version")?.parse()?;
        if self.gone.contains(&uid) {
            return Ok(false);
        }
        let old = self.blocks.remove(&object.name_any());
        if let Some(old) = old.as_ref().filter(|old| old.uid != uid) {
            ensure!(
                old.used.is_empty(),
                "{} is another block, and pods have {:?}",
                object.name_any(),
                old.used
            );
        }
        let mut block = match old.filter(|old| old.uid == uid) {
            Some(old) if old.version >= version => {
                self.blocks.insert(object.name_any(), old);
                return Ok(false);
            }
            Some(old) => old,
            None => Block {
                uid,
                version,
                cidr: object.spec.cidr,
                addresses: addresses(pool, object),
                used: BTreeSet::new(),
                last: None,
                status: AddressBlockStatus::default(),
                is_deleting: false,
                finalizer: None,
            },
        };
        block.version = version;
        block.status = object.status.clone().unwrap_or_default();
        block.is_deleting = object.metadata.deletion_timestamp.is_some();
        block.finalizer = object.finalizers().iter().position(|finalizer| finalizer == BLOCK_FINALIZER);
        self.blocks.insert(object.name_any(), block);
        Ok(true)
    }

    /// Does what happens on the node until a time.
    async fn advance(&mut self, shared: &Shared, name: &str, until: Duration) -> Result<()> {
        while let Some(next) = self.next().filter(|next| *next <= until) {
            let now = next + GATHER;
            self.pods_go(shared, now);
            self.pods_come(shared, name, now)?;
            self.look(shared, now).await?;
        }
        Ok(())
    }

    fn pods_go(&mut self, shared: &Shared, now: Duration) {
        while let Some(Reverse((_, address))) = self.pods.peek().filter(|pod| pod.0.0 <= now).copied() {
            self.pods.pop();
            shared.holders.borrow_mut().remove(&address);
            for block in self.blocks.values_mut() {
                block.used.remove(&address);
            }
        }
    }

    fn pods_come(&mut self, shared: &Shared, name: &str, now: Duration) -> Result<()> {
        while let Some(pod) = self.coming.front().filter(|pod| pod.at <= now).copied() {
            self.coming.pop_front();
            self.waiting.push_back(pod);
        }
        while let Some(pod) = self.waiting.front().copied() {
            // The fullest first, as in the agent.
            let free = self.blocks.values_mut().filter(|block| !block.is_deleting && block.free() > 0);
            let Some(block) = free.min_by_key(|block| (block.free(), block.cidr)) else { return Ok(()) };
            let Some(address) = block.take() else { bail!("no address of a block with free ones") };
            self.waiting.pop_front();
            self.pods.push(Reverse((now + pod.life, address)));
            if let Some(other) = shared.holders.borrow_mut().insert(address, name.to_owned()) {
                bail!("{address} is in two pods, on {other} and {name}");
            }
            let mut counts = shared.counts.borrow_mut();
            counts.pods += 1;
            if now > pod.at + GATHER {
                counts.waited.push(now - pod.at);
            }
        }
        Ok(())
    }

    /// What the keeper does after each change.
    async fn look(&mut self, shared: &Shared, now: Duration) -> Result<()> {
        self.look = None;
        self.let_go(shared).await?;
        let blocks: Vec<BlockNow> = self
            .usable_blocks()
            .map(|(name, block)| BlockNow {
                name: name.clone(),
                usable: block.addresses.len() as u64,
                used: block.used.len() as u64,
                reported_used: block.status.used,
                reported_wanted: block.status.wanted,
            })
            .collect();
        let decision = self.history.look(&blocks, false, shared.begin + now);
        let has_written = !decision.reports.is_empty() || decision.give_back.is_some();
        for (name, report) in decision.reports {
            self.report(shared, &name, report).await?;
        }
        if let Some(name) = decision.give_back {
            self.give_back(shared, &name).await?;
        }
        // The watch shows the write to the agent.
        let next = decision.next.map(|next| next.saturating_duration_since(shared.begin).max(now + GATHER));
        self.look = if has_written { Some(now + GATHER) } else { next };
        Ok(())
    }

    async fn report(&mut self, shared: &Shared, name: &str, report: StatusReport) -> Result<()> {
        let before = self.blocks.get(name).and_then(|block| block.status.wanted);
        let status = AddressBlockStatus {
            used: i64::try_from(report.used).ok(),
            wanted: report.wanted.map(i64::try_from).transpose()?,
            holders: Vec::new(),
        };
        let patch = json!({
            "apiVersion": netclaim_api::API_VERSION, "kind": "AddressBlock", "metadata": {"name": name}, "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        let written = shared.api.patch_status(name, &params, &Patch::Apply(patch)).await?;
        self.apply(&shared.pool, &written)?;
        let mut counts = shared.counts.borrow_mut();
        match status.wanted.cmp(&before) {
            std::cmp::Ordering::Greater => counts.more += 1,
            std::cmp::Ordering::Less => counts.less += 1,
            std::cmp::Ordering::Equal => counts.settled += 1,
        }
        if self.wants_more() {
            self.asked.get_or_insert_with(Instant::now);
        } else {
            self.asked = None;
        }
        Ok(())
    }

    async fn give_back(&mut self, shared: &Shared, name: &str) -> Result<()> {
        let uid = self.blocks.get(name).map(|block| block.uid.clone());
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        if let Some(deleting) = shared.api.delete(name, &params).await?.left() {
            self.apply(&shared.pool, &deleting)?;
        }
        shared.counts.borrow_mut().given_back += 1;
        Ok(())
    }

    /// Removes the finalizer of blocks that are being deleted.
    async fn let_go(&mut self, shared: &Shared) -> Result<()> {
        let deleting: Vec<(String, String, usize)> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.is_deleting)
            .filter_map(|(name, block)| Some((name.clone(), block.uid.clone(), block.finalizer?)))
            .collect();
        for (name, uid, index) in deleting {
            let has_pods = self.blocks.get(&name).is_some_and(|block| !block.used.is_empty());
            ensure!(!has_pods, "{name} is being deleted, and has pods: no one asked for that");
            let path = format!("/metadata/finalizers/{index}");
            let patch = serde_json::from_value(json!([
                {"op": "test", "path": "/metadata/uid", "value": uid},
                {"op": "test", "path": path, "value": BLOCK_FINALIZER},
                {"op": "remove", "path": path},
            ]))?;
            shared.api.patch(&name, &PatchParams::default(), &Patch::Json::<()>(patch)).await?;
            self.blocks.remove(&name);
            self.gone.insert(uid);
        }
        Ok(())
    }
}

impl Block {
    fn free(&self) -> usize {
        self.addresses.len() - self.used.len()
    }

    /// Takes the next free address after the last one, as `host-local` does.
    fn take(&mut self) -> Option<Ipv4Addr> {
        let (before, after): (Vec<Ipv4Addr>, Vec<Ipv4Addr>) =
            self.addresses.iter().partition(|address| self.last.is_some_and(|last| **address <= last));
        let address = after.into_iter().chain(before).find(|address| !self.used.contains(address))?;
        self.used.insert(address);
        self.last = Some(address);
        Some(address)
    }
}

/// The addresses of a block that pods can have.
fn addresses(pool: &AddressPoolSpec, block: &AddressBlock) -> Vec<Ipv4Addr> {
    let spans = block.spec.usable(pool).into_iter();
    spans
        .flat_map(|span| match (span.first(), span.last()) {
            (IpAddr::V4(first), IpAddr::V4(last)) => first.to_bits()..last.to_bits() + 1,
            _ => 0..0,
        })
        .map(Ipv4Addr::from_bits)
        .collect()
}
