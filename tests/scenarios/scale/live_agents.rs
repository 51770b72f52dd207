//! Agents that work in real time, for [`Kubelets`](crate::kubelets::Kubelets): each watches the
//! [blocks](crate::leased) of its node, publishes how many addresses they have, and gives them to pods.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use netclaim_api::Quantity;
use netclaim_api::addresses::AddressPoolSpec;
use netclaim_api::published::{Amounts, taint};
use netclaim_api::reasons::{AddressesReason, ConditionReason as _};
use netclaim_api::taints::{Reason, Unhealthy};
use netclaim_slices::{Placement, Pool, PublisherHandle};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::addresses::UPLINK;
use crate::leased::{self, Counts, Event, GATHER, Leased, Seen, Shared};
use crate::{fleet, networks};

/// What a kubelet asks its node's agent for.
enum Request {
    Take(oneshot::Sender<Ipv4Addr>),
    Give(Ipv4Addr),
}

/// The agents of all nodes, until it is dropped.
pub struct LiveAgents {
    shared: Arc<Shared>,
    nodes: BTreeMap<String, UnboundedSender<Request>>,
    _ends: DropGuard,
}

impl LiveAgents {
    /// Starts an agent for each node, which publishes its device of the ClaimNetwork.
    pub fn start(client: &Client, nodes: &[Node], network: &str, pool: AddressPoolSpec) -> Result<Self> {
        let shared = Arc::new(Shared::new(client.clone(), network, pool));
        let ends = CancellationToken::new();
        let (sender, scarce) = watch::channel(false);
        tokio::spawn(ends.clone().run_until_cancelled_owned(watch_network(
            client.clone(),
            network.to_owned(),
            sender,
        )));
        let mut senders = BTreeMap::new();
        for node in nodes {
            let (publisher, owner) = fleet::publisher(client, node, &ends)?;
            let name = node.name_any();
            let pool = Pool { owner: Some(owner), ..Pool::new(&name, Placement::Node(name.clone()), vec![]) };
            let config = watcher::Config::default().fields(&format!("spec.nodeName={name}"));
            let (sender, requests) = unbounded_channel();
            let agent = Agent { shared: Arc::clone(&shared), leased: Leased::default(), publisher, pool };
            let work = agent.run(leased::watch(client.clone(), config), requests, scarce.clone());
            senders.insert(name.clone(), sender);
            tokio::spawn(ends.clone().run_until_cancelled_owned(async move {
                if let Err(error) = work.await {
                    eprintln!("the agent of {name} has ended: {error:#}");
                }
            }));
        }
        Ok(Self { shared, nodes: senders, _ends: ends.drop_guard() })
    }

    /// Takes an address for a pod. The scheduler has counted, so that there is one.
    pub async fn take(&self, node: &str) -> Result<Ipv4Addr> {
        let (sender, address) = oneshot::channel();
        self.ask(node, Request::Take(sender))?;
        address.await.with_context(|| format!("the agent of {node} gives a pod no address"))
    }

    /// Gives the address of a pod back.
    pub fn give(&self, node: &str, address: Ipv4Addr) -> Result<()> {
        self.ask(node, Request::Give(address))
    }

    fn ask(&self, node: &str, request: Request) -> Result<()> {
        let sender = self.nodes.get(node).with_context(|| format!("{node} has no agent"))?;
        sender.send(request).ok().with_context(|| format!("the agent of {node} has ended"))
    }

    /// How many addresses pods have.
    pub fn held(&self) -> usize {
        self.shared.held()
    }

    /// What the agents have done.
    pub fn counts(&self) -> Counts {
        self.shared.counts().clone()
    }
}

/// Tells the agents whether addresses are scarce.
async fn watch_network(client: Client, name: String, scarce: watch::Sender<bool>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut networks =
        std::pin::pin!(watcher(networks::api(&client), config).default_backoff().applied_objects());
    while let Some(network) = networks.next().await {
        let Ok(network) = network else { continue };
        let is_scarce = AddressesReason::Exhausted.is_given_by(&network.data["status"]);
        scarce.send_if_modified(|now| std::mem::replace(now, is_scarce) != is_scarce);
    }
}

struct Agent {
    shared: Arc<Shared>,
    leased: Leased,
    publisher: PublisherHandle,
    /// The node's pool; its devices are made anew.
    pool: Pool,
}

impl Agent {
    async fn run(
        mut self,
        mut blocks: UnboundedReceiver<Seen>,
        mut requests: UnboundedReceiver<Request>,
        mut scarce: watch::Receiver<bool>,
    ) -> Result<()> {
        let mut published = None;
        let mut look: Option<Instant> = None;
        loop {
            let now = self.addresses(*scarce.borrow());
            if published != Some(now) {
                self.publish(now)?;
                published = Some(now);
            }
            tokio::select! {
                seen = blocks.recv() => self.take_in(seen.context("the watch of blocks has ended")?)?,
                request = requests.recv() => match request {
                    Some(request) => self.answer(request)?,
                    None => return Ok(()),
                },
                changed = scarce.changed() => if changed.is_err() { return Ok(()) },
                () = sleep_until(look.unwrap_or_else(Instant::now)), if look.is_some() => {
                    let is_scarce = *scarce.borrow();
                    look = self.leased.look(&self.shared, is_scarce, Instant::now()).await?;
                    continue;
                }
            }
            let soon = Instant::now() + GATHER;
            look = Some(look.map_or(soon, |look| look.min(soon)));
        }
    }

    fn take_in(&mut self, (at, event): Seen) -> Result<()> {
        match event {
            Event::Applied(block) if block.spec.network.as_str() == self.shared.network => {
                self.leased.apply(&self.shared.pool, &block)?;
                self.leased.note_answer(&self.shared, at);
                Ok(())
            }
            Event::Applied(_) => Ok(()),
            Event::Gone(name) => self.leased.forget(&name),
        }
    }

    fn answer(&mut self, request: Request) -> Result<()> {
        match request {
            Request::Take(answer) => {
                let address = self.leased.take(&self.shared, &self.pool.name)?;
                let usable = self.leased.usable();
                let address =
                    address.with_context(|| format!("{usable} addresses, all of which pods have"))?;
                // Its kubelet is there as long as this agent.
                let _ = answer.send(address);
            }
            Request::Give(address) => self.leased.give(&self.shared, address),
        }
        Ok(())
    }

    /// How many addresses the device has, and why it gets no pod, if it gets none: as in the agent.
    fn addresses(&self, is_scarce: bool) -> (usize, Option<Reason>) {
        let usable = self.leased.usable();
        let reason = match usable {
            0 => Some(Reason::Exhausted),
            _ if is_scarce && self.leased.used() == usable => Some(Reason::Full),
            _ => None,
        };
        (usable, reason)
    }

    fn publish(&self, (addresses, reason): (usize, Option<Reason>)) -> Result<()> {
        let amounts = Amounts { addresses: Some(Quantity::new(addresses as u64)), ..Amounts::default() };
        let mut device = fleet::device_of_network(&self.shared.network, UPLINK, amounts)?;
        let because = |reason| Unhealthy { reason, message: String::new() };
        taint(&mut device, reason.map(because).as_slice());
        let pool = Pool { devices: vec![device], ..self.pool.clone() };
        self.publisher.publish(vec![pool]);
        Ok(())
    }
}
