//! The blocks of addresses that a simulated node has leased: `UseHistory` decides, as in the agent, and the
//! requests that follow go to the real API server. What the agent's keeper and `host-local` do around it is
//! repeated here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use ipnet::IpNet;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::addresses::{AddressBlock, AddressBlockStatus, AddressPoolSpec, BLOCK_FINALIZER};
use netclaim_kubelet_plugin::addresses::wanted::{BlockNow, Report as StatusReport, UseHistory};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant as Moment;

/// The keeper gathers changes for this long.
pub const GATHER: Duration = Duration::from_millis(100);
/// Field manager of the agent.
const MANAGER: &str = "netclaim-agent";

/// What a watch of blocks shows, with the time.
pub type Seen = (Instant, Event);

/// An event of the watch.
pub enum Event {
    /// The block is there or has changed.
    Applied(Box<AddressBlock>),
    /// The block of this name is gone.
    Gone(String),
}

/// Starts a watch of blocks.
pub fn watch(client: Client, config: watcher::Config) -> UnboundedReceiver<Seen> {
    let (sender, receiver) = unbounded_channel();
    let api: Api<AddressBlock> = Api::all(client);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(api, config).default_backoff());
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

/// What the agents of one ClaimNetwork share.
pub struct Shared {
    api: Api<AddressBlock>,
    pub network: String,
    pub pool: AddressPoolSpec,
    /// Who has each address.
    holders: Mutex<HashMap<Ipv4Addr, String>>,
    counts: Mutex<Counts>,
}

impl Shared {
    /// Nobody has an address yet.
    pub fn new(client: Client, network: &str, pool: AddressPoolSpec) -> Self {
        Self {
            api: Api::all(client),
            network: network.to_owned(),
            pool,
            holders: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// How many addresses pods have.
    pub fn held(&self) -> usize {
        lock(&self.holders).len()
    }

    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The blocks of one node.
#[derive(Default)]
pub struct Leased {
    blocks: BTreeMap<String, Block>,
    history: UseHistory,
    /// UIDs of blocks that it has let go of: the watch is late.
    gone: BTreeSet<String>,
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

impl Leased {
    /// Whether it asked for more than it has.
    fn wants_more(&self) -> bool {
        let usable = self.usable();
        let wanted = self.usable_blocks().next().and_then(|(_, block)| block.status.wanted);
        wanted.is_some_and(|wanted| usize::try_from(wanted).is_ok_and(|wanted| wanted > usable))
    }

    fn usable_blocks(&self) -> impl Iterator<Item = (&String, &Block)> {
        self.blocks.iter().filter(|(_, block)| !block.is_deleting)
    }

    /// Takes in an object, unless a newer one is known. Returns whether anything has changed.
    pub fn apply(&mut self, pool: &AddressPoolSpec, object: &AddressBlock) -> Result<bool> {
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

    /// How many addresses pods of the node can have in all.
    pub fn usable(&self) -> usize {
        self.usable_blocks().map(|(_, block)| block.addresses.len()).sum()
    }

    /// How many of them have pods.
    pub fn used(&self) -> usize {
        self.usable_blocks().map(|(_, block)| block.used.len()).sum()
    }

    /// Whether a block is being deleted.
    pub fn is_leaving(&self) -> bool {
        self.blocks.values().any(|block| block.is_deleting)
    }

    /// Whether it has asked for more, and does not have it.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Notes at what time the watch has shown what was asked for, if it has.
    pub fn note_answer(&mut self, shared: &Shared, at: Instant) {
        if !self.wants_more()
            && let Some(asked) = self.asked.take()
        {
            shared.counts().answers.push(at.saturating_duration_since(asked));
        }
    }

    /// A block is gone.
    pub fn forget(&mut self, name: &str) -> Result<()> {
        if let Some(block) = self.blocks.remove(name) {
            ensure!(block.used.is_empty(), "{name} is gone, and pods have {:?}", block.used);
        }
        Ok(())
    }

    /// Gives a pod the next address, if there is any. The fullest block comes first, as in the agent.
    pub fn take(&mut self, shared: &Shared, node: &str) -> Result<Option<Ipv4Addr>> {
        let free = self.blocks.values_mut().filter(|block| !block.is_deleting && block.free() > 0);
        let Some(block) = free.min_by_key(|block| (block.free(), block.cidr)) else { return Ok(None) };
        let address = block.take().context("no address of a block with free ones")?;
        if let Some(other) = lock(&shared.holders).insert(address, node.to_owned()) {
            bail!("{address} is in two pods, on {other} and {node}");
        }
        shared.counts().pods += 1;
        Ok(Some(address))
    }

    /// Takes back the address of a pod.
    pub fn give(&mut self, shared: &Shared, address: Ipv4Addr) {
        lock(&shared.holders).remove(&address);
        for block in self.blocks.values_mut() {
            block.used.remove(&address);
        }
    }

    /// What the keeper does after each change. Returns when to look again, if nothing changes.
    pub async fn look(&mut self, shared: &Shared, is_scarce: bool, now: Moment) -> Result<Option<Moment>> {
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
        let decision = self.history.look(&blocks, is_scarce, now);
        let has_written = !decision.reports.is_empty() || decision.give_back.is_some();
        for (name, report) in decision.reports {
            self.report(shared, &name, report).await?;
        }
        if let Some(name) = decision.give_back {
            self.give_back(shared, &name).await?;
        }
        // The watch shows the write to the agent.
        let next = decision.next.map(|next| next.max(now + GATHER));
        Ok(if has_written { Some(now + GATHER) } else { next })
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
        let mut counts = shared.counts();
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
        shared.counts().given_back += 1;
        Ok(())
    }

    /// Removes the finalizer of blocks that are being deleted.
    pub async fn let_go(&mut self, shared: &Shared) -> Result<()> {
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
