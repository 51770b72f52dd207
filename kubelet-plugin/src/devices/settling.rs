//! Taints that wait until what they say has lasted. Pure.
//!
//! | taint | waits, because |
//! |---|---|
//! | that all addresses are in use | it tells node autoscalers, which look every 10 s or less often, and pods come and go on a full node |
//! | with the effect `NoExecute` | it ends all pods of a device, also after a short loss of the link |
//!
//! They go at once. What an earlier agent has published has lasted. A taint `NoExecute` stands beside one
//! `NoSchedule` of the same key: the scheduler takes a toleration of the former, also for a time, for one of
//! both, and would bring pods back to the node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::resource::v1::{Device, DeviceTaint};
use netclaim_api::device::DeviceName;
use netclaim_api::network::{ClaimNetworkSpec, OnTrafficFailure};
use netclaim_api::taints::Reason;
use netclaim_slices::Pool;
use tokio::time::Instant;

use super::candidate::stops_traffic;
use crate::inventory::Inventory;

/// How long all addresses must be in use.
const FULL: Duration = Duration::from_secs(30);
/// How long pods must have been without traffic.
const EVICTED: Duration = Duration::from_secs(60);
/// How long an agent that has started may take to learn what is wrong.
const LEARNED: Duration = Duration::from_secs(30);
const NO_EXECUTE: &str = "NoExecute";

/// Has the device's pods evicted for what stops their traffic, if its ClaimNetwork says so.
pub(super) fn evict(device: &mut Device, is_gone: bool, inventory: &Inventory) {
    let Ok(DeviceName::Network(name)) = device.name.parse() else { return };
    let evicts = |spec: &ClaimNetworkSpec| spec.on_failure.traffic == OnTrafficFailure::Evict;
    if !inventory.networks.get(&name).is_some_and(evicts) {
        return;
    }
    let stops = |taint: &&DeviceTaint| {
        Reason::of_key(&taint.key).is_some_and(|reason| stops_traffic(reason, is_gone))
    };
    let taints = device.taints.iter().flatten();
    let more: Vec<DeviceTaint> = taints
        .filter(stops)
        .map(|taint| DeviceTaint { effect: NO_EXECUTE.to_owned(), ..taint.clone() })
        .collect();
    device.taints.iter_mut().for_each(|taints| taints.extend(more.iter().cloned()));
}

/// Returns how long what a taint says must last; `None` for one that does not wait.
fn lasts(taint: &DeviceTaint) -> Option<Duration> {
    match (taint.key == Reason::Full.key(), taint.effect == NO_EXECUTE) {
        (true, _) => Some(FULL),
        (_, true) => Some(EVICTED),
        _ => None,
    }
}

/// The name of a device, and the key of a taint.
type Key = (String, String);

/// Since when devices have the taints that wait.
#[derive(Debug)]
pub(super) struct Settling {
    since: BTreeMap<Key, Instant>,
    /// Taints that an earlier agent has published, and until when they count: an agent that starts learns
    /// one by one what is wrong.
    earlier: (BTreeSet<Key>, Instant),
}

impl Settling {
    /// Goes on from what an earlier agent has published of these devices.
    pub(super) fn after<'a>(published: impl IntoIterator<Item = &'a Device>, now: Instant) -> Self {
        let waits = |taint: &&DeviceTaint| lasts(taint).is_some();
        let of = |device: &'a Device| {
            let taints = device.taints.iter().flatten().filter(waits);
            taints.map(|taint| (device.name.clone(), taint.key.clone()))
        };
        let earlier = published.into_iter().flat_map(of).collect();
        Self { since: BTreeMap::new(), earlier: (earlier, now + LEARNED) }
    }

    /// Takes taints off that have not lasted yet. Returns when to look again.
    pub(super) fn settle(&mut self, pool: &mut Pool, now: Instant) -> Option<Instant> {
        let (mut since, mut next) = (BTreeMap::new(), None::<Instant>);
        for Device { name, taints, .. } in &mut pool.devices {
            let mut stays = |taint: &DeviceTaint| {
                let Some(lasts) = lasts(taint) else { return true };
                let key = (name.clone(), taint.key.clone());
                let (earlier, until) = &self.earlier;
                let has_lasted = now < *until && earlier.contains(&key);
                let begin = self.since.get(&key).copied();
                let begin = begin.or_else(|| now.checked_sub(lasts).filter(|_| has_lasted)).unwrap_or(now);
                since.insert(key, begin);
                let due = begin + lasts;
                if due > now {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
                due <= now
            };
            if let Some(all) = taints {
                all.retain(&mut stays);
            }
            *taints = taints.take().filter(|taints| !taints.is_empty());
        }
        self.since = since;
        next
    }
}

#[cfg(test)]
mod tests {
    use netclaim_slices::Placement;
    use serde_json::{Value, json};

