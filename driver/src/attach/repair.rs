//! Makes an attachment again that has broken, in the sandbox that it is in. Pure: time is an argument.
//!
//! The pod keeps its addresses, and its MAC address where the plugins can be told. What the pod itself has
//! set up on the interface goes with it: routes, multicast memberships, sockets that are bound to it. So the
//! network's admin must want it, and three things must hold together:
//!
//! 1. A CHECK has succeeded since the ADD. Otherwise a CHECK that fails says nothing about damage.
//! 2. CHECK has failed twice, [`LOOK_AGAIN`] apart.
//! 3. It is the chain's first plugin that fails, the one with the interface. A sysctl that the pod has
//!    changed is not a reason to take its interface.
//!
//! A broken CHECK or plugin costs one pod of each network and node in an hour: before that, the next one is
//! repaired only when a CHECK has found the last one whole. And no attachment is repaired more than [`MOST`]
//! times an hour.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use netclaim_cni::{CapabilityArgs, CniResult, IpRequest, NetworkList};
use tokio::time::Instant;

use super::plan::Spec;
use super::plugins::Interface;
use super::plugins::asked::STATIC;
use super::record::Sandbox;

/// Between the CHECK that finds an attachment broken and the one that decides.
pub const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How often an attachment is repaired in [`PERIOD`].
pub const MOST: usize = 3;
/// The time in which repairs of one attachment are counted.
pub const PERIOD: Duration = Duration::from_secs(3600);

/// Returns the capability arguments by which the plugins make what they have made, as far as they take them.
pub(super) fn same_again(spec: &Spec, sandbox: &Sandbox, result: &CniResult) -> CapabilityArgs {
    let made = Interface::made(spec, sandbox, result);
    let mut args = spec.capability_args.clone();
    // All of them: for one that is left out the plugin would choose another.
    if takes_ips(&spec.conflist) && !made.ips.is_empty() {
        args.ips = Some(made.ips.into_iter().map(IpRequest::Cidr).collect());
    }
    if args.mac.is_none() && takes(&spec.conflist, "mac") {
        args.mac = made.mac.and_then(|mac| mac.try_into().ok());
    }
    args
}

fn takes(list: &NetworkList, capability: &str) -> bool {
    list.plugins().any(|plugin| plugin.capabilities().contains(capability))
}

/// Whether a plugin with an IPAM that could choose otherwise takes addresses. Those of `static` are written
/// down, with gateways, which addresses that are asked for would replace.
fn takes_ips(list: &NetworkList) -> bool {
    list.plugins().any(|plugin| {
        plugin.capabilities().contains("ips") && plugin.ipam().is_some_and(|ipam| ipam.as_str() != STATIC)
    })
}

/// An attachment that is not whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwell {
    /// Its network.
    pub network: String,
    /// Whether what is wrong with it can be [repaired](super::Record::can_be_repaired).
    pub can_be_repaired: bool,
    /// Whether a repair of it is still [on trial](super::Record::is_on_trial).
    pub is_on_trial: bool,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due<K> {
    /// Check it again and, if that fails as before, make it again.
    Repair(K),
    /// Say that it is not repaired any more.
    GiveUp(K),
}

/// The repairs of a node, by attachment.
#[derive(Debug)]
pub struct Repairs<K> {
    broken_since: BTreeMap<K, Instant>,
    repaired: BTreeMap<K, Vec<Instant>>,
    given_up: BTreeSet<K>,
    /// The networks with a repair on trial, and since when others wait for it.
    stopped_since: BTreeMap<String, Instant>,
}

