//! Keeps the node's AddressBlocks: reports what is used and wanted, gives back empty blocks, and lets go of blocks that are
//! being deleted when no attachment has an address of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use netclaim_api::NetworkName;
use netclaim_api::addresses::{AddressBlock, AddressBlockStatus, BLOCK_FINALIZER, BlockHolder, Family, Span};
use netclaim_cni::error_chain;
use netclaim_cni::ipam::host_local::{DEFAULT_DATA_DIR, reservations};
use netclaim_driver::attach::{Attach, Attacher, Observer};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::demand::{BlockNow, Demand, Report};
use crate::devices::addresses::foreign;
use crate::inventory::{Inventory, OwnBlock, OwnBlocks};
use crate::owner::{Owner, Plan};
use crate::prepare::call::Turn;
use crate::process::metrics::Metrics;

/// Delay that gathers the changes of several pods.
const GATHER: Duration = Duration::from_millis(100);
/// Time between a failed write and the next try, and between two looks for addresses that others hold.
const RETRY: Duration = Duration::from_secs(5);
/// How long a block that is being deleted is kept, after it is withdrawn from the node's devices: the scheduler may have
/// promised its addresses to pods just before, and their claims arrive meanwhile.
const WITHDRAWN: Duration = Duration::from_secs(10);
/// Field manager of the status.
const MANAGER: &str = "netclaim-agent";
/// A status names this many pods.
const NAMED_HOLDERS: usize = 16;

/// Keeps the blocks of one node.
pub struct BlockKeeper {
    /// The client for AddressBlocks.
    pub client: Client,
    /// The node's blocks.
    pub blocks: watch::Receiver<OwnBlocks>,
    /// What the node has.
    pub inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// Excludes plans of blocks that are given back.
    pub turn: Arc<Turn>,
    /// The gauges of addresses.
    pub metrics: Arc<Metrics>,
}

/// What attachments have of one block.
#[derive(Debug, Default)]
struct Use {
    plans: u64,
    pods: BTreeSet<String>,
}

