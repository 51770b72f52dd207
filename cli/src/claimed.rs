//! Which of netclaim's devices a claim has, and what the agents report of them.

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use netclaim_api::DRIVER_NAME;
use netclaim_api::reasons::{ConditionReason as _, ReadyReason};

/// Returns the devices that are attached for the claim: a result with admin access attaches nothing. Each
/// with what an agent reports of it, if one has reported.
pub(crate) fn devices(
    claim: &ResourceClaim,
) -> impl Iterator<Item = (&DeviceRequestAllocationResult, Option<&AllocatedDeviceStatus>)> {
    let status = claim.status.as_ref();
    let results = status.and_then(|status| status.allocation.as_ref()?.devices.as_ref()?.results.as_ref());
    let ours = |result: &&DeviceRequestAllocationResult| {
        result.driver == DRIVER_NAME && result.admin_access != Some(true)
    };
    let reported = status.and_then(|status| status.devices.as_ref());
    results
        .into_iter()
        .flatten()
        .filter(ours)
        .map(move |result| (result, reported.into_iter().flatten().find(|device| is_of(device, result))))
}

/// Returns the condition `Ready` of a device, if the agent has set it.
pub(crate) fn ready(device: &AllocatedDeviceStatus) -> Option<&Condition> {
    device.conditions.iter().flatten().find(|condition| condition.type_ == ReadyReason::TYPE)
}

fn is_of(device: &AllocatedDeviceStatus, result: &DeviceRequestAllocationResult) -> bool {
    (&device.driver, &device.pool, &device.device, &device.share_id)
        == (&result.driver, &result.pool, &result.device, &result.share_id)
}
