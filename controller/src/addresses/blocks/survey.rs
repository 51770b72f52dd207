//! Finds the addresses of a pool that pods have already: those of an IPAM from before `spec.addresses`, and
//! those of pods whose ClaimNetwork was not in the pool.
//!
//! ```text
//!   pools whose ranges or ClaimNetworks are new ──> due ──> read: ClaimNetworks, claims ──> found ──> one lease for each address
//! ```
//!
//! Agents write the addresses of their pods into the status of claims. A pool gets no new block before all
//! claims have been read, some time after its last change: by then agents have seen that, and written what
//! earlier ADDs have given.
//!
//! A lease that is made here is the pod's, and of its node. It goes when the agent there has cleared the
//! node, because no pod has the address any more, and the pod is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{ApiResource, DynamicObject, ListParams, Object, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::addresses::spans::{merge, within};
use netclaim_api::addresses::{
    AddressBlockSpec, AddressLease, AddressLeaseSpec, AddressPoolSpec, BLOCK_FINALIZER, CONFIRMED_LABEL,
    Holder, HolderKind, Leased, PoolKey, Span, lease_name,
};
use netclaim_api::device::DeviceName;
use netclaim_api::network::overlap::may_meet;
use netclaim_api::network::{ClaimNetwork, ClaimNetworkSpec};
use netclaim_api::{NetworkName, ObjectName};
use netclaim_process::kubernetes::answered;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::claims::{Allocation, ClaimSpec};
use super::store::{Blocks, Lease, Leases};
use crate::addresses::leasing::{HeldAddress, Leaving};
use crate::demand::{Demand, Draw};

/// Time to a survey from when a ClaimNetwork with another IPAM began to draw from the pool, or may have:
/// agents take some time to see that, and to write what their last ADDs have given.
const SETTLE: Duration = Duration::from_secs(10);

/// How long an address counts as held from the survey on, whether the watch has shown its lease or not.
const UNSEEN: Duration = Duration::from_secs(60);

/// Claims that are read at once.
const PAGE: u32 = 200;

/// A digest has so many bits: JSON numbers of more lose some.
const DIGEST_BITS: u32 = 53;

/// Which pools have been looked through.
#[derive(Debug, Clone, Hash)]
pub(super) struct Survey {
    /// The digests of the pools that were looked through by this leader.
    done: BTreeMap<PoolKey, i64>,
    /// Pools in which two pods had one address. A lease is of one of them, so that another look is due when
    /// it is gone.
    shared: BTreeSet<PoolKey>,
    /// What ClaimNetworks draw from; `None` before that is known.
    draws: Option<BTreeMap<NetworkName, Option<PoolKey>>>,
    /// When a ClaimNetwork with another IPAM began to draw from a pool, or this leader saw it first and knew
    /// no better.
    changed: BTreeMap<PoolKey, Instant>,
    /// After a failure, no survey before this.
    not_before: Instant,
    /// The addresses that were found last, by the names of their leases.
    found: BTreeMap<String, (HeldAddress, Instant)>,
}

/// A pool that is to be looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) digest: i64,
    /// The addresses that pods may get of it, sorted and disjoint.
    spans: Vec<Span>,
    /// The ClaimNetworks that draw from it.
    networks: BTreeSet<NetworkName>,
}

/// What one survey needs.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) pools: BTreeMap<PoolKey, Pool>,
    /// The addresses of the blocks and leases of all pools.
    known: KnownAddresses,
}

/// Addresses that blocks and leases have.
#[derive(Debug, Clone, Default)]
struct KnownAddresses {
    blocks: BTreeMap<PoolKey, Vec<AddressBlockSpec>>,
    /// The UID of the pod that holds each lease, if it is a pod.
    leases: BTreeMap<String, Option<String>>,
    /// The pools that the ClaimNetworks draw from.
    draws: BTreeMap<NetworkName, PoolKey>,
}

