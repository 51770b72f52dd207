//! Reads attachments page by page. What is kept of an object is what is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceSlice};
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt as _};
use netclaim_api::network_attachment::NetworkAttachment;
use netclaim_api::{DRIVER_NAME, attributes};

use super::attachment::Attachment;
use crate::cluster::{ReadError, fold, get, list, permitted};

/// What has been found.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Found {
    /// The namespace that was read; `None` if it was all of them.
    pub(crate) namespace: Option<String>,
    /// By namespace, pod and interface.
    pub(crate) attachments: Vec<Attachment>,
    /// The objects that the user may not read, and the parts that are missing because of it.
    pub(crate) notes: Vec<String>,
}

/// Which attachments are read.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// The namespace; `None` for all of them.
    pub(crate) namespace: Option<String>,
    /// The pod, which must exist; `None` for all of the namespace.
    pub(crate) pod: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) network: Option<String>,
    /// Whether uplinks and modes are read, too.
    pub(crate) has_links: bool,
}

/// Reads the attachments that are chosen, as far as they are `wanted`.
///
/// # Errors
/// Fails if the claims cannot be read, and if there is no such pod.
pub(crate) async fn find(
    client: &Client,
    chosen: &Chosen,
    wanted: impl Fn(&Attachment) -> bool,
) -> Result<Found, ReadError> {
    let namespace = chosen.namespace.clone();
    let pod = match (&chosen.pod, &namespace) {
        (Some(pod), Some(namespace)) => {
            let what = format!("pod {namespace}/{pod}");
            match get(what, Api::<Pod>::namespaced(client.clone(), namespace), pod).await {
                Err(error) if !error.is_forbidden() => return Err(error),
                read => Some(read),
            }
        }
        _ => None,
    };
    let what = if namespace.is_some() { "ResourceClaims" } else { "ResourceClaims of all namespaces" };
    let claims = in_namespace::<ResourceClaim>(client, namespace.as_deref());
    let mut attachments = fold(what, &claims, &ListParams::default(), Vec::new, |found, claim| {
        let of_claim = Attachment::of_claim(&claim).into_iter();
        found.extend(of_claim.filter(|attachment| is_chosen(attachment, chosen) && wanted(attachment)));
        ControlFlow::Continue(())
    })
    .await?;
    let mut notes = Vec::new();
    let of_running = of_running_pods(client, namespace.as_deref(), &mut notes).await?.into_iter();
    attachments.extend(of_running.filter(|attachment| is_chosen(attachment, chosen) && wanted(attachment)));
    let nodes = match pod {
        // The claims say enough of a pod that the user may not read.
        Some(Err(_)) if attachments.iter().all(|attachment| attachment.node.is_some()) => Ok(()),
        Some(read) => read.map(|pod| set_node(&pod, &mut attachments)),
        None => nodes_of_pods(client, namespace.as_deref(), &mut attachments).await,
    };
    let follows = match &chosen.node {
        Some(_) => {
            "attachments to ClaimNetworks of scope Cluster are missing, because their nodes are not known"
        }
        None => "the nodes of ClaimNetworks of scope Cluster are not shown",
    };
    permitted(nodes, &mut notes, || format!("you may not read Pods: {follows}"))?;
    attachments.retain(|attachment| chosen.node.is_none() || attachment.node == chosen.node);
    if chosen.has_links && !attachments.is_empty() {
        let uplinks = uplinks(client, &mut attachments).await;
        let without = || "you may not read ResourceSlices: uplinks and modes are not shown".to_owned();
        permitted(uplinks, &mut notes, without)?;
    }
    attachments.sort();
    Ok(Found { namespace, attachments, notes })
}

