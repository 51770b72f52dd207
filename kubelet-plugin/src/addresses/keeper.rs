//! Keeps the node's AddressBlocks: reports what is used and wanted, gives back empty blocks, and lets go of
//! blocks that are being deleted when no attachment has an address of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use netclaim_api::NetworkName;
use netclaim_api::addresses::{
    AddressBlock, AddressBlockSpec, AddressBlockStatus, BLOCK_FINALIZER, BlockHolder, Family, MAX_WANTED,
    Span,
};
use netclaim_api::network::conflist_name;
use netclaim_cni::error_chain;
use netclaim_cni::ipam::host_local::{DEFAULT_DATA_DIR, Reservations, default_reservations_dir};
use netclaim_driver::attach::{Attach, Attacher, Observer};
use netclaim_process::kubernetes::{answered, finalizer_removal};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::metrics::AddressMetrics;
use super::wanted::{BlockNow, Report, UseHistory};
use crate::addresses::plan::PlanLock;
use crate::addresses::reservations::{Lists, foreign, journalled_dirs, journalled_lists};
use crate::inventory::{Block, Inventory, NodeAddresses, OwnBlock, OwnBlocks};
use crate::pods::owner::{Addresses, Owner, Plan, Record};

/// Most addresses for which the node asks for others because hosts beside the cluster have them: anybody on
/// the network can claim any address.
const MAX_LEFT_OUT: usize = 16;

/// Delay that gathers the changes of several pods.
const GATHER_DELAY: Duration = Duration::from_millis(100);
/// Time between a failed write and the next try, and between two looks for addresses that others hold.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How long a block that is being deleted is kept, after it is withdrawn from the node's devices: the
/// scheduler may have promised its addresses to pods just before, and their claims arrive meanwhile.
const WITHDRAWN: Duration = Duration::from_secs(10);
/// Field manager of the status.
const MANAGER: &str = "netclaim-agent";
/// A status names this many pods.
const NAMED_HOLDERS: usize = 16;

/// Keeps the blocks of one node.
pub(crate) struct BlockKeeper {
    /// The client for AddressBlocks.
    pub(crate) client: Client,
    pub(crate) blocks: watch::Receiver<OwnBlocks>,
    /// What the node has.
    pub(crate) inventory: watch::Receiver<Option<Arc<Inventory>>>,
    /// Excludes plans of blocks that are given back.
    pub(crate) plan_lock: Arc<PlanLock>,
    /// The gauges of addresses.
    pub(crate) metrics: AddressMetrics,
    /// Addresses that `host-local` has handed out.
    pub(crate) reservations: Reservations,
    /// How long a block must be empty before it is given back.
    pub(crate) idle_after: Duration,
}

/// The use of one block by attachments.
#[derive(Debug, Default)]
struct Use {
    plans: u64,
    pods: BTreeSet<String>,
}

/// The blocks of one attachment.
struct HeldBlocks {
    network: String,
    /// Name of the CNI network, under which `host-local` keeps its leases.
    list: String,
    blocks: Vec<IpNet>,
    pod: String,
}

/// The state between two looks.
#[derive(Default)]
struct Memory {
    histories: BTreeMap<(NetworkName, Family), UseHistory>,
    /// Since when blocks that are being deleted are withdrawn from the devices, by UID.
    withdrawn: BTreeMap<String, Instant>,
    /// Since when blocks of ClaimNetworks that are not for this node are empty, by UID.
    strangers: BTreeMap<String, Instant>,
    /// Pods with addresses of blocks that are not the node's.
    without_block: BTreeSet<String>,
    /// When to look again, if nothing changes.
    next: Option<Instant>,
}

impl Memory {
    fn look_at(&mut self, time: Instant) {
        self.next = Some(self.next.map_or(time, |next| next.min(time)));
    }
}

