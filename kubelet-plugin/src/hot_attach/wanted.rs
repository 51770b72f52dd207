//! What a NetworkAttachment wants of the node. Pure.

use kube::ResourceExt as _;
use netclaim_api::IfName;
use netclaim_api::network_attachment::NetworkAttachment;
use netclaim_api::reasons::AllocatedReason;

use crate::dra::ClaimRef;
use crate::pods::owner::{ByAttachment, ObjectRef};

/// A NetworkAttachment whose pod is to have the networks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) object: Object,
    created: String,
    interface_name: Option<IfName>,
    pub(super) pod: ObjectRef,
    pub(super) claim: ClaimRef,
}

/// The object whose status is written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) name: ObjectRef,
    pub(super) generation: Option<i64>,
    /// The UID of the claim in its status.
    pub(super) claim_uid: Option<String>,
}

/// What the node is to do for a NetworkAttachment.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Wanted {
    /// Attach the pod.
    Attached(Box<Target>),
    /// Detach it, and say so in the object.
    Detached(Object),
    /// Detach it: the object is gone, or is not of this node any more.
    Gone,
}

impl Wanted {
    /// Reads an object; `None` for one without a name, namespace or UID.
    pub(super) fn of(attachment: &NetworkAttachment) -> Option<Self> {
        let (namespace, name) = (attachment.namespace()?, attachment.metadata.name.clone()?);
        let name = ObjectRef { namespace, name, uid: attachment.uid()? };
        let status = attachment.status.clone().unwrap_or_default();
        let claim_uid = status.claim.as_ref().map(|claim| claim.uid.clone());
        let object = Object { name, generation: attachment.metadata.generation, claim_uid };
        let is_allocated =
            attachment.condition::<AllocatedReason>().is_some_and(|condition| condition.status == "True")
                && attachment.metadata.deletion_timestamp.is_none();
        let (Some(claim), Some(pod_uid), true) = (status.claim, status.pod_uid, is_allocated) else {
            return Some(Self::Detached(object));
        };
        let namespace = object.name.namespace.clone();
        let created = attachment.metadata.creation_timestamp.as_ref();
        Some(Self::Attached(Box::new(Target {
            created: created.map(|time| time.0.to_string()).unwrap_or_default(),
            interface_name: attachment.spec.interface_name.clone(),
            pod: ObjectRef { namespace, name: attachment.spec.pod_name.to_string(), uid: pod_uid },
            claim: ClaimRef {
                namespace: claim.namespace.to_string(),
                name: claim.name.to_string(),
                uid: claim.uid,
            },
            object,
        })))
    }
}

impl Target {
    /// Returns for whom it is planned in this sandbox.
    pub(super) fn by(&self, sandbox_id: String) -> ByAttachment {
        let ObjectRef { name, uid, .. } = self.object.name.clone();
        let Self { created, interface_name, .. } = self.clone();
        ByAttachment { name, uid, created, interface_name, sandbox_id }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted(change: impl FnOnce(&mut Value)) -> Wanted {
        let mut object = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
            "metadata": {"namespace": "shop", "name": "web-0-backup", "uid": "au", "creationTimestamp": "2026-11-29T00:00:00Z"},
            "spec": {"podName": "web-0", "resourceClaimTemplateName": "backup", "interfaceName": "net2"},
            "status": {"podUID": "pu", "node": "node0",
                "claim": {"namespace": "netclaim-system", "name": "attachment-au", "uid": "cu"},
                "conditions": [{"type": "Allocated", "status": "True", "reason": "Allocated", "message": "",
                    "lastTransitionTime": "2026-11-29T00:00:00Z"}]}});
        change(&mut object);
        Wanted::of(&serde_json::from_value(object).expect("an object")).expect("a name")
    }

    #[test]
    fn only_an_object_that_is_allocated_and_stays_wants_its_pod_attached() {
        let Wanted::Attached(target) = wanted(|_| {}) else { panic!("allocated") };
        assert_eq!(
            (target.pod.to_string(), target.claim.name.as_str()),
            ("shop/web-0".to_owned(), "attachment-au")
        );
        let by = target.by("s1".to_owned());
        assert_eq!((by.created.as_str(), by.uid.as_str()), ("2026-11-29T00:00:00Z", "au"));
        let is_detached =
            |wanted: Wanted| matches!(wanted, Wanted::Detached(object) if object.name.uid == "au");
        let taken_back = |object: &mut Value| object["status"]["conditions"][0]["status"] = json!("False");
        let deleted =
            |object: &mut Value| object["metadata"]["deletionTimestamp"] = json!("2026-11-29T00:00:01Z");
        assert!(is_detached(wanted(taken_back)) && is_detached(wanted(deleted)));
        assert!(is_detached(wanted(|object| object["status"] = json!({"node": "node0"}))));
    }
}
