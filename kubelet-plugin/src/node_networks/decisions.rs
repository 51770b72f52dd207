//! What to set up on the node and what to take down now. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use netclaim_api::{IfName, NetworkName};
use netclaim_driver::attach::Spec;
use tokio::time::Instant;

/// One ClaimNetwork that pods need on the node, or that is set up there.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Whether a pod's plan needs it.
    pub(super) is_wanted: bool,
    /// Whether a pod's interface may be on it: there is more of it than a plan.
    pub(super) is_in_use: bool,
    /// Whether one of these may be whole: not all have broken, or they are not made again.
    pub(super) is_of_use: bool,
    /// What is journalled.
    pub(super) record: Option<Journalled>,
    /// How it would be set up today, or why it cannot be; `None` while the node's ClaimNetworks are not
    /// known.
    pub(super) today: Option<Result<Spec, Absent>>,
}

/// What is journalled of one that is set up, or being set up or taken down.
#[derive(Debug, Clone)]
pub(super) struct Journalled {
    pub(super) spec: Spec,
    pub(super) idle: Duration,
    /// Whether it is being taken down.
    pub(super) is_leaving: bool,
    /// Whether a link that it has made is gone from the node.
    pub(super) has_lost_a_link: bool,
}

/// Why a ClaimNetwork cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Absent {
    /// The node has no such ClaimNetwork, or one without `spec.node`.
    Gone,
    /// It lacks something here.
    Unresolved(String),
}

/// What to do about one ClaimNetwork.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    SetUp(Box<Spec>),
    TakeDown,
    /// It cannot be set up, for this reason.
    Refuse(String),
}

/// Since when nobody has needed what is set up.
#[derive(Debug, Default)]
pub(super) struct Idle(BTreeMap<NetworkName, Instant>);

impl Idle {
    /// Returns what to do now, and when to decide again if nothing happens before.
    pub(super) fn decide(
        &mut self,
        all: &BTreeMap<NetworkName, Known>,
        now: Instant,
    ) -> (Vec<(NetworkName, Decision)>, Option<Instant>) {
        self.0
            .retain(|name, _| all.get(name).is_some_and(|known| !known.is_wanted && known.record.is_some()));
        let (mut decisions, mut again) = (Vec::new(), None);
        let mut names = taken_names(all);
        for (name, known) in all {
            let decision = match &known.record {
                Some(record) if record.is_leaving => None,
                Some(record) if known.is_wanted => {
                    let is_outdated = matches!(&known.today, Some(Ok(today)) if *today != record.spec);
                    let is_to_be_made_anew =
                        (is_outdated && !known.is_in_use) || (record.has_lost_a_link && !known.is_of_use);
                    is_to_be_made_anew.then_some(Decision::TakeDown)
                }
                Some(record) => {
                    let is_of_before = match &known.today {
                        None | Some(Err(Absent::Unresolved(_))) => false,
                        Some(Err(Absent::Gone)) => true,
                        Some(Ok(today)) => *today != record.spec,
                    };
                    let due = *self.0.entry(name.clone()).or_insert(now) + record.idle;
                    if due <= now || is_of_before {
                        Some(Decision::TakeDown)
                    } else {
                        again = again.into_iter().chain([due]).min();
                        None
                    }
                }
                None if known.is_wanted => set_up(name, known, &mut names),
                None => None,
            };
            decisions.extend(decision.map(|decision| (name.clone(), decision)));
        }
        (decisions, again)
    }
}

/// The names of interfaces, and which ClaimNetwork has each.
fn taken_names(all: &BTreeMap<NetworkName, Known>) -> BTreeMap<IfName, NetworkName> {
    let named = |(name, known): (&NetworkName, &Known)| {
        Some((known.record.as_ref()?.spec.if_name.clone(), name.clone()))
    };
    all.iter().filter_map(named).collect()
}

