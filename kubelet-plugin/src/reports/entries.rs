//! The entries of a claim's `status.devices`, and the patch that writes them. Pure.

use crate::pods::owner::{DeviceRef, ObjectRef, Plan, Record};
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, NetworkDeviceData};
use netclaim_api::reasons::{ConditionReason as _, ReadyReason, Reason as _};
use netclaim_api::shorten;
use netclaim_cni::CniResult;
use netclaim_driver::attach::{Cause, Interface, Operation, Phase, Sandbox};
use serde_json::{Value, json};

/// Longest `data` that the API server takes, in bytes.
const MAX_DATA: usize = 10 * 1024;
/// Most addresses that the API server takes.
const MAX_IPS: usize = 16;
/// Longest message of a condition in bytes. The API server takes 32 KiB, more than people read.
pub(super) const MAX_MESSAGE: usize = 4096;

/// The entry of one device.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) device: DeviceRef,
    pub(super) state: State,
}

impl Entry {
    pub(super) fn is_broken(&self) -> bool {
        matches!(self.state, State::Attached { broken: Some(_), .. })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum State {
    /// `data` is what the plugins returned, where it fits. `broken` is the failure of a later CHECK.
    Attached {
        network: NetworkDeviceData,
        data: Option<CniResult>,
        broken: Option<String>,
    },
    NotReady {
        reason: ReadyReason,
        message: String,
    },
}

/// Returns the entries of a claim's attachments, of its `records`; `None` while one of them is under way.
/// `is_stuck`: finalizers wait for an attachment of the pod that fails.
pub(super) fn entries(records: &[&Record], is_stuck: bool) -> Option<Vec<Entry>> {
    let attachments = records.iter().filter(|record| !record.plan.is_finalizer());
    let finalizer_of = |of: &Record| records.iter().find(|other| other.plan.finalizes == Some(of.plan.index));
    attachments
        .map(|record| match finalizer_of(record) {
            Some(finalizer) => finalized(entry(record)?, finalizer, is_stuck),
            None => entry(record),
        })
        .collect()
}

/// Returns the entry of an attachment with what has become of its finalizer; `None` while that is under way.
fn finalized(entry: Entry, finalizer: &Record, is_stuck: bool) -> Option<Entry> {
    let State::Attached { network, data, broken } = entry.state else { return Some(entry) };
    let state = match (&finalizer.phase, &finalizer.error) {
        (Phase::Attached { .. }, _) => {
            State::Attached { network, data, broken: broken.or_else(|| found(finalizer)) }
        }
        (_, Some(error)) => {
            let is_del = finalizer.failed == Some(Operation::Del);
            let reason = if is_del { ReadyReason::DetachFailed } else { ReadyReason::FinalizeFailed };
            State::NotReady { reason, message: error.clone() }
        }
        (_, None) if is_stuck => State::Attached { network, data, broken },
        (_, None) => return None,
    };
    Some(Entry { state, ..entry })
}

/// Why a device has no network, for programs.
fn reason_of(cause: Cause) -> ReadyReason {
    match cause {
        Cause::PluginMissing => ReadyReason::PluginMissing,
        Cause::PluginNotReady | Cause::PluginLimited => ReadyReason::PluginNotReady,
        Cause::OutOfAddresses => ReadyReason::OutOfAddresses,
        Cause::AddressInUse => ReadyReason::AddressInUse,
        Cause::GatewayUnreachable => ReadyReason::GatewayUnreachable,
        Cause::TimedOut => ReadyReason::PluginTimedOut,
        Cause::TryAgainLater | Cause::Other => ReadyReason::AttachFailed,
    }
}

/// Returns what the last CHECK has found wrong.
fn found(record: &Record) -> Option<String> {
    record.check.as_ref().map(|found| found.message.clone())
}

/// Returns the entry of a record; `None` while its attachment is under way.
fn entry(record: &Record) -> Option<Entry> {
    let state = match (&record.phase, &record.error) {
        (Phase::Attached { sandbox, result }, _) => State::Attached {
            network: network_data(&record.plan, sandbox, result),
            data: Some(result).filter(|result| result.raw().len() <= MAX_DATA).cloned(),
            broken: found(record),
        },
        (_, Some(error)) => {
            let is_del = record.failed == Some(Operation::Del);
            let reason = if is_del { ReadyReason::DetachFailed } else { reason_of(record.cause) };
            State::NotReady { reason, message: error.clone() }
        }
        (_, None) => return None,
    };
    Some(Entry { device: record.plan.owner.device.clone(), state })
}

/// Returns the result of a plan in a sandbox as the API's `NetworkDeviceData`.
pub(crate) fn network_data(plan: &Plan, sandbox: &Sandbox, result: &CniResult) -> NetworkDeviceData {
    let made = Interface::made(&plan.spec, sandbox, result);
    let ips: Vec<String> = made.ips.iter().take(MAX_IPS).map(ToString::to_string).collect();
    NetworkDeviceData {
        interface_name: Some(plan.spec.if_name.to_string()),
        hardware_address: made.mac.map(|mac| mac.to_string()),
        ips: Some(ips).filter(|ips| !ips.is_empty()),
    }
}

/// Returns the server-side apply that writes `entries`.
pub(super) fn patch(driver: &str, claim: &ObjectRef, entries: &[Entry]) -> Value {
    let now = super::now();
    let devices: Vec<Value> = entries.iter().map(|entry| device_status(driver, entry, &now)).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        // The UID makes the API server refuse a patch of a new claim with the old one's name.
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": devices},
    })
}