/// Returns what pods have got while they ran. Its claims are in netclaim's namespace; without the right to
/// read them, the NetworkAttachments say the rest.
async fn of_running_pods(
    client: &Client,
    namespace: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<Vec<Attachment>, ReadError> {
    let api = in_namespace::<NetworkAttachment>(client, namespace);
    let objects = match list("NetworkAttachments", api, &ListParams::default()).await {
        Err(error) if error.is_unknown() => Vec::new(),
        read => permitted(read, notes, || {
            "you may not read NetworkAttachments: what pods have got while they ran is not shown".to_owned()
        })?,
    };
    let (mut found, mut may_read) = (Vec::new(), true);
    for object in &objects {
        let claim = object.status.as_ref().and_then(|status| status.claim.as_ref()).filter(|_| may_read);
        let read = match claim {
            Some(claim) => {
                let what = format!("ResourceClaim {}/{}", claim.namespace, claim.name);
                let api = Api::<ResourceClaim>::namespaced(client.clone(), claim.namespace.as_str());
                get(what, api, claim.name.as_str()).await.map(Some)
            }
            None => Ok(None),
        };
        let claim = match read {
            Err(error) if error.is_forbidden() => {
                may_read = false;
                notes.push(
                    "you may not read ResourceClaims of netclaim's namespace: the networks of NetworkAttachments are not shown"
                        .to_owned(),
                );
                None
            }
            Err(ReadError::Missing { .. }) => None,
            read => read?,
        };
        found.extend(Attachment::of_object(object, claim.as_ref()));
    }
    Ok(found)
}

fn in_namespace<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn is_chosen(attachment: &Attachment, chosen: &Chosen) -> bool {
    (chosen.pod.is_none() || attachment.pod == chosen.pod)
        && (chosen.network.is_none() || attachment.network == chosen.network)
}

/// Sets the node of the pod's attachments whose pool is of no node.
fn set_node(pod: &Pod, attachments: &mut [Attachment]) {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    for attachment in attachments.iter_mut().filter(|attachment| attachment.node.is_none()) {
        attachment.node = node.cloned();
    }
}

/// Sets the nodes of attachments whose pool is of no node.
async fn nodes_of_pods(
    client: &Client,
    namespace: Option<&str>,
    attachments: &mut [Attachment],
) -> Result<(), ReadError> {
    let without = attachments.iter().filter(|attachment| attachment.node.is_none());
    let pods: BTreeSet<(String, String)> = without
        .filter_map(|attachment| Some((attachment.namespace.clone(), attachment.pod.clone()?)))
        .collect();
    if pods.is_empty() {
        return Ok(());
    }
    let api = in_namespace::<Pod>(client, namespace);
    let nodes = fold("Pods", &api, &ListParams::default(), BTreeMap::new, |nodes, pod| {
        let name = (pod.namespace().unwrap_or_default(), pod.name_any());
        if let Some(node) = pod.spec.and_then(|spec| spec.node_name).filter(|_| pods.contains(&name)) {
            nodes.insert(name, node);
        }
        ControlFlow::Continue(())
    })
    .await?;
    for attachment in attachments.iter_mut().filter(|attachment| attachment.node.is_none()) {
        let Some(pod) = attachment.pod.clone() else { continue };
        attachment.node = nodes.get(&(attachment.namespace.clone(), pod)).cloned();
    }
    Ok(())
}

/// The link of a device, in the generation of its pool.
#[derive(Debug, Default)]
struct Link {
    generation: i64,
    uplink: Option<String>,
    mode: Option<String>,
}

/// Sets uplinks and modes.
async fn uplinks(client: &Client, attachments: &mut [Attachment]) -> Result<(), ReadError> {
    let devices: BTreeSet<(String, String)> =
        attachments.iter().map(|attachment| (attachment.pool.clone(), attachment.device.clone())).collect();
    let ours = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}"));
    let api = Api::<ResourceSlice>::all(client.clone());
    let links = fold("ResourceSlices", &api, &ours, BTreeMap::new, |links, slice| {
        let pool = slice.spec.pool;
        for device in slice.spec.devices.into_iter().flatten() {
            let name = (pool.name.clone(), device.name.clone());
            if !devices.contains(&name) {
                continue;
            }
            let link: &mut Link = links.entry(name).or_default();
            if pool.generation >= link.generation {
                let text = |attribute| text_of(&device, attribute);
                *link = Link {
                    generation: pool.generation,
                    uplink: text(attributes::UPLINK),
                    mode: text(attributes::MODE),
                };
            }
        }
        ControlFlow::Continue(())
    })
    .await?;
    for attachment in attachments {
        if let Some(link) = links.get(&(attachment.pool.clone(), attachment.device.clone())) {
            (attachment.uplink, attachment.mode) = (link.uplink.clone(), link.mode.clone());
        }
    }
    Ok(())
}

/// An attribute of the driver's domain; `None` if it is empty.
fn text_of(device: &Device, name: &str) -> Option<String> {
    let attributes = device.attributes.as_ref()?;
    let attribute = attributes.get(name).or_else(|| attributes.get(&format!("{DRIVER_NAME}/{name}")))?;
    attribute.string.clone().filter(|text| !text.is_empty())
}
