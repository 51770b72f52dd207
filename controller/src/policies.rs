//! UplinkPolicies: whether nodes follow one, said in its status. Pure but for the write.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DynamicObject, Patch, PatchParams, ResourceExt as _};
use kube::{Api, Resource as _};
use netclaim_api::Invalid;
use netclaim_api::uplink_policy::{UplinkPolicy, UplinkPolicySpec, UplinkPolicyStatus};
use serde_json::{Value, json};

use crate::verdict::{ACCEPTED, INVALID, condition, decode};

/// The status that a policy should have; `None` if it has it.
pub(crate) fn status(policy: &DynamicObject, now: Time) -> Option<UplinkPolicyStatus> {
    let spec = policy.data.get("spec").unwrap_or(&Value::Null);
    // One that cannot be decoded is not ours, and is overwritten.
    let before = policy.data.get("status").cloned().unwrap_or_default();
    let before: UplinkPolicyStatus = serde_json::from_value(before).unwrap_or_default();
    let problems = decode::<UplinkPolicySpec>(spec).map_or_else(|problems| problems, |spec| spec.problems());
    let verdict = if problems.is_empty() {
        ("True", ACCEPTED, "nodes that it selects follow it".to_owned())
    } else {
        ("False", INVALID, format!("no node follows it: {}", Invalid::list(&problems)))
    };
    let known = before.conditions.iter().find(|condition| condition.type_ == ACCEPTED);
    let generation = policy.metadata.generation;
    let condition = condition(ACCEPTED, known, generation, verdict, now);
    let same = known == Some(&condition) && before.observed_generation == generation;
    (!same).then(|| UplinkPolicyStatus { observed_generation: generation, conditions: vec![condition] })
}

/// Writes the status of every policy that does not have it.
///
/// # Errors
/// The first that could not be written, and is to be tried again.
pub(crate) async fn write(
    api: &Api<DynamicObject>,
    manager: &str,
    policies: &[std::sync::Arc<DynamicObject>],
    now: &Time,
) -> Result<u64, kube::Error> {
    let mut written = 0;
    for policy in policies {
        let Some(status) = status(policy, now.clone()) else { continue };
        let name = policy.name_any();
        let patch = json!({
            "apiVersion": netclaim_api::API_VERSION,
            "kind": UplinkPolicy::kind(&()),
            "metadata": {"name": name, "uid": policy.metadata.uid},
            "status": status,
        });
        match api.patch_status(&name, &PatchParams::apply(manager).force(), &Patch::Apply(patch)).await {
            Ok(_) => written += 1,
            // It was deleted meanwhile, as the watch is about to tell.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn policy(spec: Value, status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicy", "metadata": {"name": "p", "generation": 2},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn judged(spec: Value) -> (String, String) {
        let status = status(&policy(spec, Value::Null), Time(Timestamp::UNIX_EPOCH)).unwrap();
        let condition = status.conditions.into_iter().next().unwrap();
        (condition.status, condition.message)
    }

    #[test]
    fn a_policy_is_accepted_or_every_problem_is_told() {
        assert_eq!(judged(json!({"links": {"names": ["eth*"]}})).0, "True");
        let (status, message) =
            judged(json!({"links": {}, "publish": "Always", "capacity": {"bandwidth": 0}}));
        assert_eq!(status, "False");
        assert!(
            message.contains("spec.links: ") && message.contains("spec.capacity.bandwidth: "),
            "{message}"
        );
        let (status, message) = judged(json!({"links": {"nams": []}}));
        assert_eq!(status, "False");
        assert!(message.contains("spec.links.nams: unknown field"), "{message}");
    }

    #[test]
    fn a_status_that_is_right_is_not_written_again() {
        let spec = json!({"links": {"names": ["eth1"]}});
        let written = status(&policy(spec.clone(), Value::Null), Time(Timestamp::UNIX_EPOCH)).unwrap();
        let later = Time(Timestamp::from_second(60).unwrap());
        assert_eq!(status(&policy(spec, serde_json::to_value(written).unwrap()), later), None);
    }
}