impl BlockKeeper {
    /// Keeps the blocks until the sender of blocks or inventories is dropped.
    pub(crate) async fn run<A: Attach, O: Observer<Owner = Owner>>(mut self, attacher: Arc<Attacher<A, O>>) {
        let mut changes = attacher.changes();
        let mut memory = Memory::default();
        loop {
            changes.borrow_and_update();
            let inventory = self.inventory.borrow_and_update().clone();
            let known = self.blocks.borrow_and_update().known.clone();
            memory.next = None;
            if let (Some(inventory), Some(own)) = (inventory, known) {
                let uses = uses(&held(&attacher));
                self.report_without_block(&own, &uses, &mut memory);
                let mut done = self.let_go(&own, &inventory, &attacher, &mut memory).await;
                done &= self.decide(&own, &uses, &inventory, &attacher, &mut memory).await;
                done &= self.give_strangers_back(&own, &uses, &inventory, &mut memory).await;
                if !done {
                    memory.look_at(Instant::now() + RETRY_DELAY);
                }
            }
            let next = memory.next;
            tokio::select! {
                changed = self.blocks.changed() => if changed.is_err() { return },
                changed = self.inventory.changed() => if changed.is_err() { return },
                _ = changes.changed() => tokio::time::sleep(GATHER_DELAY).await,
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Reports pods with addresses of blocks that the node does not have: an admin has deleted the blocks by
    /// force, or the Node object was gone for long. Other nodes may have them.
    fn report_without_block(
        &self,
        own: &BTreeMap<String, OwnBlock>,
        uses: &BTreeMap<(String, IpNet), Use>,
        memory: &mut Memory,
    ) {
        let has = |(network, cidr): &(String, IpNet)| {
            own.values().any(|block| block.spec.cidr == *cidr && block.spec.network.as_str() == network)
        };
        let without = uses.iter().filter(|(block, _)| !has(block));
        let pods: BTreeSet<String> =
            without.flat_map(|(_, of_block)| of_block.pods.iter().cloned()).collect();
        self.metrics.without_block.set(i64::try_from(pods.len()).unwrap_or(i64::MAX));
        if memory.without_block != pods && !pods.is_empty() {
            let named = pods.iter().take(NAMED_HOLDERS).cloned().collect::<Vec<_>>().join(", ");
            tracing::error!(
                pods = named,
                "pods have addresses of blocks that this node has lost, and that other nodes may hand out: delete the pods"
            );
        }
        memory.without_block = pods;
    }

    /// Reports what the blocks in use need, and gives back what is not needed. Returns whether all writes
    /// succeeded.
    async fn decide<A: Attach, O: Observer<Owner = Owner>>(
        &self,
        own: &BTreeMap<String, OwnBlock>,
        uses: &BTreeMap<(String, IpNet), Use>,
        inventory: &Arc<Inventory>,
        attacher: &Attacher<A, O>,
        memory: &mut Memory,
    ) -> bool {
        let mut done = true;
        memory.histories.retain(|(network, family), _| {
            let is_there = inventory.addresses.contains_key(network);
            if !is_there {
                self.metrics.forget(network.as_str(), *family);
            }
            is_there
        });
        let foreign = if inventory.addresses.is_empty() {
            BTreeMap::new()
        } else {
            let (ours, lists) = (attacher.sandbox_ids(), journalled_lists(attacher));
            foreign_addresses(inventory, ours, lists, self.reservations.clone()).await
        };
        for (network, leased) in inventory.addresses.iter() {
            let Some(pool) = &leased.pool else { continue };
            let mut taken = foreign.get(network).cloned().unwrap_or_default();
            taken.extend(self.plan_lock.lock().await.left_out(network).take(MAX_LEFT_OUT));
            let taken = &taken;
            for family in pool.families() {
                let of_family = leased.blocks.iter().filter(|block| block.family() == family);
                // What others hold is lost for this node, and the controller does not know: it is asked for
                // more.
                let lost = |block: &Block| block.size().saturating_sub(block.free_of(taken));
                let lost: i64 = of_family.clone().map(|block| i64::try_from(lost(block)).unwrap_or(0)).sum();
                let blocks = of_family.filter_map(|block| {
                    let (name, object) = own.iter().find(|(_, object)| object.uid == block.uid)?;
                    let plans = uses.get(&(network.to_string(), block.cidr)).map(|of_block| of_block.plans);
                    Some(BlockNow {
                        name: name.clone(),
                        usable: u64::try_from(block.free_of(taken)).unwrap_or(u64::MAX),
                        used: plans.unwrap_or_default(),
                        reported_used: object.status.used,
                        reported_wanted: object.status.wanted.map(|wanted| wanted.saturating_sub(lost)),
                    })
                });
                let blocks: Vec<BlockNow> = blocks.collect();
                let (usable, used) = blocks.iter().fold((0u64, 0u64), |sum, block| {
                    (sum.0.saturating_add(block.usable), sum.1 + block.used)
                });
                self.metrics.set(network.as_str(), family, usable, used);
                let history = memory.histories.entry((network.clone(), family));
                let history = history.or_insert_with(|| UseHistory::new(self.idle_after));
                let decision = history.look(&blocks, leased.is_scarce, Instant::now());
                for (name, report) in decision.reports {
                    done &= self.report(&name, report, lost).await;
                }
                if let Some(name) = decision.give_back {
                    done &= self.give_back(&name, own, "it has been empty for long").await;
                }
                if let Some(at) = decision.next {
                    memory.look_at(at);
                }
            }
        }
        done
    }

    /// Gives back blocks of ClaimNetworks that are not for this node, after they have been empty for a while.
    async fn give_strangers_back(
        &self,
        own: &BTreeMap<String, OwnBlock>,
        uses: &BTreeMap<(String, IpNet), Use>,
        inventory: &Inventory,
        memory: &mut Memory,
    ) -> bool {
        let is_stranger = |block: &OwnBlock| {
            let used = uses.contains_key(&(block.spec.network.to_string(), block.spec.cidr));
            !block.is_deleting && !used && !inventory.addresses.contains_key(&block.spec.network)
        };
        let (now, mut done) = (Instant::now(), true);
        memory.strangers.retain(|uid, _| own.values().any(|block| block.uid == *uid && is_stranger(block)));
        for (name, block) in own.iter().filter(|(_, block)| is_stranger(block)) {
            let due = *memory.strangers.entry(block.uid.clone()).or_insert(now) + self.idle_after;
            if now >= due {
                done &= self.give_back(name, own, "its ClaimNetwork is not for this node").await;
            } else {
                memory.look_at(due);
            }
        }
        done
    }

    /// Lets go of blocks that are being deleted, as soon as no attachment has an address of them. Returns
    /// whether all writes succeeded and nothing is left to look at without an event.
    async fn let_go<A: Attach, O: Observer<Owner = Owner>>(
        &self,
        own: &BTreeMap<String, OwnBlock>,
        inventory: &Inventory,
        attacher: &Attacher<A, O>,
        memory: &mut Memory,
    ) -> bool {
        let (mut done, now) = (true, Instant::now());
        memory.withdrawn.retain(|uid, _| own.values().any(|block| block.uid == *uid));
        for (name, block) in own.iter().filter(|(_, block)| block.is_deleting) {
            let Some(finalizer) = block.finalizer else { continue };
            let due = *memory.withdrawn.entry(block.uid.clone()).or_insert(now) + WITHDRAWN;
            if now < due {
                memory.look_at(due);
                continue;
            }
            // From here on no plan names the block, so that what is counted now can only become less.
            self.plan_lock.lock().await.retired.insert(block.uid.clone());
            let held = held(attacher);
            let network = block.spec.network.as_str();
            if let Some(of_block) = uses(&held).remove(&(network.to_owned(), block.spec.cidr)) {
                let leased = inventory.addresses.get(&block.spec.network);
                let pool = leased.filter(|leased| leased.key == block.spec.key());
                let usable = pool.and_then(|leased| leased.pool.as_ref()).map(|pool| block.spec.usable(pool));
                let (mut found, usable) = (BTreeSet::new(), usable.unwrap_or_default());
                attacher.for_each_pod(|pod| found.extend(holders(&pod.records, &block.spec, &usable)));
                let holders = found.into_iter().map(|(_, holder)| holder);
                done &= self.report_holders(name, block, of_block.plans, holders).await;
                continue;
            }
            let of_spec = inventory.networks.get(&block.spec.network);
            let of_spec = of_spec.map(|spec| spec.list_name(&block.spec.network));
            let of_plans = held.into_iter().filter(|held| held.network == network).map(|held| held.list);
            let lists = of_plans.chain(of_spec).chain([conflist_name(network)]).collect();
            match reservation_in(lists, block.spec.cidr, self.reservations.clone()).await {
                Some(path) => {
                    // It is the lease of another program, or GC removes it.
                    let pod = format!("unknown, see {}", path.display());
                    self.report_holders(name, block, 0, [BlockHolder { pod, address: None }]).await;
                    done = false;
                }
                None => done &= self.remove_finalizer(name, block, finalizer).await,
            }
        }
        let back: Vec<&String> = self.plan_lock.lock().await.come_back(own).collect();
        for name in back {
            done &= self.give_back(name, own, "it had been given back before etcd was restored").await;
        }
        // A plan is made from the inventory, which may lag behind.
        let is_known = |uid: &String| {
            let listed = |leased: &NodeAddresses| {
                leased.blocks.iter().chain(&leased.leaving).any(|block| block.uid == *uid)
            };
            own.values().any(|block| block.uid == *uid) || inventory.addresses.values().any(listed)
        };
        self.plan_lock.lock().await.retired.retain(is_known);
        done
    }

    /// Writes what was decided. `lost` addresses, which others hold, are wanted in addition.
    async fn report(&self, name: &str, report: Report, lost: i64) -> bool {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let wanted = |wanted: u64| number(wanted).saturating_add(lost).min(MAX_WANTED);
        let status = AddressBlockStatus {
            used: Some(number(report.used)),
            wanted: report.wanted.map(wanted),
            holders: Vec::new(),
        };
        self.write_status(name, &status).await
    }

    async fn report_holders(
        &self,
        name: &str,
        block: &OwnBlock,
        plans: u64,
        holders: impl IntoIterator<Item = BlockHolder>,
    ) -> bool {
        let status = AddressBlockStatus {
            used: i64::try_from(plans).ok(),
            wanted: block.status.wanted,
            holders: holders.into_iter().take(NAMED_HOLDERS).collect(),
        };
        block.status == status || self.write_status(name, &status).await
    }

    async fn write_status(&self, name: &str, status: &AddressBlockStatus) -> bool {
        let patch = json!({
            "apiVersion": netclaim_api::API_VERSION, "kind": "AddressBlock", "metadata": {"name": name}, "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        let written = answered(self.api().patch_status(name, &params, &Patch::Apply(patch))).await;
        succeeded(written.map(drop), name, "write the status of an AddressBlock")
    }

    async fn give_back(&self, name: &str, own: &BTreeMap<String, OwnBlock>, why: &str) -> bool {
        let Some(block) = own.get(name) else { return true };
        tracing::info!(block = name, why, "giving back a block of addresses");
        let uid = Some(block.uid.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        succeeded(answered(self.api().delete(name, &params)).await.map(drop), name, "delete an AddressBlock")
    }

    async fn remove_finalizer(&self, name: &str, block: &OwnBlock, index: usize) -> bool {
        tracing::info!(block = name, "letting go of a block of addresses");
        let patched = async {
            let patch = finalizer_removal(&block.uid, BLOCK_FINALIZER, index)?;
            answered(self.api().patch(name, &PatchParams::default(), &patch)).await.map(drop)
        };
        succeeded(patched.await, name, "let go of an AddressBlock")
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

/// Returns what attachments have.
fn held<A: Attach, O: Observer<Owner = Owner>>(attacher: &Attacher<A, O>) -> Vec<HeldBlocks> {
    if attacher.kinds().iter().all(|(kind, _)| kind.held.blocks.is_empty()) {
        return Vec::new();
    }
    let held = attacher.plans(|plan: &Plan| {
        let addresses = plan.owner.addresses.as_ref().filter(|addresses| !addresses.chosen.is_empty())?;
        Some(HeldBlocks {
            network: plan.network.clone(),
            list: plan.spec.conflist.name().to_string(),
            blocks: addresses.blocks().collect(),
            pod: format!("{}/{}", plan.owner.pod.namespace, plan.owner.pod.name),
        })
    });
    held.into_iter().flatten().collect()
}

/// Returns who of a pod's attachments has an address of a block, those first whose address is in none of the
/// spans `usable`: of these, people want to know most.
fn holders<'a>(
    records: &'a [Record],
    block: &'a AddressBlockSpec,
    usable: &'a [Span],
) -> impl Iterator<Item = (bool, BlockHolder)> + 'a {
    let is_of_block = |record: &&Record| {
        let addresses = record.plan.owner.addresses.as_ref();
        record.plan.network == block.network.as_str()
            && addresses.is_some_and(|addresses| addresses.blocks().any(|of_plan| of_plan == block.cidr))
    };
    records.iter().filter(is_of_block).map(|record| {
        let made = record.phase.result().into_iter().flat_map(|result| result.ips());
        let made = made.map(|ip| ip.address.addr());
        let planned = record.plan.owner.addresses.iter().flat_map(Addresses::ips);
        let address = made.chain(planned).find(|ip| block.cidr.contains(ip));
        let is_usable = address.is_none_or(|ip| usable.iter().any(|span| span.contains(ip)));
        (is_usable, BlockHolder { pod: record.plan.owner.pod.to_string(), address })
    })
}

/// Counts the attachments of each block, by ClaimNetwork.
fn uses(held: &[HeldBlocks]) -> BTreeMap<(String, IpNet), Use> {
    let mut uses: BTreeMap<(String, IpNet), Use> = BTreeMap::new();
    for held in held {
        for block in &held.blocks {
            let of_block = uses.entry((held.network.clone(), *block)).or_default();
            of_block.plans += 1;
            of_block.pods.insert(held.pod.clone());
        }
    }
    uses
}

/// Returns the addresses that others than the sandboxes `ours` hold of each ClaimNetwork.
async fn foreign_addresses(
    inventory: &Arc<Inventory>,
    ours: BTreeSet<String>,
    lists: Lists,
    reservations: Reservations,
) -> BTreeMap<NetworkName, BTreeSet<IpAddr>> {
    let inventory = Arc::clone(inventory);
    // It reads files.
    let read = tokio::task::spawn_blocking(move || {
        let foreign = |name: &NetworkName| {
            let spec = inventory.networks.get(name)?;
            Some((name.clone(), foreign(&journalled_dirs(name, spec, &lists), &ours, &reservations)))
        };
        inventory.addresses.keys().filter_map(foreign).collect()
    });
    read.await.unwrap_or_default()
}

/// Returns a file by which `host-local` has handed out an address of the block under one of these names, and
/// that is still there. A directory that cannot be read may have some.
async fn reservation_in(
    lists: BTreeSet<String>,
    block: IpNet,
    reservations: Reservations,
) -> Option<PathBuf> {
    let all = Span::of_net(block);
    let read = tokio::task::spawn_blocking(move || {
        lists.iter().find_map(|list| {
            let dir = default_reservations_dir(list);
            match reservations.read(&dir) {
                Ok(found) => {
                    let inside = found.iter().find(|reservation| all.contains(reservation.ip));
                    inside.map(|reservation| dir.join(reservation.ip.to_string()))
                }
                Err(_) => Some(dir),
            }
        })
    });
    read.await.unwrap_or_else(|_| Some(PathBuf::from(DEFAULT_DATA_DIR)))
}

#[cfg(test)]
mod tests {
    use netclaim_api::addresses::choice::Choice;
    use netclaim_driver::attach::Phase;

    use super::*;
    use crate::fixtures;

    #[test]
    fn the_holders_of_a_block_that_goes_are_named_with_their_addresses_and_the_strangest_first() {
        let cidr: IpNet = "10.20.0.16/28".parse().expect("a block");
        let record = |pod: &str, ip: Option<&str>| {
            let mut record = match ip {
                Some(ip) => {
                    let ips = json!([{"address": "fd00::7/64"}, {"address": format!("{ip}/24")}]);
                    let result = fixtures::result(&json!({"cniVersion": "1.1.0", "ips": ips}));
                    let sandbox = fixtures::sandbox("s");
                    fixtures::record("c", Phase::Attached { sandbox, result })
                }
                None => fixtures::record("c", Phase::Planned),
            };
            let plan = Arc::make_mut(&mut record.plan);
            plan.owner.pod.name = pod.to_owned();
            let choice = Choice { block: cidr, address: "10.20.0.18".parse().expect("an address") };
            plan.owner.addresses = Some(Addresses { chosen: vec![choice], ..Addresses::default() });
            record
        };
        let mut records = vec![
            record("a", None),
            record("b", Some("10.20.0.17")),
            record("c", Some("10.20.0.30")),
            record("d", Some("10.20.0.16")),
            record("other", Some("10.20.0.20")),
        ];
        Arc::make_mut(&mut records[4].plan).network = "lab".to_owned();
        let block = AddressBlockSpec {
            pool: None,
            network: "storage".parse().expect("a name"),
            node: "n".to_owned(),
            cidr,
            ranges: Vec::new(),
        };
        let usable = ["10.20.0.16/29".parse().expect("a span")];
        let found: BTreeSet<(bool, BlockHolder)> = holders(&records, &block, &usable).collect();
        let named: Vec<String> = found.iter().map(|(_, holder)| holder.to_string()).collect();
        let expected = ["c with 10.20.0.30", "a with 10.20.0.18", "b with 10.20.0.17", "d with 10.20.0.16"]
            .map(|pod| format!("default/{pod}"));
        assert_eq!(named, expected);
    }
}
