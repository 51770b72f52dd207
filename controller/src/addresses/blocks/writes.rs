//! The requests that change AddressBlocks and AddressLeases.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use netclaim_api::ObjectName;
use netclaim_api::addresses::{
    AddressBlock, AddressBlockSpec, AddressLease, AddressPool, AddressTotals, BLOCK_FINALIZER, BlockSize,
    CONFIRMED_LABEL, Holder, HolderKind, PoolKey,
};
use netclaim_api::network::ClaimNetwork;
use netclaim_process::kubernetes::{finalizer_removal, removal};
use serde_json::json;

use super::claims::{self, ClaimObject};
use crate::addresses::leasing::{BlockRef, Removal};

/// Label of a block with the name of its ClaimNetwork, by which people list blocks.
const NETWORK_LABEL: &str = "netclaim.dev/network";

/// The objects that leasing writes.
#[derive(Clone)]
pub(super) struct Writes {
    client: Client,
    blocks: Api<AddressBlock>,
    leases: Api<AddressLease>,
    nodes: Api<PartialObjectMeta<Node>>,
    networks: Api<DynamicObject>,
    pools: Api<DynamicObject>,
}

/// One state of an AddressLease.
#[derive(Debug, Clone)]
pub(super) struct LeaseRef {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
}

/// Why a node does not use an address that it is said to use.
#[derive(Debug, Clone)]
pub(super) enum Unused {
    /// It is gone.
    NodeGone,
    /// The claim is not allocated there, or does not exist.
    NotAllocated(Holder),
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// The object is as it should be.
    Yes,
    /// The status of the pool has this size of blocks.
    Recorded(BlockSize),
    /// Another writer was faster; the watch shows what there is.
    Overtaken,
}

impl Writes {
    pub(super) fn new(client: Client) -> Self {
        Self {
            blocks: Api::all(client.clone()),
            leases: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            networks: Api::all_with(client.clone(), &ApiResource::erase::<ClaimNetwork>(&())),
            pools: Api::all_with(client.clone(), &ApiResource::erase::<AddressPool>(&())),
            client,
        }
    }

