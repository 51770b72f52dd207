//! Reduces a pool to the features of an API server. What the scheduler would not know of is left out: an unpublished
//! device is safe, an unprotected one is not.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{CounterSet, Device};
use netclaim_api::quantity::billionths;

use crate::{
    dropped::{DroppedField, ServerFeatures},
    pool::Pool,
};

impl Pool {
    /// Returns this pool without what `server` would drop.
    ///
    /// * Without counters, or a scheduler that handles them: if devices together consume more of a counter than there is,
    ///   those with the lowest `rank` stay, and of equals the first.
    /// * Without taints: a device with a taint that repels pods is left out.
    /// * Without sharing: a device is for one claim at a time, and its capacities have no policies.
    #[must_use]
    pub fn fitted<R: Ord>(mut self, server: &ServerFeatures, rank: impl Fn(&Device) -> R) -> Self {
        if !server.stores(DroppedField::Taints) {
            self.devices.retain_mut(|device| {
                let taints = device.taints.take();
                !taints.iter().flatten().any(|taint| taint.effect != "None")
            });
        }
        if !server.counts() {
            let mut left = Remaining::of(std::mem::take(&mut self.counters));
            let mut order: Vec<&Device> = self.devices.iter().collect();
            order.sort_by_cached_key(|device| rank(device));
            let stay: BTreeSet<String> = order
                .into_iter()
                .filter(|device| left.take(device))
                .map(|device| device.name.clone())
                .collect();
            self.devices.retain(|device| stay.contains(&device.name));
            self.devices.iter_mut().for_each(|device| device.consumes_counters = None);
        }
        for device in &mut self.devices {
            if !server.stores(DroppedField::AllowMultipleAllocations) {
                device.allow_multiple_allocations = None;
            }
            // A policy is for shared devices only.
            if device.allow_multiple_allocations.is_none() || !server.stores(DroppedField::RequestPolicy) {
                device.capacity.iter_mut().flatten().for_each(|(_, capacity)| capacity.request_policy = None);
            }
            if !server.stores(DroppedField::BindsToNode) {
                device.binds_to_node = None;
            }
        }
        self
    }
}

/// The rest of each counter in billionths, by set and name.
struct Remaining(BTreeMap<(String, String), i128>);

impl Remaining {
    fn of(sets: Vec<CounterSet>) -> Self {
        let counters = sets.into_iter().flat_map(|set| {
            let name = set.name;
            set.counters.into_iter().map(move |(counter, amount)| ((name.clone(), counter), amount))
        });
        Self(counters.filter_map(|(key, amount)| Some((key, billionths(&amount.value.0).ok()?))).collect())
    }

    /// Takes what the device consumes, and returns `false` if a counter has too little left.
    fn take(&mut self, device: &Device) -> bool {
        let mut left = self.0.clone();
        let consumptions = device.consumes_counters.iter().flatten();
        let counters =
            consumptions.flat_map(|from| from.counters.iter().map(move |(name, c)| (from, name, c)));
        for (from, name, counter) in counters {
            let rest = left.get_mut(&(from.counter_set.clone(), name.clone())).and_then(|left| {
                *left = left.checked_sub(billionths(&counter.value.0).ok()?)?;
                Some(*left)
            });
            if rest.is_none_or(|rest| rest < 0) {
                return false;
            }
        }
        self.0 = left;
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pool::Placement;

    fn device(name: &str, counters: Value, taints: Value) -> Device {
        serde_json::from_value(json!({
            "name": name, "allowMultipleAllocations": true, "bindsToNode": true,
            "capacity": {"x": {"value": "1", "requestPolicy": {"default": "0"}}},
            "consumesCounters": [{"counterSet": "eth1", "counters": counters}], "taints": taints,
        }))
        .unwrap()
    }

    /// Two devices of one kind, and two that exclude each other and them.
    fn pool() -> Pool {
        let value = |n: u32| json!({"value": n.to_string()});
        let taint = |effect: &str| json!([{"key": "k", "effect": effect}]);
        Pool {
            name: "n1".into(),
            placement: Placement::Node("n1".into()),
            owner: None,
            devices: vec![
                device("nic", json!({"nic": value(1024), "ipvlan": value(1)}), json!([])),
                device("ipvlan", json!({"nic": value(1), "ipvlan": value(1024)}), json!([])),
                device("net-a", json!({"nic": value(1), "ipvlan": value(1)}), taint("None")),
                device("net-b", json!({"nic": value(1), "ipvlan": value(1)}), taint("NoSchedule")),
            ],
            counters: serde_json::from_value(
                json!([{"name": "eth1", "counters": {"nic": value(1024), "ipvlan": value(1024)}}]),
            )
            .unwrap(),
        }
    }

    fn fitted(dropped: &[DroppedField]) -> (Vec<String>, Pool) {
        let rank = |device: &Device| !device.name.starts_with("net-");
        let pool = pool().fitted(&dropped.iter().copied().collect(), rank);
        (pool.devices.iter().map(|device| device.name.clone()).collect(), pool)
    }

    #[test]
    fn a_server_with_all_features_gets_the_whole_pool() {
        assert_eq!(fitted(&[]).1, pool());
    }

    #[test]
    fn without_counters_the_preferred_of_exclusive_devices_stays() {
        let (names, pool) = fitted(&[DroppedField::ConsumesCounters]);
        assert_eq!(names, ["net-a", "net-b"], "they do not exclude each other");
        assert!(pool.counters.is_empty() && pool.devices.iter().all(|d| d.consumes_counters.is_none()));
    }

    #[test]
    fn without_taints_a_device_that_repels_pods_is_left_out() {
        let (names, pool) = fitted(&[DroppedField::Taints]);
        assert_eq!(names, ["nic", "ipvlan", "net-a"]);
        assert!(pool.devices.iter().all(|device| device.taints.is_none()));
    }

    #[test]
    fn without_sharing_devices_have_no_request_policies() {
        let (_, pool) = fitted(&[DroppedField::AllowMultipleAllocations]);
        for device in pool.devices {
            assert_eq!(device.allow_multiple_allocations, None);
            assert!(device.capacity.unwrap().values().all(|capacity| capacity.request_policy.is_none()));
        }
    }

    #[test]
    fn an_old_server_is_sent_nothing_that_it_drops() {
        let (names, pool) = fitted(&DroppedField::GATED);
        assert_eq!(names, ["net-a"]);
        let rest = json!({"name": "net-a", "capacity": {"x": {"value": "1"}}});
        assert_eq!(serde_json::to_value(&pool.devices[0]).unwrap(), rest);
    }
}
