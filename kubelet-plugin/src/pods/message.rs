//! The messages of the kubelet's Pods API (`k8s.io/kubelet/pkg/apis/pods/v1alpha1`) with the fields of
//! `v1.Pod` that the agent reads. Field numbers are part of the Kubernetes API. Decoding skips all other
//! fields.

use std::collections::HashMap;

use prost::Message;

use super::seen::{RETRY, SeenPod, has_gate, has_no_sandbox, may_wait_in_hook, number};
use crate::pods::owner::ObjectRef;

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchPodsRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchPodsEvent {
    #[prost(enumeration = "EventType", tag = "1")]
    pub(super) r#type: i32,
    /// A serialized [`Pod`].
    #[prost(bytes = "vec", tag = "2")]
    pub(super) pod: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    Unspecified = 0,
    Added = 1,
    Modified = 2,
    Deleted = 3,
    InitialSyncComplete = 4,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Pod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<PodSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Anything>,
    #[prost(map = "string, string", tag = "12")]
    annotations: HashMap<String, String>,
}

/// A message; only its presence counts.
#[derive(Clone, PartialEq, Message)]
struct Anything {}

#[derive(Clone, PartialEq, Message)]
struct PodSpec {
    #[prost(message, repeated, tag = "1")]
    volumes: Vec<Anything>,
    #[prost(message, repeated, tag = "2")]
    containers: Vec<Container>,
    #[prost(string, tag = "3")]
    restart_policy: String,
    #[prost(message, repeated, tag = "20")]
    init_containers: Vec<Container>,
    #[prost(message, repeated, tag = "28")]
    readiness_gates: Vec<PodReadinessGate>,
    #[prost(message, repeated, tag = "39")]
    resource_claims: Vec<PodResourceClaim>,
}

#[derive(Clone, PartialEq, Message)]
struct PodReadinessGate {
    #[prost(string, tag = "1")]
    condition_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "24")]
    restart_policy: String,
}

