//! What claims have: devices, networks and their state.

use std::fmt;

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};
use kube::ResourceExt as _;
use netclaim_api::DRIVER_NAME;
use netclaim_api::device::DeviceName;
use serde::Serialize;

/// A device of netclaim that a claim has.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attachment {
    pub(super) claim: String,
    pub(super) request: String,
    pub(super) pool: String,
    pub(super) device: String,
    /// The `Ready` condition; `None` if the agent has not reported yet.
    pub(super) ready: Option<bool>,
    pub(super) reason: String,
    pub(super) message: String,
    /// The interface in the pod.
    pub(super) interface: Option<String>,
    pub(super) hardware_address: Option<String>,
    pub(super) ips: Vec<String>,
}

/// Returns what the claim has of netclaim's devices. A result with admin access attaches nothing.
pub(super) fn of_claim(claim: &ResourceClaim) -> Vec<Attachment> {
    let status = claim.status.as_ref();
    let results = status
        .and_then(|status| status.allocation.as_ref()?.devices.as_ref()?.results.as_ref())
        .into_iter()
        .flatten();
    let ours = results.filter(|result| result.driver == DRIVER_NAME && result.admin_access != Some(true));
    let reported = || status.iter().flat_map(|status| status.devices.iter().flatten());
    ours.map(|result| attachment(claim, result, reported().find(|status| is_of(status, result)))).collect()
}

fn is_of(status: &AllocatedDeviceStatus, result: &DeviceRequestAllocationResult) -> bool {
    (&status.driver, &status.pool, &status.device, &status.share_id)
        == (&result.driver, &result.pool, &result.device, &result.share_id)
}

fn attachment(
    claim: &ResourceClaim,
    result: &DeviceRequestAllocationResult,
    status: Option<&AllocatedDeviceStatus>,
) -> Attachment {
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let data = status.and_then(|status| status.network_data.as_ref());
    Attachment {
        claim: claim.name_any(),
        request: result.request.clone(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        ready: ready.map(|condition| condition.status == "True"),
        reason: ready.map(|condition| condition.reason.clone()).unwrap_or_default(),
        message: ready.map(|condition| condition.message.clone()).unwrap_or_default(),
        interface: data.and_then(|data| data.interface_name.clone()),
        hardware_address: data.and_then(|data| data.hardware_address.clone()),
        ips: data.and_then(|data| data.ips.clone()).unwrap_or_default(),
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, request, pool, device, .. } = self;
        if let Some(interface) = &self.interface {
            write!(f, "{interface}: ")?;
        }
        match device.parse() {
            Ok(DeviceName::Network(network)) => write!(f, "Network {network}")?,
            _ => write!(f, "device {device}")?,
        }
        write!(f, " of pool {pool}, by request {request} of claim {claim}")?;
        for address in self.hardware_address.iter().chain(&self.ips) {
            write!(f, ", {address}")?;
        }
        match self.ready {
            Some(true) => Ok(()),
            Some(false) => write!(f, "; not ready ({}): {}", self.reason, self.message),
            None => f.write_str("; the agent has not reported anything yet"),
        }
    }
}
