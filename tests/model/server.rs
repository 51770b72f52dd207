//! The API server: objects whose names are locks, UIDs, finalizers and preconditions; and etcd, which can be
//! restored.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use netclaim_api::NetworkName;
use netclaim_api::addresses::{
    AddressBlock, AddressBlockSpec, AddressBlockStatus, AddressLease, AddressLeaseSpec, AddressLeaseStatus,
    AddressPoolSpec, BLOCK_FINALIZER, BlockSize, Holder, HolderKind, PoolKey,
};
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_controller::door::{Request, WriteOutcome};

pub type Seconds = u32;
pub type Pod = u32;

pub type Blocks = BTreeMap<String, Arc<AddressBlock>>;
pub type Leases = BTreeMap<String, Arc<AddressLease>>;
pub type Pods = BTreeMap<Pod, PodObject>;

/// A pod with one claim, which share a life.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodObject {
    pub network: NetworkName,
    /// Where the scheduler has put it.
    pub node: String,
    /// The address that its claim asks for.
    pub asked: Option<IpAddr>,
    pub is_deleting: bool,
    /// The addresses that the agent has written into the status of its claim.
    pub written: Vec<IpAddr>,
}

/// What admins write: seen as one.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Counts the edits.
    pub version: u32,
    pub networks: BTreeMap<NetworkName, (ClaimNetworkSpec, bool)>,
    pub pools: BTreeMap<String, AddressPoolSpec>,
}

#[derive(Debug, Clone, Default)]
pub struct Server {
    pub config: Arc<Config>,
    pub nodes: Arc<BTreeSet<String>>,
    pub blocks: Arc<Blocks>,
    pub leases: Arc<Leases>,
    pub pods: Arc<Pods>,
    pub sizes: BTreeMap<PoolKey, BlockSize>,
    /// Counts the objects that each name has had.
    pub uids: BTreeMap<String, u32>,
    /// Counts the restores of etcd: a watch of before hears nothing of what is after.
    pub restored: u32,
}

/// Returns the UID of a pod's claim.
pub fn claim_uid(pod: Pod) -> String {
    format!("claim-{pod}")
}

/// Returns a pod or its claim as the holder of a lease.
pub fn holder(kind: HolderKind, pod: Pod) -> Holder {
    let name = |text: &str| text.parse().expect("a name");
    Holder { kind, namespace: name("default"), name: name(&claim_uid(pod)), uid: claim_uid(pod) }
}

fn time(seconds: Seconds) -> Option<Time> {
    Timestamp::from_second(seconds.into()).ok().map(Time)
}

fn has_finalizer(metadata: &ObjectMeta) -> bool {
    metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty())
}

fn is_it(metadata: &ObjectMeta, uid: Option<&str>) -> bool {
    uid.is_none_or(|uid| metadata.uid.as_deref() == Some(uid))
}

impl Server {
    fn uid(&mut self, name: &str) -> String {
        let count = self.uids.entry(name.to_owned()).or_default();
        *count += 1;
        // Restoring etcd does not restore the source of UIDs.
        format!("{name}#{}.{count}", self.restored)
    }

    /// Answers a controller's request as [`netclaim_controller`]'s writes do.
    pub fn answer(&mut self, request: &Request, now: Seconds) -> WriteOutcome {
        match request {
            Request::Record { pool, totals } => {
                let size = *self.sizes.entry(pool.clone()).or_insert(totals.block_size);
                WriteOutcome::Recorded(size)
            }
            Request::Create(spec) => {
                let name = spec.name();
                if self.blocks.contains_key(&name) {
                    return WriteOutcome::Overtaken;
                }
                self.create_block(name, spec.clone(), now);
                WriteOutcome::Done
            }
            Request::Delete { name, uid } => self.delete_block(name, Some(uid), now),
            Request::Release { name, uid, node } => {
                if self.nodes.contains(node) {
                    return WriteOutcome::Overtaken;
                }
                self.remove_finalizer(name, Some(uid))
            }
            Request::Hold { name, uid } => {
                let blocks = Arc::make_mut(&mut self.blocks);
                let Some(block) = blocks.get_mut(name).filter(|block| {
                    is_it(&block.metadata, Some(uid)) && block.metadata.deletion_timestamp.is_none()
                }) else {
                    return WriteOutcome::Overtaken;
                };
                Arc::make_mut(block).metadata.finalizers = Some(vec![BLOCK_FINALIZER.to_owned()]);
                WriteOutcome::Done
            }
            Request::Survey => WriteOutcome::Done,
        }
    }

    fn create_block(&mut self, name: String, spec: AddressBlockSpec, now: Seconds) {
        let metadata = ObjectMeta {
            uid: Some(self.uid(&name)),
            creation_timestamp: time(now),
            finalizers: Some(vec![BLOCK_FINALIZER.to_owned()]),
            name: Some(name.clone()),
            ..ObjectMeta::default()
        };
        Arc::make_mut(&mut self.blocks).insert(name, Arc::new(AddressBlock { metadata, spec, status: None }));
    }