impl BlockKeeper {
    /// Keeps the blocks until the sender of blocks or inventories is dropped.
    pub async fn run<A: Attach, O: Observer<Owner = Owner>>(mut self, attacher: Arc<Attacher<A, O>>) {
        let mut changes = attacher.changes();
        let mut demands: BTreeMap<(NetworkName, Family), Demand> = BTreeMap::new();
        let mut withdrawn: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            changes.borrow_and_update();
            let inventory = self.inventory.borrow_and_update().clone();
            let own = self.blocks.borrow_and_update().known.clone().unwrap_or_default();
            let mut next = None;
            if let Some(inventory) = inventory.filter(|_| !own.is_empty()) {
                let uses = uses(&attacher.plans(Plan::clone));
                let mut done = self.let_go(&own, &attacher, &mut withdrawn, &mut next).await;
                done &= self.decide(&own, &uses, &inventory, &attacher, &mut demands, &mut next).await;
                if !done {
                    next = Some(Instant::now() + RETRY);
                }
            }
            tokio::select! {
                changed = self.blocks.changed() => if changed.is_err() { return },
                changed = self.inventory.changed() => if changed.is_err() { return },
                _ = changes.changed() => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Reports what the blocks in use need, and gives back what is not needed. Returns whether all writes succeeded.
    async fn decide<A: Attach, O: Observer<Owner = Owner>>(
        &self,
        own: &BTreeMap<String, OwnBlock>,
        uses: &BTreeMap<(String, IpNet), Use>,
        inventory: &Inventory,
        attacher: &Attacher<A, O>,
        demands: &mut BTreeMap<(NetworkName, Family), Demand>,
        next: &mut Option<Instant>,
    ) -> bool {
        let mut done = true;
        demands.retain(|(network, family), _| {
            let is_there = inventory.addresses.contains_key(network);
            if !is_there {
                self.metrics.addresses_gone(network.as_str(), *family);
            }
            is_there
        });
        let ours = attacher.sandbox_ids();
        for (network, leased) in &inventory.addresses {
            let (Some(pool), Some(spec)) = (&leased.pool, inventory.networks.get(network)) else { continue };
            let taken = foreign(network, spec, &ours);
            for family in pool.families() {
                let blocks = leased.blocks.iter().filter(|block| block.family() == family);
                let blocks: Vec<BlockNow> = blocks
                    .filter_map(|block| {
                        let (name, object) = own.iter().find(|(_, object)| object.uid == block.uid)?;
                        let plans =
                            uses.get(&(network.to_string(), block.cidr)).map(|of_block| of_block.plans);
                        Some(BlockNow {
                            name: name.clone(),
                            usable: u64::try_from(block.free_of(pool, &taken)).unwrap_or(u64::MAX),
                            used: plans.unwrap_or_default(),
                            reported_used: object.status.used,
                            reported_wanted: object.status.wanted,
                        })
                    })
                    .collect();
                let (usable, used) =
                    blocks.iter().fold((0, 0), |sum, block| (sum.0 + block.usable, sum.1 + block.used));
                self.metrics.addresses(network.as_str(), family, usable, used);
                let demand = demands.entry((network.clone(), family)).or_default();
                let decision = demand.look(&blocks, Instant::now());
                for (name, report) in decision.reports {
                    done &= self.report(&name, report).await;
                }
                if let Some(name) = decision.give_back {
                    done &= self.give_back(&name, own).await;
                }
                if let Some(at) = decision.next {
                    *next = Some(next.map_or(at, |next| next.min(at)));
                }
            }
        }
        done
    }

    /// Lets go of blocks that are being deleted, as soon as no attachment has an address of them. Returns whether all writes
    /// succeeded and nothing is left to look at without an event.
    async fn let_go<A: Attach, O: Observer<Owner = Owner>>(
        &self,
        own: &BTreeMap<String, OwnBlock>,
        attacher: &Attacher<A, O>,
        withdrawn: &mut BTreeMap<String, Instant>,
        next: &mut Option<Instant>,
    ) -> bool {
        let (mut done, now) = (true, Instant::now());
        withdrawn.retain(|uid, _| own.values().any(|block| block.uid == *uid));
        for (name, block) in own.iter().filter(|(_, block)| block.is_deleting) {
            let Some(finalizer) = block.finalizer else { continue };
            let due = *withdrawn.entry(block.uid.clone()).or_insert(now) + WITHDRAWN;
            if now < due {
                *next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            }
            // From here on no plan names the block, so that what is counted now can only become less.
            self.turn.lock().await.insert(block.uid.clone());
            let plans = attacher.plans(Plan::clone);
            let of_block = uses(&plans).remove(&(block.spec.network.to_string(), block.spec.cidr));
            match of_block {
                Some(of_block) => done &= self.report_holders(name, block, &of_block).await,
                None if has_reservations(block, &plans) => done = false,
                None => done &= self.remove_finalizer(name, block, finalizer).await,
            }
        }
        // Blocks that are gone come back as other objects.
        self.turn.lock().await.retain(|uid| own.values().any(|block| block.uid == *uid));
        done
    }

    async fn report(&self, name: &str, report: Report) -> bool {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let status = AddressBlockStatus {
            used: Some(number(report.used)),
            wanted: report.wanted.map(number),
            holders: Vec::new(),
        };
        self.write_status(name, &status).await
    }

    async fn report_holders(&self, name: &str, block: &OwnBlock, of_block: &Use) -> bool {
        let holders = of_block.pods.iter().take(NAMED_HOLDERS).map(|pod| BlockHolder { pod: pod.clone() });
        let status = AddressBlockStatus {
            used: i64::try_from(of_block.plans).ok(),
            wanted: block.status.wanted,
            holders: holders.collect(),
        };
        block.status == status || self.write_status(name, &status).await
    }

    async fn write_status(&self, name: &str, status: &AddressBlockStatus) -> bool {
        let patch = json!({
            "apiVersion": netclaim_api::API_VERSION, "kind": "AddressBlock", "metadata": {"name": name}, "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        let written = self.api().patch_status(name, &params, &Patch::Apply(patch)).await;
        succeeded(written.map(drop), name, "write the status of an AddressBlock")
    }

    async fn give_back(&self, name: &str, own: &BTreeMap<String, OwnBlock>) -> bool {
        let Some(block) = own.get(name) else { return true };
        tracing::info!(block = name, "giving back a block of addresses that has been empty for long");
        let uid = Some(block.uid.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        succeeded(self.api().delete(name, &params).await.map(drop), name, "delete an AddressBlock")
    }

    async fn remove_finalizer(&self, name: &str, block: &OwnBlock, index: usize) -> bool {
        let path = format!("/metadata/finalizers/{index}");
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": block.uid},
            {"op": "test", "path": path, "value": BLOCK_FINALIZER},
            {"op": "remove", "path": path},
        ]);
        let patch = match serde_json::from_value(patch) {
            Ok(patch) => Patch::<()>::Json(patch),
            Err(error) => {
                tracing::error!(%error, "cannot form a patch");
                return false;
            }
        };
        tracing::info!(block = name, "letting go of a block of addresses");
        let patched = self.api().patch(name, &PatchParams::default(), &patch).await;
        succeeded(patched.map(drop), name, "let go of an AddressBlock")
    }

    fn api(&self) -> Api<AddressBlock> {
        Api::all(self.client.clone())
    }
}

/// Whether a write succeeded. An object that is gone or has changed is shown by the watch.
fn succeeded(written: kube::Result<()>, block: &str, what: &str) -> bool {
    match written {
        Ok(()) => true,
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => true,
        Err(error) => {
            tracing::warn!(block, error = error_chain(&error), "cannot {what}, will retry");
            false
        }
    }
}

/// Counts the plans of each block, by Network.
fn uses(plans: &[Plan]) -> BTreeMap<(String, IpNet), Use> {
    let mut uses: BTreeMap<(String, IpNet), Use> = BTreeMap::new();
    for plan in plans {
        for block in plan.owner.addresses.iter().flat_map(|addresses| &addresses.blocks) {
            let of_block = uses.entry((plan.network.clone(), *block)).or_default();
            of_block.plans += 1;
            of_block.pods.insert(format!("{}/{}", plan.owner.pod.namespace, plan.owner.pod.name));
        }
    }
    uses
}

/// Whether `host-local` has handed out addresses of the block that are not returned. The Network may be gone or renamed its
/// CNI network: the plans' names count, too.
fn has_reservations(block: &OwnBlock, plans: &[Plan]) -> bool {
    let default = netclaim_api::network::conflist_name(block.spec.network.as_str());
    let of_plans = plans.iter().filter(|plan| plan.network == block.spec.network.as_str());
    let lists: BTreeSet<String> =
        of_plans.map(|plan| plan.spec.conflist.name().to_string()).chain([default]).collect();
    let is_inside = |ip: IpAddr| Span::of_net(block.spec.cidr).contains(ip);
    lists.iter().any(|list| {
        let dir = std::path::Path::new(DEFAULT_DATA_DIR).join(list);
        // A directory that cannot be read may have some.
        reservations(&dir).map_or(true, |all| all.iter().any(|reservation| is_inside(reservation.ip)))
    })
}
