//! The ClaimNetwork that an object belongs to, with which Kubernetes deletes it.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource as _;
use netclaim_api::network::ClaimNetwork;
use netclaim_api::{API_VERSION, NetworkName};

/// Returns the owner of what belongs to the ClaimNetwork of this UID.
pub(crate) fn owned_by(network: &NetworkName, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: ClaimNetwork::kind(&()).into_owned(),
        name: network.to_string(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// Returns the owner as events name it.
pub(crate) fn reference(owner: &OwnerReference) -> ObjectReference {
    ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    }
}
