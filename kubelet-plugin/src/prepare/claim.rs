//! A ResourceClaim as the driver needs it, read from the API server's own text.
//!
//! The text matters: opaque parameters with repeated keys are refused, and a decoder in between would have
//! dropped one of them silently.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::NodeSelector;
use netclaim_api::merge::{Author, Layer};
use netclaim_api::opaque::Opaque;
use netclaim_api::{Invalid, Quantity, attributes};
use netclaim_cni::error_chain;
use netclaim_kubernetes::names::is_dns_label;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::pods::owner::{DeviceRef, ObjectRef};
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
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    allocation: Option<Allocation>,
    reserved_for: Vec<Consumer>,
}

#[derive(Deserialize)]
struct Consumer {
    resource: String,
    name: String,
    uid: String,
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
    let (_, _, status) = Document::read(text, uid)?;
    let pods = status.reserved_for.into_iter().filter(|consumer| consumer.resource == "pods");
    Ok(pods.map(|pod| pod.uid).collect())
}

impl Document {
    fn read(text: &str, uid: &str) -> Result<(ObjectRef, BTreeMap<String, String>, Status), ReadError> {
        let document: Self = serde_json::from_str(text)?;
        let Metadata { namespace, name, uid: found, annotations } = document.metadata;
        let object = ObjectRef { namespace, name, uid: found };
        if object.uid != uid {
            return Err(ReadError::Replaced { claim: object, wanted: uid.to_owned() });
        }
        Ok((object, annotations, document.status))
    }
}

impl Claim {
    /// Reads the claim that the kubelet calls `uid` from `text`, keeping what is `driver`'s.
    ///
    /// # Errors
    /// See [`ReadError`]; every message says which object and field it is about.
    pub(crate) fn read(text: &str, uid: &str, driver: &str) -> Result<Self, ReadError> {
        let (object, mut annotations, status) = Document::read(text, uid)?;
        let Some(Allocation { mut devices, node_selector }) = status.allocation else {
            return Err(ReadError::NotAllocated(object));
        };
        if status.reserved_for.is_empty() {
            return Err(ReadError::NotReserved(object));
        }
        devices.results.retain(|result| result.driver == driver);
        let observed = devices.results.extract_if(.., |result| result.admin_access);
        let observed = observed.map(|result| result.device()).collect();
        let refs = devices.results.iter().map(ResultEntry::device).collect();
        // A tenant may write anything there, and it becomes part of a path: only what can be a name counts.
        let pod_claim_name = annotations.remove(POD_CLAIM_NAME).filter(|name| is_dns_label(name));
        match Self::understand(&object, status.reserved_for, devices, driver) {
            Ok((pod, devices)) => Ok(Self { object, pod, pod_claim_name, node_selector, devices, observed }),
            Err(error) => {
                let message = error_chain(&error);
                Err(ReadError::Refused(Box::new(Refusal { claim: object, devices: refs, message })))
            }
        }
    }

    fn understand(
        object: &ObjectRef,
        reserved_for: Vec<Consumer>,
        devices: Devices,
        driver: &str,
    ) -> Result<(ObjectRef, Vec<AllocatedDevice>), ClaimError> {
        let pod = one_pod(object, reserved_for)?;
        let layers = layers(object, devices.config, driver)?;
        let devices = devices
            .results
            .iter()
            .map(|result| allocated(object, result, &layers))
            .collect::<Result<_, _>>()?;
        Ok((pod, devices))
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

fn one_pod(claim: &ObjectRef, reserved_for: Vec<Consumer>) -> Result<ObjectRef, ClaimError> {
    let owner = claim.clone();
    match <[Consumer; 1]>::try_from(reserved_for) {
        Ok([Consumer { resource, name, uid }]) if resource == "pods" => {
            Ok(ObjectRef { namespace: owner.namespace, name, uid })
        }
        Ok([Consumer { resource, name, .. }]) => Err(ClaimError::NoPod { claim: owner, resource, name }),
        Err(several) => {
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
fn layers(claim: &ObjectRef, entries: Vec<ConfigEntry>, driver: &str) -> Result<Vec<Selected>, ClaimError> {
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
        let Some(opaque) = entry.opaque.filter(|opaque| opaque.driver == driver) else {
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
        selected.push(Selected { requests: entry.requests, layer: layer(config) });
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
