//! Creates what a takeover decides.

use std::fmt::Debug;
use std::net::IpAddr;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{ListParams, PostParams};
use kube::core::Resource;
use kube::{Api, Client};
use netclaim_api::addresses::{
    AddressBlock, AddressLease, AddressLeaseSpec, AddressPool, BLOCK_FINALIZER, Holder, HolderKind,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::objects::DecodeError;
use crate::report::Takeover;

/// Requests at once.
const CONCURRENCY: usize = 16;

/// Why a takeover is not complete. It can be applied again: what exists stays.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ApplyError {
    #[error("nothing is taken over, because an object of whereabouts cannot be read: correct it")]
    Unreadable(#[source] DecodeError),
    #[error(
        "AddressLease {name} is {found}'s (UID {}), and whereabouts has the address for {wanted} (UID {}): stop one of \
         them, or wait until the first is gone",
        found.uid,
        wanted.uid
    )]
    OtherHolder { name: String, found: Holder, wanted: Holder },
    #[error("AddressPool {name} exists with other settings: make it equal to the plan, or delete it")]
    OtherPool { name: String },
    #[error(
        "node {node} hands out {address}, which {holder} has of whereabouts, in AddressBlock {block}: delete that block, and go \
         on when it is gone"
    )]
    InBlock { address: IpAddr, holder: Box<Holder>, block: String, node: String },
    #[error("cannot list AddressBlocks")]
    Blocks(#[source] kube::Error),
    #[error("cannot create {kind} {name}")]
    Create { kind: &'static str, name: String, source: kube::Error },
}

/// What [`apply`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Number of leased addresses.
    pub leases: usize,
    /// Number of AddressPools.
    pub pools: usize,
    /// Number of objects that were not there before.
    pub created: usize,
    /// Number of pools that problems stopped.
    pub stopped: usize,
}

/// Creates the leases, and then the AddressPools, of all pools without problems. ClaimNetworks may be created
/// after it: their blocks have no address that is leased.
///
/// # Errors
/// [`ApplyError`]: another holder has an address, or a node hands it out; a pool differs; or the API server
/// refuses an object.
pub async fn apply(client: &Client, takeover: &Takeover) -> Result<Applied, ApplyError> {
    if let Some(error) = takeover.unreadable.first() {
        return Err(ApplyError::Unreadable(error.clone()));
    }
    let taken = || takeover.pools.iter().filter(|pool| !pool.is_stopped());
    let leases = Api::<AddressLease>::all(client.clone());
    let pools = Api::<AddressPool>::all(client.clone());
    let shared: Vec<_> = taken().filter_map(|pool| pool.pool.as_ref()).collect();
    let mut missing = Vec::new();
    for pool in &shared {
        let failed = |source| ApplyError::Create { kind: "AddressPool", name: pool.name.clone(), source };
        match pools.get_opt(&pool.name).await.map_err(failed)? {
            Some(found) if found.spec != pool.spec => {
                return Err(ApplyError::OtherPool { name: pool.name.clone() });
            }
            Some(_) => {}
            None => missing.push(pool),
        }
    }
    if let Some(error) = handed_out(client, taken().flat_map(|pool| pool.leases.values())).await? {
        return Err(error);
    }
    let mut created = futures::stream::iter(taken().flat_map(|pool| &pool.leases))
        .map(|(name, spec)| lease(&leases, name, spec))
        .buffer_unordered(CONCURRENCY)
        .try_fold(0, |created, is_new| async move { Ok(created + usize::from(is_new)) })
        .await?;
    for pool in missing {
        let object = AddressPool::new(&pool.name, pool.spec.clone());
        created += usize::from(create(&pools, "AddressPool", &pool.name, &object).await?.is_none());
    }
    Ok(Applied {
        leases: taken().map(|pool| pool.leases.len()).sum(),
        pools: shared.len(),
        created,
        stopped: takeover.pools.iter().filter(|pool| pool.is_stopped()).count(),
    })
}

/// Returns the first address that a node hands out already. The controller keeps addresses of leases out of
/// blocks, but not those of blocks that were there before.
async fn handed_out<'a>(
    client: &Client,
    leases: impl Iterator<Item = &'a AddressLeaseSpec>,
) -> Result<Option<ApplyError>, ApplyError> {
    let mut leases = leases.peekable();
    if leases.peek().is_none() {
        return Ok(None);
    }
    let blocks = match Api::<AddressBlock>::all(client.clone()).list(&ListParams::default()).await {
        Ok(blocks) => blocks.items,
        // Before the CRD is there, no node has a block.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(ApplyError::Blocks(error)),
    };
    let conflict = |lease: &AddressLeaseSpec| {
        let address = lease.address?;
        let has = |block: &&AddressBlock| block.spec.key() == lease.key() && block.spec.hands_out(address);
        let block = blocks.iter().find(has)?;
        Some(ApplyError::InBlock {
            address,
            holder: Box::new(lease.holder.clone()),
            block: block.metadata.name.clone().unwrap_or_default(),
            node: block.spec.node.clone(),
        })
    };
    Ok(leases.find_map(conflict))
}

/// Leases an address. Returns whether it was not leased before.
async fn lease(api: &Api<AddressLease>, name: &str, spec: &AddressLeaseSpec) -> Result<bool, ApplyError> {
    let mut object = AddressLease::new(name, spec.clone());
    object.metadata.finalizers = Some(vec![BLOCK_FINALIZER.to_owned()]);
    match create(api, "AddressLease", name, &object).await? {
        Some(found) if !is_same(&found.spec.holder, &spec.holder) => Err(ApplyError::OtherHolder {
            name: name.to_owned(),
            found: found.spec.holder,
            wanted: spec.holder.clone(),
        }),
        found => Ok(found.is_none()),
    }
}

/// Whether both are one holder. A holder without UID was known by its name only.
fn is_same(one: &Holder, other: &Holder) -> bool {
    let name =
        |holder: &Holder| (holder.kind == HolderKind::Pod, holder.namespace.clone(), holder.name.clone());
    let is_unknown = one.uid.is_empty() || other.uid.is_empty();
    name(one) == name(other) && (is_unknown || one.uid == other.uid)
}

/// Creates an object, or returns the one that has its name.
async fn create<K>(api: &Api<K>, kind: &'static str, name: &str, object: &K) -> Result<Option<K>, ApplyError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let failed = |source| ApplyError::Create { kind, name: name.to_owned(), source };
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 409 => api.get(name).await.map(Some).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}