#[derive(Clone, PartialEq, Message)]
struct PodResourceClaim {
    #[prost(string, optional, tag = "3")]
    resource_claim_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct PodStatus {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<PodCondition>,
    #[prost(message, repeated, tag = "15")]
    resource_claim_statuses: Vec<ClaimStatus>,
    #[prost(message, optional, tag = "18")]
    extended_resource_claim_status: Option<ClaimStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct PodCondition {
    #[prost(string, tag = "1")]
    r#type: String,
    #[prost(string, tag = "2")]
    status: String,
}

/// `PodResourceClaimStatus` or `PodExtendedResourceClaimStatus`.
#[derive(Clone, PartialEq, Message)]
struct ClaimStatus {
    #[prost(string, optional, tag = "2")]
    resource_claim_name: Option<String>,
}

impl Pod {
    pub(super) fn uid(&self) -> Option<&str> {
        self.metadata.as_ref().map(|metadata| metadata.uid.as_str())
    }

    /// What the agent needs of it; `None` for a pod without claims. The kubelet's own status, which it
    /// reports once it has one, lacks the names of claims that were made from templates.
    pub(super) fn into_seen(self) -> Option<SeenPod> {
        let (metadata, spec) = (self.metadata?, self.spec?);
        let status = self.status.unwrap_or_default();
        let has_claims = !spec.resource_claims.is_empty() || status.extended_resource_claim_status.is_some();
        let named = spec.resource_claims.into_iter().filter_map(|claim| claim.resource_claim_name);
        let made = status.resource_claim_statuses.into_iter().chain(status.extended_resource_claim_status);
        let claims: std::collections::BTreeSet<String> =
            named.chain(made.filter_map(|claim| claim.resource_claim_name)).collect();
        if !has_claims {
            return None;
        }
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let policies = containers.map(|container| &container.restart_policy).chain([&spec.restart_policy]);
        let conditions = status.conditions.iter();
        let conditions = conditions.map(|condition| (condition.r#type.as_str(), condition.status.as_str()));
        Some(SeenPod {
            claims,
            may_wait_in_hook: may_wait_in_hook(policies),
            has_volumes: !spec.volumes.is_empty(),
            waits: metadata.deletion_timestamp.is_none() && has_no_sandbox(&status.phase, conditions),
            retry: number(metadata.annotations.get(RETRY)),
            has_gate: has_gate(spec.readiness_gates.iter().map(|gate| gate.condition_type.as_str())),
            pod: ObjectRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::object::PodObject;
    use super::super::seen::SANDBOX_READY;
    use super::*;

    fn pod() -> Pod {
        Pod {
            metadata: Some(ObjectMeta {
                name: "p".into(),
                namespace: "ns".into(),
                uid: "u".into(),
                deletion_timestamp: None,
                annotations: HashMap::from([(RETRY.into(), "7".into())]),
            }),
            spec: Some(PodSpec {
                volumes: vec![Anything {}],
                containers: vec![Container { restart_policy: String::new() }],
                restart_policy: "Always".into(),
                init_containers: Vec::new(),
                readiness_gates: vec![PodReadinessGate { condition_type: "netclaim.dev/networks".into() }],
                resource_claims: vec![PodResourceClaim { resource_claim_name: Some("named".into()) }],
            }),
            status: Some(PodStatus {
                phase: "Pending".into(),
                conditions: Vec::new(),
                resource_claim_statuses: vec![ClaimStatus { resource_claim_name: Some("made".into()) }],
                extended_resource_claim_status: Some(ClaimStatus {
                    resource_claim_name: Some("extended".into()),
                }),
            }),
        }
    }

    fn seen(change: impl FnOnce(&mut ObjectMeta, &mut PodSpec, &mut PodStatus)) -> SeenPod {
        let mut pod = pod();
        let Pod { metadata: Some(metadata), spec: Some(spec), status: Some(status) } = &mut pod else {
            panic!("all are there")
        };
        change(metadata, spec, status);
        let decoded = Pod::decode(pod.encode_to_vec().as_slice()).expect("its own message");
        decoded.into_seen().expect("it has claims")
    }

    #[test]
    fn a_pod_has_the_claims_that_it_names_and_those_that_are_made_for_it() {
        let seen = seen(|_, _, _| {});
        assert_eq!(seen.claims, ["extended", "made", "named"].map(str::to_owned).into());
        assert_eq!((seen.pod.to_string(), seen.pod.uid.as_str(), seen.retry), ("ns/p".to_owned(), "u", 7));
        assert!(seen.has_volumes && seen.may_wait_in_hook && seen.waits && seen.has_gate);
        assert_eq!(Pod::default().into_seen(), None);
        let unnamed = self::seen(|_, spec, status| {
            spec.resource_claims[0].resource_claim_name = None;
            *status = PodStatus::default();
        });
        assert!(unnamed.claims.is_empty() && unnamed.may_wait_in_hook, "the names are known from before");
    }

    #[test]
    fn a_pod_waits_until_it_has_a_sandbox_or_ends() {
        let condition = |status: &str| PodCondition { r#type: SANDBOX_READY.into(), status: status.into() };
        assert!(seen(|_, _, status| status.conditions = vec![condition("False")]).waits);
        assert!(!seen(|_, _, status| status.conditions = vec![condition("True")]).waits);
        assert!(!seen(|_, _, status| status.phase = "Failed".into()).waits);
        assert!(!seen(|metadata, _, _| metadata.deletion_timestamp = Some(Anything {})).waits);
    }

    #[test]
    fn one_container_that_is_never_restarted_keeps_its_pod_out_of_the_hook() {
        let never = || Container { restart_policy: "Never".into() };
        assert!(!seen(|_, spec, _| spec.restart_policy = "Never".into()).may_wait_in_hook);
        assert!(!seen(|_, spec, _| spec.containers.push(never())).may_wait_in_hook);
        assert!(!seen(|_, spec, _| spec.init_containers.push(never())).may_wait_in_hook);
    }

    #[test]
    fn the_api_servers_object_says_the_same() {
        let object = serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {RETRY: "7"}},
            "spec": {"volumes": [{"name": "token"}], "containers": [{"name": "c"}], "restartPolicy": "Always",
                "readinessGates": [{"conditionType": "example.com/other"}, {"conditionType": "netclaim.dev/networks"}],
                "resourceClaims": [{"name": "a", "resourceClaimName": "named"}, {"name": "b", "resourceClaimTemplateName": "t"}]},
            "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}],
                "extendedResourceClaimStatus": {"requestMappings": [], "resourceClaimName": "extended"}},
        });
        let object: PodObject = serde_json::from_value(object).expect("a pod");
        assert_eq!(object.seen(), pod().into_seen());
    }
}
