//! When a node whose addresses are all in use says so. Pure.
//!
//! It tells node autoscalers, which look every 10 s or less often. Pods that come and go on a full node
//! should not write its slice each time, so the taint waits, and goes at once when an address is free.

use std::collections::BTreeMap;
use std::time::Duration;

use netclaim_api::taints::Reason;
use netclaim_slices::Pool;
use tokio::time::Instant;

/// How long all addresses must be in use.
const SETTLED: Duration = Duration::from_secs(30);

/// Since when devices are full, by name.
#[derive(Debug, Default)]
pub(super) struct Full(BTreeMap<String, Instant>);

impl Full {
    /// Takes the taint off devices that are full for a short time. Returns when to look again.
    pub(super) fn settle(&mut self, pool: &mut Pool, now: Instant) -> Option<Instant> {
        let key = Reason::Full.key();
        let (mut full, mut next) = (BTreeMap::new(), None::<Instant>);
        for device in &mut pool.devices {
            let Some(taints) = device.taints.as_mut().filter(|all| all.iter().any(|taint| taint.key == key))
            else {
                continue;
            };
            let since = self.0.get(&device.name).copied().unwrap_or(now);
            full.insert(device.name.clone(), since);
            let due = since + SETTLED;
            if due > now {
                taints.retain(|taint| taint.key != key);
                device.taints = device.taints.take().filter(|taints| !taints.is_empty());
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        self.0 = full;
        next
    }
}

#[cfg(test)]
mod tests {
    use netclaim_slices::Placement;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_device_that_is_full_for_long_is_tainted_until_it_is_not() {
        let mut full = Full::default();
        let start = Instant::now();
        let mut tainted = |keys: &[&str], seconds: u64| {
            let taints: Vec<_> = keys.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
            let device = json!({"name": "net-a", "taints": taints});
            let devices = vec![serde_json::from_value(device).expect("a device")];
            let mut pool = Pool::new("n", Placement::AllNodes, devices);
            let next = full.settle(&mut pool, start + Duration::from_secs(seconds));
            let left = pool.devices.iter().flat_map(|device| device.taints.iter().flatten()).count();
            (left, next.map(|next| (next - start).as_secs()))
        };
        let key = Reason::Full.key();
        assert_eq!(tainted(&[key], 0), (0, Some(30)));
        assert_eq!(tainted(&[key, "netclaim.dev/link-down"], 29), (1, Some(30)));
        assert_eq!(tainted(&[key], 30), (1, None));
        assert_eq!(tainted(&[], 31), (0, None));
        assert_eq!(tainted(&[key], 32), (0, Some(62)), "it counts anew");
    }
}
