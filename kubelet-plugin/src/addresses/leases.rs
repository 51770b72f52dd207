//! Addresses that claims ask for: one AddressLease for each, whose name is the lock.
//!
//! A lease is the claim's as long as the claim lives. Its `status.nodeName` says where a pod may have the
//! address: the agent sets it before it journals a plan, and clears it when no plan names the lease any more.
//! So the pod of a named claim can have the address on another node, but not before the last one has none of
//! it left.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::addresses::{
    AddressBlock, AddressLease, AddressLeaseSpec, BLOCK_FINALIZER, CONFIRMED_LABEL, Holder, HolderKind,
};
use netclaim_cni::error_chain;
use netclaim_driver::attach::{Attach, Attacher, Observer};
use netclaim_process::kubernetes::{answered, removal};
use serde_json::json;
use tokio::time::Instant;

use crate::pods::owner::{AskedAddress, Owner, Plan, PodState};

/// How long an address may stay with its last holder or node: a Prepare has 35 s.
const HOLDER_TIMEOUT: Duration = Duration::from_secs(25);
/// Time between two looks at a lease of others.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long a lease may be without a plan: longer than a Prepare takes.
const UNPLANNED: Duration = Duration::from_secs(60);
/// Delay that gathers changes.
const GATHER_DELAY: Duration = Duration::from_millis(100);
/// Time between two tries to clear a lease.
const CLEAR_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time between two looks for leases of the node that it does not know.
const LIST_INTERVAL: Duration = Duration::from_secs(300);

/// Blocks in one answer: the agent has little memory.
const PAGE: u32 = 200;

/// Why a claim does not get an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    #[error(
        "{address} is taken by {} (AddressLease {lease}): ask for another address{}",
        named(holder, namespace),
        way_out(holder, namespace)
    )]
    Taken { address: String, holder: Box<Holder>, lease: String, namespace: String },
    #[error(
        "AddressLease {lease} of address {address} was deleted, and goes when no pod has the address: trying again"
    )]
    Leaving { address: String, lease: String },
    #[error(
        "{address} may still be in use on node {node} (AddressLease {lease}): it is free when the pod there has ended, or \
         some time after the Node object is deleted (--node-gone-after of the controller)"
    )]
    OnOtherNode { address: String, node: String, lease: String },
    #[error(
        "{address} is in AddressBlock {block} of node {node}, which was leased before the address was reserved: it is free when that \
         block is given back"
    )]
    InBlock { address: String, block: String, node: String },
    #[error("cannot lease {address} (AddressLease {lease}), trying again")]
    Request { address: String, lease: String, source: kube::Error },
}

/// Returns what a tenant of `namespace` may know about a holder.
fn named(holder: &Holder, namespace: &str) -> String {
    match (holder.namespace.as_str() == namespace, holder.kind) {
        (true, _) => holder.to_string(),
        (false, HolderKind::ResourceClaim) => "a claim of another namespace".to_owned(),
        (false, HolderKind::Pod) => "a pod of another namespace".to_owned(),
    }
}

/// Returns what a tenant of `namespace` can do to get the address. To delete the lease is not a way: the
/// holder has the address.
fn way_out(holder: &Holder, namespace: &str) -> &'static str {
    match (holder.namespace.as_str() == namespace, holder.kind) {
        (true, HolderKind::ResourceClaim) => ", or delete that claim first",
        (true, HolderKind::Pod) => ", or delete that pod first",
        (false, _) => "",
    }
}

/// A lease whose `status.nodeName` is this node.
#[derive(Debug, Default)]
struct Own {
    /// When it was set, if no plan has named the lease since.
    since: Option<Instant>,
    /// The holder's UID and the address, if the API server has listed it.
    address: Option<(String, IpAddr)>,
}

/// The leases that the node has for its claims.
pub(crate) struct Leases {
    api: Api<AddressLease>,
    blocks: Api<AddressBlock>,
    node: String,
    ours: Mutex<BTreeMap<String, Own>>,
    /// Held while a lease is taken or cleared: a claim may come back while the lease of its last pod is
    /// cleared.
    one_by_one: tokio::sync::Mutex<()>,
}

