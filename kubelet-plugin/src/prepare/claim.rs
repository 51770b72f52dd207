//! A ResourceClaim as the driver needs it, read from the API server's own text.
//!
//! The text matters: opaque parameters with repeated keys are refused, and a decoder in between would have
//! dropped one of them silently.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::NodeSelector;
use netclaim_api::merge::{Author, Layer};
use netclaim_api::network_attachment::{NETWORK_ATTACHMENT_LABEL, NETWORK_ATTACHMENTS, attachment_name};
use netclaim_api::opaque::Opaque;
use netclaim_api::{GROUP, Invalid, Quantity, attributes};
use netclaim_cni::error_chain;
use netclaim_kubernetes::names::is_dns_label;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::pods::owner::{ByAttachment, DeviceRef, ObjectRef};
use crate::reports::Refusal;

/// Where the claim's controller notes the name of `pod.spec.resourceClaims` that a claim was made for from a
/// template.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// Why a claim cannot be read. Reading it again may help, but for [`ReadError::Refused`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The API server gave no answer.
    #[error("cannot read {object} from the API server: no answer in {} s", limit.as_secs())]
    Timeout {
        /// Kind, namespace and name.
        object: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The API server answered with an error.
    #[error("cannot read {object} from the API server")]
    Api {
        /// Kind, namespace and name.
        object: String,
        /// Its message.
        #[source]
        source: Box<kube::Error>,
    },
    /// The labels of the pod are not known.
    #[error("cannot read the labels of pod {0}: it is gone, or the API server does not answer")]
    Pod(ObjectRef),
    /// No request can be made for it.
    #[error("cannot ask for {object}")]
    Request {
        /// Kind, namespace and name.
        object: String,
        /// Why not.
        #[source]
        source: kube::core::request::Error,
    },
    /// The answer is not a ResourceClaim.
    #[error("the API server's ResourceClaim cannot be read")]
    Json(#[from] serde_json::Error),
    /// Another claim has the name now.
    #[error("ResourceClaim {claim} was replaced: it has UID {}, the pod's had {wanted}", claim.uid)]
    Replaced {
        /// The claim that is there.
        claim: ObjectRef,
        /// The UID of the one that the kubelet asks for.
        wanted: String,
    },
    /// Nothing is allocated.
    #[error("ResourceClaim {0} is not allocated")]
    NotAllocated(ObjectRef),
    /// No pod may use it.
    #[error("ResourceClaim {0} is not reserved for any pod")]
    NotReserved(ObjectRef),
    /// No pod is given it by the kubelet.
    #[error("ResourceClaim {0} is that of a NetworkAttachment")]
    OfAttachment(ObjectRef),
    /// Reading it again will not help.
    #[error("{}", .0.message)]
    Refused(Box<Refusal>),
}

/// A mistake in a claim that has been read.
#[derive(Debug, PartialEq, thiserror::Error)]
enum ClaimError {
    #[error("ResourceClaim {claim} is reserved for {resource} {name:?}: an attachment belongs to one pod")]
    NoPod { claim: ObjectRef, resource: String, name: String },
    #[error(
        "ResourceClaim {claim} is shared by pods {pods}: an attachment belongs to one pod, so give each pod its own claim, \
         for example by resourceClaimTemplateName"
    )]
    Shared { claim: ObjectRef, pods: String },
    #[error(
        "ResourceClaim {claim} is not that of NetworkAttachment {attachment}: it needs the label {NETWORK_ATTACHMENT_LABEL} with the \
         object's UID, and to be reserved for it alone"
    )]
    NotOfAttachment { claim: ObjectRef, attachment: String },
    #[error(
        "interfaceName: ResourceClaim {claim} has {devices} devices, and the name is for one: leave it out"
    )]
    OneName { claim: ObjectRef, devices: usize },
    #[error("ResourceClaim {claim}: an allocation config has the unknown source {source_:?}")]
    Source { claim: ObjectRef, source_: String },
    #[error("ResourceClaim {claim}")]
    Config {
        claim: ObjectRef,
        #[source]
        source: Invalid,
    },
    #[error("consumedCapacity.bandwidth of ResourceClaim {claim}")]
    Bandwidth {
        claim: ObjectRef,
        #[source]
        source: Invalid,
    },
}

