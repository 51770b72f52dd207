//! Simulated nodes whose pods come and go in simulated time, and use [blocks of addresses](crate::leased).
//!
//! Nodes advance in windows of [`WINDOW`], each by its own events. What the controller answers becomes
//! visible at the end of a window, and the next one begins when every node has what it asked for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{Client, ResourceExt as _};
use netclaim_api::addresses::AddressPoolSpec;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant as Moment, timeout};

use crate::fleet::AT_ONCE;
use crate::leased::{Counts, Event, GATHER, Leased, Seen, Shared};
use crate::workload::Arrival;

/// Simulated time after which answers of the controller become visible.
const WINDOW: Duration = Duration::from_secs(10);
/// Real time for which a window waits for the controller at most.
const ANSWER: Duration = Duration::from_secs(10);
/// Simulated time after the last pod, in which nodes give back what they do not need.
const AFTERWARDS: Duration = Duration::from_secs(1200);

/// All simulated nodes.
pub struct Agents {
    shared: Shared,
    /// The beginning of the simulated time.
    begin: Moment,
    nodes: BTreeMap<String, Node>,
    /// Names of the node of each block.
    blocks: BTreeMap<String, String>,
    seen: UnboundedReceiver<Seen>,
}

#[derive(Default)]
struct Node {
    leased: Leased,
    coming: VecDeque<Arrival>,
    /// Pods for which there was no address, with the time at which they came.
    waiting: VecDeque<Arrival>,
    pods: BinaryHeap<Reverse<(Duration, Ipv4Addr)>>,
    look: Option<Duration>,
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
        let shared = Shared::new(client, network, pool);
        let mut agents = Self { shared, begin: Moment::now(), nodes, blocks: BTreeMap::new(), seen };
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
            let (shared, begin) = (&self.shared, self.begin);
            let due = self.nodes.iter_mut().filter(|(_, node)| node.next().is_some_and(|next| next <= now));
            stream::iter(due.map(|(name, node)| node.advance(shared, name, begin, now)))
                .buffer_unordered(AT_ONCE)
                .try_collect::<()>()
                .await?;
            self.answers(now).await?;
            let pods = self.shared.held();
            let mut counts = self.shared.counts();
            counts.most = counts.most.max(pods);
        }
        ensure!(self.shared.held() == 0, "addresses are left");
        Ok(self.shared.counts().clone())
    }

    /// Takes in what the watch shows, until every node has what it asked for.
    async fn answers(&mut self, now: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            while let Ok(seen) = self.seen.try_recv() {
                self.take_in(seen, now)?;
            }
            if !self.nodes.values().any(|node| node.leased.is_asking()) {
                return Ok(());
            }
            let Ok(seen) = timeout(ANSWER.saturating_sub(begin.elapsed()), self.seen.recv()).await else {
                self.shared.counts().unanswered += 1;
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
                if node.leased.apply(&self.shared.pool, &object)? {
                    node.look = Some(node.look.map_or(now, |look| look.min(now)));
                }
                node.leased.note_answer(&self.shared, at);
            }
            Event::Applied(_) => {}
            Event::Gone(name) => {
                let Some(node) = self.blocks.remove(&name) else { return Ok(()) };
                let node = self.nodes.get_mut(&node).context("the block was of a node")?;
                node.leased.forget(&name)?;
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
            let is_due = |node: &&mut Node| node.leased.is_leaving();
            stream::iter(self.nodes.values_mut().filter(is_due).map(|node| node.leased.let_go(shared)))
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

    /// Does what happens on the node until a time.
    async fn advance(&mut self, shared: &Shared, name: &str, begin: Moment, until: Duration) -> Result<()> {
        while let Some(next) = self.next().filter(|next| *next <= until) {
            let now = next + GATHER;
            self.pods_go(shared, now);
            self.pods_come(shared, name, now)?;
            let look = self.leased.look(shared, false, begin + now).await?;
            self.look = look.map(|look| look.saturating_duration_since(begin));
        }
        Ok(())
    }

    fn pods_go(&mut self, shared: &Shared, now: Duration) {
        while let Some(Reverse((_, address))) = self.pods.peek().filter(|pod| pod.0.0 <= now).copied() {
            self.pods.pop();
            self.leased.give(shared, address);
        }
    }

    fn pods_come(&mut self, shared: &Shared, name: &str, now: Duration) -> Result<()> {
        while let Some(pod) = self.coming.front().filter(|pod| pod.at <= now).copied() {
            self.coming.pop_front();
            self.waiting.push_back(pod);
        }
        while let Some(pod) = self.waiting.front().copied() {
            let Some(address) = self.leased.take(shared, name)? else { return Ok(()) };
            self.waiting.pop_front();
            self.pods.push(Reverse((now + pod.life, address)));
            if now > pod.at + GATHER {
                shared.counts().waited.push(now - pod.at);
            }
        }
        Ok(())
    }
}