/// The result of a survey.
#[derive(Debug, Default)]
pub(super) struct Surveyed {
    pub(super) pools: BTreeMap<PoolKey, i64>,
    pub(super) leases: BTreeMap<String, HeldAddress>,
    /// Pools in which two pods have one address.
    pub(super) shared: BTreeSet<PoolKey>,
}

impl Survey {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            done: BTreeMap::new(),
            shared: BTreeSet::new(),
            draws: None,
            changed: BTreeMap::new(),
            not_before: now,
            found: BTreeMap::new(),
        }
    }

    /// Takes in what ClaimNetworks draw from now.
    pub(super) fn observe(&mut self, demand: &Demand, now: Instant) {
        let draws: BTreeMap<NetworkName, Option<PoolKey>> =
            demand.networks.iter().map(|(name, draw)| (name.clone(), drawn(draw).cloned())).collect();
        self.changed.retain(|_, since| *since + SETTLE > now);
        match &self.draws {
            // Who was created as it is has never had another IPAM.
            None => {
                let may_have_had = draws.iter().filter(|(name, _)| demand.revised.contains(*name));
                self.changed.extend(may_have_had.filter_map(|(_, pool)| Some((pool.clone()?, now))));
            }
            Some(before) => {
                // A ClaimNetwork that is new has no pods, and blocks say what pods have of one that draws
                // from a pool.
                let had_another = draws.iter().filter(|(name, _)| before.get(*name) == Some(&None));
                let joined = had_another.filter_map(|(_, pool)| Some((pool.clone()?, now)));
                self.changed.extend(joined);
            }
        }
        self.draws = Some(draws);
        self.done.retain(|key, _| demand.pools.contains_key(key));
        self.found.retain(|_, (_, until)| *until > now);
    }

    /// Returns the pools that have not been looked through since their ranges or ClaimNetworks changed.
    pub(super) fn missing(&self, demand: &Demand) -> BTreeMap<PoolKey, Pool> {
        let mut networks: BTreeMap<&PoolKey, BTreeSet<NetworkName>> = BTreeMap::new();
        for (name, draw) in &demand.networks {
            if let Some(pool) = drawn(draw) {
                networks.entry(pool).or_default().insert(name.clone());
            }
        }
        let missing = demand.pools.iter().filter_map(|(key, spec)| {
            // Without a ClaimNetwork, no pod gets an address.
            let pool = Pool::of(spec, networks.remove(key)?);
            (self.digest(key, demand) != Some(pool.digest)).then(|| (key.clone(), pool))
        });
        missing.collect()
    }

    /// Returns with which ranges and ClaimNetworks a pool was looked through last, as far as is known.
    fn digest(&self, key: &PoolKey, demand: &Demand) -> Option<i64> {
        self.done.get(key).or_else(|| demand.surveyed.get(key)).copied()
    }

    /// Returns the same for the status of the pool. The next leader looks again through one of which two pods
    /// have one address.
    pub(super) fn written(&self, key: &PoolKey, demand: &Demand) -> Option<i64> {
        self.digest(key, demand).filter(|_| !self.shared.contains(key))
    }

    /// Takes in that a lease is gone.
    pub(super) fn released(&mut self, pool: &PoolKey) {
        if self.shared.remove(pool) {
            self.done.remove(pool);
        }
    }

    /// Notes that all pools were looked through.
    #[cfg(test)]
    pub(super) fn pass(&mut self, demand: &Demand) {
        let missing = self.missing(demand).into_iter();
        self.done.extend(missing.map(|(key, pool)| (key, pool.digest)));
    }

    /// When the pool may be looked through.
    pub(super) fn due(&self, pool: &PoolKey) -> Instant {
        let settled = self.changed.get(pool).map(|since| *since + SETTLE);
        settled.map_or(self.not_before, |settled| self.not_before.max(settled))
    }

    /// Lets no survey begin before this time.
    pub(super) fn retry(&mut self, at: Instant) {
        self.not_before = at;
    }

    /// Returns the addresses that were found just now.
    pub(super) fn held(&self) -> impl Iterator<Item = HeldAddress> {
        self.found.values().map(|(held, _)| held.clone())
    }

    /// Takes in a survey. Returns how many addresses it has found.
    pub(super) fn finish(&mut self, surveyed: Surveyed, now: Instant) -> usize {
        self.shared.retain(|pool| !surveyed.pools.contains_key(pool));
        self.shared.extend(surveyed.shared);
        self.done.extend(surveyed.pools);
        let found = surveyed.leases.len();
        let leases = surveyed.leases.into_iter();
        self.found.extend(leases.map(|(lease, held)| (lease, (held, now + UNSEEN))));
        found
    }
}

