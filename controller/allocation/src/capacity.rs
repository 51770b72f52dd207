//! How much of a device's capacities a request takes (`structured/internal/*/consumable_capacity.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, Device, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use netclaim_api::quantity::{ONE, billionths};

use crate::cause::{Amount, Cause};

/// Returns what a request takes of each capacity of the device, in billionths.
///
/// # Errors
/// Says which capacity the device does not have, does not grant in this amount, has without a meaning, or has in an amount
/// that cannot be read.
pub(crate) fn taken(
    device: &Device,
    requested: &BTreeMap<String, i128>,
) -> Result<BTreeMap<String, i128>, Cause> {
    let capacities = device.capacity.iter().flatten();
    if let Some(missing) = requested.keys().find(|name| !capacities.clone().any(|(known, _)| known == *name))
    {
        return Err(Cause::NoCapacity { capacity: missing.clone() });
    }
    let mut taken = BTreeMap::new();
    for (name, capacity) in capacities {
        let unknown = || Cause::AmountUnknown { of: name.clone() };
        let amount = rounded(capacity, requested.get(name).copied()).ok_or_else(unknown)?;
        if amount < 0 {
            let why = "capacity value is negative".to_owned();
            return Err(Cause::CapacityFails { capacity: name.clone(), why });
        }
        let policy = capacity.request_policy.as_ref();
        if !policy.map_or(Some(true), |policy| is_granted(policy, amount)).ok_or_else(unknown)? {
            return Err(Cause::NotGranted { capacity: name.clone(), wanted: Amount(amount) });
        }
        taken.insert(name.clone(), amount);
    }
    Ok(taken)
}

/// The total of a capacity, in billionths; `None` if it cannot be read.
pub(crate) fn total(capacity: &DeviceCapacity) -> Option<i128> {
    billionths(&capacity.value.0).ok()
}

/// Whether a request can take nothing of the capacity.
pub(crate) fn can_be_none(capacity: &DeviceCapacity) -> bool {
    let range = capacity.request_policy.as_ref().and_then(|policy| policy.valid_range.as_ref());
    range.is_some_and(|range| billionths(&range.min.0) == Ok(0))
}

/// What a request takes of a capacity; `None` if an amount of the policy cannot be read.
fn rounded(capacity: &DeviceCapacity, requested: Option<i128>) -> Option<i128> {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested else {
        let default = policy.and_then(|policy| policy.default.as_ref());
        return billionths(&default.unwrap_or(&capacity.value).0).ok();
    };
    let Some(policy) = policy else { return Some(requested) };
    if let Some(range) = &policy.valid_range {
        let min = billionths(&range.min.0).ok()?;
        let Some(step) = &range.step else { return Some(requested.max(min)) };
        if requested < min {
            return Some(min);
        }
        // Steps are whole, and amounts are rounded up to whole ones first.
        let (min, step) = (whole(min), whole(billionths(&step.0).ok()?));
        let steps = (whole(requested) - min).checked_add(step.checked_sub(1)?)?.checked_div(step)?;
        return min.checked_add(steps.checked_mul(step)?)?.checked_mul(ONE);
    }
    let values = policy.valid_values.iter().flatten().map(|value| billionths(&value.0).ok());
    let values = values.collect::<Option<Vec<i128>>>()?;
    Some(values.into_iter().filter(|value| *value >= requested).min().unwrap_or(requested))
}

/// Whether the policy grants the amount; `None` if an amount of the policy cannot be read.
fn is_granted(policy: &CapacityRequestPolicy, amount: i128) -> Option<bool> {
    let read = |value: &Quantity| billionths(&value.0).ok();
    if let Some(default) = &policy.default
        && read(default)? == amount
    {
        return Some(true);
    }
    match (&policy.valid_range, &policy.valid_values) {
        (Some(range), _) => match &range.max {
            Some(max) => Some(amount <= read(max)?),
            None => Some(true),
        },
        (None, Some(values)) if !values.is_empty() => {
            let values = values.iter().map(read).collect::<Option<Vec<i128>>>()?;
            Some(values.contains(&amount))
        }
        _ => Some(true),
    }
}

