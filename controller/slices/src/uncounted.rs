//! Reduces a pool to what a scheduler without counters cannot get wrong: an unpublished device is safe, an
//! unprotected one is not.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{CounterSet, Device};
use netclaim_api::quantity::billionths;

use crate::pool::Pool;

impl Pool {
    /// Returns this pool without counters. If devices together consume more of a counter than there is, those
    /// with the lowest `rank` stay, and of equals the first.
    #[must_use]
    pub fn without_counters<R: Ord>(mut self, rank: impl Fn(&Device) -> R) -> Self {
        let mut left = Remaining::of(std::mem::take(&mut self.counters));
        let mut order: Vec<&Device> = self.devices.iter().collect();
        order.sort_by_cached_key(|device| rank(device));
        let stay: BTreeSet<String> =
            order.into_iter().filter(|device| left.take(device)).map(|device| device.name.clone()).collect();
        self.devices.retain(|device| stay.contains(&device.name));
        self.devices.iter_mut().for_each(|device| device.consumes_counters = None);
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

    fn device(name: &str, counters: Value) -> Device {
        let consumes = json!([{"counterSet": "eth1", "counters": counters}]);
        serde_json::from_value(json!({"name": name, "consumesCounters": consumes})).unwrap()
    }

    #[test]
    fn without_counters_the_preferred_of_exclusive_devices_stay() {
        let value = |n: u32| json!({"value": n.to_string()});
        let pool = Pool {
            name: "n1".into(),
            placement: Placement::Node("n1".into()),
            owner: None,
            devices: vec![
                device("nic", json!({"nic": value(1024), "ipvlan": value(1)})),
                device("ipvlan", json!({"nic": value(1), "ipvlan": value(1024)})),
                device("net-a", json!({"nic": value(1), "ipvlan": value(1)})),
                device("net-b", json!({"nic": value(1), "ipvlan": value(1)})),
            ],
            counters: serde_json::from_value(
                json!([{"name": "eth1", "counters": {"nic": value(1024), "ipvlan": value(1024)}}]),
            )
            .unwrap(),
        };
        let pool = pool.without_counters(|device| !device.name.starts_with("net-"));
        let names: Vec<&str> = pool.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["net-a", "net-b"], "they do not exclude each other");
        assert!(pool.counters.is_empty() && pool.devices.iter().all(|d| d.consumes_counters.is_none()));
    }
}
