//! DeviceTaintRules: an admin's taints for devices, which the scheduler adds to those that slices have
//! (`k8s.io/dynamic-resource-allocation/resourceslice/tracker`).

use k8s_openapi::api::resource::v1::DeviceTaintRule;

use crate::node_selector::{NO_EXECUTE, NO_SCHEDULE};

/// Returns the rules that keep new pods off a device, unless their claims tolerate it.
pub fn closing<'a>(
    rules: &'a [DeviceTaintRule],
    driver: &str,
    pool: &str,
    device: &str,
) -> impl Iterator<Item = &'a DeviceTaintRule> {
    rules.iter().filter(move |rule| {
        // Without a selector a rule selects nothing, and each field that a selector lacks is any.
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        let selector = rule.spec.device_selector.as_ref();
        [NO_SCHEDULE, NO_EXECUTE].contains(&rule.spec.taint.effect.as_str())
            && selector.is_some_and(|selector| {
                is(&selector.driver, driver) && is(&selector.pool, pool) && is(&selector.device, device)
            })
    })
}

/// Returns the taint's key and whose it is, in words.
pub fn named(rule: &DeviceTaintRule) -> String {
    let name = rule.metadata.name.as_deref().unwrap_or_default();
    format!("{} (DeviceTaintRule {name})", rule.spec.taint.key)
}