impl Leases {
    /// The leases of this node.
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self {
            api: Api::all(client.clone()),
            blocks: Api::all(client),
            node: node.to_owned(),
            ours: Mutex::default(),
            one_by_one: tokio::sync::Mutex::default(),
        }
    }

    /// Makes sure that the plan's claim has every address that it asks for, on this node. `blocks_of` returns
    /// the names of the blocks that an address may be in.
    ///
    /// # Errors
    /// Who has it, or where it is in use. What was taken before stays the claim's.
    pub(crate) async fn take(
        &self,
        plan: &Plan,
        blocks_of: impl Fn(IpAddr) -> Vec<String>,
    ) -> Result<(), LeaseError> {
        let deadline = Instant::now() + HOLDER_TIMEOUT;
        for asked in plan.owner.addresses.iter().flat_map(|addresses| &addresses.leases) {
            loop {
                let error = match self.take_one(plan, asked, &blocks_of).await {
                    Ok(()) => break,
                    Err(error) => error,
                };
                if Instant::now() + RETRY_DELAY >= deadline {
                    if let LeaseError::Taken { address, holder, lease, .. } = &error {
                        // The claim's status and the pod's event do not name other tenants.
                        let claim = &plan.owner.claim;
                        tracing::info!(address, lease, %holder, %claim, "an address that a claim asks for is taken");
                    }
                    return Err(error);
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
        Ok(())
    }

    async fn take_one(
        &self,
        plan: &Plan,
        asked: &AskedAddress,
        blocks_of: impl Fn(IpAddr) -> Vec<String>,
    ) -> Result<(), LeaseError> {
        let _alone = self.one_by_one.lock().await;
        let AskedAddress { lease, ip, mac, .. } = asked;
        let address =
            ip.map(|ip| ip.to_string()).or_else(|| mac.map(|mac| mac.to_string())).unwrap_or_default();
        let failed = |source| LeaseError::Request { address: address.clone(), lease: lease.clone(), source };
        let found = answered(self.api.get_opt(lease)).await.map_err(failed)?;
        let node = found.as_ref().and_then(|object| object.status.as_ref()?.node.as_deref());
        // The controller leases to a pod what it finds that the pod has: in a new sandbox, the pod has it
        // again.
        let owners = [&plan.owner.claim.uid, &plan.owner.pod.uid];
        let is_claims = found.as_ref().is_none_or(|object| owners.contains(&&object.spec.holder.uid));
        let is_confirmed = found.as_ref().is_some_and(|object| object.labels().contains_key(CONFIRMED_LABEL));
        // The lock by name is among leases: a node may have the address of earlier. No block has that of a
        // confirmed lease.
        if node.is_none()
            && is_claims
            && !is_confirmed
            && let Some(ip) = *ip
            && let Some(block) = self.block_with(plan, ip, blocks_of(ip)).await.map_err(failed)?
        {
            let (block, node) = (block.metadata.name.unwrap_or_default(), block.spec.node);
            return Err(LeaseError::InBlock { address, block, node });
        }
        let object = match found {
            Some(object) => object,
            None => self.create(plan, asked).await.map_err(failed)?,
        };
        if !is_claims {
            let (holder, namespace) = (Box::new(object.spec.holder), plan.owner.pod.namespace.clone());
            return Err(LeaseError::Taken { address, holder, lease: lease.clone(), namespace });
        }
        match object.status.and_then(|status| status.node) {
            Some(node) if node == self.node => {}
            Some(node) => return Err(LeaseError::OnOtherNode { address, node, lease: lease.clone() }),
            None if object.metadata.deletion_timestamp.is_some() => {
                return Err(LeaseError::Leaving { address, lease: lease.clone() });
            }
            None => self.set_node(lease, object.metadata).await.map_err(failed)?,
        }
        self.lock().insert(lease.clone(), Own { since: Some(Instant::now()), address: None });
        Ok(())
    }

    /// Returns a block whose node hands out the address: any of the ClaimNetwork, also of a pool from which
    /// it drew before, or one of these names, which are those of the pool. It is one list for a claim, at its
    /// first Prepare, unless the controller is away.
    async fn block_with(
        &self,
        plan: &Plan,
        ip: IpAddr,
        names: Vec<String>,
    ) -> kube::Result<Option<AddressBlock>> {
        let has = |block: &AddressBlock| block.spec.hands_out(ip);
        let of_network = ListParams::default().fields(&format!("spec.networkName={}", plan.network));
        let mut page = of_network.limit(PAGE);
        loop {
            let list = answered(self.blocks.list(&page)).await?;
            if let Some(block) = list.items.into_iter().find(has) {
                return Ok(Some(block));
            }
            let Some(next) = list.metadata.continue_.filter(|next| !next.is_empty()) else { break };
            page = page.continue_token(&next);
        }
        for name in names {
            if let Some(block) = answered(self.blocks.get_opt(&name)).await?.filter(has) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    async fn create(&self, plan: &Plan, asked: &AskedAddress) -> kube::Result<AddressLease> {
        let AskedAddress { lease, pool, ip, mac } = asked.clone();
        let claim = plan.owner.claim.clone();
        // The names are those of objects, and a plan with leases is of a ClaimNetwork: they were valid.
        let invalid = |error: netclaim_api::Invalid| kube::Error::Service(Box::new(error));
        let spec = AddressLeaseSpec {
            pool,
            network: plan.network.parse().map_err(invalid)?,
            address: ip,
            mac,
            holder: Holder {
                kind: HolderKind::ResourceClaim,
                namespace: claim.namespace.parse().map_err(invalid)?,
                name: claim.name.parse().map_err(invalid)?,
                uid: claim.uid,
            },
        };
        let mut object = AddressLease::new(&lease, spec);
        object.metadata.finalizers = Some(vec![BLOCK_FINALIZER.to_owned()]);
        answered(self.api.create(&PostParams::default(), &object)).await
    }

    /// Sets the node of a lease, if it is unchanged since `seen`.
    async fn set_node(&self, lease: &str, seen: ObjectMeta) -> kube::Result<()> {
        let version = seen.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "status": {"nodeName": self.node}});
        answered(self.api.patch_status(lease, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
    }

    /// Clears the node of a lease, if it is still this one. Returns whether there is nothing left to clear.
    async fn clear_node(&self, lease: &str) -> bool {
        let cleared = async {
            let patch = removal("/status/nodeName", &[("/status/nodeName", &self.node)])?;
            answered(self.api.patch_status(lease, &PatchParams::default(), &patch)).await.map(drop)
        };
        match cleared.await {
            Ok(()) => true,
            // It is gone, or another node's.
            Err(kube::Error::Api(status)) if [404, 422].contains(&status.code) => true,
            Err(error) => {
                tracing::warn!(lease, error = error_chain(&error), "cannot give an address back, will retry");
                false
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Own>> {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears the node of leases that no attachment needs any more, until dropped.
    pub(crate) async fn keep<A: Attach, O: Observer<Owner = Owner>>(&self, attacher: &Attacher<A, O>) {
        let mut changes = attacher.changes();
        let mut list_at = Instant::now();
        loop {
            changes.borrow_and_update();
            if Instant::now() >= list_at {
                // A status that was written without an answer, or by the controller, is not known yet.
                let pause = if self.list_own().await {
                    LIST_INTERVAL.mul_f64(0.5 + fastrand::f64())
                } else {
                    CLEAR_RETRY_DELAY
                };
                list_at = Instant::now() + pause;
            }
            let alone = self.one_by_one.lock().await;
            // Nodes without leases of addresses look at no results: they have hundreds of attachments.
            let has_addresses = self.lock().values().any(|own| own.address.is_some());
            let needed = Needed::of(attacher, has_addresses);
            let unused = self.unused(&needed);
            let mut retry = None;
            for lease in unused {
                if !self.clear_node(&lease).await {
                    retry = Some(CLEAR_RETRY_DELAY);
                    continue;
                }
                self.lock().remove(&lease);
            }
            drop(alone);
            let waiting = self.lock().values().any(|own| own.since.is_some()).then_some(UNPLANNED);
            let pause = retry.or(waiting).map(|pause| Instant::now() + pause);
            let next = pause.map_or(list_at, |pause| pause.min(list_at));
            tokio::select! {
                _ = changes.changed() => tokio::time::sleep(GATHER_DELAY).await,
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Returns leases that no attachment needs: those that a plan has named, and those that were taken long
    /// ago.
    fn unused(&self, needed: &Needed) -> Vec<String> {
        let mut ours = self.lock();
        for lease in &needed.leases {
            ours.entry(lease.clone()).or_default().since = None;
        }
        let is_old = |own: &Own| own.since.is_none_or(|since| since.elapsed() >= UNPLANNED);
        let is_used =
            |own: &Own| own.address.as_ref().is_some_and(|address| needed.addresses.contains(address));
        let unused = ours
            .iter()
            .filter(|(lease, own)| !needed.leases.contains(*lease) && !is_used(own) && is_old(own));
        unused.map(|(lease, _)| lease.clone()).collect()
    }

    /// Finds the leases that earlier agents have taken, and those that the controller has made for what pods
    /// have. Returns whether the API server has said.
    async fn list_own(&self) -> bool {
        let own = ListParams::default().fields(&format!("status.nodeName={}", self.node));
        match answered(self.api.list(&own)).await {
            Ok(list) => {
                let mut ours = self.lock();
                for AddressLease { metadata, spec, .. } in list.items {
                    if let Some(name) = metadata.name {
                        ours.entry(name).or_default().address = spec.address.map(|ip| (spec.holder.uid, ip));
                    }
                }
                true
            }
            // Before the CRD is there, no claim has a lease.
            Err(kube::Error::Api(status)) if status.code == 404 => true,
            Err(error) => {
                tracing::warn!(
                    error = error_chain(&error),
                    "cannot list this node's AddressLeases, retrying"
                );
                false
            }
        }
    }
}

/// What attachments need.
#[derive(Debug, Default)]
struct Needed {
    /// The leases that plans name.
    leases: BTreeSet<String>,
    /// The addresses in the results of attachments, whatever gave them out, by the UIDs of their claims and
    /// pods.
    addresses: BTreeSet<(String, IpAddr)>,
}

impl Needed {
    fn of<A: Attach, O: Observer<Owner = Owner>>(attacher: &Attacher<A, O>, with_addresses: bool) -> Self {
        let mut needed = Self::default();
        attacher.for_each_pod(|pod| needed.add(pod, with_addresses));
        needed
    }

    fn add(&mut self, pod: &PodState, with_addresses: bool) {
        for record in pod.attachments() {
            let leases = record.plan.owner.addresses.iter().flat_map(|addresses| &addresses.leases);
            self.leases.extend(leases.map(|asked| asked.lease.clone()));
            if !with_addresses {
                continue;
            }
            let Some(result) = record.phase.result() else { continue };
            for uid in [&record.plan.owner.claim.uid, &record.plan.owner.pod.uid] {
                self.addresses.extend(result.ips().iter().map(|ip| (uid.clone(), ip.address.addr())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use netclaim_cni::error_chain;
    use netclaim_driver::attach::Phase;
    use serde_json::Value;

    use super::*;
    use crate::fixtures;
    use crate::pods::owner::Addresses;

    /// A fake of the API server: AddressLeases by name, and the code with which it refuses writes.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<BTreeMap<String, Value>>>, Arc<Mutex<Option<u16>>>);

    impl Server {
        fn leases(&self, node: &str) -> Leases {
            let (service, mut requests) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
            let server = self.clone();
            tokio::spawn(async move {
                while let Some((request, reply)) = requests.next_request().await {
                    let (head, body) = request.into_parts();
                    let body: Value =
                        serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
                    let (status, answer) = server.answer(&head.method, head.uri.path(), body);
                    let body = Body::from(answer.to_string().into_bytes());
                    reply.send_response(Response::builder().status(status).body(body).unwrap());
                }
            });
            Leases::new(Client::new(service, "default"), node)
        }

        fn answer(&self, method: &Method, path: &str, body: Value) -> (u16, Value) {
            let failure = |code: u16| {
                let reason = if code == 404 { "NotFound" } else { "AlreadyExists" };
                (code, json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code}))
            };
            let mut all = self.0.lock().unwrap();
            let name = path.split('/').nth(5).unwrap_or_default();
            if *method == Method::GET && name.is_empty() {
                let kind = if path.ends_with("/addressblocks") { "AddressBlock" } else { "AddressLease" };
                let of_network = all.values().filter(|object| object["spec"]["networkName"] == "storage");
                let items: Vec<&Value> = of_network.filter(|object| object["kind"] == kind).collect();
                return (
                    200,
                    json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "List", "metadata": {}, "items": items}),
                );
            }
            if let Some(code) = self.1.lock().unwrap().filter(|_| *method == Method::PATCH) {
                return failure(code);
            }
            if *method == Method::POST {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                if all.contains_key(&name) {
                    return failure(409);
                }
                let mut object = body;
                object["metadata"]["resourceVersion"] = json!("1");
                all.insert(name, object.clone());
                return (201, object);
            }
            let Some(object) = all.get_mut(name) else { return failure(404) };
            if *method == Method::PATCH {
                object["status"]["nodeName"] = body["status"]["nodeName"].clone();
            }
            (200, object.clone())
        }

        fn node(&self) -> Value {
            self.0.lock().unwrap()["storage.10.20.0.200"]["status"]["nodeName"].clone()
        }
    }

    fn plan(claim: &str) -> Plan {
        let mut plan = fixtures::plan(claim);
        let ip = Some("10.20.0.200".parse().unwrap());
        let asked = AskedAddress { lease: "storage.10.20.0.200".to_owned(), pool: None, ip, mac: None };
        plan.owner.addresses = Some(Addresses { leases: vec![asked], ..Addresses::default() });
        plan
    }

    fn no_block(_: IpAddr) -> Vec<String> {
        Vec::new()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_of_another_nodes_block_is_refused() {
        let server = Server::default();
        let block = |ranges: Value| {
            json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": "block"},
                "spec": {"networkName": "storage", "nodeName": "b", "cidr": "10.20.0.192/28", "ranges": ranges}})
        };
        let put = |ranges| server.0.lock().unwrap().insert("block".to_owned(), block(ranges));
        put(json!(["10.20.0.192/28"]));
        let leases = server.leases("a");
        let error = leases.take(&plan("one"), |_| vec!["block".to_owned()]).await.expect_err("in the block");
        assert!(error.to_string().starts_with("10.20.0.200 is in AddressBlock block of node b"), "{error}");
        put(json!(["10.20.0.192/29"]));
        leases.take(&plan("one"), |_| vec!["block".to_owned()]).await.expect("the node does not hand it out");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_of_any_block_of_the_network_is_refused() {
        let server = Server::default();
        let block = |pool: Value, cidr: &str| {
            json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": "block"},
                "spec": {"poolName": pool, "networkName": "storage", "nodeName": "b", "cidr": cidr}})
        };
        let put = |block| server.0.lock().unwrap().insert("block".to_owned(), block);
        let leases = server.leases("a");
        for (pool, cidr) in [(Value::Null, "10.20.0.200/29"), (json!("lan"), "10.20.0.192/28")] {
            put(block(pool, cidr));
            let error = leases.take(&plan("one"), no_block).await.expect_err("in the block");
            assert!(error.to_string().contains("is in AddressBlock block of node b"), "{cidr}: {error}");
        }
        put(block(Value::Null, "10.20.0.208/28"));
        leases.take(&plan("one"), no_block).await.expect("no block has it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_the_claims_and_its_node_is_set() {
        let server = Server::default();
        let leases = server.leases("a");
        for _ in 0..2 {
            leases.take(&plan("one"), no_block).await.expect("free, or its own");
            assert_eq!(server.node(), "a");
        }
        let error = leases.take(&plan("two"), no_block).await.expect_err("taken");
        assert_eq!(
            error.to_string(),
            "10.20.0.200 is taken by ResourceClaim default/one (AddressLease storage.10.20.0.200): ask for another address, or \
             delete that claim first"
        );
        let mut other = plan("three");
        other.owner.pod.namespace = "shop".to_owned();
        let error = leases.take(&other, no_block).await.expect_err("taken");
        assert_eq!(
            error.to_string(),
            "10.20.0.200 is taken by a claim of another namespace (AddressLease storage.10.20.0.200): ask for another address"
        );
        let finalizers = server.0.lock().unwrap()["storage.10.20.0.200"]["metadata"]["finalizers"].clone();
        assert_eq!(finalizers, json!([BLOCK_FINALIZER]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_the_controller_found_in_a_pod_is_that_pods() {
        let server = Server::default();
        let lease = "storage.10.20.0.200";
        let found = |pod: &str| {
            json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
                "metadata": {"name": lease, "resourceVersion": "1", "labels": {CONFIRMED_LABEL: "true"}},
                "spec": {"networkName": "storage", "address": "10.20.0.200",
                    "holder": {"kind": "Pod", "namespace": "default", "name": pod, "uid": pod}}})
        };
        let leases = server.leases("a");
        server.0.lock().unwrap().insert(lease.to_owned(), found("p"));
        leases.take(&plan("one"), no_block).await.expect("its pod has it");
        assert_eq!(server.node(), "a");
        server.0.lock().unwrap().insert(lease.to_owned(), found("other"));
        let error = leases.take(&plan("one"), no_block).await.expect_err("another pod has it");
        assert!(error.to_string().starts_with("10.20.0.200 is taken by Pod default/other"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_node_gets_the_address_when_the_last_one_has_cleared_it() {
        let server = Server::default();
        let (a, b) = (server.leases("a"), server.leases("b"));
        a.take(&plan("one"), no_block).await.expect("free");
        let error = b.take(&plan("one"), no_block).await.expect_err("in use");
        assert!(error_chain(&error).contains("may still be in use on node a"), "{error}");
        let clears = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert!(a.clear_node("storage.10.20.0.200").await);
        };
        let plan = plan("one");
        let (taken, ()) = tokio::join!(b.take(&plan, no_block), clears);
        taken.expect("it is free now");
        assert_eq!(server.node(), "b");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_no_plan_has_named_yet_is_kept_for_a_while() {
        let server = Server::default();
        let leases = server.leases("a");
        leases.take(&plan("one"), no_block).await.expect("free");
        let leased = BTreeSet::from(["storage.10.20.0.200".to_owned()]);
        let (none, planned) = (Needed::default(), Needed { leases: leased, ..Needed::default() });
        assert_eq!(leases.unused(&none), [""; 0], "it is about to be journalled");
        tokio::time::advance(UNPLANNED).await;
        assert_eq!(leases.unused(&none), ["storage.10.20.0.200"], "it never was");
        assert_eq!(leases.unused(&planned), [""; 0]);
        assert_eq!(leases.unused(&none), ["storage.10.20.0.200"], "its plan is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_deleted_is_not_taken_before_it_is_gone() {
        let server = Server::default();
        let leases = server.leases("a");
        leases.take(&plan("one"), no_block).await.expect("free");
        let lease = "storage.10.20.0.200";
        server.0.lock().unwrap().get_mut(lease).unwrap()["metadata"]["deletionTimestamp"] =
            json!("2026-01-01T00:00:00Z");
        leases.take(&plan("one"), no_block).await.expect("the node has it");
        assert!(leases.clear_node(lease).await);
        let error = leases.take(&plan("one"), no_block).await.expect_err("it goes");
        assert!(error.to_string().contains("goes when no pod has the address"), "{error}");
        server.0.lock().unwrap().remove(lease);
        leases.take(&plan("one"), no_block).await.expect("free again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_lease_is_not_used_while_a_node_hands_the_address_out() {
        let server = Server::default();
        let leases = server.leases("a");
        leases.take(&plan("one"), no_block).await.expect("free");
        assert!(leases.clear_node("storage.10.20.0.200").await);
        let block = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": "block"},
            "spec": {"networkName": "storage", "nodeName": "b", "cidr": "10.20.0.192/28"}});
        server.0.lock().unwrap().insert("block".to_owned(), block);
        let error = leases.take(&plan("one"), |_| vec!["block".to_owned()]).await.expect_err("in the block");
        assert!(matches!(error, LeaseError::InBlock { .. }), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_clear_is_tried_again() {
        let server = Server::default();
        let leases = server.leases("a");
        leases.take(&plan("one"), no_block).await.expect("free");
        for (code, done) in [(403, false), (409, false), (500, false), (422, true), (404, true)] {
            *server.1.lock().unwrap() = Some(code);
            assert_eq!(leases.clear_node("storage.10.20.0.200").await, done, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_listed_lease_is_kept_while_an_attachment_of_its_holder_has_the_address() {
        let server = Server::default();
        let leases = server.leases("a");
        let other = server.leases("a");
        other.take(&plan("one"), no_block).await.expect("free");
        assert!(leases.list_own().await);
        let record = |claim: &str, ip: &str| {
            let result = json!({"cniVersion": "1.1.0", "ips": [{"address": ip}]});
            let plan = fixtures::plan(claim);
            let phase =
                Phase::Attached { sandbox: fixtures::sandbox("s"), result: fixtures::result(&result) };
            crate::pods::owner::Record { phase, ..crate::pods::owner::Record::new(plan) }
        };
        let unused = |record| {
            let mut needed = Needed::default();
            needed.add(&PodState { records: vec![record], ..PodState::default() }, true);
            leases.unused(&needed)
        };
        assert_eq!(unused(record("one", "10.20.0.200/24")), [""; 0]);
        for other in [record("one", "10.20.0.201/24"), record("two", "10.20.0.200/24")] {
            assert_eq!(unused(other), ["storage.10.20.0.200"]);
        }
    }
}
