//! What claims have: devices, networks and their state.

use std::fmt;

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};
use kube::ResourceExt as _;
use netclaim_api::device::DeviceName;
use serde::Serialize;

use crate::claimed;

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

/// Returns what the claim has of netclaim's devices.
pub(super) fn of_claim(claim: &ResourceClaim) -> Vec<Attachment> {
    claimed::devices(claim).map(|(result, status)| attachment(claim, result, status)).collect()
}

fn attachment(
    claim: &ResourceClaim,
    result: &DeviceRequestAllocationResult,
    status: Option<&AllocatedDeviceStatus>,
) -> Attachment {
    let ready = status.and_then(claimed::ready);
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
            Ok(DeviceName::Network(network)) => write!(f, "ClaimNetwork {network}")?,
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