fn drawn(draw: &Draw) -> Option<&PoolKey> {
    match draw {
        Draw::From { pool, .. } => Some(pool),
        Draw::Unknown | Draw::Nothing => None,
    }
}

impl Pool {
    fn of(spec: &AddressPoolSpec, networks: BTreeSet<NetworkName>) -> Self {
        let spans = merge(spec.usable().into_iter().chain(spec.reserved.iter().copied()).collect());
        let mut hasher = DefaultHasher::new();
        // As text, whose digest does not depend on how this program lays out its types.
        for span in &spans {
            span.to_string().hash(&mut hasher);
        }
        for network in &networks {
            network.as_str().hash(&mut hasher);
        }
        let digest = i64::try_from(hasher.finish() >> (u64::BITS - DIGEST_BITS)).unwrap_or_default();
        Self { digest, spans, networks }
    }

    fn has(&self, address: IpAddr) -> bool {
        within(&self.spans, Span::of_address(address)).next().is_some()
    }
}

/// Returns what a condition says of the addresses that pods have from before.
pub(super) fn leaving(leases: &Leases) -> impl Iterator<Item = Leaving> {
    leases.all().iter().filter_map(|(name, lease)| leaving_of(name, lease))
}

fn leaving_of(name: &str, lease: &Lease) -> Option<Leaving> {
    let (held, node) = (lease.held.as_ref()?, lease.node.as_ref()?);
    let Holder { kind: HolderKind::Pod, namespace, name: pod, .. } = &lease.holder else { return None };
    let address = held.address;
    Some(Leaving {
        network: held.network.clone(),
        pool: held.pool.address_pool(),
        object: name.to_owned(),
        why: Some("a pod has one of its addresses from before".to_owned()),
        remains: format!(
            "AddressLease {name} of node {node} remains as long as pod {namespace}/{pod} has {address}"
        ),
        awaited_by: BTreeSet::new(),
    })
}

impl KnownAddresses {
    /// Whether the pool has given the address to a node or a claim.
    fn has(&self, pool: &PoolKey, address: IpAddr) -> bool {
        self.blocks.get(pool).is_some_and(|blocks| blocks.iter().any(|block| block.hands_out(address)))
            || self.leases.contains_key(&lease_name(pool, Leased::Address(address)))
    }

    /// Whether a lease of the pool says that another pod has the address.
    fn is_of_another_pod(&self, pool: &PoolKey, found: &Found) -> bool {
        let holder = self.leases.get(&lease_name(pool, Leased::Address(found.address)));
        holder.and_then(Option::as_ref).is_some_and(|uid| *uid != found.holder.uid)
    }
}