    pub fn delete_block(&mut self, name: &str, uid: Option<&str>, now: Seconds) -> WriteOutcome {
        let blocks = Arc::make_mut(&mut self.blocks);
        let Some(block) = blocks.get_mut(name).filter(|block| is_it(&block.metadata, uid)) else {
            return WriteOutcome::Overtaken;
        };
        if has_finalizer(&block.metadata) {
            let deleted = time(now).unwrap_or(Time(Timestamp::UNIX_EPOCH));
            Arc::make_mut(block).metadata.deletion_timestamp.get_or_insert(deleted);
        } else {
            blocks.remove(name);
        }
        WriteOutcome::Done
    }

    pub fn remove_finalizer(&mut self, name: &str, uid: Option<&str>) -> WriteOutcome {
        let blocks = Arc::make_mut(&mut self.blocks);
        let Some(block) = blocks.get_mut(name).filter(|block| is_it(&block.metadata, uid)) else {
            return WriteOutcome::Overtaken;
        };
        if block.metadata.deletion_timestamp.is_some() {
            blocks.remove(name);
        } else {
            Arc::make_mut(block).metadata.finalizers = None;
        }
        WriteOutcome::Done
    }

    /// Writes the status of a block. Server-side apply by name: the next block of the name may get it.
    pub fn report(&mut self, name: &str, status: AddressBlockStatus) {
        if let Some(block) = Arc::make_mut(&mut self.blocks).get_mut(name)
            && block.status.as_ref() != Some(&status)
        {
            Arc::make_mut(block).status = Some(status);
        }
    }

    pub fn create_lease(&mut self, name: &str, spec: AddressLeaseSpec) {
        let mut lease = AddressLease::new(name, spec);
        lease.metadata.uid = Some(self.uid(name));
        lease.metadata.resource_version = Some("0".to_owned());
        lease.metadata.finalizers = Some(vec![BLOCK_FINALIZER.to_owned()]);
        Arc::make_mut(&mut self.leases).insert(name.to_owned(), Arc::new(lease));
    }

    /// Sets or clears the node of a lease.
    pub fn set_lease_node(&mut self, name: &str, node: Option<&str>) {
        if let Some(lease) = Arc::make_mut(&mut self.leases).get_mut(name) {
            let lease = Arc::make_mut(lease);
            lease.status = Some(AddressLeaseStatus { node: node.map(str::to_owned) });
            let version: u32 =
                lease.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0);
            lease.metadata.resource_version = Some((version + 1).to_string());
        }
    }

    /// Deletes a lease. Its finalizer keeps it until no node uses it.
    pub fn delete_lease(&mut self, name: &str, now: Seconds) {
        if let Some(lease) = Arc::make_mut(&mut self.leases).get_mut(name) {
            Arc::make_mut(lease).metadata.deletion_timestamp = time(now);
        }
    }

    /// Says that the controller has found the claim of a lease.
    pub fn confirm_lease(&mut self, name: &str) {
        if let Some(lease) = Arc::make_mut(&mut self.leases).get_mut(name)
            && lease.metadata.labels.is_none()
        {
            let label = ("netclaim.dev/confirmed".to_owned(), "true".to_owned());
            Arc::make_mut(lease).metadata.labels = Some([label].into());
        }
    }

    pub fn release_lease(&mut self, name: &str) {
        Arc::make_mut(&mut self.leases).remove(name);
    }

    /// Restores an earlier copy of etcd.
    pub fn restore(&mut self, copy: &Self) {
        let restored = self.restored + 1;
        let version = self.config.version;
        *self = Self { restored, ..copy.clone() };
        // The versions of configurations distinguish what is seen.
        if self.config.version != version {
            Arc::make_mut(&mut self.config).version = 100 * restored + version + 1;
        }
    }
}

impl Hash for Server {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.config.version, &self.nodes, &self.pods, self.restored).hash(state);
        hash_blocks(&self.blocks, state);
        hash_leases(&self.leases, state);
        for (key, size) in &self.sizes {
            (key, size.ipv4, size.ipv6).hash(state);
        }
    }
}

pub fn hash_blocks<H: Hasher>(blocks: &Blocks, state: &mut H) {
    blocks.len().hash(state);
    for (name, block) in blocks {
        let (metadata, spec) = (&block.metadata, &block.spec);
        (name, &metadata.uid, spec.network.as_str(), &spec.node).hash(state);
        (metadata.deletion_timestamp.is_some(), has_finalizer(metadata)).hash(state);
        for span in &spec.ranges {
            (span.first(), span.last()).hash(state);
        }
        if let Some(status) = &block.status {
            (status.used, status.wanted, status.holders.len()).hash(state);
        }
    }
}

pub fn hash_leases<H: Hasher>(leases: &Leases, state: &mut H) {
    leases.len().hash(state);
    for (name, lease) in leases {
        let node = lease.status.as_ref().and_then(|status| status.node.as_ref());
        (name, &lease.metadata.uid, &lease.metadata.resource_version, &lease.spec.holder.uid, node)
            .hash(state);
        (lease.metadata.deletion_timestamp.is_some(), lease.metadata.labels.is_some()).hash(state);
    }
}
