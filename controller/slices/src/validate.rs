//! Finds devices that the API server accepts but the scheduler fails on, and faults of a pool that no single
//! slice shows.
//!
//! A device with a negative capacity fails every pod that the scheduler tries on it. A duplicate name or a
//! dangling counter makes the whole pool unusable (both observed on 1.37). What the API server refuses itself
//! is mostly left to it, because the publisher sends a dry run before a rewrite.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::{
    api::resource::v1::{CapacityRequestPolicy, CounterSet, Device, DeviceCapacity},
    apimachinery::pkg::api::resource::Quantity,
};
use netclaim_kubernetes::names::is_dns_label;
use netclaim_kubernetes::quantity::{ONE, billionths};
use thiserror::Error;

use crate::{
    config::Scope,
    pool::{Placement, Pool},
};

/// Most counters of a counter set (API limit since 1.35).
pub(crate) const COUNTERS_PER_SET: usize = 32;

/// One thing wrong with a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The pool.
    pub pool: String,
    /// The device, or `None` for a fault of the pool or of a counter set.
    pub device: Option<String>,
    /// The field, within the device if there is one: `capacity[bandwidth].requestPolicy.default`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}, ", self.pool)?;
        if let Some(device) = &self.device {
            write!(f, "device {device}, ")?;
        }
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// Why a field cannot be published.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// Two pools, devices or counter sets of one name.
    #[error("the name {0:?} is taken, use another")]
    Duplicate(String),
    /// The API server refuses such a device name.
    #[error("{0:?} must be a DNS label: at most 63 lower-case letters, digits and `-`")]
    Name(String),
    /// The publisher does not manage slices with this placement.
    #[error("the placement is outside this publisher's scope")]
    Placement,
    /// Not a number.
    #[error("{0:?} is not a quantity")]
    Quantity(String),
    /// The scheduler would fail every pod that it tries on the device.
    #[error("{0} is negative")]
    Negative(String),
    /// No request could be granted, or a default grants more than there is.
    #[error("{value} is above {limit_name} {limit}")]
    Above {
        /// The value of the field.
        value: String,
        /// The field that limits it.
        limit_name: &'static str,
        /// The value of that field.
        limit: String,
    },
    /// The scheduler counts in whole units unless `DRAFractionalCapacityRange` is on.
    #[error("step {0} must be a positive whole number: the scheduler rounds a fraction to whole units")]
    Step(String),
    /// The device names a counter set that the pool lacks.
    #[error("the pool has no counter set {0:?}")]
    UnknownCounterSet(String),
    /// The device names a counter that its set lacks.
    #[error("counter set {set:?} has no counter {counter:?}")]
    UnknownCounter {
        /// The counter set.
        set: String,
        /// The counter.
        counter: String,
    },
    /// The API server refuses the device for a reason of its own.
    #[error("the API server refuses it: {0}")]
    Refused(String),
    /// The API server limits the counters of a set.
    #[error("{0} counters in one set, at most {COUNTERS_PER_SET} are allowed: spread them over several sets")]
    TooManyCounters(usize),
}

/// Returns everything that is wrong with `pool` in `scope`; nothing if it can be published.
#[must_use]
pub fn validate(pool: &Pool, scope: &Scope) -> Vec<Fault> {
    publishable(pool, scope).map_or_else(|faults| faults, |(_, faults)| faults)
}