    use super::*;

    fn device(taints: Value) -> Device {
        serde_json::from_value(json!({"name": "net-a", "taints": taints})).expect("a device")
    }

    /// The effects of the taints, and after how many seconds they may be others.
    fn settled(
        settling: &mut Settling,
        device: Device,
        start: Instant,
        seconds: u64,
    ) -> (Vec<String>, Option<u64>) {
        let mut pool = Pool::new("n", Placement::AllNodes, vec![device]);
        let next = settling.settle(&mut pool, start + Duration::from_secs(seconds));
        let taints = pool.devices.into_iter().flat_map(|device| device.taints.unwrap_or_default());
        (taints.map(|taint| taint.effect).collect(), next.map(|next| (next - start).as_secs()))
    }

    #[test]
    fn a_device_that_is_full_for_long_is_tainted_until_it_is_not() {
        let (mut settling, start) = (Settling::after([], Instant::now()), Instant::now());
        let mut tainted = |keys: &[&str], seconds: u64| {
            let taints: Vec<_> = keys.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
            let (left, next) = settled(&mut settling, device(taints.into()), start, seconds);
            (left.len(), next)
        };
        let key = Reason::Full.key();
        assert_eq!(tainted(&[key], 0), (0, Some(30)));
        assert_eq!(tainted(&[key, "netclaim.dev/link-down"], 29), (1, Some(30)));
        assert_eq!(tainted(&[key], 30), (1, None));
        assert_eq!(tainted(&[], 31), (0, None));
        assert_eq!(tainted(&[key], 32), (0, Some(62)), "it counts from zero");
    }

    #[test]
    fn what_an_earlier_agent_has_published_has_lasted() {
        let (full, start) = (Reason::Full.key(), Instant::now());
        let down = |effect: &str| json!({"key": "netclaim.dev/link-down", "effect": effect});
        let is_full = json!({"key": full, "effect": "NoSchedule"});
        let published = device(json!([is_full, down("NoSchedule")]));
        let mut settling = Settling::after([&published], start);
        let mut tainted = |taints: Value, seconds| settled(&mut settling, device(taints), start, seconds);
        let only_full = vec!["NoSchedule".to_owned()];
        assert_eq!(tainted(json!([]), 0), (vec![], None), "nothing is known yet");
        assert_eq!(tainted(json!([is_full, down("NoExecute")]), 1), (only_full.clone(), Some(61)));
        assert_eq!(tainted(json!([is_full]), 31), (only_full, None), "it goes on");
        assert_eq!(tainted(json!([]), 32), (vec![], None));
        assert_eq!(tainted(json!([is_full]), 33), (vec![], Some(63)), "it had gone meanwhile");
    }

    #[test]
    fn pods_are_evicted_where_the_network_says_so_and_when_the_link_has_been_away_for_long() {
        let of = |traffic: &str, reason: Reason, is_gone| {
            let spec = json!({"cni": {"plugins": []}, "onFailure": {"traffic": traffic}});
            let networks =
                [("a".parse().expect("a name"), serde_json::from_value(spec).expect("a spec"))].into();
            let inventory = Inventory { networks, ..Inventory::default() };
            let mut device = device(json!([{"key": reason.key(), "effect": "NoSchedule"}]));
            evict(&mut device, is_gone, &inventory);
            device
        };
        for (traffic, reason, is_gone, evicts) in [
            ("Evict", Reason::LinkDown, false, true),
            ("Evict", Reason::LinkMissing, true, true),
            ("Evict", Reason::LinkMissing, false, false),
            ("Evict", Reason::Limited, false, true),
            ("Evict", Reason::NotReady, false, false),
            ("Taint", Reason::LinkDown, false, false),
        ] {
            let taints = of(traffic, reason, is_gone).taints.expect("taints");
            let effects: Vec<&str> = taints.iter().map(|taint| taint.effect.as_str()).collect();
            let expected = if evicts { vec!["NoSchedule", NO_EXECUTE] } else { vec!["NoSchedule"] };
            assert_eq!(effects, expected, "{traffic} {reason:?}");
        }
        let (mut settling, start) = (Settling::after([], Instant::now()), Instant::now());
        let mut after = |device: Device, seconds| settled(&mut settling, device, start, seconds);
        let down = || of("Evict", Reason::LinkDown, false);
        let waits = vec!["NoSchedule".to_owned()];
        let evicts = vec!["NoSchedule".to_owned(), NO_EXECUTE.to_owned()];
        assert_eq!(after(down(), 0), (waits.clone(), Some(60)));
        assert_eq!(after(down(), 59), (waits.clone(), Some(60)));
        assert_eq!(after(device(json!([])), 60), (vec![], None), "the link is back");
        assert_eq!(after(down(), 61), (waits, Some(121)));
        assert_eq!(after(down(), 121), (evicts, None));
    }
}