/// An allocated claim with the devices that are ours.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claim {
    pub(crate) object: ObjectRef,
    /// The one pod that uses it.
    pub(crate) pod: ObjectRef,
    /// The name by which the pod's specification calls it, where it was made from a template.
    pub(crate) pod_claim_name: Option<String>,
    /// The NetworkAttachment that it is for, instead of the kubelet's pods.
    pub(crate) by_attachment: Option<ByAttachment>,
    /// The nodes that the allocation is for; `None` where it is for all.
    pub(crate) node_selector: Option<NodeSelector>,
    /// Our devices, in the order of the allocation.
    pub(crate) devices: Vec<AllocatedDevice>,
    /// Those that an admin only looks at (`adminAccess`): others may have them, so nothing is attached.
    pub(crate) observed: Vec<DeviceRef>,
}

/// One device that the scheduler allocated from our pools.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AllocatedDevice {
    pub(crate) device: DeviceRef,
    /// Bandwidth charged for it, in bit/s.
    pub(crate) bandwidth: Option<Quantity>,
    /// Segmentation ids charged for it: those that the claim chose.
    pub(crate) segments: BTreeSet<u32>,
    /// Whether none of its addresses is charged, although it has some.
    pub(crate) takes_no_address: bool,
    /// The configurations that apply, classes first.
    pub(crate) layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Document {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    allocation: Option<Allocation>,
    reserved_for: Vec<Consumer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Consumer {
    #[serde(default)]
    api_group: String,
    resource: String,
    name: String,
    uid: String,
}

impl Consumer {
    fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }

    fn is_attachment(&self, uid: &str) -> bool {
        (self.api_group.as_str(), self.resource.as_str()) == (GROUP, NETWORK_ATTACHMENTS) && self.uid == uid
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Allocation {
    devices: Devices,
    node_selector: Option<NodeSelector>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Devices {
    results: Vec<ResultEntry>,
    config: Vec<ConfigEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResultEntry {
    request: String,
    driver: String,
    pool: String,
    device: String,
    #[serde(rename = "shareID")]
    share_id: Option<String>,
    #[serde(default)]
    consumed_capacity: BTreeMap<String, String>,
    #[serde(default)]
    admin_access: bool,
}

#[derive(Deserialize)]
struct ConfigEntry {
    source: String,
    #[serde(default)]
    requests: Vec<String>,
    opaque: Option<OpaqueEntry>,
}

#[derive(Deserialize)]
struct OpaqueEntry {
    driver: String,
    parameters: Box<RawValue>,
}

/// UIDs of the pods that the claim `uid` is reserved for.
///
/// # Errors
/// When `text` is not that claim.
pub(crate) fn reserved_for(text: &str, uid: &str) -> Result<BTreeSet<String>, ReadError> {
    let Document { status, .. } = Document::read(text, uid)?;
    let pods = status.reserved_for.into_iter().filter(Consumer::is_pod);
    Ok(pods.map(|pod| pod.uid).collect())
}

impl Document {
    fn read(text: &str, uid: &str) -> Result<Self, ReadError> {
        let document: Self = serde_json::from_str(text)?;
        if document.metadata.uid != uid {
            return Err(ReadError::Replaced { claim: document.object(), wanted: uid.to_owned() });
        }
        Ok(document)
    }

    fn object(&self) -> ObjectRef {
        let Metadata { namespace, name, uid, .. } = &self.metadata;
        ObjectRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }

    /// Whether it is reserved for a pod that is named like it.
    fn has_pod_of_its_name(&self) -> bool {
        let is_it = |consumer: &Consumer| consumer.is_pod() && consumer.name == self.metadata.name;
        self.status.reserved_for.iter().any(is_it)
    }

    /// Whether it is the claim of the NetworkAttachment with this UID.
    fn is_of_attachment(&self, uid: &str) -> bool {
        self.metadata.labels.get(NETWORK_ATTACHMENT_LABEL).is_some_and(|labelled| labelled == uid)
    }
}

impl Claim {
    /// Reads the claim that the kubelet calls `uid` from `text`, keeping what is `driver`'s.
    ///
    /// # Errors
    /// See [`ReadError`]; every message says which object and field it is about.
    pub(crate) fn read(text: &str, uid: &str, driver: &str) -> Result<Self, ReadError> {
        let document = Document::read(text, uid)?;
        let labelled = document.metadata.labels.get(NETWORK_ATTACHMENT_LABEL);
        // The pod by which the scheduler is asked has the claim's name.
        let has_probe = document.has_pod_of_its_name();
        if has_probe && labelled.is_some_and(|uid| document.metadata.name == attachment_name(uid)) {
            return Err(ReadError::OfAttachment(document.object()));
        }
        let mut claim = Self::of(&document, driver, one_pod)?;
        // A tenant may write anything there, and it becomes part of a path: only what can be a name counts.
        let name = document.metadata.annotations.get(POD_CLAIM_NAME);
        claim.pod_claim_name = name.filter(|name| is_dns_label(name)).cloned();
        Ok(claim)
    }

    /// Reads the claim `uid`, as [`read`](Self::read) does, that a NetworkAttachment has for a running pod.
    ///
    /// # Errors
    /// See [`ReadError`]; a claim that is not that of the object is refused.
    pub(crate) fn read_for(
        by: &ByAttachment,
        pod: &ObjectRef,
        (text, uid, driver): (&str, &str, &str),
    ) -> Result<Self, ReadError> {
        let document = Document::read(text, uid)?;
        let is_its = document.is_of_attachment(&by.uid);
        let consumer = |claim: &ObjectRef, consumers: &[Consumer]| match consumers {
            [one] if one.is_attachment(&by.uid) && is_its => Ok(pod.clone()),
            _ => {
                let attachment = format!("{}/{}", pod.namespace, by.name);
                Err(ClaimError::NotOfAttachment { claim: claim.clone(), attachment })
            }
        };
        let claim = Self::of(&document, driver, consumer)?;
        if by.interface_name.is_some() && claim.devices.len() > 1 {
            let (object, devices) = (claim.object.clone(), claim.devices.len());
            let error = ClaimError::OneName { claim: object, devices };
            return Err(ReadError::Refused(Box::new(claim.refuse(&error))));
        }
        Ok(Self { by_attachment: Some(by.clone()), ..claim })
    }

    fn of(
        document: &Document,
        driver: &str,
        consumer: impl FnOnce(&ObjectRef, &[Consumer]) -> Result<ObjectRef, ClaimError>,
    ) -> Result<Self, ReadError> {
        let (object, status) = (document.object(), &document.status);
        let Some(Allocation { devices, node_selector }) = &status.allocation else {
            return Err(ReadError::NotAllocated(object));
        };
        if status.reserved_for.is_empty() {
            return Err(ReadError::NotReserved(object));
        }
        let ours = devices.results.iter().filter(|result| result.driver == driver);
        let (observed, ours): (Vec<_>, Vec<_>) = ours.partition(|result| result.admin_access);
        let observed = observed.into_iter().map(ResultEntry::device).collect();
        let refs = ours.iter().map(|result| result.device()).collect();
        let understood = || {
            let pod = consumer(&object, &status.reserved_for)?;
            let layers = layers(&object, &devices.config, driver)?;
            let devices = ours.iter().map(|result| allocated(&object, result, &layers));
            Ok((pod, devices.collect::<Result<_, _>>()?))
        };
        match understood() {
            Ok((pod, devices)) => {
                let node_selector = node_selector.clone();
                let (pod_claim_name, by_attachment) = (None, None);
                Ok(Self { object, pod, pod_claim_name, by_attachment, node_selector, devices, observed })
            }
            Err(error) => {
                let error: ClaimError = error;
                let message = error_chain(&error);
                Err(ReadError::Refused(Box::new(Refusal { claim: object, devices: refs, message })))
            }
        }
    }

    /// A refusal of this claim.
    pub(crate) fn refuse(&self, error: &dyn std::error::Error) -> Refusal {
        let devices = self.devices.iter().map(|allocated| allocated.device.clone()).collect();
        Refusal { claim: self.object.clone(), devices, message: error_chain(error) }
    }
}

impl ResultEntry {
    fn device(&self) -> DeviceRef {
        let Self { request, pool, device, share_id, .. } = self;
        DeviceRef {
            request: request.clone(),
            pool: pool.clone(),
            device: device.clone(),
            share_id: share_id.clone(),
        }
    }
}

fn one_pod(claim: &ObjectRef, reserved_for: &[Consumer]) -> Result<ObjectRef, ClaimError> {
    let owner = claim.clone();
    match reserved_for {
        [pod] if pod.is_pod() => {
            Ok(ObjectRef { namespace: owner.namespace, name: pod.name.clone(), uid: pod.uid.clone() })
        }
        [Consumer { resource, name, .. }] => {
            Err(ClaimError::NoPod { claim: owner, resource: resource.clone(), name: name.clone() })
        }
        several => {
            let names: Vec<&str> = several.iter().map(|consumer| consumer.name.as_str()).collect();
            Err(ClaimError::Shared { claim: owner, pods: names.join(", ") })
        }
    }
}

struct Selected {
    requests: Vec<String>,
    layer: Layer,
}

/// The configurations for `driver`, numbered as their author wrote them.
fn layers(claim: &ObjectRef, entries: &[ConfigEntry], driver: &str) -> Result<Vec<Selected>, ClaimError> {
    let (mut classes, mut claims) = (0.., 0..);
    let mut selected = Vec::new();
    for entry in entries {
        let (author, numbers) = match entry.source.as_str() {
            "FromClass" => (Author::Class, &mut classes),
            "FromClaim" => (Author::Claim, &mut claims),
            other => {
                return Err(ClaimError::Source { claim: claim.clone(), source_: other.to_owned() });
            }
        };
        let index = numbers.next().unwrap_or_default();
        let Some(opaque) = entry.opaque.as_ref().filter(|opaque| opaque.driver == driver) else {
            continue;
        };
        let decoded = Opaque::decode(opaque.parameters.get());
        let layer = |config| Layer { author, index, config };
        let config = decoded.map_err(|e| {
            // Only the author and the number are needed to name the place.
            let place = layer(Opaque::Attachment(netclaim_api::AttachmentConfig::default())).place();
            ClaimError::Config {
                claim: claim.clone(),
                source: e.within(&format!("{place}.opaque.parameters")),
            }
        })?;
        selected.push(Selected { requests: entry.requests.clone(), layer: layer(config) });
    }
    Ok(selected)
}

fn allocated(
    claim: &ObjectRef,
    result: &ResultEntry,
    layers: &[Selected],
) -> Result<AllocatedDevice, ClaimError> {
    let main = result.request.split('/').next().unwrap_or_default();
    let applies =
        |s: &&Selected| s.requests.is_empty() || s.requests.iter().any(|r| *r == result.request || r == main);
    let layers = layers.iter().filter(applies).map(|s| s.layer.clone()).collect();
    let bandwidth = result
        .consumed_capacity
        .get(attributes::BANDWIDTH)
        .map(|text| Quantity::rounded_up(text))
        .transpose();
    let bandwidth = bandwidth.map_err(|source| ClaimError::Bandwidth { claim: claim.clone(), source })?;
    let chosen = |(name, text): (&String, &String)| {
        let taken = Quantity::rounded_up(text).is_ok_and(|amount| amount.value() > 0);
        attributes::id_of_segment(name).filter(|_| taken)
    };
    let segments = result.consumed_capacity.iter().filter_map(chosen).collect();
    let is_none = |text: &String| Quantity::rounded_up(text).is_ok_and(|amount| amount.value() == 0);
    let takes_no_address = result.consumed_capacity.get(attributes::ADDRESSES).is_some_and(is_none);
    Ok(AllocatedDevice { device: result.device(), bandwidth, segments, takes_no_address, layers })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim() -> Value {
        let parameters = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AttachmentConfig", "interfaceName": "data0"});
        let opaque = |source: &str, requests: Value, driver: &str| json!({"source": source, "requests": requests, "opaque": {"driver": driver, "parameters": parameters}});
        json!({
            "metadata": {"namespace": "default", "name": "c", "uid": "u1", "labels": {}},
            "status": {
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "pu"}],
                "allocation": {"devices": {
                    "results": [
                        {"request": "net", "driver": "netclaim.dev", "pool": "node0", "device": "net-storage",
                         "shareID": "s", "consumedCapacity": {"bandwidth": "1000000000", "addresses": "1"}},
                        {"request": "gpu", "driver": "other.dev", "pool": "node0", "device": "gpu0"},
                        {"request": "two/b", "driver": "netclaim.dev", "pool": "node0", "device": "nic-eth2"}],
                    "config": [
                        opaque("FromClass", json!(["net"]), "netclaim.dev"),
                        opaque("FromClaim", json!(["gpu"]), "other.dev"),
                        opaque("FromClaim", json!(["two"]), "netclaim.dev"),
                        opaque("FromClaim", json!([]), "netclaim.dev")]}}}
        })
    }

    fn read(claim: &Value) -> Result<Claim, ReadError> {
        Claim::read(&claim.to_string(), "u1", "netclaim.dev")
    }

    #[test]
    fn our_devices_get_the_configurations_that_name_them() {
        let claim = read(&claim()).expect("readable");
        let places: Vec<Vec<String>> =
            claim.devices.iter().map(|d| d.layers.iter().map(Layer::place).collect()).collect();
        assert_eq!(places, [["class config[0]", "claim config[2]"], ["claim config[1]", "claim config[2]"]]);
        assert_eq!(claim.devices[0].bandwidth, Some(Quantity::new(1_000_000_000)));
        assert_eq!(claim.devices[1].device.device, "nic-eth2");
        assert_eq!(claim.pod.uid, "pu");
    }

    #[test]
    fn amounts_are_read_in_every_spelling_that_the_api_server_takes() {
        for (text, amount) in [("1e9", 1_000_000_000), ("1G", 1_000_000_000), ("1500m", 2)] {
            let mut claim = claim();
            claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["bandwidth"] =
                json!(text);
            assert_eq!(
                read(&claim).expect("readable").devices[0].bandwidth,
                Some(Quantity::new(amount)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_claim_knows_its_nodes_and_its_pods() {
        let mut claim = claim();
        let selector = json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["node0"]}]}]});
        claim["status"]["allocation"]["nodeSelector"] = selector.clone();
        let read = read(&claim).expect("readable");
        assert_eq!(serde_json::to_value(read.node_selector).expect("JSON"), selector);
        let pods = reserved_for(&claim.to_string(), "u1").expect("readable");
        assert_eq!(pods, BTreeSet::from(["pu".to_owned()]));
        assert!(reserved_for(&claim.to_string(), "u2").is_err(), "another claim");
    }

    #[test]
    fn a_device_with_admin_access_is_not_attached() {
        let mut admin = claim();
        admin["status"]["allocation"]["devices"]["results"][2]["adminAccess"] = json!(true);
        let claim = read(&admin).expect("readable");
        assert_eq!((claim.devices.len(), claim.observed.len()), (1, 1));
        assert_eq!(claim.observed[0].device, "nic-eth2");
    }

    #[test]
    fn a_claim_from_a_template_knows_the_name_that_the_pod_gave_it() {
        assert_eq!(read(&claim()).expect("readable").pod_claim_name, None);
        for (name, known) in [("net", Some("net")), ("../../etc", None)] {
            let mut generated = claim();
            generated["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": name});
            assert_eq!(read(&generated).expect("readable").pod_claim_name.as_deref(), known);
        }
    }

    #[test]
    fn a_claim_that_is_not_ready_yet_is_read_again() {
        let mut unallocated = claim();
        unallocated["status"] = json!({});
        assert!(matches!(read(&unallocated), Err(ReadError::NotAllocated(_))));
        let mut replaced = claim();
        replaced["metadata"]["uid"] = json!("u2");
        assert!(matches!(read(&replaced), Err(ReadError::Replaced { .. })));
    }

    #[test]
    fn a_shared_claim_is_refused_with_the_way_out() {
        let mut shared = claim();
        shared["status"]["reservedFor"] = json!([{"resource": "pods", "name": "a", "uid": "1"}, {"resource": "pods", "name": "b", "uid": "2"}]);
        let error = read(&shared).expect_err("refused").to_string();
        assert!(
            error.contains("shared by pods a, b") && error.contains("resourceClaimTemplateName"),
            "{error}"
        );
    }

    #[test]
    fn a_consumer_that_is_called_pods_in_another_group_is_no_pod() {
        let mut foreign = claim();
        foreign["status"]["reservedFor"][0]["apiGroup"] = json!("example.com");
        let error = read(&foreign).expect_err("refused").to_string();
        assert!(error.contains("reserved for pods \"p\""), "{error}");
        assert_eq!(reserved_for(&foreign.to_string(), "u1").expect("readable"), BTreeSet::new());
    }

    #[test]
    fn a_network_attachment_has_the_claim_with_its_label_and_its_reservation_alone() {
        let by = ByAttachment {
            name: "web-0-backup".into(),
            uid: "au".into(),
            created: "2026-11-29T00:00:00Z".into(),
            interface_name: None,
            sandbox_id: "s1".into(),
        };
        let pod = ObjectRef { namespace: "shop".into(), name: "web-0".into(), uid: "pu".into() };
        let ours = json!({"apiGroup": "netclaim.dev", "resource": "networkattachments", "name": by.name, "uid": "au"});
        let of = |label: &str, consumers: Value| {
            let mut claim = claim();
            claim["metadata"]["name"] = json!("attachment-au");
            claim["metadata"]["labels"] = json!({"netclaim.dev/network-attachment": label});
            claim["status"]["reservedFor"] = consumers;
            claim
        };
        let read_for = |by: &ByAttachment, claim: &Value| {
            Claim::read_for(by, &pod, (&claim.to_string(), "u1", "netclaim.dev"))
        };
        let its = of("au", json!([ours]));
        let found = read_for(&by, &its).expect("readable");
        assert_eq!((&found.pod, found.by_attachment.as_ref()), (&pod, Some(&by)));
        let probe = json!({"resource": "pods", "name": "attachment-au", "uid": "ppu"});
        let probed = read(&of("au", json!([probe, ours])));
        assert!(matches!(probed, Err(ReadError::OfAttachment(_))), "the kubelet asks for it");
        let copied = read(&of("au", json!([{"resource": "pods", "name": "p", "uid": "pu"}])));
        assert_eq!(copied.expect("a pod's, whatever it is called").pod.name, "p");
        let mut others = ours.clone();
        others["uid"] = json!("bu");
        let mut of_pods = ours.clone();
        of_pods["resource"] = json!("pods");
        for claim in [
            of("bu", json!([ours])),
            of("au", json!([ours, {"resource": "pods", "name": "p", "uid": "1"}])),
            of("au", json!([others])),
            of("au", json!([of_pods])),
        ] {
            let error = read_for(&by, &claim).expect_err("refused").to_string();
            assert!(error.contains("is not that of NetworkAttachment shop/web-0-backup"), "{error}");
        }
        assert!(matches!(read_for(&by, &of("au", json!([]))), Err(ReadError::NotReserved(_))));
        let named = ByAttachment { interface_name: Some("lan0".parse().expect("a name")), ..by };
        let error = read_for(&named, &its).expect_err("two devices").to_string();
        assert!(error.starts_with("interfaceName: ") && error.contains("has 2 devices"), "{error}");
    }

    #[test]
    fn a_repeated_key_in_the_parameters_is_refused_by_name() {
        let text = claim().to_string().replacen(
            "\"interfaceName\":\"data0\"",
            "\"interfaceName\":\"a\",\"interfaceName\":\"b\"",
            1,
        );
        let error = Claim::read(&text, "u1", "netclaim.dev").expect_err("refused").to_string();
        assert!(
            error.contains("class config[0].opaque.parameters: key `interfaceName` occurs twice"),
            "{error}"
        );
    }
}
