//! The requests that change AddressBlocks and AddressLeases.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use netclaim_api::addresses::{
    AddressBlock, AddressBlockSpec, AddressLease, BLOCK_FINALIZER, Holder, HolderKind,
};
use serde_json::json;

use crate::leasing::Removal;

/// Label of a block with the name of its Network, by which people list blocks.
const NETWORK_LABEL: &str = "netclaim.dev/network";

/// The objects that leasing writes.
#[derive(Clone)]
pub(super) struct Writes {
    client: Client,
    blocks: Api<AddressBlock>,
    leases: Api<AddressLease>,
    nodes: Api<PartialObjectMeta<Node>>,
}

/// What a request has found or done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// The object is as it should be.
    Yes,
    /// Another writer was faster; the watch shows what there is.
    Overtaken,
}

impl Writes {
    pub(super) fn new(client: Client) -> Self {
        Self {
            blocks: Api::all(client.clone()),
            leases: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            client,
        }
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

    /// Removes the finalizer of a block whose Node object is gone. It asks for the Node first: a watch may be late.
    pub(super) async fn release(&self, block: &Removal, node: &str) -> kube::Result<Done> {
        if self.nodes.get_opt(node).await?.is_some() {
            return Ok(Done::Overtaken);
        }
        let Some(found) = self.blocks.get_opt(&block.name).await? else { return Ok(Done::Yes) };
        let finalizers = found.metadata.finalizers.unwrap_or_default();
        let Some(index) = finalizers.iter().position(|finalizer| finalizer == BLOCK_FINALIZER) else {
            return Ok(Done::Yes);
        };
        let path = format!("/metadata/finalizers/{index}");
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": block.uid},
            {"op": "test", "path": path, "value": BLOCK_FINALIZER},
            {"op": "remove", "path": path},
        ]);
        let Ok(patch) = serde_json::from_value(patch) else { return Ok(Done::Overtaken) };
        let patched =
            self.blocks.patch(&block.name, &PatchParams::default(), &Patch::Json::<()>(patch)).await;
        overtaken(&[404, 409, 422], patched)
    }

    /// Deletes the lease of a holder that does not exist any more.
    pub(super) async fn delete_lease(&self, name: &str, uid: &str, holder: &Holder) -> kube::Result<Done> {
        let uid_of_holder = match holder.kind {
            HolderKind::ResourceClaim => self.uid::<ResourceClaim>(holder).await?,
            HolderKind::Pod => self.uid::<Pod>(holder).await?,
        };
        if uid_of_holder.is_some_and(|found| holder.uid.is_empty() || found == holder.uid) {
            return Ok(Done::Overtaken);
        }
        overtaken(&[404, 409], self.leases.delete(name, &with_uid(uid)).await)
    }

    async fn uid<K>(&self, holder: &Holder) -> kube::Result<Option<String>>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug,
    {
        let api: Api<PartialObjectMeta<K>> = Api::namespaced(self.client.clone(), &holder.namespace);
        Ok(api.get_opt(&holder.name).await?.map(|found| found.metadata.uid.unwrap_or_default()))
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
