//! Reads what a status is made of.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::ListParams;
use kube::{Api, Client};
use netclaim_api::DRIVER_NAME;
use netclaim_api::network::Network;

use crate::cluster::{ReadError, list};

/// The objects of one moment, more or less.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) networks: Vec<Network>,
    /// Those of netclaim.
    pub(super) slices: Vec<ResourceSlice>,
    pub(super) claims: Vec<ResourceClaim>,
    pub(super) nodes: Vec<Node>,
    /// Those of netclaim's namespace.
    pub(super) pods: Vec<Pod>,
}

/// Reads the cluster; netclaim is in this namespace.
///
/// # Errors
/// See [`ReadError`].
pub(super) async fn read(client: &Client, namespace: &str) -> Result<Snapshot, ReadError> {
    let everything = ListParams::default();
    let ours = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}"));
    let (networks, slices, claims, nodes, pods) = tokio::try_join!(
        list("networks.netclaim.dev: is netclaim installed?", Api::all(client.clone()), &everything),
        list("ResourceSlices", Api::all(client.clone()), &ours),
        list("ResourceClaims of all namespaces", Api::all(client.clone()), &everything),
        list("Nodes", Api::all(client.clone()), &everything),
        list("netclaim's Pods", Api::namespaced(client.clone(), namespace), &everything),
    )?;
    Ok(Snapshot { networks, slices, claims, nodes, pods })
}