/// A ResourceClaim with little of its status.
type Claim = Object<ClaimSpec, Status>;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    allocation: Option<Allocation>,
    reserved_for: Vec<Consumer>,
    devices: Vec<Device>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Consumer {
    resource: String,
    name: String,
    uid: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Device {
    driver: String,
    device: String,
    network_data: Option<NetworkData>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NetworkData {
    ips: Vec<String>,
}

/// An address that a pod has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) address: IpAddr,
    /// `None` if it has it on a link's own device.
    pub(super) network: Option<NetworkName>,
    pub(super) node: Option<String>,
    pub(super) holder: Holder,
}

/// Returns the addresses that a claim's pod has of the driver.
fn of_claim(claim: &Claim, driver: &str) -> Vec<Found> {
    let Some(status) = &claim.status else { return Vec::new() };
    let names = claim
        .namespace()
        .and_then(|namespace| Some((namespace.parse().ok()?, claim.name_any().parse().ok()?)));
    // The API server has no claim without them.
    let Some((namespace, name)) = names else { return Vec::new() };
    let pod = status.reserved_for.iter().find(|consumer| consumer.resource == "pods");
    let pod = pod.and_then(|pod| Some((pod.name.parse::<ObjectName>().ok()?, pod.uid.clone())));
    let holder = match pod {
        Some((name, uid)) => Holder { kind: HolderKind::Pod, namespace, name, uid },
        None => {
            let uid = claim.uid().unwrap_or_default();
            Holder { kind: HolderKind::ResourceClaim, namespace, name, uid }
        }
    };
    let node = status.allocation.as_ref().and_then(|allocation| allocation.node().map(str::to_owned));
    let mut found = Vec::new();
    for device in status.devices.iter().filter(|device| device.driver == driver) {
        let network = match device.device.parse() {
            Ok(DeviceName::Network(network)) => Some(network),
            _ => None,
        };
        for ip in device.network_data.iter().flat_map(|data| &data.ips) {
            // Agents write interface addresses, which have a prefix length.
            let address = ip.split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
            let Some(address) = address else { continue };
            let (network, node, holder) = (network.clone(), node.clone(), holder.clone());
            found.push(Found { address: address.to_canonical(), network, node, holder });
        }
    }
    found
}

impl Task {
    pub(super) fn new(
        pools: BTreeMap<PoolKey, Pool>,
        demand: &Demand,
        blocks: &Blocks,
        leases: &Leases,
    ) -> Self {
        let mut known = KnownAddresses::default();
        for block in blocks.all().values() {
            known.blocks.entry(block.spec.key()).or_default().push(block.spec.clone());
        }
        let pod = |lease: &Lease| (lease.holder.kind == HolderKind::Pod).then(|| lease.holder.uid.clone());
        known.leases = leases.all().iter().map(|(name, lease)| (name.clone(), pod(lease))).collect();
        let draws =
            demand.networks.iter().filter_map(|(name, draw)| Some((name.clone(), drawn(draw)?.clone())));
        known.draws = draws.collect();
        Self { pools, known }
    }

    /// Returns the leases that a found address needs. `specs` are the ClaimNetworks that can be read.
    pub(super) fn leases(
        &self,
        found: &Found,
        specs: &BTreeMap<NetworkName, ClaimNetworkSpec>,
    ) -> Vec<(String, AddressLeaseSpec, HeldAddress)> {
        let own = found.network.as_ref();
        // Its own pool knows it, and other pools that have its addresses are on another layer 2, or not of
        // this time.
        let drawn = own.and_then(|network| self.known.draws.get(network));
        let is_known = drawn.is_some_and(|pool| self.known.has(pool, found.address));
        let can_meet = |pool: &Pool| {
            let Some(spec) = own.and_then(|network| specs.get(network)) else { return true };
            let own_is_of_it = own.is_some_and(|network| pool.networks.contains(network));
            own_is_of_it
                || pool
                    .networks
                    .iter()
                    .filter_map(|other| specs.get(other))
                    .any(|other| may_meet(spec, other))
        };
        let needs_it = |(key, pool): &(&PoolKey, &Pool)| {
            !is_known && pool.has(found.address) && can_meet(pool) && !self.known.has(key, found.address)
        };
        let lease = |(key, pool): (&PoolKey, &Pool)| {
            let of_pool = own.filter(|network| pool.networks.contains(*network));
            let network = of_pool.or_else(|| pool.networks.first())?.clone();
            let spec = AddressLeaseSpec {
                pool: key.address_pool(),
                network: network.clone(),
                address: Some(found.address),
                mac: None,
                holder: found.holder.clone(),
            };
            let holder = found.holder.to_string();
            let held = HeldAddress { pool: key.clone(), network, address: found.address, holder };
            Some((lease_name(key, Leased::Address(found.address)), spec, held))
        };
        self.pools.iter().filter(needs_it).filter_map(lease).collect()
    }

    /// Reads all claims, and makes a lease for each unknown address that they have of the pools.
    ///
    /// # Errors
    /// A request failed. What was made stays, and is found again.
    pub(super) async fn run(self, client: Client, driver: String) -> kube::Result<Surveyed> {
        let specs = networks(&client).await?;
        let claims: Api<Claim> = Api::all_with(client.clone(), &ApiResource::erase::<ResourceClaim>(&()));
        let leases: Api<AddressLease> = Api::all(client);
        let mut surveyed = Surveyed::default();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = answered(claims.list(&page)).await?;
            for found in list.items.iter().flat_map(|claim| of_claim(claim, &driver)) {
                let of_others = self.pools.keys().filter(|key| self.known.is_of_another_pod(key, &found));
                surveyed.shared.extend(of_others.cloned());
                for (name, spec, held) in self.leases(&found, &specs) {
                    if surveyed.leases.contains_key(&name) {
                        surveyed.shared.insert(held.pool);
                        continue;
                    }
                    make(&leases, &name, spec, found.node.as_deref()).await?;
                    surveyed.leases.insert(name, held);
                }
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = ListParams::default().limit(PAGE).continue_token(&token),
                None => break,
            }
        }
        surveyed.pools = self.pools.into_iter().map(|(key, pool)| (key, pool.digest)).collect();
        Ok(surveyed)
    }
}

