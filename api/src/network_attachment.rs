//! `NetworkAttachment`: networks that a pod gets while it runs, and loses again.
//!
//! ```text
//!   controller: a ResourceClaim in its own namespace ── scheduler allocates ──> Allocated=True, status.node
//!   agent of that node: ADD in the running pod ──> Attached=True, status.interfaces
//!   the object is deleted, or the pod is gone: Allocated=False ──> DEL ──> Attached=False ──> claim released
//! ```
//!
//! No pod names that claim, so Kubernetes neither prepares nor releases it. The controller and the agent do,
//! and take turns by the two conditions.

use std::net::IpAddr;

use netclaim_cni::{IfName, MacAddr};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::decode::decode;
use crate::{Invalid, ObjectName};

/// Plural of the kind, as requests and reservations of claims name it.
pub const NETWORK_ATTACHMENTS: &str = "networkattachments";

/// Finalizer of a NetworkAttachment. The controller removes it when nothing is attached or allocated any
/// more.
pub const DETACH_FINALIZER: &str = "netclaim.dev/detach";

/// Label of the claim and of the probe pod of a NetworkAttachment: its UID.
pub const NETWORK_ATTACHMENT_LABEL: &str = "netclaim.dev/network-attachment";

/// Annotation of that claim: the NetworkAttachment, as `NAMESPACE/NAME`. Kubernetes deletes what an object of
/// another namespace owns, so the claim has no owner.
pub const NETWORK_ATTACHMENT_OF: &str = "netclaim.dev/network-attachment-of";

/// Finalizer of that claim. Kubernetes' claim controller removes it when the claim is deleted and not
/// allocated.
pub const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Returns the name of the claim of the NetworkAttachment with this UID, and of its probe pod. It does not
/// depend on when they are made, so that a controller finds what an earlier one has left.
pub fn attachment_name(uid: &str) -> String {
    format!("attachment-{uid}")
}

/// Networks that a pod gets while it runs: those that a ResourceClaimTemplate asks for. They are detached
/// when the object is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(
    feature = "crd",
    derive(kube::CustomResource),
    kube(
        group = "netclaim.dev",
        version = "v1alpha1",
        kind = "NetworkAttachment",
        plural = "networkattachments",
        shortname = "netatt",
        category = "netclaim",
        namespaced,
        status = "NetworkAttachmentStatus",
        doc = "Networks that a pod gets while it runs: those that a ResourceClaimTemplate asks for. They are detached when the object is deleted.",
        selectable = ".status.node",
        printcolumn = r#"{"name":"Pod","type":"string","jsonPath":".spec.podName"}"#,
        printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node","description":"node of the pod"}"#,
        printcolumn = r#"{"name":"Interfaces","type":"string","jsonPath":".status.interfaces[*].name","description":"interfaces in the pod"}"#,
        printcolumn = r#"{"name":"IPs","type":"string","jsonPath":".status.interfaces[*].ips","description":"addresses of the interfaces"}"#,
        printcolumn = r#"{"name":"Allocated","type":"string","jsonPath":".status.conditions[?(@.type==\"Allocated\")].status","description":"whether the scheduler has allocated the devices"}"#,
        printcolumn = r#"{"name":"Attached","type":"string","jsonPath":".status.conditions[?(@.type==\"Attached\")].status","description":"whether the pod has the interfaces"}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Allocated\")].reason","description":"why the devices are allocated or not","priority":1}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = json!([
    {"rule": "self == oldSelf", "message": "a NetworkAttachment cannot be changed: delete it, and create another one"}])))]
pub struct NetworkAttachmentSpec {
    /// Name of the pod, in the namespace of the object. When the pod is gone, the next one of this name gets
    /// the networks, as those of a StatefulSet have it.
    pub pod_name: ObjectName,
    /// UID of the pod, if only this one may get the networks. By default, every pod of the name gets them.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "podUID")]
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[0-9A-Za-z-]*$"))]
    pub pod_uid: Option<String>,
    /// Name of the ResourceClaimTemplate that says what to ask for, in the namespace of the object.
    pub resource_claim_template_name: ObjectName,
    /// Name of the interface in the pod. It is only for a template that asks for one device, and replaces the
    /// name that the template has. By default, it is that of the template, or the first free `netN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<IfName>,
}

/// The state of a NetworkAttachment. The controller writes it, except for the interfaces and the condition
/// `Attached`, which the agent of the node writes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkAttachmentStatus {
    /// UID of the pod that the devices are for.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "podUID")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// Name of the Node of that pod. Its agent attaches the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<ObjectName>,
    /// The claim that has the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<AttachmentClaim>,
    /// The interfaces in the pod, in the order of the claim's requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub interfaces: Vec<AttachedInterface>,
    /// `Allocated` says whether the scheduler has allocated the devices, and `Attached` whether the pod has
    /// the interfaces.
    #[cfg(feature = "crd")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

/// The claim of a NetworkAttachment. It is in the controller's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentClaim {
    /// Its namespace.
    pub namespace: ObjectName,
    /// Its name.
    pub name: ObjectName,
    /// Its UID.
    #[schemars(length(max = 64))]
    pub uid: String,
}

/// An interface of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttachedInterface {
    /// Its name in the pod.
    pub name: IfName,
    /// Its MAC address; not set if the plugin reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Its addresses, without prefix lengths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 64))]
    pub ips: Vec<IpAddr>,
}

impl NetworkAttachmentSpec {
    /// Reads the spec as a user writes it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(spec: &Value) -> Result<Self, Vec<Invalid>> {
        decode(spec).map_err(|errors| errors.into_iter().map(|error| error.within("spec")).collect())
    }
}

#[cfg(feature = "crd")]
impl NetworkAttachment {
    /// Returns the condition of a type; `None` if nobody has written it yet.
    pub fn condition<R: crate::reasons::ConditionReason>(
        &self,
    ) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
        let mut conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.find(|condition| condition.type_ == R::TYPE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_read_strictly() {
        let read = |spec: Value| NetworkAttachmentSpec::read(&spec);
        let least = json!({"podName": "web-0", "resourceClaimTemplateName": "backup"});
        assert_eq!(read(least).map(|spec| spec.interface_name), Ok(None));
        let whole = json!({"podName": "web-0", "podUID": "5d-1", "resourceClaimTemplateName": "backup", "interfaceName": "net2"});
        assert_eq!(read(whole.clone()).map(|spec| serde_json::to_value(spec).ok()), Ok(Some(whole)));
        let wrong = json!({"podName": "Web", "resourceClaimTemplateName": "backup", "interfaceName": "a/b", "ifName": "net2"});
        let fields =
            read(wrong).map_err(|errors| errors.into_iter().map(|error| error.field).collect::<Vec<_>>());
        assert_eq!(
            fields,
            Err(["spec.ifName", "spec.interfaceName", "spec.podName"].map(str::to_owned).into())
        );
    }
}
