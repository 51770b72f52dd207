//! Reads what a template is made of, and no more.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::ListParams;
use kube::{Api, Client};
use netclaim_api::addresses::{AddressPool, AddressTotals};
use netclaim_api::device::DeviceName;
use netclaim_api::network::{ClaimNetwork, ClaimNetworkSpec, Scope};
use netclaim_api::{DRIVER_NAME, NetworkName};

use super::error::TemplateError;
use crate::cluster::{ReadError, get, list_kept};
use crate::trim;

/// What has been read.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) networks: Vec<Network>,
    /// Those of nodes, with the devices of the ClaimNetworks only.
    pub(super) slices: Vec<ResourceSlice>,
}

/// A ClaimNetwork.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) name: NetworkName,
    pub(super) spec: ClaimNetworkSpec,
    /// `None` if it has no `spec.addresses`, the controller has not counted them, or the user may not know.
    pub(super) totals: Option<AddressTotals>,
}

impl Network {
    /// Returns the name of its device.
    pub(super) fn device(&self) -> String {
        DeviceName::Network(self.name.clone()).to_string()
    }

    /// Whether nodes publish it.
    pub(super) fn is_of_nodes(&self) -> bool {
        self.spec.scope == Scope::Node
    }
}

/// Reads the ClaimNetworks, and what nodes publish of them, or only this node.
///
/// # Errors
/// Fails if one of them does not exist, and with what the API server says.
pub(super) async fn cluster(
    client: &Client,
    names: &BTreeSet<&NetworkName>,
    node: Option<&str>,
) -> Result<Cluster, TemplateError> {
    let mut networks = Vec::new();
    for name in names {
        networks.push(network(client, name).await?);
    }
    let devices: BTreeSet<String> =
        networks.iter().filter(|network| network.is_of_nodes()).map(Network::device).collect();
    if devices.is_empty() {
        return Ok(Cluster { networks, slices: Vec::new() });
    }
    let of_node = node.map(|node| format!(",spec.nodeName={node}")).unwrap_or_default();
    let ours = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}{of_node}"));
    let slices = list_kept("ResourceSlices", Api::all(client.clone()), &ours, |slice| {
        let mut slice: ResourceSlice = trim::whole(slice)?;
        slice.spec.node_name.as_ref()?;
        slice.spec.devices.iter_mut().for_each(|found| found.retain(|one| devices.contains(&one.name)));
        Some(slice)
    });
    Ok(Cluster { slices: slices.await?, networks })
}

async fn network(client: &Client, name: &NetworkName) -> Result<Network, TemplateError> {
    let api = Api::<ClaimNetwork>::all(client.clone());
    let network = match get(format!("ClaimNetwork {name}"), api, name.as_str()).await {
        Err(ReadError::Missing { .. }) => return Err(TemplateError::NoNetwork(name.clone())),
        read => read?,
    };
    let pool = network.spec.addresses.as_ref().and_then(|addresses| addresses.pool.as_deref());
    let totals = match pool {
        None => network.status.and_then(|status| status.addresses),
        Some(pool) => {
            match get(format!("AddressPool {pool}"), Api::<AddressPool>::all(client.clone()), pool).await {
                Ok(pool) => pool.status.and_then(|status| status.addresses),
                Err(ReadError::Missing { .. }) => None,
                Err(error) if error.is_forbidden() => None,
                Err(error) => return Err(error.into()),
            }
        }
    };
    Ok(Network { name: name.clone(), spec: network.spec, totals })
}