/// Returns the ClaimNetworks that can be read.
async fn networks(client: &Client) -> kube::Result<BTreeMap<NetworkName, ClaimNetworkSpec>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<ClaimNetwork>(&()));
    let list = answered(api.list(&ListParams::default())).await?;
    let read = |network: DynamicObject| {
        let spec = network.data.get("spec").unwrap_or(&Value::Null);
        ClaimNetworkSpec::read(&network.name_any(), spec).ok()
    };
    Ok(list.items.into_iter().filter_map(read).collect())
}

/// Makes a lease that an agent could not make, and says where it is in use.
async fn make(
    leases: &Api<AddressLease>,
    name: &str,
    spec: AddressLeaseSpec,
    node: Option<&str>,
) -> kube::Result<()> {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([(CONFIRMED_LABEL.to_owned(), "true".to_owned())].into()),
        finalizers: Some(vec![BLOCK_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    let lease = AddressLease { metadata, spec, status: None };
    match answered(leases.create(&PostParams::default(), &lease)).await {
        Ok(_) => {}
        // A claim has it meanwhile, or the survey of before was interrupted.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let found = answered(leases.get_opt(name)).await?;
            if found.is_none_or(|found| found.spec != lease.spec || found.status.is_some()) {
                return Ok(());
            }
        }
        Err(error) => return Err(error),
    }
    let Some(node) = node else { return Ok(()) };
    let patch = Patch::Merge(json!({"status": {"nodeName": node}}));
    match answered(leases.patch_status(name, &PatchParams::default(), &patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use kube::runtime::watcher;
    use tower_test::mock;

    use super::super::RETRY_DELAY;
    use super::*;

    fn name(name: &str) -> NetworkName {
        name.parse().unwrap()
    }

    fn pool(spec: Value) -> AddressPoolSpec {
        serde_json::from_value(spec).unwrap()
    }

    /// The ClaimNetwork `storage` with these ranges of its own, and `other` with an IPAM.
    fn demand(ranges: Value) -> Demand {
        let key = PoolKey::Network(name("storage"));
        let draw = Draw::From { pool: key.clone(), nodes: BTreeSet::new(), selected: BTreeSet::new() };
        Demand {
            networks: [(name("storage"), draw), (name("other"), Draw::Nothing)].into(),
            pools: [(key, pool(json!({"ranges": ranges, "reserved": ["10.20.0.200"]})))].into(),
            ..Demand::default()
        }
    }

    fn claim(device: &str, ips: &[&str]) -> Value {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"namespace": "shop", "name": "c", "uid": "u7"}, "spec": {"devices": {"requests": []}},
            "status": {
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u8"}],
                "allocation": {"nodeSelector": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}},
                "devices": [
                    {"driver": "netclaim.dev", "pool": "b", "device": device, "networkData": {"ips": ips}},
                    {"driver": "other.dev", "pool": "b", "device": device, "networkData": {"ips": ["10.20.0.9/24"]}},
                    {"driver": "netclaim.dev", "pool": "b", "device": "nic-eth2"}]}})
    }

    fn found(device: &str, ips: &[&str]) -> Vec<Found> {
        of_claim(&serde_json::from_value(claim(device, ips)).unwrap(), "netclaim.dev")
    }

    #[test]
    fn the_addresses_of_a_pod_are_those_that_agents_have_written() {
        let all = found("net-storage", &["10.20.0.3/24", "fd00::3/64", "none"]);
        let addresses: Vec<String> = all.iter().map(|found| found.address.to_string()).collect();
        assert_eq!(addresses, ["10.20.0.3", "fd00::3"]);
        let Found { network, node, holder, .. } = all[0].clone();
        assert_eq!((network, node.as_deref()), (Some(name("storage")), Some("b")));
        assert_eq!((holder.to_string(), holder.uid.as_str()), ("Pod shop/p".to_owned(), "u8"));
        assert_eq!(found("macvlan-eth1", &["10.20.0.3/24"])[0].network, None);
    }

    #[test]
    fn a_pool_is_looked_through_again_when_its_ranges_or_networks_have_changed() {
        let now = Instant::now();
        let mut survey = Survey::new(now);
        let half = demand(json!([{"subnet": "10.20.0.0/24", "rangeEnd": "10.20.0.127"}]));
        survey.observe(&half, now);
        let missing = survey.missing(&half);
        let key = PoolKey::Network(name("storage"));
        let digest = missing[&key].digest;
        assert!((0..1 << DIGEST_BITS).contains(&digest));
        let written = Demand { surveyed: [(key.clone(), digest)].into(), ..half.clone() };
        assert!(survey.missing(&written).is_empty(), "the leader of before has done it");
        survey.finish(Surveyed { pools: [(key, digest)].into(), ..Surveyed::default() }, now);
        assert!(survey.missing(&half).is_empty());
        let all = demand(json!([{"subnet": "10.20.0.0/24"}]));
        assert_eq!(survey.missing(&all).len(), 1);

        let plant = PoolKey::Pool("plant".into());
        let draw = || Draw::From { pool: plant.clone(), nodes: BTreeSet::new(), selected: BTreeSet::new() };
        let mut shared = Demand::default();
        shared.pools.insert(plant.clone(), pool(json!({"ranges": [{"subnet": "10.20.0.0/24"}]})));
        assert!(survey.missing(&shared).is_empty(), "no ClaimNetwork draws from it");
        shared.networks.insert(name("a"), draw());
        survey.pass(&shared);
        shared.networks.insert(name("b"), draw());
        assert_eq!(survey.missing(&shared).len(), 1, "the pods of b may have had another IPAM");
    }

    #[test]
    fn an_address_of_two_pods_is_looked_for_again_when_the_lease_of_one_is_gone() {
        let now = Instant::now();
        let mut survey = Survey::new(now);
        let demand = demand(json!([{"subnet": "10.20.0.0/24"}]));
        let key = PoolKey::Network(name("storage"));
        let digest = survey.missing(&demand)[&key].digest;
        let pools = || BTreeMap::from([(key.clone(), digest)]);
        survey.finish(Surveyed { pools: pools(), shared: [key.clone()].into(), ..Surveyed::default() }, now);
        assert!(survey.missing(&demand).is_empty());
        assert_eq!(survey.written(&key, &demand), None, "the next leader looks, too");
        survey.released(&key);
        assert_eq!(survey.missing(&demand).len(), 1);
        survey.finish(Surveyed { pools: pools(), ..Surveyed::default() }, now);
        assert_eq!(survey.written(&key, &demand), Some(digest));
        survey.released(&key);
        assert!(survey.missing(&demand).is_empty(), "each address is of one pod");
    }

    #[test]
    fn a_survey_waits_for_agents_only_after_a_network_with_another_ipam_has_joined_the_pool() {
        let start = Instant::now();
        let (now, later) = (start + 10 * SETTLE, start + 20 * SETTLE);
        let mut demand = demand(json!([{"subnet": "10.20.0.0/24"}]));
        let key = PoolKey::Network(name("storage"));
        let mut survey = Survey::new(start);
        survey.observe(&demand, start);
        assert!(survey.due(&key) <= start, "it was created so");
        let mut survey = Survey::new(start);
        demand.revised.insert(name("storage"));
        survey.observe(&demand, start);
        assert_eq!(survey.due(&key), start + SETTLE, "it is unknown since when it is so");
        let storage = demand.networks.remove(&name("storage")).unwrap();
        survey.observe(&demand, now);
        demand.networks.insert(name("storage"), storage.clone());
        survey.observe(&demand, now);
        assert!(survey.due(&key) <= now, "it is new");
        demand.networks.insert(name("other"), storage);
        survey.observe(&demand, later);
        assert_eq!(survey.due(&key), later + SETTLE);
        survey.observe(&demand, later + SETTLE);
        assert!(survey.due(&key) <= later);
        survey.retry(later + RETRY_DELAY);
        assert_eq!(survey.due(&key), later + RETRY_DELAY);
    }

    fn network(spec: Value) -> ClaimNetworkSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn macvlan(link: &str) -> ClaimNetworkSpec {
        network(json!({"uplink": {"links": [link]}, "cni": {"cniVersion": "1.1.0", "plugins": [
            {"type": "macvlan", "master": "${uplink.name}"}]}}))
    }

    #[test]
    fn an_unknown_address_gets_a_lease_in_each_pool_that_has_it() {
        let demand = demand(json!([{"subnet": "10.20.0.0/24"}]));
        let (mut blocks, mut leases) = (Blocks::default(), Leases::default());
        let object = |kind: &str, name: &str, spec: Value| {
            let object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "uid": "u"}, "spec": spec});
            watcher::Event::Apply(serde_json::from_value(object).unwrap())
        };
        let block = json!({"networkName": "storage", "nodeName": "a", "cidr": "10.20.0.16/28", "ranges": ["10.20.0.16-10.20.0.20"]});
        blocks.apply(object("AddressBlock", "storage.10.20.0.16-28", block), Instant::now());
        let lease = json!({"networkName": "storage", "address": "10.20.0.200",
            "holder": {"kind": "ResourceClaim", "namespace": "shop", "name": "c", "uid": "u7"}});
        leases.apply(object("AddressLease", "storage.10.20.0.200", lease), Instant::now());
        let task = Task::new(Survey::new(Instant::now()).missing(&demand), &demand, &blocks, &leases);
        let specs = BTreeMap::from([
            (name("storage"), macvlan("eth1")),
            (name("other"), macvlan("eth1")),
            (name("elsewhere"), macvlan("eth2")),
        ]);
        let of = |device: &str, ip: &str| -> Vec<String> {
            let found = found(device, &[ip]);
            found.iter().flat_map(|found| task.leases(found, &specs)).map(|(name, ..)| name).collect()
        };
        for device in ["net-storage", "net-other", "net-gone", "macvlan-eth1"] {
            assert_eq!(of(device, "10.20.0.3/24"), ["storage.10.20.0.3"], "{device}");
        }
        assert_eq!(of("net-elsewhere", "10.20.0.3/24"), [""; 0], "another layer 2");
        assert_eq!(of("net-storage", "10.20.0.17/24"), [""; 0], "of a block");
        assert_eq!(of("net-storage", "10.20.0.25/24"), ["storage.10.20.0.25"], "of no range of the block");
        assert_eq!(of("net-storage", "10.20.0.200/24"), [""; 0], "leased");
        assert_eq!(of("net-storage", "10.20.0.1/24"), [""; 0], "the gateway");
        assert_eq!(of("net-storage", "10.21.0.3/24"), [""; 0]);
    }

    #[tokio::test]
    async fn claims_are_read_page_by_page_and_a_lease_says_who_has_the_address_and_where() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let list = |kind: &str, items: Value, token: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"continue": token}, "items": items});
        let conflict = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "AlreadyExists", "code": 409});
        let server = tokio::spawn(async move {
            let (mut seen, mut lease): (Vec<(String, Value)>, Value) = (Vec::new(), Value::Null);
            while let Some((request, reply)) = requests.next_request().await {
                let (head, body) = request.into_parts();
                let sent: Value =
                    serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
                let what = format!("{} {}", head.method, head.uri);
                if what.starts_with("POST") {
                    lease = sent.clone();
                }
                let (code, answer) = match what.as_str() {
                    what if what.contains("/claimnetworks?") => {
                        (200, list("ClaimNetworkList", json!([]), ""))
                    }
                    what if what.contains("continue=more") => {
                        (200, list("ResourceClaimList", json!([claim("net-storage", &["10.20.0.4/24"])]), ""))
                    }
                    what if what.contains("/resourceclaims?") => {
                        let claims = json!([claim("net-storage", &["10.20.0.3/24"])]);
                        (200, list("ResourceClaimList", claims, "more"))
                    }
                    // The survey of before made it, and was interrupted.
                    what if what.starts_with("POST") && sent["metadata"]["name"] == "storage.10.20.0.4" => {
                        (409, conflict.clone())
                    }
                    _ => (200, lease.clone()),
                };
                seen.push((what, sent));
                let body = Body::from(answer.to_string().into_bytes());
                reply.send_response(Response::builder().status(code).body(body).unwrap());
            }
            seen
        });
        let demand = demand(json!([{"subnet": "10.20.0.0/24"}]));
        let pools = Survey::new(Instant::now()).missing(&demand);
        let task = Task::new(pools, &demand, &Blocks::default(), &Leases::default());
        let client = Client::new(service, "default");
        let surveyed = task.run(client, "netclaim.dev".to_owned()).await.unwrap();
        assert_eq!(surveyed.leases.keys().collect::<Vec<_>>(), ["storage.10.20.0.3", "storage.10.20.0.4"]);
        assert_eq!(surveyed.pools.len(), 1);
        let seen = server.await.unwrap();
        let lists = seen.iter().filter(|(what, _)| what.contains("/resourceclaims?"));
        assert!(lists.clone().all(|(what, _)| what.contains("limit=200")) && lists.count() == 2, "{seen:?}");
        let made = seen.iter().find(|(what, _)| what.starts_with("POST")).unwrap();
        assert_eq!(made.1["metadata"]["labels"], json!({CONFIRMED_LABEL: "true"}));
        assert_eq!(made.1["metadata"]["finalizers"], json!([BLOCK_FINALIZER]));
        let holder = json!({"kind": "Pod", "namespace": "shop", "name": "p", "uid": "u8"});
        assert_eq!(
            made.1["spec"],
            json!({"networkName": "storage", "address": "10.20.0.3", "holder": holder})
        );
        let patches: Vec<&(String, Value)> =
            seen.iter().filter(|(what, _)| what.starts_with("PATCH")).collect();
        assert_eq!(patches.len(), 2, "{seen:?}");
        assert!(patches.iter().all(|(_, sent)| *sent == json!({"status": {"nodeName": "b"}})), "{patches:?}");
    }

    #[test]
    fn a_condition_names_the_pod_its_node_and_the_address() {
        let lease = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
            "metadata": {"name": "storage.10.20.0.3", "uid": "u"},
            "spec": {"networkName": "storage", "address": "10.20.0.3",
                "holder": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": "u8"}},
            "status": {"nodeName": "b"}});
        let mut leases = Leases::default();
        leases.apply(watcher::Event::Apply(serde_json::from_value(lease).unwrap()), Instant::now());
        let said: Vec<Option<String>> = leaving(&leases).map(|leaving| leaving.lost()).collect();
        let lease = "AddressLease storage.10.20.0.3 of node b remains as long as pod shop/p has 10.20.0.3";
        assert_eq!(said, [Some(format!("a pod has one of its addresses from before: {lease}"))]);
    }
}
