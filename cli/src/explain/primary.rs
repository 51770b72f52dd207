//! Pods that claim their primary network without the RuntimeClass of such pods.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, OpaqueDeviceConfiguration, ResourceClaim};
use kube::ResourceExt as _;
use netclaim_api::DRIVER_NAME;

use super::facts::Facts;

/// Says which claim keeps a pod from starting that names no RuntimeClass. A pod cannot get one later.
pub(super) fn lacks_runtime_class(pod: &Pod, facts: &Facts) -> Option<String> {
    let names_one = pod.spec.as_ref().is_some_and(|spec| spec.runtime_class_name.is_some());
    let classes = facts.cluster.as_ref().and_then(|cluster| cluster.classes.as_deref()).unwrap_or_default();
    let claim = facts.found().find(|claim| !names_one && is_primary(claim, classes))?;
    Some(format!(
        "claim {} is the pod's primary network, which needs the RuntimeClass of primary networks: delete the pod and create it with \
         runtimeClassName",
        claim.name_any()
    ))
}

/// Whether a claim is allocated as the primary network of its pod, or will be.
fn is_primary(claim: &ResourceClaim, classes: &[DeviceClass]) -> bool {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    if let Some(allocation) = allocation {
        let mut configs = allocation.devices.iter().flat_map(|devices| devices.config.iter().flatten());
        return configs.any(|config| sets_primary(config.opaque.as_ref()));
    }
    let Some(devices) = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref()) else { return false };
    // The scheduler may choose another alternative of the request.
    let is_of_all = |requests: &[String]| !requests.iter().any(|request| request.contains('/'));
    let mut configs = devices.config.iter().flatten();
    let of_claim = configs.any(|config| {
        is_of_all(config.requests.as_deref().unwrap_or_default()) && sets_primary(config.opaque.as_ref())
    });
    let of_class = |name: &String| {
        let class = classes.iter().find(|class| class.metadata.name.as_ref() == Some(name));
        let mut configs = class
            .into_iter()
            .flat_map(|class| class.spec.iter())
            .flat_map(|spec| spec.config.iter().flatten());
        configs.any(|config| sets_primary(config.opaque.as_ref()))
    };
    let mut requests = devices.requests.iter().flatten();
    of_claim
        || requests.any(|request| match (&request.exactly, &request.first_available) {
            (Some(exactly), _) => of_class(&exactly.device_class_name),
            (None, Some(alternatives)) => {
                !alternatives.is_empty() && alternatives.iter().all(|of| of_class(&of.device_class_name))
            }
            (None, None) => false,
        })
}

fn sets_primary(opaque: Option<&OpaqueDeviceConfiguration>) -> bool {
    opaque.is_some_and(|opaque| opaque.driver == DRIVER_NAME && opaque.parameters.0["primary"] == true)
}