/// Returns the part of `pool` that can be published in `scope`, and what is wrong with the rest. One bad
/// device must not hide the node's others from the scheduler.
///
/// # Errors
/// Why nothing of the pool can be published.
pub(crate) fn publishable(pool: &Pool, scope: &Scope) -> Result<(Pool, Vec<Fault>), Vec<Fault>> {
    let mut faults = Faults { pool: &pool.name, device: None, found: Vec::new() };
    let placed = match (&pool.placement, scope) {
        (Placement::Node(name), Scope::Node(scope)) => name == scope,
        (Placement::NodeSelector(_) | Placement::AllNodes, Scope::Cluster) => true,
        _ => false,
    };
    if !placed {
        faults.add("placement", Problem::Placement);
        return Err(faults.found);
    }
    let sets = counter_sets(&pool.counters, &mut faults);
    let mut names = BTreeSet::new();
    let mut devices = Vec::with_capacity(pool.devices.len());
    for device in &pool.devices {
        let before = faults.found.len();
        faults.device = Some(&device.name);
        if !is_dns_label(&device.name) {
            faults.add("name", Problem::Name(device.name.clone()));
        }
        if !names.insert(&device.name) {
            faults.add("name", Problem::Duplicate(device.name.clone()));
        }
        for (key, value) in device.capacity.iter().flatten() {
            capacity(&format!("capacity[{key}]"), value, &mut faults);
        }
        consumption(device, &sets, &mut faults);
        if faults.found.len() == before {
            devices.push(device.clone());
        }
    }
    let counters = sets.into_values().cloned().collect();
    let sound = Pool { devices, counters, ..pool.clone() };
    Ok((sound, faults.found))
}

struct Faults<'a> {
    pool: &'a str,
    device: Option<&'a str>,
    found: Vec<Fault>,
}

impl Faults<'_> {
    fn add(&mut self, field: impl Into<String>, problem: Problem) {
        let (pool, device) = (self.pool.to_owned(), self.device.map(str::to_owned));
        self.found.push(Fault { pool, device, field: field.into(), problem });
    }

    /// Returns the number, or adds a fault.
    fn not_negative(&mut self, field: &str, quantity: &Quantity) -> Option<i128> {
        match billionths(&quantity.0) {
            Err(_) => self.add(field, Problem::Quantity(quantity.0.clone())),
            Ok(value) if value < 0 => self.add(field, Problem::Negative(quantity.0.clone())),
            Ok(value) => return Some(value),
        }
        None
    }

    /// Adds a fault if the number is negative or above `limit`.
    fn at_most(&mut self, field: &str, quantity: &Quantity, limit_name: &'static str, limit: &Quantity) {
        let value = self.not_negative(field, quantity);
        if value.zip(billionths(&limit.0).ok()).is_some_and(|(value, limit)| value > limit) {
            let (value, limit) = (quantity.0.clone(), limit.0.clone());
            self.add(field, Problem::Above { value, limit_name, limit });
        }
    }
}

type CounterSets<'a> = BTreeMap<&'a str, &'a CounterSet>;

/// Returns the sets that can be published, by name.
fn counter_sets<'a>(sets: &'a [CounterSet], faults: &mut Faults<'_>) -> CounterSets<'a> {
    let mut known = BTreeMap::new();
    for set in sets {
        let before = faults.found.len();
        let field = format!("counters[{}]", set.name);
        if known.contains_key(set.name.as_str()) {
            faults.add(field.as_str(), Problem::Duplicate(set.name.clone()));
        }
        if set.counters.len() > COUNTERS_PER_SET {
            faults.add(field.as_str(), Problem::TooManyCounters(set.counters.len()));
        }
        for (name, counter) in &set.counters {
            faults.not_negative(&format!("{field}.{name}"), &counter.value);
        }
        if faults.found.len() == before {
            known.insert(set.name.as_str(), set);
        }
    }
    known
}

fn consumption(device: &Device, sets: &CounterSets<'_>, faults: &mut Faults<'_>) {
    for consumed in device.consumes_counters.iter().flatten() {
        let field = format!("consumesCounters[{}]", consumed.counter_set);
        let Some(set) = sets.get(consumed.counter_set.as_str()) else {
            faults.add(field, Problem::UnknownCounterSet(consumed.counter_set.clone()));
            continue;
        };
        for (name, counter) in &consumed.counters {
            let field = format!("{field}.{name}");
            match set.counters.get(name) {
                Some(total) => faults.at_most(&field, &counter.value, "the counter's value", &total.value),
                None => faults.add(
                    field,
                    Problem::UnknownCounter { set: consumed.counter_set.clone(), counter: name.clone() },
                ),
            }
        }
    }
}

