//! Reads what a takeover depends on, and creates what it decides.

use std::fmt::Debug;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::api::{ApiResource, ListParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind, Resource};
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::addresses::{AddressLease, AddressLeaseSpec, AddressPool, Holder, HolderKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::objects::{DecodeError, IpPool, Nad, NodeSlicePool, Objects, Pod, Reservation};
use crate::report::Takeover;

/// Objects in one answer of the API server.
const PAGE: u32 = 500;
/// Requests at once.
const CONCURRENCY: usize = 16;

/// Why the cluster cannot be read.
#[derive(Debug, Error)]
#[error("cannot list {kind}")]
pub struct ReadError {
    kind: &'static str,
    source: kube::Error,
}

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
    #[error("cannot create {kind} {name}")]
    Create { kind: &'static str, name: String, source: kube::Error },
}

/// What [`apply`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Applied {
    pub leases: usize,
    pub pools: usize,
    /// Number of pools that problems stopped.
    pub stopped: usize,
}

/// Lists whereabouts' objects, the NetworkAttachmentDefinitions that use it, and all pods. A kind that the cluster does not
/// know has no objects.
///
/// # Errors
/// [`ReadError`]: the API server refuses a list. The caller needs to list all of the kinds in all namespaces.
pub async fn read(client: &Client) -> Result<Objects, ReadError> {
    const WHEREABOUTS: &str = "whereabouts.cni.cncf.io";
    let mut objects = Objects::default();
    for object in custom(client, WHEREABOUTS, "v1alpha1", "IPPool", "ippools").await? {
        keep(IpPool::decode(&object), &mut objects.pools, &mut objects.unreadable);
    }
    let (kind, plural) = ("OverlappingRangeIPReservation", "overlappingrangeipreservations");
    for object in custom(client, WHEREABOUTS, "v1alpha1", kind, plural).await? {
        keep(Reservation::decode(&object), &mut objects.reservations, &mut objects.unreadable);
    }
    for object in custom(client, WHEREABOUTS, "v1alpha1", "NodeSlicePool", "nodeslicepools").await? {
        keep(NodeSlicePool::decode(&object), &mut objects.slices, &mut objects.unreadable);
    }
    let (kind, plural) = ("NetworkAttachmentDefinition", "network-attachment-definitions");
    for object in custom(client, "k8s.cni.cncf.io", "v1", kind, plural).await? {
        if let Some(nad) = Nad::decode(&object).transpose() {
            keep(nad, &mut objects.nads, &mut objects.skipped);
        }
    }
    objects.pods = list(Api::<KubePod>::all(client.clone()), "Pod", |pod| Pod::of(&pod)).await?;
    Ok(objects)
}

fn keep<T>(decoded: Result<T, DecodeError>, good: &mut Vec<T>, bad: &mut Vec<DecodeError>) {
    match decoded {
        Ok(object) => good.push(object),
        Err(error) => bad.push(error),
    }
}

async fn custom(
    client: &Client,
    group: &str,
    version: &str,
    kind: &'static str,
    plural: &str,
) -> Result<Vec<DynamicObject>, ReadError> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    list(Api::all_with(client.clone(), &resource), kind, |object| object).await
}

async fn list<K, T>(api: Api<K>, kind: &'static str, keep: impl Fn(K) -> T) -> Result<Vec<T>, ReadError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let (mut found, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = match api.list(&params).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(found),
            Err(source) => return Err(ReadError { kind, source }),
        };
        found.extend(page.items.into_iter().map(&keep));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(found);
        }
    }
}

impl Pod {
    fn of(pod: &KubePod) -> Self {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            has_ended: matches!(phase, Some("Succeeded" | "Failed")),
            network_status: pod.annotations().get("k8s.v1.cni.cncf.io/network-status").cloned(),
        }
    }
}

/// Creates the leases, and then the AddressPools, of all pools without problems. Networks may be created after it: their
/// blocks have no address that is leased.
///
/// # Errors
/// [`ApplyError`]: somebody else has an address, a pool differs, or the API server refuses an object.
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
    futures::stream::iter(taken().flat_map(|pool| &pool.leases).map(Ok))
        .try_for_each_concurrent(CONCURRENCY, |(name, spec)| lease(&leases, name, spec))
        .await?;
    for pool in missing {
        create(&pools, "AddressPool", &pool.name, &AddressPool::new(&pool.name, pool.spec.clone())).await?;
    }
    Ok(Applied {
        leases: taken().map(|pool| pool.leases.len()).sum(),
        pools: shared.len(),
        stopped: takeover.pools.iter().filter(|pool| pool.is_stopped()).count(),
    })
}

async fn lease(api: &Api<AddressLease>, name: &str, spec: &AddressLeaseSpec) -> Result<(), ApplyError> {
    let object = AddressLease::new(name, spec.clone());
    match create(api, "AddressLease", name, &object).await? {
        Some(found) if !is_same(&found.spec.holder, &spec.holder) => Err(ApplyError::OtherHolder {
            name: name.to_owned(),
            found: found.spec.holder,
            wanted: spec.holder.clone(),
        }),
        _ => Ok(()),
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