fn set_up(name: &NetworkName, known: &Known, names: &mut BTreeMap<IfName, NetworkName>) -> Option<Decision> {
    Some(match known.today.as_ref()? {
        Err(Absent::Gone) => {
            Decision::Refuse("the ClaimNetwork is gone, or has no spec.node any more".to_owned())
        }
        Err(Absent::Unresolved(why)) => Decision::Refuse(why.clone()),
        Ok(spec) => match names.get(&spec.if_name) {
            Some(other) => Decision::Refuse(format!(
                "ClaimNetwork {other} has the interface {} on this node: give this one another spec.node.interfaceName, or have \
                 one ClaimNetwork with several DeviceClasses",
                spec.if_name
            )),
            None => {
                names.insert(spec.if_name.clone(), name.clone());
                Decision::SetUp(Box::new(spec.clone()))
            }
        },
    })
}

/// Returns the ClaimNetworks that are set up otherwise than they would be today, while pods are on them.
pub(super) fn outdated(all: &BTreeMap<NetworkName, Known>) -> BTreeSet<NetworkName> {
    let is_outdated = |known: &&Known| match (&known.record, &known.today) {
        (Some(record), Some(Ok(today))) => known.is_in_use && *today != record.spec,
        _ => false,
    };
    all.iter().filter(|(_, known)| is_outdated(known)).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use netclaim_cni::NetworkList;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn spec(if_name: &str, id: u32) -> Spec {
        let list = json!({"cniVersion": "1.1.0", "name": "netclaim-n.node",
            "plugins": [{"type": "netclaim-link", "kind": "vlan", "master": "eth1", "id": id}]});
        Spec {
            tenant: String::new(),
            if_name: if_name.parse().expect("a name"),
            conflist: NetworkList::parse(list.to_string().as_bytes()).expect("a list"),
            args: BTreeMap::new(),
            capability_args: Default::default(),
            wire: Default::default(),
        }
    }

    fn record(spec: Spec) -> Option<Journalled> {
        let idle = Duration::from_secs(300);
        Some(Journalled { spec, idle, is_leaving: false, has_lost_a_link: false })
    }

    fn one(known: Known) -> BTreeMap<NetworkName, Known> {
        [("n".parse().expect("a name"), known)].into()
    }

    fn decided(idle: &mut Idle, known: &Known, now: Instant) -> (Option<Decision>, Option<Instant>) {
        let (decisions, again) = idle.decide(&one(known.clone()), now);
        (decisions.into_iter().next().map(|(_, decision)| decision), again)
    }

    #[test]
    fn what_the_first_pod_needs_is_set_up_and_goes_a_while_after_the_last() {
        let (mut idle, now) = (Idle::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        let today = Some(Ok(spec("eth1.100", 100)));
        let mut known = Known { is_wanted: true, today, ..Known::default() };
        assert_eq!(
            decided(&mut idle, &known, now),
            (Some(Decision::SetUp(Box::new(spec("eth1.100", 100)))), None)
        );
        known.record = record(spec("eth1.100", 100));
        assert_eq!(decided(&mut idle, &known, at(1)), (None, None));
        known.is_wanted = false;
        assert_eq!(decided(&mut idle, &known, at(10)), (None, Some(at(310))));
        assert_eq!(decided(&mut idle, &known, at(309)), (None, Some(at(310))));
        known.is_wanted = true;
        assert_eq!(decided(&mut idle, &known, at(309)), (None, None), "the next pod came in time");
        known.is_wanted = false;
        assert_eq!(decided(&mut idle, &known, at(400)), (None, Some(at(700))));
        assert_eq!(decided(&mut idle, &known, at(700)), (Some(Decision::TakeDown), None));
        if let Some(record) = &mut known.record {
            record.is_leaving = true;
        }
        assert_eq!(decided(&mut idle, &known, at(900)), (None, None), "its DEL is under way");
    }

    #[test]
    fn what_the_node_does_not_have_any_more_goes_with_its_last_pod() {
        let (mut idle, now) = (Idle::default(), Instant::now());
        let known = |today| Known { today, record: record(spec("eth1.100", 100)), ..Known::default() };
        let mut decide = |today, is_wanted| decided(&mut idle, &Known { is_wanted, ..known(today) }, now).0;
        assert_eq!(decide(Some(Err(Absent::Gone)), true), None, "a pod is on it");
        assert_eq!(decide(Some(Err(Absent::Gone)), false), Some(Decision::TakeDown));
        assert_eq!(decide(Some(Ok(spec("eth2.100", 100))), false), Some(Decision::TakeDown));
        assert_eq!(decide(None, false), None, "the API server has not said yet");
        assert_eq!(decide(Some(Err(Absent::Unresolved("no uplink".into()))), false), None);
    }

    #[test]
    fn what_is_not_as_it_should_be_is_made_anew_unless_a_pod_is_on_it() {
        let now = Instant::now();
        let decide = |today: Spec, has_lost_a_link, is_in_use| {
            let record = record(spec("eth1.100", 100)).map(|record| Journalled { has_lost_a_link, ..record });
            let is_of_use = is_in_use;
            let known = Known { is_wanted: true, is_in_use, is_of_use, record, today: Some(Ok(today)) };
            (decided(&mut Idle::default(), &known, now).0, outdated(&one(known)).len())
        };
        let same = || spec("eth1.100", 100);
        assert_eq!(decide(same(), false, true), (None, 0));
        assert_eq!(decide(same(), true, true), (None, 0));
        assert_eq!(decide(same(), true, false), (Some(Decision::TakeDown), 0));
        assert_eq!(decide(spec("eth1.100", 200), false, true), (None, 1));
        assert_eq!(decide(spec("eth1.100", 200), false, false), (Some(Decision::TakeDown), 0));
    }

    #[test]
    fn without_its_link_it_is_made_anew_under_pods_that_have_all_broken_and_for_nothing_else() {
        let decide = |today: Spec, has_lost_a_link| {
            let record = record(spec("eth1.100", 100)).map(|record| Journalled { has_lost_a_link, ..record });
            let known =
                Known { is_wanted: true, is_in_use: true, is_of_use: false, record, today: Some(Ok(today)) };
            decided(&mut Idle::default(), &known, Instant::now()).0
        };
        assert_eq!(decide(spec("eth1.100", 100), true), Some(Decision::TakeDown));
        assert_eq!(decide(spec("eth1.100", 200), false), None, "a pod that has broken its own comes back");
    }

    #[test]
    fn two_networks_with_one_interface_are_told_apart_by_who_came_first() {
        let wanted =
            |if_name| Known { is_wanted: true, today: Some(Ok(spec(if_name, 100))), ..Known::default() };
        let mut all = BTreeMap::from([
            ("a".parse().expect("a name"), wanted("br0")),
            ("b".parse().expect("a name"), Known { record: record(spec("br0", 100)), ..wanted("br0") }),
        ]);
        let refusal = |all: &BTreeMap<NetworkName, Known>| match Idle::default()
            .decide(all, Instant::now())
            .0
            .as_slice()
        {
            [(_, Decision::Refuse(why))] => why.clone(),
            other => panic!("{other:?}"),
        };
        assert!(refusal(&all).starts_with("ClaimNetwork b has the interface br0"));
        if let Some(b) = all.get_mut(&"b".parse().expect("a name")) {
            b.record = None;
        }
        let decisions = Idle::default().decide(&all, Instant::now()).0;
        assert!(
            matches!(&decisions[..], [(_, Decision::SetUp(_)), (_, Decision::Refuse(_))]),
            "{decisions:?}"
        );
    }

    #[test]
    fn why_it_cannot_be_set_up_is_said() {
        let decide = |today| {
            let known = Known { is_wanted: true, today, ..Known::default() };
            decided(&mut Idle::default(), &known, Instant::now()).0
        };
        assert_eq!(decide(None), None);
        assert_eq!(decide(Some(Err(Absent::Unresolved("why".into())))), Some(Decision::Refuse("why".into())));
        assert!(matches!(decide(Some(Err(Absent::Gone))), Some(Decision::Refuse(_))));
    }

    #[derive(Debug, Clone, Copy)]
    enum Happening {
        /// A pod's plan is journalled, its ADD asks, its DEL has succeeded.
        Plan(usize),
        Attach(usize),
        Release(usize),
        /// What runs on the node ends well or badly.
        End(bool),
        /// The agent is killed: it forgets since when nobody needs anything, and what it takes down.
        Kill,
        LinkLost,
        Wait,
    }

    fn happenings() -> impl Strategy<Value = Vec<Happening>> {
        let one = prop_oneof![
            3 => (0..3usize).prop_map(Happening::Plan),
            4 => (0..3usize).prop_map(Happening::Attach),
            3 => (0..3usize).prop_map(Happening::Release),
            6 => any::<bool>().prop_map(Happening::End),
            1 => Just(Happening::Kill),
            1 => Just(Happening::LinkLost),
            2 => Just(Happening::Wait),
        ];
        prop::collection::vec(one, 0..80)
    }

    /// A node with one ClaimNetwork and up to three pods.
    #[derive(Default)]
    struct World {
        idle: Idle,
        record: Option<Journalled>,
        /// Whether it is set up, with its link.
        is_made: bool,
        /// Pods with a plan; `true`: attached.
        pods: BTreeMap<usize, bool>,
    }

    impl World {
        fn decide(&mut self, now: Instant) -> Result<Option<Instant>, TestCaseError> {
            let known = Known {
                is_wanted: !self.pods.is_empty(),
                is_in_use: self.pods.values().any(|is_attached| *is_attached),
                is_of_use: self.pods.values().any(|is_attached| *is_attached),
                record: self.record.clone(),
                today: Some(Ok(spec("eth1.100", 100))),
            };
            let (is_in_use, is_wanted) = (known.is_in_use, known.is_wanted);
            let (decision, again) = decided(&mut self.idle, &known, now);
            match decision {
                Some(Decision::SetUp(today)) => {
                    prop_assert!(self.record.is_none() && is_wanted);
                    self.record = record(*today);
                }
                Some(Decision::TakeDown) => {
                    let lost = self.record.as_ref().is_some_and(|record| record.has_lost_a_link);
                    prop_assert!(!is_in_use && (!is_wanted || lost), "taken down under a pod");
                    self.is_made = false;
                    if let Some(record) = &mut self.record {
                        record.is_leaving = true;
                    }
                }
                Some(Decision::Refuse(why)) => return Err(TestCaseError::fail(why)),
                None => {}
            }
            Ok(again)
        }

        fn end(&mut self, well: bool) {
            match &self.record {
                Some(record) if record.is_leaving && well => self.record = None,
                Some(record) if !record.is_leaving && !record.has_lost_a_link => self.is_made |= well,
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn what_pods_are_on_is_never_taken_down_and_nothing_stays_after_the_last(happenings in happenings()) {
            let (mut world, mut now) = (World::default(), Instant::now());
            for happening in happenings {
                match happening {
                    Happening::Plan(pod) => drop(world.pods.entry(pod).or_insert(false)),
                    Happening::Attach(pod) if world.is_made => {
                        world.pods.entry(pod).and_modify(|is_attached| *is_attached = true);
                    }
                    Happening::Attach(_) => {}
                    Happening::Release(pod) => drop(world.pods.remove(&pod)),
                    Happening::End(well) => world.end(well),
                    Happening::Kill => {
                        world.idle = Idle::default();
                        if let Some(record) = &mut world.record {
                            record.is_leaving = false;
                        }
                    }
                    Happening::LinkLost if world.is_made => {
                        world.is_made = false;
                        if let Some(record) = &mut world.record {
                            record.has_lost_a_link = true;
                        }
                    }
                    Happening::LinkLost => {}
                    Happening::Wait => now += Duration::from_secs(200),
                }
                world.decide(now)?;
            }
            world.pods = BTreeMap::from([(7, false)]);
            for _ in 0..4 {
                world.decide(now)?;
                world.end(true);
            }
            prop_assert!(world.is_made, "a pod that comes gets it");
            world.pods.clear();
            if let Some(again) = world.decide(now)? {
                world.decide(again)?;
            }
            world.end(true);
            prop_assert!(world.record.is_none(), "something stays");
        }
    }
}
