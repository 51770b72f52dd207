//! How much of a device's capacities a request takes (`structured/internal/*/consumable_capacity.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, Device, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use netclaim_kubernetes::quantity::{ONE, billionths};

use crate::cause::{Amount, Cause};

/// Returns what a request takes of each capacity of the device, in billionths.
///
/// # Errors
/// Says which capacity the device does not have, does not grant in this amount, has without a meaning, or has
/// in an amount that cannot be read.
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
    // What stops the scheduler does so before it looks at any policy.
    for (name, capacity) in capacities.clone() {
        let fails = |why: &str| Cause::CapacityFails { capacity: name.clone(), why: why.to_owned() };
        let amount = match rounded(capacity, requested.get(name).copied()) {
            Rounded::To(amount) if amount < 0 => return Err(fails("capacity value is negative")),
            Rounded::To(amount) => amount,
            Rounded::Beyond => return Err(fails("the request and its next step have more than 63 bits")),
            Rounded::Unknown => return Err(Cause::AmountUnknown { of: name.clone() }),
        };
        taken.insert(name.clone(), amount);
    }
    for (name, capacity) in capacities {
        let (policy, amount) =
            (capacity.request_policy.as_ref(), taken.get(name).copied().unwrap_or_default());
        let is_granted = policy.map_or(Some(true), |policy| is_granted(policy, amount));
        if !is_granted.ok_or_else(|| Cause::AmountUnknown { of: name.clone() })? {
            return Err(Cause::NotGranted { capacity: name.clone(), wanted: Amount(amount) });
        }
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

/// The amount of a capacity that a request takes.
enum Rounded {
    To(i128),
    /// It has more than 63 bits, in which the scheduler counts steps.
    Beyond,
    /// An amount cannot be read here, or schedulers of different versions take different ones.
    Unknown,
}

fn rounded(capacity: &DeviceCapacity, requested: Option<i128>) -> Rounded {
    let known = |amount: Option<i128>| amount.map_or(Rounded::Unknown, Rounded::To);
    let read = |amount: &Quantity| billionths(&amount.0).ok();
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested else {
        let default = policy.and_then(|policy| policy.default.as_ref());
        return known(read(default.unwrap_or(&capacity.value)));
    };
    let Some(policy) = policy else { return Rounded::To(requested) };
    if let Some(range) = &policy.valid_range {
        let Some(min) = read(&range.min) else { return Rounded::Unknown };
        let Some(step) = range.step.as_ref().filter(|_| min <= requested) else {
            return Rounded::To(requested.max(min));
        };
        let Some(step) = read(step).filter(|step| *step > 0) else { return Rounded::Unknown };
        let in_ones = stepped(requested, min, step, ONE);
        // Since Kubernetes 1.37, ranges have thousandths.
        return match in_ones {
            None => Rounded::Beyond,
            _ if requested % THOUSANDTH != 0 => Rounded::Unknown,
            Some(_) => known(in_ones.filter(|_| in_ones == stepped(requested, min, step, THOUSANDTH))),
        };
    }
    let values = policy.valid_values.iter().flatten().map(read);
    let values = values.collect::<Option<Vec<i128>>>();
    known(
        values
            .map(|values| values.into_iter().filter(|value| *value >= requested).min().unwrap_or(requested)),
    )
}

/// A thousandth, in billionths.
const THOUSANDTH: i128 = ONE / 1000;

/// Rounds up to the next step from `min` on, where everything is rounded up to whole units first; `None` if
/// that has more than 63 bits of units.
fn stepped(requested: i128, min: i128, step: i128, unit: i128) -> Option<i128> {
    let [requested, min, step] = [requested, min, step]
        .map(|amount| amount.div_euclid(unit) + i128::from(amount.rem_euclid(unit) != 0));
    let steps = (requested - min).checked_add(step - 1)?.checked_div(step)?;
    let amount = min.checked_add(steps.checked_mul(step)?)?;
    (requested.max(amount) <= i128::from(i64::MAX)).then_some(amount * unit)
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the amount of a capacity that a request for `requested` takes, in ones.
    fn takes(capacity: Value, requested: Option<&str>) -> Result<String, Cause> {
        let device = serde_json::from_value(json!({"name": "d", "allowMultipleAllocations": true,
            "capacity": {"c": capacity}}))
        .unwrap();
        let requested = requested.map(|amount| ("c".to_owned(), billionths(amount).unwrap()));
        taken(&device, &requested.into_iter().collect()).map(|taken| Amount(taken["c"]).to_string())
    }

    #[test]
    fn a_step_that_ends_beyond_63_bits_stops_the_scheduler() {
        let stepped = |step: &str| json!({"value": "18446744073709551616", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": step}}});
        for (step, requested) in
            [("1", "18446744073709551616"), ("1", "9223372036854775808"), ("1Ei", "9223372036854775807")]
        {
            let taken = takes(stepped(step), Some(requested));
            assert!(matches!(taken, Err(Cause::CapacityFails { .. })), "{requested}: {taken:?}");
        }
        // It stops there, too, if another capacity would only rule the device out.
        let device = serde_json::from_value(json!({"name": "d", "capacity": {
            "a": {"value": "9", "requestPolicy": {"default": "1", "validValues": ["1"]}}, "b": stepped("1")}}));
        let requested = [("a", "9"), ("b", "9223372036854775808")];
        let requested = requested.map(|(name, amount)| (name.to_owned(), billionths(amount).unwrap()));
        assert!(matches!(taken(&device.unwrap(), &requested.into()), Err(Cause::CapacityFails { .. })));
    }

    #[test]
    fn an_amount_that_schedulers_of_different_versions_round_differently_is_unknown() {
        let stepped = |min: &str, step: &str| json!({"value": "100P", "requestPolicy": {"default": "1", "validRange": {"min": min, "step": step}}});
        // Up to 1.36 the scheduler counts in ones, since then in thousandths.
        for (min, step, requested) in
            [("0", "500m", "300m"), ("500m", "1", "700m"), ("0", "1", "10P"), ("0", "1", "1500u")]
        {
            let taken = takes(stepped(min, step), Some(requested));
            assert!(matches!(taken, Err(Cause::AmountUnknown { .. })), "{min} {step} {requested}: {taken:?}");
        }
        assert_eq!(takes(stepped("0", "1"), Some("1500m")).as_deref(), Ok("2"));
        assert_eq!(takes(stepped("0", "500m"), Some("2")).as_deref(), Ok("2"));
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