/// Returns whether the `devices` of a claim's status have exactly these entries of ours.
pub(super) fn has_entries(devices: &[AllocatedDeviceStatus], driver: &str, entries: &[Entry]) -> bool {
    let found = devices.iter().filter(|device| device.driver == driver);
    let found: Vec<Value> =
        found.filter_map(|device| serde_json::to_value(device).ok()).map(without_times).collect();
    let wanted: Vec<Value> =
        entries.iter().map(|entry| without_times(device_status(driver, entry, ""))).collect();
    found.len() == wanted.len() && wanted.iter().all(|device| found.contains(device))
}

/// Removes the times of the conditions from a device's status.
fn without_times(mut status: Value) -> Value {
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition.as_object_mut().map(|condition| condition.remove("lastTransitionTime"));
    }
    status
}

fn device_status(driver: &str, entry: &Entry, now: &str) -> Value {
    let DeviceRef { pool, device, share_id, .. } = &entry.device;
    let condition = |reason: ReadyReason, message: &str| {
        let status = if reason.status() { "True" } else { "False" };
        let (type_, reason) = (ReadyReason::TYPE, reason.as_str());
        let message = shorten(message.to_owned(), MAX_MESSAGE);
        json!([{"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}])
    };
    let mut status = json!({"driver": driver, "pool": pool, "device": device});
    if let Some(share) = share_id {
        status["shareID"] = json!(share);
    }
    match &entry.state {
        State::Attached { network, data, broken } => {
            let if_name = network.interface_name.as_deref().unwrap_or_default();
            status["conditions"] = match broken {
                None => condition(ReadyReason::Attached, &format!("attached as {if_name}")),
                Some(error) => condition(ReadyReason::CheckFailed, error),
            };
            status["networkData"] = json!(network);
            if let Some(data) = data.as_ref().and_then(|data| serde_json::from_str(data.raw()).ok()) {
                status["data"] = data;
            }
        }
        State::NotReady { reason, message } => status["conditions"] = condition(*reason, message),
    }
    status
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use netclaim_driver::attach::Finding;

    use super::*;
    use crate::fixtures::{record, result, sandbox};

    fn entry(state: State) -> Entry {
        let device = DeviceRef {
            request: "net".into(),
            pool: "node0".into(),
            device: "net-storage".into(),
            share_id: Some("s".into()),
        };
        Entry { device, state }
    }

    #[test]
    fn a_ready_device_shows_interface_addresses_and_result() {
        let ready = attached(None);
        let status = device_status("netclaim.dev", &entry(ready), "now");
        assert_eq!(status["networkData"], json!({"interfaceName": "data0", "ips": ["10.20.0.2/24"]}));
        assert_eq!(status["conditions"][0]["message"], "attached as data0");
        assert_eq!(status["conditions"][0]["status"], "True");
        assert_eq!(status["shareID"], "s");
        assert_eq!(status["data"]["cniVersion"], "1.1.0");
    }

    fn network(ip: &str) -> NetworkDeviceData {
        let (interface_name, ips) = (Some("data0".to_owned()), Some(vec![ip.to_owned()]));
        NetworkDeviceData { interface_name, ips, hardware_address: None }
    }

    fn attached(broken: Option<&str>) -> State {
        State::Attached {
            network: network("10.20.0.2/24"),
            data: Some(result(&json!({"cniVersion": "1.1.0"}))),
            broken: broken.map(str::to_owned),
        }
    }

    #[test]
    fn a_device_that_failed_a_check_has_its_error() {
        let status = device_status("netclaim.dev", &entry(attached(Some("no link"))), "now");
        let expected = json!([{"type": "Ready", "status": "False", "reason": "CheckFailed", "message": "no link", "lastTransitionTime": "now"}]);
        assert_eq!(status["conditions"], expected);
        assert_eq!(status["networkData"]["interfaceName"], "data0");
    }

    #[test]
    fn an_agent_recognises_what_an_earlier_one_wrote() {
        let ready = |ip: &str| {
            let data = Some(result(&json!({"cniVersion": "1.1.0", "ips": []})));
            entry(State::Attached { network: network(ip), data, broken: None })
        };
        let now = ready("10.20.0.2/24");
        let ours = device_status("netclaim.dev", &now, "2026-01-01T00:00:00Z");
        let mut others = ours.clone();
        others["driver"] = json!("other.dev");
        let has = |devices: Value, entry: &Entry| {
            let devices: Vec<AllocatedDeviceStatus> = serde_json::from_value(devices).unwrap();
            has_entries(&devices, "netclaim.dev", std::slice::from_ref(entry))
        };
        assert!(has(json!([others, ours]), &now));
        assert!(!has(json!([others, ours]), &ready("10.20.0.3/24")), "another address");
        assert!(!has(json!([others]), &now), "no entry of ours");
        assert!(!has(json!([ours, ours]), &now), "one too many");
        assert!(!has(json!([]), &now));
    }

    #[test]
    fn a_failing_del_has_a_reason_of_its_own() {
        let deleting = || Phase::Deleting { sandbox: sandbox("s"), result: None };
        let reason = |phase, failed| {
            let failed = Record { error: Some("no".into()), failed, ..record("c", phase) };
            match super::entry(&failed).unwrap().state {
                State::NotReady { reason, .. } => reason,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(reason(deleting(), Some(Operation::Del)), ReadyReason::DetachFailed);
        assert_eq!(reason(deleting(), Some(Operation::Add)), ReadyReason::AttachFailed, "its DEL is due");
        assert_eq!(reason(Phase::Planned, None), ReadyReason::AttachFailed, "an unfit sandbox");
    }

    #[test]
    fn a_device_is_ready_when_its_finalizer_is_made() {
        let attached = crate::fixtures::attached("c", "s");
        let mut finalizer = record("c", Phase::Planned);
        Arc::make_mut(&mut finalizer.plan).finalizes = Some(0);
        let of = |finalizer: &Record, is_stuck| {
            let entries = entries(&[&attached, finalizer], is_stuck)?;
            assert_eq!(entries.len(), 1, "{entries:?}");
            let status = device_status("netclaim.dev", &entries[0], "");
            let condition = &status["conditions"][0];
            Some((condition["reason"].clone(), condition["message"].clone()))
        };
        let ready = Some((json!("Attached"), json!("attached as net1")));
        assert_eq!((of(&finalizer, false), of(&finalizer, true)), (None, ready.clone()));
        finalizer.error = Some("no such sysctl".to_owned());
        for (failed, reason) in [(Operation::Add, "FinalizeFailed"), (Operation::Del, "DetachFailed")] {
            finalizer.failed = Some(failed);
            assert_eq!(of(&finalizer, false), Some((json!(reason), json!("no such sysctl"))));
        }
        finalizer = Record { phase: attached.phase.clone(), error: None, ..finalizer };
        assert_eq!(of(&finalizer, false), ready);
        finalizer.check = Some(Finding { message: "another sysctl".to_owned(), is_of_interface: false });
        assert_eq!(of(&finalizer, false), Some((json!("CheckFailed"), json!("another sysctl"))));
    }

    #[test]
    fn a_failed_device_has_its_error() {
        let failed = State::NotReady { reason: ReadyReason::AttachFailed, message: "no".into() };
        let status = device_status("netclaim.dev", &entry(failed), "now");
        let expected = json!([{"type": "Ready", "status": "False", "reason": "AttachFailed", "message": "no", "lastTransitionTime": "now"}]);
        assert_eq!(status["conditions"], expected);
        assert!(status.get("networkData").is_none());
    }
}
