//! What a NetworkAttachment's status says: the condition `Attached` and the interfaces. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use netclaim_api::network_attachment::{AttachedInterface, NetworkAttachment};
use netclaim_api::reasons::{AttachedReason, ConditionReason as _, Reason as _};
use netclaim_api::{API_VERSION, shorten};
use netclaim_driver::attach::{Interface, Phase};
use serde_json::{Value, json};

use super::wanted::Object;
use crate::pods::owner::Record;

/// Longest message of the condition, in bytes.
const MAX_MESSAGE: usize = 4096;

/// What the agent says of a NetworkAttachment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) reason: AttachedReason,
    pub(super) message: String,
    interfaces: Vec<AttachedInterface>,
}

/// What the object says already.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Seen {
    condition: Option<Condition>,
    interfaces: Vec<AttachedInterface>,
}

impl Seen {
    pub(super) fn of(attachment: &NetworkAttachment) -> Self {
        let condition = attachment.condition::<AttachedReason>().cloned();
        let interfaces = attachment.status.as_ref().map(|status| status.interfaces.clone());
        Self { condition, interfaces: interfaces.unwrap_or_default() }
    }

    /// Whether it says that the same has failed.
    pub(super) fn is_for(&self, reason: AttachedReason) -> bool {
        self.condition.as_ref().is_some_and(|condition| condition.reason == reason.as_str())
    }
}

impl Report {
    /// Nothing is attached.
    pub(super) fn detached() -> Self {
        Self::without(AttachedReason::Detached, "nothing is attached, and no DEL is owed".to_owned())
    }

    /// A DEL fails, for this reason. The interfaces stay as the object has them.
    pub(super) fn detach_failed(message: String, seen: &Seen) -> Self {
        let interfaces = seen.interfaces.clone();
        Self { interfaces, ..Self::without(AttachedReason::DetachFailed, message) }
    }

    /// The pod cannot be attached, for this reason.
    pub(super) fn refused(message: String) -> Self {
        Self::without(AttachedReason::Refused, message)
    }

    fn without(reason: AttachedReason, message: String) -> Self {
        Self { reason, message: shorten(message, MAX_MESSAGE), interfaces: Vec::new() }
    }

    /// What has become of a claim's `records`; `None` while one of them is under way.
    pub(super) fn of(records: &[&Record]) -> Option<Self> {
        let failed = records.iter().find_map(|record| {
            let error = record.error.as_ref()?;
            let is_made = matches!(record.phase, Phase::Attached { .. });
            (!is_made).then(|| format!("network {}: {error}", record.plan.network))
        });
        if let Some(message) = failed {
            return Some(Self::without(AttachedReason::AttachFailed, message));
        }
        let mut interfaces = Vec::new();
        for record in records {
            let Phase::Attached { sandbox, result } = &record.phase else { return None };
            if record.plan.is_finalizer() {
                continue;
            }
            let made = Interface::made(&record.plan.spec, sandbox, result);
            interfaces.push(AttachedInterface {
                name: record.plan.spec.if_name.clone(),
                mac: made.mac.and_then(|mac| mac.try_into().ok()),
                ips: made.ips.iter().map(ipnet::IpNet::addr).collect(),
            });
        }
        let names: Vec<&str> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
        let message = format!("attached as {}", names.join(", "));
        Some(Self { reason: AttachedReason::Attached, message, interfaces })
    }

    /// Returns the server-side apply that says so; `None` if the object does.
    pub(super) fn patch(&self, object: &Object, seen: &Seen) -> Option<Value> {
        let Object { name, generation, .. } = object;
        let (status, reason) = (self.reason.status_text(), self.reason.as_str());
        let same = seen.condition.as_ref().filter(|condition| condition.status == status);
        let is_said = |seen: &Condition| {
            (seen.reason.as_str(), seen.message.as_str()) == (reason, self.message.as_str())
                && seen.observed_generation == *generation
        };
        if same.is_some_and(is_said) && self.interfaces == seen.interfaces {
            return None;
        }
        // If the status stays, only the reason is new.
        let since = same.map(|condition| condition.last_transition_time.0.to_string());
        let mut condition = json!({
            "type": AttachedReason::TYPE, "status": status, "reason": reason, "message": self.message,
            "lastTransitionTime": since.unwrap_or_else(crate::reports::now),
        });
        if let Some(generation) = generation {
            condition["observedGeneration"] = json!(generation);
        }
        let mut status = json!({"conditions": [condition]});
        if !self.interfaces.is_empty() {
            status["interfaces"] = json!(self.interfaces);
        }
        Some(json!({
            "apiVersion": API_VERSION,
            "kind": "NetworkAttachment",
            // The UID makes the API server refuse a patch of a new object with the old one's name.
            "metadata": {"name": name.name, "namespace": name.namespace, "uid": name.uid},
            "status": status,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attached, record, result, sandbox};
    use crate::pods::owner::ObjectRef;

    fn object() -> Object {
        let name = ObjectRef { namespace: "shop".into(), name: "backup".into(), uid: "au".into() };
        Object { name, generation: Some(1), claim_uid: None }
    }

    /// What the object says when it was patched.
    fn patched(patch: &Value) -> Seen {
        let mut object = patch.clone();
        object["spec"] = json!({"podName": "web-0", "resourceClaimTemplateName": "backup"});
        Seen::of(&serde_json::from_value(object).expect("an object"))
    }

    #[test]
    fn a_pod_that_is_attached_shows_its_interfaces_once() {
        let made =
            result(&json!({"cniVersion": "1.1.0", "ips": [{"address": "10.20.0.2/24", "interface": 0}],
            "interfaces": [{"name": "net1", "mac": "02:00:5e:10:00:01", "sandbox": "/n"}]}));
        let record = record("c", Phase::Attached { sandbox: sandbox("s"), result: made });
        let report = Report::of(&[&record]).expect("attached");
        let patch = report.patch(&object(), &Seen::default()).expect("news");
        assert_eq!(
            patch["status"]["interfaces"],
            json!([{"name": "net1", "mac": "02:00:5e:10:00:01", "ips": ["10.20.0.2"]}])
        );
        assert_eq!(patch["status"]["conditions"][0]["message"], "attached as net1");
        let seen = patched(&patch);
        assert_eq!(report.patch(&object(), &seen), None, "it says so already");
        let detached = Report::detached().patch(&object(), &seen).expect("news");
        assert_eq!(detached["status"].get("interfaces"), None);
        assert_eq!(detached["status"]["conditions"][0]["status"], "False");
        assert!(patched(&detached).is_for(AttachedReason::Detached));
    }

    #[test]
    fn a_failure_counts_until_all_is_attached_and_nothing_is_said_on_the_way() {
        let (made, planned) = (attached("c", "s"), record("c", Phase::Planned));
        assert_eq!(Report::of(&[&made, &planned]), None);
        let failed = Record { error: Some("no address".into()), ..planned };
        let report = Report::of(&[&made, &failed]).expect("failed");
        assert_eq!(
            (report.reason, report.message.as_str()),
            (AttachedReason::AttachFailed, "network storage: no address")
        );
        let seen = patched(&report.patch(&object(), &Seen::default()).expect("news"));
        let other = Report::of(&[&Record { error: Some("no link".into()), ..failed }]).expect("failed");
        let patch = other.patch(&object(), &seen).expect("another message");
        let since = &patch["status"]["conditions"][0]["lastTransitionTime"];
        assert_eq!(
            Some(since),
            seen.condition.map(|condition| json!(condition.last_transition_time)).as_ref()
        );
    }
}
