//! One form for specs that mean the same, to compare what was sent with what the server stores.
//!
//! The API server rewrites quantities, leaves out what is empty, and stamps taints with the time it first saw
//! them.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{CapacityRequestPolicy, Counter, Device, ResourceSliceSpec},
    apimachinery::pkg::api::resource::Quantity,
};
use netclaim_kubernetes::quantity::billionths;

/// Returns the canonical form of `spec`. Two specs mean the same if their canonical forms are equal.
pub(crate) fn canonical(spec: &ResourceSliceSpec) -> ResourceSliceSpec {
    let mut spec = spec.clone();
    spec.all_nodes = spec.all_nodes.filter(|set| *set);
    spec.per_device_node_selection = spec.per_device_node_selection.filter(|set| *set);
    drop_empty(&mut spec.skip_node_operations);
    for set in spec.shared_counters.iter_mut().flatten() {
        counters(&mut set.counters);
    }
    drop_empty(&mut spec.shared_counters);
    spec.devices.iter_mut().flatten().for_each(device);
    drop_empty(&mut spec.devices);
    spec
}

fn device(device: &mut Device) {
    for flag in [&mut device.all_nodes, &mut device.allow_multiple_allocations, &mut device.binds_to_node] {
        *flag = flag.filter(|set| *set);
    }
    device.attributes = device.attributes.take().filter(|map| !map.is_empty());
    device.capacity = device.capacity.take().filter(|map| !map.is_empty());
    for capacity in device.capacity.iter_mut().flat_map(BTreeMap::values_mut) {
        number(&mut capacity.value);
        if let Some(policy) = &mut capacity.request_policy {
            request_policy(policy);
        }
    }
    for consumption in device.consumes_counters.iter_mut().flatten() {
        drop_empty(&mut consumption.compatibility_groups);
        counters(&mut consumption.counters);
    }
    for taint in device.taints.iter_mut().flatten() {
        taint.time_added = None;
        taint.value = taint.value.take().filter(|value| !value.is_empty());
    }
    drop_empty(&mut device.consumes_counters);
    drop_empty(&mut device.taints);
    drop_empty(&mut device.binding_conditions);
    drop_empty(&mut device.binding_failure_conditions);
}

fn request_policy(policy: &mut CapacityRequestPolicy) {
    policy.default.iter_mut().for_each(number);
    policy.valid_values.iter_mut().flatten().for_each(number);
    drop_empty(&mut policy.valid_values);
    if let Some(range) = &mut policy.valid_range {
        number(&mut range.min);
        range.max.iter_mut().chain(&mut range.step).for_each(number);
    }
}

fn counters(counters: &mut BTreeMap<String, Counter>) {
    counters.values_mut().for_each(|counter| number(&mut counter.value));
}

fn number(quantity: &mut Quantity) {
    if let Ok(value) = billionths(&quantity.0) {
        quantity.0 = format!("{value}n");
    }
}

fn drop_empty<T>(list: &mut Option<Vec<T>>) {
    if list.as_ref().is_some_and(Vec::is_empty) {
        *list = None;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn same(a: Value, b: Value) -> bool {
        let parse = |device: Value| -> ResourceSliceSpec {
            let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
            serde_json::from_value(json!({"driver": "d", "pool": pool, "devices": [device]})).unwrap()
        };
        canonical(&parse(a)) == canonical(&parse(b))
    }

    #[test]
    fn a_rewrite_by_the_server_is_not_a_difference() {
        let sent = json!({
            "name": "a", "attributes": {}, "allowMultipleAllocations": true, "bindsToNode": false,
            "capacity": {"bandwidth": {"value": "10000M", "requestPolicy": {"default": "0.5G", "validRange":
                {"min": "0", "step": "1000k"}}}},
            "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1e1"}}}],
            "taints": [{"key": "k", "effect": "NoSchedule"}],
        });
        let stored = json!({
            "name": "a", "allowMultipleAllocations": true,
            "capacity": {"bandwidth": {"value": "10G", "requestPolicy": {"default": "500M", "validRange":
                {"min": "0", "step": "1M"}}}},
            "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "10"}}}],
            "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}],
        });
        assert!(same(sent, stored));
    }

    #[test]
    fn another_number_effect_or_attribute_is_a_difference() {
        let capacity = |value| json!({"name": "a", "capacity": {"x": {"value": value}}});
        assert!(!same(capacity("1G"), capacity("1Gi")));
        let taint = |effect| json!({"name": "a", "taints": [{"key": "k", "effect": effect}]});
        assert!(!same(taint("NoSchedule"), taint("NoExecute")));
        assert!(!same(json!({"name": "a", "attributes": {"x": {"bool": false}}}), json!({"name": "a"})));
    }
}