    /// Records the size of a pool's blocks in its status, unless one is recorded there, and returns what is
    /// recorded. One of two leaders succeeds.
    pub(super) async fn record(&self, pool: &PoolKey, totals: AddressTotals) -> kube::Result<Done> {
        let (api, name) = match pool {
            PoolKey::Network(name) => (&self.networks, name.as_ref()),
            PoolKey::Pool(name) => (&self.pools, name.as_str()),
        };
        let Some(object) = api.get_opt(name).await? else { return Ok(Done::Overtaken) };
        let before = object.data.pointer("/status/addresses").cloned();
        let before: Option<AddressTotals> = before.and_then(|totals| serde_json::from_value(totals).ok());
        let known = before.unwrap_or_default().block_size;
        let block_size = BlockSize {
            ipv4: known.ipv4.or(totals.block_size.ipv4),
            ipv6: known.ipv6.or(totals.block_size.ipv6),
        };
        if known == block_size {
            return Ok(Done::Recorded(known));
        }
        let patch = json!({
            "metadata": {"uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version},
            "status": {"addresses": AddressTotals { block_size, ..before.unwrap_or(totals) }},
        });
        let patched = api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        Ok(match overtaken(&[404, 409], patched)? {
            Done::Yes => Done::Recorded(block_size),
            other => other,
        })
    }

    /// Creates a block. Its name is the lock.
    pub(super) async fn create(&self, spec: AddressBlockSpec) -> kube::Result<Done> {
        let metadata = ObjectMeta {
            name: Some(spec.name()),
            labels: Some([(NETWORK_LABEL.to_owned(), spec.network.to_string())].into()),
            finalizers: Some(vec![BLOCK_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        };
        let block = AddressBlock { metadata, spec, status: None };
        overtaken(&[409], self.blocks.create(&PostParams::default(), &block).await)
    }

    /// Deletes a block; it goes when its finalizer is removed.
    pub(super) async fn delete(&self, block: &Removal) -> kube::Result<Done> {
        let params = with_uid(&block.uid);
        overtaken(&[404, 409], self.blocks.delete(&block.name, &params).await)
    }

    /// Removes the finalizer of a block whose Node object is gone. It asks for the Node first: a watch may be
    /// late.
    pub(super) async fn release(&self, block: &Removal, node: &ObjectName) -> kube::Result<Done> {
        if self.nodes.get_opt(node.as_str()).await?.is_some() {
            return Ok(Done::Overtaken);
        }
        let Some(found) = self.blocks.get_opt(&block.name).await? else { return Ok(Done::Yes) };
        let finalizers = found.metadata.finalizers.unwrap_or_default();
        let Some(index) = finalizers.iter().position(|finalizer| finalizer == BLOCK_FINALIZER) else {
            return Ok(Done::Yes);
        };
        let patch = finalizer_removal(&block.uid, BLOCK_FINALIZER, index)?;
        let patched = self.blocks.patch(&block.name, &PatchParams::default(), &patch).await;
        overtaken(&[404, 409, 422], patched)
    }

    /// Puts the finalizer of a block back that is not being deleted.
    pub(super) async fn hold(&self, block: &BlockRef) -> kube::Result<Done> {
        let Some(found) = self.blocks.get_opt(&block.name).await? else { return Ok(Done::Overtaken) };
        let metadata = found.metadata;
        let mut finalizers = metadata.finalizers.unwrap_or_default();
        let is_same = metadata.uid.as_ref() == Some(&block.uid) && metadata.deletion_timestamp.is_none();
        if !is_same || finalizers.iter().any(|finalizer| finalizer == BLOCK_FINALIZER) {
            return Ok(Done::Overtaken);
        }
        finalizers.push(BLOCK_FINALIZER.to_owned());
        let patch = json!({"metadata": {
            "uid": block.uid, "resourceVersion": metadata.resource_version, "finalizers": finalizers,
        }});
        let patched = self.blocks.patch(&block.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        overtaken(&[404, 409], patched)
    }

    /// Deletes a lease that no pod uses and whose holder, if one is given, does not exist any more. It goes
    /// when its finalizer is removed.
    pub(super) async fn delete_lease(&self, lease: &LeaseRef, holder: Option<&Holder>) -> kube::Result<Done> {
        if let Some(holder) = holder
            && self.exists(holder).await?
        {
            return Ok(Done::Overtaken);
        }
        let preconditions = Preconditions {
            uid: Some(lease.uid.clone()),
            // Meanwhile, a node may have begun to use it.
            resource_version: Some(lease.resource_version.clone()),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        overtaken(&[404, 409], self.leases.delete(&lease.name, &params).await)
    }

    /// Removes the finalizer of a lease that is being deleted, if no node uses it. A pod that is given as its
    /// holder may use it without a node that says so.
    pub(super) async fn release_lease(&self, lease: &LeaseRef, pod: Option<&Holder>) -> kube::Result<Done> {
        if let Some(pod) = pod
            && self.exists(pod).await?
        {
            return Ok(Done::Overtaken);
        }
        let Some(found) = self.leases.get_opt(&lease.name).await? else { return Ok(Done::Yes) };
        let metadata = found.metadata;
        let is_in_use = found.status.and_then(|status| status.node).is_some();
        let is_same = metadata.uid.as_ref() == Some(&lease.uid) && metadata.deletion_timestamp.is_some();
        if is_in_use || !is_same {
            return Ok(Done::Overtaken);
        }
        let finalizers = metadata.finalizers.unwrap_or_default();
        let Some(index) = finalizers.iter().position(|finalizer| finalizer == BLOCK_FINALIZER) else {
            return Ok(Done::Yes);
        };
        let path = format!("/metadata/finalizers/{index}");
        let version = metadata.resource_version.unwrap_or_default();
        // Meanwhile, a node may have begun to use it.
        let tests = [("/metadata/uid", lease.uid.as_str()), ("/metadata/resourceVersion", &version)];
        let [uid, version] = tests;
        let patch = removal(&path, &[uid, version, (&path, BLOCK_FINALIZER)])?;
        let patched = self.leases.patch(&lease.name, &PatchParams::default(), &patch).await;
        overtaken(&[404, 409, 422], patched)
    }

    /// Says that a lease holds its address for any claim, and that it stays until no node uses it.
    pub(super) async fn confirm(&self, lease: &LeaseRef) -> kube::Result<Done> {
        let Some(found) = self.leases.get_opt(&lease.name).await? else { return Ok(Done::Overtaken) };
        let metadata = found.metadata;
        if metadata.uid.as_ref() != Some(&lease.uid) || metadata.deletion_timestamp.is_some() {
            return Ok(Done::Overtaken);
        }
        let mut finalizers = metadata.finalizers.unwrap_or_default();
        if !finalizers.iter().any(|finalizer| finalizer == BLOCK_FINALIZER) {
            finalizers.push(BLOCK_FINALIZER.to_owned());
        }
        let patch = json!({"metadata": {"uid": lease.uid, "resourceVersion": metadata.resource_version,
            "finalizers": finalizers, "labels": {CONFIRMED_LABEL: "true"}}});
        let patched = self.leases.patch(&lease.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        overtaken(&[404, 409], patched)
    }

    /// Lets another node use a lease that its node does not use. It asks for what tells so first: a watch may
    /// be late.
    pub(super) async fn clear_node(
        &self,
        lease: &LeaseRef,
        node: &ObjectName,
        why: &Unused,
    ) -> kube::Result<Done> {
        let is_used = match why {
            Unused::NodeGone => self.nodes.get_opt(node.as_str()).await?.is_some(),
            Unused::NotAllocated(holder) => {
                let api: Api<ClaimObject> =
                    Api::namespaced_with(self.client.clone(), holder.namespace.as_str(), &claims::resource());
                let claim = api.get_opt(holder.name.as_str()).await?;
                claim.is_some_and(|claim| {
                    claim.metadata.uid.as_ref() == Some(&holder.uid) && claims::may_be_on(&claim, node)
                })
            }
        };
        if is_used {
            return Ok(Done::Overtaken);
        }
        let patch = json!({
            "metadata": {"uid": lease.uid, "resourceVersion": lease.resource_version},
            "status": {"nodeName": null},
        });
        let patched =
            self.leases.patch_status(&lease.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        overtaken(&[404, 409], patched)
    }

    /// Whether a holder exists.
    async fn exists(&self, holder: &Holder) -> kube::Result<bool> {
        let uid = match holder.kind {
            HolderKind::ResourceClaim => self.uid::<ResourceClaim>(holder).await?,
            HolderKind::Pod => self.uid::<Pod>(holder).await?,
        };
        Ok(uid.is_some_and(|found| holder.uid.is_empty() || found == holder.uid))
    }

    async fn uid<K>(&self, holder: &Holder) -> kube::Result<Option<String>>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug,
    {
        let api: Api<PartialObjectMeta<K>> = Api::namespaced(self.client.clone(), holder.namespace.as_str());
        Ok(api.get_opt(holder.name.as_str()).await?.map(|found| found.metadata.uid.unwrap_or_default()))
    }
}

fn with_uid(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

/// Turns errors of these codes into [`Done::Overtaken`].
fn overtaken<T>(codes: &[u16], result: kube::Result<T>) -> kube::Result<Done> {
    match result {
        Ok(_) => Ok(Done::Yes),
        Err(kube::Error::Api(status)) if codes.contains(&status.code) => Ok(Done::Overtaken),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::Value;
    use tower_test::mock;

    use super::*;
    use crate::addresses::leasing::Why;

    /// Returns writes for an API server that answers with these codes and bodies, and the requests that it
    /// gets.
    fn writes(answers: Vec<(u16, Value)>) -> (Writes, tokio::task::JoinHandle<Vec<(String, Value)>>) {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let server = tokio::spawn(async move {
            let mut seen = Vec::new();
            for (code, body) in answers {
                let Some((request, reply)) = requests.next_request().await else { break };
                let (head, sent) = request.into_parts();
                let sent = sent.collect_bytes().await.unwrap();
                let sent = serde_json::from_slice(&sent).unwrap_or_default();
                seen.push((format!("{} {}", head.method, head.uri.path()), sent));
                let body = Body::from(body.to_string().into_bytes());
                reply.send_response(Response::builder().status(code).body(body).unwrap());
            }
            seen
        });
        (Writes::new(Client::new(service, "default")), server)
    }

    fn failure(code: u16) -> (u16, Value) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
            "reason": if code == 404 { "NotFound" } else { "Other" }});
        (code, status)
    }

    fn spec() -> AddressBlockSpec {
        serde_json::from_value(json!({"networkName": "storage", "nodeName": "a", "cidr": "10.20.0.0/28"}))
            .unwrap()
    }

    fn block() -> Value {
        json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock",
            "metadata": {"name": spec().name(), "uid": "u1", "finalizers": ["other", BLOCK_FINALIZER]}, "spec": spec()})
    }

    fn removal() -> Removal {
        Removal { name: spec().name(), uid: "u1".into(), why: Why::NodeGone }
    }

    fn lease() -> LeaseRef {
        LeaseRef { name: "l".into(), uid: "u".into(), resource_version: "7".into() }
    }

    fn node() -> ObjectName {
        "a".parse().unwrap()
    }

    fn holder() -> Holder {
        let [namespace, name] = ["shop", "c"].map(|name| name.parse().unwrap());
        Holder { kind: HolderKind::ResourceClaim, namespace, name, uid: "u7".into() }
    }

    const LEASE: &str = "/apis/netclaim.dev/v1alpha1/addressleases/l";
    const BLOCK: &str = "/apis/netclaim.dev/v1alpha1/addressblocks/storage.10.20.0.0-28";

    #[tokio::test]
    async fn a_created_block_has_finalizer_and_label_and_one_that_exists_is_left_alone() {
        let (writes, server) = writes(vec![(201, block()), failure(409), failure(500)]);
        assert_eq!(writes.create(spec()).await.unwrap(), Done::Yes);
        assert_eq!(writes.create(spec()).await.unwrap(), Done::Overtaken);
        assert!(writes.create(spec()).await.is_err());
        let metadata = &server.await.unwrap()[0].1["metadata"];
        assert_eq!(metadata["finalizers"], json!([BLOCK_FINALIZER]));
        assert_eq!(metadata["labels"], json!({"netclaim.dev/network": "storage"}));
    }

    #[tokio::test]
    async fn the_size_of_blocks_that_another_leader_recorded_stays() {
        let network = |status: Value| {
            let metadata = json!({"name": "storage", "uid": "u1", "resourceVersion": "7"});
            json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": metadata, "status": status})
        };
        let recorded = network(
            json!({"addresses": {"blockSize": {"ipv4": 28}, "size": 1, "leased": 0, "used": 0, "free": 1}}),
        );
        let (writes, server) = writes(vec![
            (200, recorded),
            (200, network(json!({}))),
            (200, network(json!({}))),
            (200, network(json!({}))),
            failure(409),
        ]);
        let size = BlockSize { ipv4: Some(29), ipv6: None };
        let totals = AddressTotals { block_size: size, size: 253, ..AddressTotals::default() };
        let pool = PoolKey::Network("storage".parse().unwrap());
        let found = BlockSize { ipv4: Some(28), ipv6: None };
        assert_eq!(writes.record(&pool, totals).await.unwrap(), Done::Recorded(found));
        assert_eq!(writes.record(&pool, totals).await.unwrap(), Done::Recorded(size));
        assert_eq!(writes.record(&pool, totals).await.unwrap(), Done::Overtaken);
        let seen = server.await.unwrap();
        assert_eq!(seen[2].0, "PATCH /apis/netclaim.dev/v1alpha1/claimnetworks/storage/status");
        assert_eq!(seen[2].1["metadata"], json!({"uid": "u1", "resourceVersion": "7"}));
        assert_eq!(seen[2].1["status"]["addresses"]["blockSize"], json!({"ipv4": 29}));
    }

    #[tokio::test]
    async fn only_the_own_finalizer_of_the_same_object_is_removed() {
        let (writes, server) = writes(vec![failure(404), (200, block()), (200, block())]);
        assert_eq!(writes.release(&removal(), &node()).await.unwrap(), Done::Yes);
        let seen = server.await.unwrap();
        assert_eq!(seen[0].0, "GET /api/v1/nodes/a");
        assert_eq!(seen[2].0, format!("PATCH {BLOCK}"));
        let patch = &seen[2].1;
        assert_eq!((&patch[0]["value"], &patch[2]["path"]), (&json!("u1"), &json!("/metadata/finalizers/1")));
    }

    #[tokio::test]
    async fn the_finalizer_of_a_block_is_put_back_unless_it_is_being_deleted() {
        let bare = |change: &dyn Fn(&mut Value)| {
            let mut block = block();
            block["metadata"]["finalizers"] = json!(["other"]);
            block["metadata"]["resourceVersion"] = json!("7");
            change(&mut block["metadata"]);
            (200, block)
        };
        let (writes, server) = writes(vec![
            bare(&|_| {}),
            (200, block()),
            bare(&|metadata| metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
            bare(&|metadata| metadata["uid"] = json!("u2")),
            (200, block()),
            failure(404),
        ]);
        let bare = BlockRef { name: spec().name(), uid: "u1".into() };
        let mut done = Vec::new();
        for _ in 0..5 {
            done.push(writes.hold(&bare).await.unwrap());
        }
        assert_eq!(done, [Done::Yes, Done::Overtaken, Done::Overtaken, Done::Overtaken, Done::Overtaken]);
        let seen = server.await.unwrap();
        assert_eq!((seen.len(), seen[1].0.clone()), (6, format!("PATCH {BLOCK}")));
        let metadata = json!({"uid": "u1", "resourceVersion": "7", "finalizers": ["other", BLOCK_FINALIZER]});
        assert_eq!(seen[1].1, json!({"metadata": metadata}));
    }

    #[tokio::test]
    async fn a_block_of_a_node_that_exists_after_all_is_not_released() {
        let node_object = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "a"}});
        let (writes, server) = writes(vec![(200, node_object)]);
        assert_eq!(writes.release(&removal(), &node()).await.unwrap(), Done::Overtaken);
        assert_eq!(server.await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_lease_is_deleted_only_if_its_holder_is_gone() {
        let holder = holder();
        let claim = |uid: &str| json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "c", "uid": uid}});
        let (writes, server) = writes(vec![(200, claim("u7")), (200, claim("u8")), failure(404)]);
        let lease = lease();
        assert_eq!(writes.delete_lease(&lease, Some(&holder)).await.unwrap(), Done::Overtaken);
        assert_eq!(
            writes.delete_lease(&lease, Some(&holder)).await.unwrap(),
            Done::Overtaken,
            "deleted by another"
        );
        let seen = server.await.unwrap();
        assert_eq!(seen[2].0, "DELETE /apis/netclaim.dev/v1alpha1/addressleases/l");
        assert_eq!(seen[2].1["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
    }

    #[tokio::test]
    async fn only_the_node_of_a_lease_that_is_gone_is_cleared() {
        let node_object = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "a"}});
        let (writes, server) = writes(vec![(200, node_object), failure(404), failure(409)]);
        let (lease, node, gone) = (lease(), node(), Unused::NodeGone);
        assert_eq!(
            writes.clear_node(&lease, &node, &gone).await.unwrap(),
            Done::Overtaken,
            "the node exists"
        );
        assert_eq!(
            writes.clear_node(&lease, &node, &gone).await.unwrap(),
            Done::Overtaken,
            "it changed meanwhile"
        );
        let seen = server.await.unwrap();
        assert_eq!(seen[2].0, "PATCH /apis/netclaim.dev/v1alpha1/addressleases/l/status");
        let patch = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {"nodeName": null}});
        assert_eq!(seen[2].1, patch);
    }

    #[tokio::test]
    async fn a_node_is_cleared_only_if_the_claim_is_not_allocated_there() {
        let claim = |uid: &str, node: &str| {
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": "c", "namespace": "shop", "uid": uid}, "spec": {"devices": {}},
                "status": {"allocation": {"nodeSelector": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}}})
        };
        let lease_object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease", "metadata": {"name": "l"},
            "spec": {"networkName": "storage", "holder": holder()}});
        let (writes, server) = writes(vec![
            (200, claim("u7", "a")),
            (200, claim("u7", "b")),
            (200, lease_object.clone()),
            (200, claim("u8", "a")),
            (200, lease_object.clone()),
            failure(404),
            (200, lease_object),
        ]);
        let (lease, node, why) = (lease(), node(), Unused::NotAllocated(holder()));
        let mut found = Vec::new();
        for _ in 0..4 {
            found.push(writes.clear_node(&lease, &node, &why).await.unwrap());
        }
        assert_eq!(found, [Done::Overtaken, Done::Yes, Done::Yes, Done::Yes]);
        let seen = server.await.unwrap();
        assert_eq!(seen[0].0, "GET /apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/c");
        assert_eq!(seen[2].0, format!("PATCH {LEASE}/status"));
        assert_eq!(seen[2].1["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
    }

    #[tokio::test]
    async fn a_deleted_lease_goes_when_no_node_and_no_pod_has_the_address() {
        let object = |node: Option<&str>, deleted: bool| {
            json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
                "metadata": {"name": "l", "uid": "u", "resourceVersion": "9", "finalizers": ["x/y", BLOCK_FINALIZER],
                    "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z")},
                "spec": {"networkName": "storage", "holder": holder()}, "status": {"nodeName": node}})
        };
        let pod = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "c", "uid": "u7"}});
        let (writes, server) = writes(vec![
            (200, object(Some("a"), true)),
            (200, object(None, false)),
            (200, pod),
            (200, object(None, true)),
            (200, object(None, true)),
        ]);
        let lease = lease();
        let of_pod = Holder { kind: HolderKind::Pod, ..holder() };
        assert_eq!(writes.release_lease(&lease, None).await.unwrap(), Done::Overtaken, "a node uses it");
        assert_eq!(writes.release_lease(&lease, None).await.unwrap(), Done::Overtaken, "it was not deleted");
        assert_eq!(
            writes.release_lease(&lease, Some(&of_pod)).await.unwrap(),
            Done::Overtaken,
            "its pod runs"
        );
        assert_eq!(writes.release_lease(&lease, None).await.unwrap(), Done::Yes);
        let (request, patch) = server.await.unwrap().pop().unwrap();
        assert_eq!(request, format!("PATCH {LEASE}"));
        let tested: Vec<_> = patch.as_array().unwrap().iter().map(|step| step["path"].clone()).collect();
        let finalizer = "/metadata/finalizers/1";
        assert_eq!(tested, ["/metadata/uid", "/metadata/resourceVersion", finalizer, finalizer]);
    }

    #[tokio::test]
    async fn a_confirmed_lease_has_its_finalizer_beside_those_of_others() {
        let object = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease",
            "metadata": {"name": "l", "uid": "u", "resourceVersion": "9", "finalizers": ["x/y"]},
            "spec": {"networkName": "storage", "holder": holder()}});
        let (writes, server) = writes(vec![(200, object.clone()), (200, object)]);
        assert_eq!(writes.confirm(&lease()).await.unwrap(), Done::Yes);
        let metadata = &server.await.unwrap()[1].1["metadata"];
        assert_eq!(metadata["finalizers"], json!(["x/y", BLOCK_FINALIZER]));
        assert_eq!(metadata["labels"], json!({CONFIRMED_LABEL: "true"}));
        assert_eq!(metadata["resourceVersion"], "9");
    }
}