fn capacity(field: &str, capacity: &DeviceCapacity, faults: &mut Faults<'_>) {
    faults.not_negative(&format!("{field}.value"), &capacity.value);
    if let Some(policy) = &capacity.request_policy {
        request_policy(&format!("{field}.requestPolicy"), policy, &capacity.value, faults);
    }
}

fn request_policy(field: &str, policy: &CapacityRequestPolicy, value: &Quantity, faults: &mut Faults<'_>) {
    if let Some(default) = &policy.default {
        let field = format!("{field}.default");
        let below = |min: &Quantity| billionths(&min.0).ok() < billionths(&default.0).ok();
        // If a claim can request less than the default, the scheduler only passes over the claims that do
        // not.
        if policy.valid_range.as_ref().is_some_and(|range| below(&range.min)) {
            faults.not_negative(&field, default);
        } else {
            faults.at_most(&field, default, "the capacity", value);
        }
    }
    for (i, valid) in policy.valid_values.iter().flatten().enumerate() {
        faults.at_most(&format!("{field}.validValues[{i}]"), valid, "the capacity", value);
    }
    let Some(range) = &policy.valid_range else { return };
    let field = format!("{field}.validRange");
    faults.at_most(&format!("{field}.min"), &range.min, "the capacity", value);
    if let Some(max) = &range.max {
        faults.at_most(&format!("{field}.max"), max, "the capacity", value);
        faults.at_most(&format!("{field}.min"), &range.min, "max", max);
    }
    if let Some(step) = &range.step {
        let whole = billionths(&step.0).is_ok_and(|step| step > 0 && step % ONE == 0);
        if !whole {
            faults.add(format!("{field}.step"), Problem::Step(step.0.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeSelector;
    use serde_json::{Value, json};

    use super::*;

    fn faults_of(devices: Value, counters: Value) -> Vec<String> {
        let devices = serde_json::from_value(devices).unwrap();
        let pool = Pool {
            counters: serde_json::from_value(counters).unwrap(),
            ..Pool::new("n1", Placement::Node("n1".into()), devices)
        };
        validate(&pool, &Scope::Node("n1".into())).iter().map(Fault::to_string).collect()
    }

    fn faults_of_capacity(capacity: Value) -> Vec<String> {
        faults_of(
            json!([{"name": "a", "allowMultipleAllocations": true, "capacity": {"x": capacity}}]),
            json!([]),
        )
    }

    #[test]
    fn a_sound_pool_has_no_faults() {
        let policy = json!({"default": "1", "validRange": {"min": "1", "max": "10G", "step": "1M"}});
        let devices = json!([
            {"name": "a", "capacity": {"bandwidth": {"value": "10G", "requestPolicy": policy}},
             "consumesCounters": [{"counterSet": "eth1", "counters": {"iv-0": {"value": "64"}}}]},
            {"name": "b", "capacity": {"x": {"value": "0"}}},
            {"name": "c", "allowMultipleAllocations": true,
             "capacity": {"x": {"value": "0", "requestPolicy": {"default": "1", "validRange": {"min": "0"}}}}},
        ]);
        assert_eq!(
            faults_of(devices, json!([{"name": "eth1", "counters": {"iv-0": {"value": "64"}}}])),
            [""; 0]
        );
    }

    #[test]
    fn a_capacity_that_fails_the_scheduler_is_a_fault() {
        for (capacity, fault) in [
            (json!({"value": "-1"}), "value: -1 is negative"),
            (json!({"value": "1Q"}), r#"value: "1Q" is not a quantity"#),
            (
                json!({"value": "0", "requestPolicy": {"default": "1"}}),
                "requestPolicy.default: 1 is above the capacity 0",
            ),
            (
                json!({"value": "5", "requestPolicy": {"default": "1", "validValues": ["1", "6"]}}),
                "requestPolicy.validValues[1]: 6 is above the capacity 5",
            ),
            (
                json!({"value": "5", "requestPolicy": {"default": "3", "validRange": {"min": "3", "max": "2"}}}),
                "requestPolicy.validRange.min: 3 is above max 2",
            ),
            (
                json!({"value": "5", "requestPolicy": {"default": "1", "validRange": {"min": "-3"}}}),
                "requestPolicy.validRange.min: -3 is negative",
            ),
            (
                json!({"value": "5", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "0.5"}}}),
                "requestPolicy.validRange.step: step 0.5 must be a positive whole number: the scheduler rounds a fraction \
                 to whole units",
            ),
        ] {
            assert_eq!(faults_of_capacity(capacity), [format!("pool n1, device a, capacity[x].{fault}")]);
        }
    }

    #[test]
    fn a_consumed_counter_must_exist_and_suffice() {
        let device = |set: &str, counter: &str, value: &str| {
            json!([{"name": "a", "consumesCounters":
                [{"counterSet": set, "counters": {counter: {"value": value}}}]}])
        };
        let sets = json!([{"name": "eth1", "counters": {"iv-0": {"value": "64"}}}]);
        for (devices, fault) in [
            (device("eth2", "iv-0", "1"), r#"consumesCounters[eth2]: the pool has no counter set "eth2""#),
            (
                device("eth1", "iv-1", "1"),
                r#"consumesCounters[eth1].iv-1: counter set "eth1" has no counter "iv-1""#,
            ),
            (device("eth1", "iv-0", "65"), "consumesCounters[eth1].iv-0: 65 is above the counter's value 64"),
            (device("eth1", "iv-0", "-1"), "consumesCounters[eth1].iv-0: -1 is negative"),
        ] {
            assert_eq!(faults_of(devices, sets.clone()), [format!("pool n1, device a, {fault}")]);
        }
    }

    #[test]
    fn every_duplicate_or_bad_name_is_a_fault() {
        let set = json!({"name": "s", "counters": {}});
        assert_eq!(
            faults_of(json!([{"name": "a"}, {"name": "A"}, {"name": "a"}]), json!([set, set])),
            [
                r#"pool n1, counters[s]: the name "s" is taken, use another"#,
                r#"pool n1, device A, name: "A" must be a DNS label: at most 63 lower-case letters, digits and `-`"#,
                r#"pool n1, device a, name: the name "a" is taken, use another"#,
            ]
        );
    }

    #[test]
    fn the_sound_part_of_a_pool_can_be_published() {
        let consuming = |name: &str, set: &str| json!({"name": name, "consumesCounters": [{"counterSet": set, "counters": {"c": {"value": "1"}}}]});
        let set = |name: &str, value: &str| json!({"name": name, "counters": {"c": {"value": value}}});
        let devices = json!([consuming("a", "good"), consuming("b", "bad"), {"name": "a"}, {"name": "c"}]);
        let devices = serde_json::from_value(devices).unwrap();
        let pool = Pool {
            counters: serde_json::from_value(json!([set("good", "1"), set("bad", "-1")])).unwrap(),
            ..Pool::new("n1", Placement::Node("n1".into()), devices)
        };
        let (sound, faults) = publishable(&pool, &Scope::Node("n1".into())).unwrap();
        let names: Vec<_> = sound.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(sound.counters.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(), ["good"]);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert_eq!(validate(&sound, &Scope::Node("n1".into())), []);
    }

    #[test]
    fn a_pool_outside_the_scope_is_refused() {
        let pool = |placement| Pool::new("p", placement, Vec::new());
        let (node, cluster) = (Scope::Node("n1".into()), Scope::Cluster);
        let elsewhere = [
            (Placement::Node("n2".into()), &node),
            (Placement::AllNodes, &node),
            (Placement::Node("n1".into()), &cluster),
        ];
        for (placement, scope) in elsewhere {
            assert_eq!(validate(&pool(placement), scope)[0].problem, Problem::Placement);
        }
        assert_eq!(validate(&pool(Placement::NodeSelector(NodeSelector::default())), &cluster), []);
    }
}
