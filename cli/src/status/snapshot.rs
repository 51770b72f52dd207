//! Reads what a status is made of.

use std::ops::ControlFlow;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{DeviceTaintRule, ResourceClaim, ResourceSlice};
use kube::api::ListParams;
use kube::{Api, Client};
use netclaim_api::DRIVER_NAME;
use netclaim_api::addresses::AddressPool;
use netclaim_api::network::ClaimNetwork;
use netclaim_api::reasons::{PodEvent, Reason as _};

use super::agents::Answers;
use super::refused::{Refused, refused};
use crate::cluster::{ReadError, fold, list, list_kept};
use crate::components::{AGENT, is_labelled};
use crate::trim;

/// Most pods of others that are kept.
const MAX_REFUSED: usize = 100;

/// The objects of one moment, more or less, without what the status does not need.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) networks: Vec<ClaimNetwork>,
    /// None if the user may not read them.
    pub(super) pools: Vec<AddressPool>,
    /// Those of netclaim.
    pub(super) slices: Vec<ResourceSlice>,
    /// `None` if the user may not read them or the cluster has none.
    pub(super) rules: Option<Vec<DeviceTaintRule>>,
    pub(super) claims: Vec<ResourceClaim>,
    pub(super) nodes: Vec<Node>,
    /// Those of netclaim's namespace.
    pub(super) pods: Vec<Pod>,
    /// The pods that DaemonSets of agents make. None if the user may not read DaemonSets.
    pub(super) agents: Vec<PodSpec>,
    /// Pods whose containers a runtime without CDI refuses.
    pub(super) refused: Vec<Refused>,
    /// Events of DELs that were given up. None if the user may not read events.
    pub(super) given_up: Vec<Event>,
    /// What agents say, of those that were asked.
    pub(super) answers: Answers,
}

/// Reads the cluster; netclaim is in this namespace.
///
/// # Errors
/// See [`ReadError`].
pub(super) async fn read(client: &Client, namespace: &str) -> Result<Snapshot, ReadError> {
    let everything = ListParams::default();
    let ours = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}"));
    let given_up =
        ListParams::default().fields(&format!("reason={}", PodEvent::NetworkDetachGivenUp.as_str()));
    let (networks, pools, slices, rules, claims, nodes, pods, agents, refused, given_up) = tokio::try_join!(
        list("claimnetworks.netclaim.dev: is netclaim installed?", Api::all(client.clone()), &everything),
        readable(list("AddressPools", Api::all(client.clone()), &everything)),
        list_kept("ResourceSlices", Api::all(client.clone()), &ours, trim::whole),
        readable(async { list("DeviceTaintRules", Api::all(client.clone()), &everything).await.map(Some) }),
        list_kept("ResourceClaims of all namespaces", Api::all(client.clone()), &everything, trim::held),
        list_kept("Nodes", Api::all(client.clone()), &everything, trim::node),
        list_kept("netclaim's Pods", Api::namespaced(client.clone(), namespace), &everything, trim::own_pod),
        readable(agents(client, namespace)),
        readable(refused_pods(client)),
        readable(list_kept("Events", Api::all(client.clone()), &given_up, trim::whole)),
    )?;
    Ok(Snapshot {
        networks,
        pools,
        slices,
        rules,
        claims,
        nodes,
        pods,
        agents,
        refused,
        given_up,
        answers: Answers::default(),
    })
}

/// Reads which pods the agents' DaemonSets make.
async fn agents(client: &Client, namespace: &str) -> Result<Vec<PodSpec>, ReadError> {
    let (sets, everything) = (Api::<DaemonSet>::namespaced(client.clone(), namespace), ListParams::default());
    let sets = list("DaemonSets", sets, &everything).await?;
    let templates = sets.into_iter().map(|set| set.spec.template);
    let of_agents =
        templates.filter(|template| template.metadata.as_ref().is_some_and(|meta| is_labelled(meta, AGENT)));
    Ok(of_agents.filter_map(|template| template.spec).collect())
}

/// Reads the pods that have not started.
async fn refused_pods(client: &Client) -> Result<Vec<Refused>, ReadError> {
    let (pods, pending) =
        (Api::<Pod>::all(client.clone()), ListParams::default().fields("status.phase=Pending"));
    fold("Pods", &pods, &pending, Vec::new, |found, pod| {
        found.extend(refused(&pod));
        if found.len() < MAX_REFUSED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .await
}

/// Goes on without what the user may not read or the cluster does not know.
async fn readable<T: Default>(read: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    match read.await {
        Err(error) if error.is_forbidden() || error.is_unknown() => Ok(T::default()),
        read => read,
    }
}