impl<K> Default for Repairs<K> {
    fn default() -> Self {
        Self {
            broken_since: BTreeMap::new(),
            repaired: BTreeMap::new(),
            given_up: BTreeSet::new(),
            stopped_since: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone> Repairs<K> {
    /// Returns what is due now, and when something else will be. `unwell` are all attachments that are not
    /// whole.
    pub fn due(&mut self, unwell: &BTreeMap<K, Unwell>, now: Instant) -> (Option<Due<K>>, Option<Instant>) {
        self.update(unwell, now);
        let mut next = None;
        for (key, Unwell { network, .. }) in unwell.iter().filter(|(_, unwell)| unwell.can_be_repaired) {
            let since = *self.broken_since.entry(key.clone()).or_insert(now);
            if self.repaired.get(key).is_some_and(|times| times.len() >= MOST) {
                if self.given_up.insert(key.clone()) {
                    return (Some(Due::GiveUp(key.clone())), Some(now));
                }
                continue;
            }
            // One that nothing helps must not stop the others for ever.
            let next_trial = self.stopped_since.get(network).map(|since| *since + PERIOD);
            let due = next_trial.into_iter().chain([since + LOOK_AGAIN]).max().unwrap_or(now);
            if due <= now {
                return (Some(Due::Repair(key.clone())), Some(now));
            }
            next = next.into_iter().chain([due]).min();
        }
        (None, next)
    }

    fn update(&mut self, unwell: &BTreeMap<K, Unwell>, now: Instant) {
        let broken = |key: &K| unwell.get(key).is_some_and(|unwell| unwell.can_be_repaired);
        self.broken_since.retain(|key, _| broken(key));
        self.repaired.retain(|_, times| {
            times.retain(|time| now.duration_since(*time) < PERIOD);
            !times.is_empty()
        });
        self.given_up.retain(|key| self.repaired.get(key).is_some_and(|times| times.len() >= MOST));
        let on_trial = unwell.values().filter(|unwell| unwell.is_on_trial);
        let stopped: BTreeSet<&String> = on_trial.map(|unwell| &unwell.network).collect();
        self.stopped_since.retain(|network, _| stopped.contains(network));
        for network in stopped {
            self.stopped_since.entry(network.clone()).or_insert(now);
        }
    }

    /// Notes that an attachment is being made again.
    pub fn repaired(&mut self, key: &K, network: &str, now: Instant) {
        self.repaired.entry(key.clone()).or_default().push(now);
        self.broken_since.remove(key);
        // The next trial begins.
        self.stopped_since.remove(network);
    }

    /// Notes that an attachment was not made again, because it was as it should be or had work to do.
    pub fn postponed(&mut self, key: &K) {
        self.broken_since.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::record::tests::{list, result, sandbox, spec};
    use super::*;

    /// One that is broken, and one that was repaired and is not whole.
    fn broken(network: &str) -> Unwell {
        Unwell { network: network.to_owned(), can_be_repaired: true, is_on_trial: false }
    }

    fn on_trial(network: &str) -> Unwell {
        Unwell { can_be_repaired: false, is_on_trial: true, ..broken(network) }
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn an_attachment_that_stays_broken_is_repaired_after_a_second_look() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let other = Unwell { can_be_repaired: false, ..broken("n") };
        let broken = BTreeMap::from([("a", broken("n")), ("b", other)]);
        assert_eq!(repairs.due(&broken, start), (None, Some(at(start, 10))));
        assert_eq!(repairs.due(&broken, at(start, 9)), (None, Some(at(start, 10))));
        assert_eq!(repairs.due(&broken, at(start, 10)).0, Some(Due::Repair("a")));
        // It is whole for a moment.
        assert_eq!(repairs.due(&BTreeMap::new(), at(start, 11)), (None, None));
        assert_eq!(repairs.due(&broken, at(start, 12)), (None, Some(at(start, 22))));
    }

    #[test]
    fn the_next_one_of_a_network_waits_until_the_last_one_is_whole() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let mut all = BTreeMap::from([("a", broken("n")), ("b", broken("n")), ("c", broken("other"))]);
        let _ = repairs.due(&all, start);
        assert_eq!(repairs.due(&all, at(start, 10)).0, Some(Due::Repair("a")));
        repairs.repaired(&"a", "n", at(start, 10));
        all.insert("a", on_trial("n"));
        let due = repairs.due(&all, at(start, 60)).0;
        assert_eq!(due, Some(Due::Repair("c")), "another network is not concerned");
        repairs.repaired(&"c", "other", at(start, 60));
        all.remove("c");
        // The next agent knows it, too.
        for mut repairs in [repairs, Repairs::default()] {
            assert_eq!(repairs.due(&all, at(start, 100)).0, None);
            let without_a = BTreeMap::from([("b", broken("n"))]);
            assert!(matches!(repairs.due(&without_a, at(start, 110)).0, None | Some(Due::Repair("b"))));
            assert_eq!(repairs.due(&without_a, at(start, 120)).0, Some(Due::Repair("b")));
        }
    }

    #[test]
    fn one_that_nothing_helps_stops_the_others_for_an_hour_at_a_time() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let mut all = BTreeMap::from([("a", on_trial("n")), ("b", broken("n")), ("c", broken("n"))]);
        assert_eq!(repairs.due(&all, start), (None, Some(at(start, 3600))));
        assert_eq!(repairs.due(&all, at(start, 3599)).0, None);
        assert_eq!(repairs.due(&all, at(start, 3600)).0, Some(Due::Repair("b")));
        repairs.repaired(&"b", "n", at(start, 3600));
        all.insert("b", on_trial("n"));
        assert_eq!(repairs.due(&all, at(start, 3601)).0, None);
        assert_eq!(repairs.due(&all, at(start, 7201)).0, Some(Due::Repair("c")));
    }

    #[test]
    fn after_three_repairs_in_an_hour_it_is_given_up_until_the_hour_is_over() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let broken = BTreeMap::from([("a", broken("n"))]);
        for second in [0, 100, 200] {
            let _ = repairs.due(&broken, at(start, second));
            assert_eq!(repairs.due(&broken, at(start, second + 10)).0, Some(Due::Repair("a")));
            repairs.repaired(&"a", "n", at(start, second + 10));
            assert_eq!(repairs.due(&BTreeMap::new(), at(start, second + 11)), (None, None), "it is whole");
        }
        assert_eq!(repairs.due(&broken, at(start, 300)).0, Some(Due::GiveUp("a")));
        assert_eq!(repairs.due(&broken, at(start, 400)).0, None, "it is said once");
        assert_eq!(repairs.due(&broken, at(start, 3611)).0, Some(Due::Repair("a")));
    }

    #[test]
    fn a_repair_asks_for_what_the_pod_had_where_plugins_can_be_told() {
        let made = result(
            r#"{"cniVersion":"1.1.0","ips":[{"address":"10.20.0.5/24","interface":0}],
            "interfaces":[{"name":"net1","mac":"02:73:00:00:00:01","sandbox":"/run/netns/s"}]}"#,
        );
        let again = |plugin: serde_json::Value, asked: serde_json::Value| {
            let mut spec = spec("net1");
            spec.conflist = list(json!({"cniVersion": "1.1.0", "name": "n", "plugins": [plugin]}));
            spec.capability_args = serde_json::from_value(asked).expect("arguments");
            serde_json::to_value(same_again(&spec, &sandbox("s"), &made)).expect("JSON")
        };
        let plugin = |ipam: &str, capabilities: serde_json::Value| json!({"type": "macvlan", "ipam": {"type": ipam}, "capabilities": capabilities});
        let both = json!({"ips": true, "mac": true});
        assert_eq!(
            again(plugin("host-local", both.clone()), json!({})),
            json!({"ips": ["10.20.0.5/24"], "mac": "02:73:00:00:00:01"})
        );
        assert_eq!(
            again(plugin("static", both.clone()), json!({})),
            json!({"mac": "02:73:00:00:00:01"}),
            "its addresses are written down"
        );
        assert_eq!(again(plugin("host-local", json!({})), json!({})), json!({}));
        let asked = json!({"ips": ["10.20.0.7"], "mac": "02:73:00:00:00:09"});
        let some = json!({"ips": ["10.20.0.5/24"], "mac": "02:73:00:00:00:09"});
        assert_eq!(again(plugin("host-local", both), asked), some, "it may have more than it asked for");
    }
}