/// Rounds up to a whole number.
fn whole(amount: i128) -> i128 {
    amount.div_euclid(ONE) + i128::from(amount.rem_euclid(ONE) != 0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What a request for `requested` takes of a capacity, in ones.
    fn takes(capacity: Value, requested: Option<&str>) -> Result<String, Cause> {
        let device = serde_json::from_value(json!({"name": "d", "allowMultipleAllocations": true,
            "capacity": {"c": capacity}}))
        .unwrap();
        let requested = requested.map(|amount| ("c".to_owned(), billionths(amount).unwrap()));
        taken(&device, &requested.into_iter().collect()).map(|taken| Amount(taken["c"]).to_string())
    }

    #[test]
    fn a_request_takes_what_the_scheduler_would_charge() {
        let steps = json!({"value": "10G", "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1G"}}});
        let offset = json!({"value": "100", "requestPolicy": {"default": "5", "validRange": {"min": "5", "max": "50", "step": "10"}}});
        let range = json!({"value": "254", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}});
        let values =
            json!({"value": "10", "requestPolicy": {"default": "0", "validValues": ["0", "1", "4"]}});
        let default = json!({"value": "10", "requestPolicy": {"default": "1"}});
        let fixed = json!({"value": "0", "requestPolicy": {"default": "1", "validRange": {"min": "0"}}});
        let plain = json!({"value": "10"});
        for (capacity, requested, amount) in [
            (&steps, None, "0"),
            (&steps, Some("1500M"), "2G"),
            (&steps, Some("1500m"), "1G"),
            (&steps, Some("2G"), "2G"),
            (&offset, Some("3"), "5"),
            (&offset, Some("6"), "15"),
            (&offset, Some("45"), "45"),
            (&range, None, "1"),
            (&range, Some("0"), "1"),
            (&range, Some("-3"), "1"),
            (&range, Some("7"), "7"),
            (&values, Some("2"), "4"),
            (&values, Some("1"), "1"),
            (&default, None, "1"),
            (&default, Some("0"), "0"),
            (&fixed, None, "1"),
            (&fixed, Some("0"), "0"),
            (&plain, None, "10"),
            (&plain, Some("3"), "3"),
        ] {
            assert_eq!(takes(capacity.clone(), requested).as_deref(), Ok(amount), "{capacity} {requested:?}");
        }
    }

    #[test]
    fn a_request_that_a_policy_does_not_grant_takes_nothing() {
        let offset = json!({"value": "100", "requestPolicy": {"default": "5", "validRange": {"min": "5", "max": "50", "step": "10"}}});
        let values = json!({"value": "10", "requestPolicy": {"default": "0", "validValues": ["0", "1"]}});
        for (capacity, requested) in [(offset, "51"), (values, "2")] {
            let cause = takes(capacity, Some(requested)).unwrap_err();
            assert!(matches!(cause, Cause::NotGranted { .. }), "{cause}");
        }
        let default = json!({"value": "10", "requestPolicy": {"default": "1"}});
        assert!(takes(default, Some("-5")).unwrap_err().stops_the_scheduler());
    }

    #[test]
    fn an_amount_of_a_policy_that_cannot_be_read_is_not_known() {
        let range = |max: &str| json!({"value": "9", "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": max}}});
        let values = json!({"value": "9", "requestPolicy": {"default": "1", "validValues": ["1", "many"]}});
        for capacity in [range("many"), values] {
            assert_eq!(takes(capacity, Some("2")), Err(Cause::AmountUnknown { of: "c".to_owned() }));
        }
        assert_eq!(takes(json!({"value": "many"}), None), Err(Cause::AmountUnknown { of: "c".to_owned() }));
    }

    #[test]
    fn a_capacity_must_be_spelled_as_the_device_does() {
        let device =
            serde_json::from_value(json!({"name": "d", "capacity": {"bandwidth": {"value": "1G"}}})).unwrap();
        let requested = BTreeMap::from([("netclaim.dev/bandwidth".to_owned(), ONE)]);
        let cause = taken(&device, &requested).unwrap_err();
        assert_eq!(cause, Cause::NoCapacity { capacity: "netclaim.dev/bandwidth".to_owned() });
    }
}
