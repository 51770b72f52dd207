//! Plans against a fake server: a map of slices that takes one write at a time.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::resource::v1::{Counter, CounterSet, Device, DeviceCounterConsumption},
    apimachinery::pkg::api::resource::Quantity,
};
use proptest::prelude::*;

use super::*;
use crate::{
    config::Scope,
    layout::{COUNTER_SETS_PER_SLICE, DEVICES_PER_SLICE},
    pool::Placement,
    validate::validate,
};

fn config() -> PublisherConfig {
    PublisherConfig::new("netclaim.dev", "agent", Scope::Node("n1".into())).unwrap()
}

/// `uplinks` uplinks, each with a counter set, and a device per entry of `devices` on one of them.
fn pool(uplinks: usize, devices: impl IntoIterator<Item = usize>) -> Pool {
    let counter = |value: &str| -> BTreeMap<String, Counter> {
        [("c".into(), Counter { value: Quantity(value.into()) })].into()
    };
    let set = |i: usize| CounterSet { name: format!("eth{i}"), counters: counter("64") };
    let device = |i: usize| Device {
        name: format!("net-{i}"),
        consumes_counters: (uplinks > 0).then(|| {
            vec![DeviceCounterConsumption {
                counter_set: format!("eth{}", i % uplinks),
                counters: counter("1"),
                ..DeviceCounterConsumption::default()
            }]
        }),
        ..Device::default()
    };
    let devices = devices.into_iter().map(device).collect();
    Pool {
        counters: (0..uplinks).map(set).collect(),
        ..Pool::new("n1", Placement::Node("n1".into()), devices)
    }
}

#[derive(Clone, Default)]
struct Server {
    slices: BTreeMap<String, ResourceSlice>,
    version: u64,
}

impl Server {
    fn apply(&mut self, write: Write) {
        self.version += 1;
        let version = Some(self.version.to_string());
        match write {
            Write::Delete(slice) => {
                let gone = self.slices.remove(&slice.metadata.name.unwrap()).unwrap();
                assert_eq!(gone.metadata.resource_version, slice.metadata.resource_version);
            }
            Write::Update(mut slice) => {
                let old = &self.slices[slice.metadata.name.as_ref().unwrap()];
                assert_eq!(old.metadata.resource_version, slice.metadata.resource_version);
                slice.metadata.resource_version = version;
                self.slices.insert(slice.metadata.name.clone().unwrap(), slice);
            }
            Write::Create(mut slice) => {
                slice.metadata.resource_version = version;
                let name = slice.metadata.name.clone().unwrap();
                assert!(self.slices.insert(name, slice).is_none(), "created twice");
            }
        }
    }

    fn plan(&self, pool: &Pool) -> Plan {
        let existing: Vec<_> = self.slices.values().collect();
        plan(&config(), pool, &existing, &Adopted::default()).unwrap()
    }

    /// Carries out plans until there is nothing to do; returns the first.
    fn publish(&mut self, pool: &Pool) -> Plan {
        let plan = self.plan(pool);
        plan.writes.iter().cloned().for_each(|write| self.apply(write));
        // Counters that nothing needs any more.
        let second = self.plan(pool).writes;
        assert!(second.len() <= 1, "{second:?}");
        second.into_iter().for_each(|write| self.apply(write));
        assert_eq!(self.plan(pool).writes, [], "two plans lead to the goal");
        plan
    }

    fn top(&self) -> Vec<&ResourceSlice> {
        let top = self.slices.values().map(|slice| slice.spec.pool.generation).max();
        self.slices.values().filter(|slice| Some(slice.spec.pool.generation) == top).collect()
    }

    /// Returns the devices and counter sets that a scheduler reads; `None` for an incomplete pool. The
    /// scheduler trusts the count of any one slice, so a pool is complete as soon as one slice says so.
    fn complete(&self) -> Option<(Vec<Device>, Vec<CounterSet>)> {
        let top = self.top();
        let number = i64::try_from(top.len()).unwrap();
        top.iter().any(|slice| slice.spec.pool.resource_slice_count == number).then(|| {
            let devices = top.iter().flat_map(|slice| slice.spec.devices.clone().unwrap_or_default());
            let sets = top.iter().flat_map(|slice| slice.spec.shared_counters.clone().unwrap_or_default());
            (devices.collect(), sets.collect())
        })
    }

    fn is_consistent(&self) -> bool {
        self.complete().is_none_or(|(devices, counters)| {
            let pool = Pool { devices, counters, ..pool(0, []) };
            validate(&pool, &Scope::Node("n1".into())).is_empty()
        })
    }

    fn holds(&self, pool: &Pool) -> bool {
        let names = |pool: &[Device]| pool.iter().map(|device| device.name.clone()).collect::<BTreeSet<_>>();
        self.top().len() == self.slices.len()
            && self.complete().is_some_and(|(devices, sets)| {
                names(&devices) == names(&pool.devices) && sets.len() == pool.counters.len()
            })
    }
}

fn kinds(plan: &Plan) -> String {
    let letter = |write: &Write| match write {
        Write::Delete(_) => "-",
        Write::Update(_) => "=",
        Write::Create(_) => "+",
    };
    let place = |write: &Write| write.name().rsplit('-').next().unwrap_or_default().to_owned();
    plan.writes.iter().map(|w| format!("{}{}", letter(w), place(w))).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_new_pool_starts_with_its_counters() {
    let mut server = Server::default();
    let plan = server.publish(&pool(9, 0..300));
    assert_eq!(kinds(&plan), "+c0000 +c0001 +d0000 +d0001 +d0002 +d0003 +d0004");
    assert_eq!(plan.generation, Some(1));
    assert!(server.slices.values().all(|slice| slice.spec.pool.resource_slice_count == 7));
}

#[test]
fn an_empty_pool_is_one_empty_slice() {
    let mut server = Server::default();
    assert_eq!(kinds(&server.publish(&pool(0, []))), "+d0000");
    assert!(server.slices.values().all(|slice| slice.spec.devices.is_none()));
}

#[test]
fn a_pool_that_offers_nothing_is_kept_and_not_made() {
    let mut server = Server::default();
    let empty = Pool { empty: EmptyPool::Keep, ..pool(0, []) };
    assert_eq!(server.publish(&empty), Plan { generation: None, writes: Vec::new() });
    server.publish(&Pool { empty: EmptyPool::Keep, ..pool(1, 0..3) });
    assert_eq!(kinds(&server.publish(&empty)), "-c0000 =d0000");
    assert!(server.complete().is_some_and(|(devices, _)| devices.is_empty()));
}

#[test]
fn counters_and_devices_that_change_together_leave_the_pool_complete() {
    let mut server = Server::default();
    server.publish(&pool(1, 0..3));
    let plan = server.plan(&pool(2, 0..4));
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("=c0000 =d0000", Some(1)));
    server.publish(&pool(2, 0..4));
    // The counters of before go when no device needs them.
    let back = pool(1, 0..3);
    let first = server.plan(&back);
    assert_eq!(kinds(&first), "=c0000 =d0000");
    first.writes.into_iter().for_each(|write| server.apply(write));
    assert_eq!(kinds(&server.plan(&back)), "=c0000");
    // A pool without one of its slices is not made complete before all are as they should be.
    let mut wiped = Server::default();
    wiped.publish(&pool(9, [8]));
    let second = wiped.slices.keys().nth(1).cloned().unwrap();
    wiped.slices.remove(&second);
    let plan = wiped.plan(&pool(1, [0]));
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("=c0000 =d0000", Some(2)));
    // A counter of another size is not the same counter.
    let mut bigger = pool(2, 0..4);
    let size = bigger.counters[0].counters.get_mut("c").unwrap();
    size.value = Quantity("128".into());
    let plan = server.plan(&bigger);
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("=c0000 =d0000", Some(2)));
}

#[test]
fn one_changed_device_is_one_write_with_the_same_generation() {
    let mut server = Server::default();
    let mut pool = pool(2, 0..150);
    server.publish(&pool);
    pool.devices[100].allow_multiple_allocations = Some(true);
    let plan = server.publish(&pool);
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("=d0001", Some(1)));
}

#[test]
fn one_device_more_or_less_is_one_write() {
    let mut server = Server::default();
    server.publish(&pool(1, 0..150));
    assert_eq!(kinds(&server.publish(&pool(1, 0..151))), "=d0002");
    assert_eq!(kinds(&server.publish(&pool(1, (0..151).filter(|i| *i != 3)))), "=d0000");
    let fills_the_gap = (0..152).filter(|i| *i != 3);
    assert_eq!(kinds(&server.publish(&pool(1, fills_the_gap))), "=d0000");
}

#[test]
fn a_new_slice_takes_a_new_generation() {
    let mut server = Server::default();
    server.publish(&pool(0, 0..64));
    let plan = server.publish(&pool(0, 0..65));
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("=d0000 +d0001", Some(2)));
}

#[test]
fn a_surplus_slice_is_deleted_first() {
    let mut server = Server::default();
    server.publish(&pool(1, 0..130));
    let plan = server.publish(&pool(1, 0..128));
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("-d0002 =c0000 =d0000 =d0001", Some(2)));
}

#[test]
fn a_wiped_pool_comes_back_whole() {
    let mut server = Server::default();
    server.publish(&pool(1, 0..100));
    server.slices.clear();
    assert_eq!(kinds(&server.publish(&pool(1, 0..100))), "+c0000 +d0000 +d0001");
}

#[test]
fn a_wiped_slice_comes_back_alone() {
    let mut server = Server::default();
    server.publish(&pool(1, 0..100));
    server.slices.pop_first();
    let plan = server.publish(&pool(1, 0..100));
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("+c0000", Some(1)));
}

#[test]
fn an_interrupted_rewrite_is_finished_with_its_generation() {
    let mut server = Server::default();
    server.publish(&pool(1, 0..100));
    let grown = pool(2, 0..200);
    let first = server.plan(&grown).writes.remove(0);
    server.apply(first);
    let plan = server.publish(&grown);
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("=d0000 =d0001 +d0002 +d0003", Some(2)));
}

#[test]
fn the_servers_additions_and_rewrites_are_left_alone() {
    let mut server = Server::default();
    let mut pool = pool(1, 0..2);
    pool.devices[0].taints = serde_json::from_str(r#"[{"key": "k", "effect": "NoSchedule"}]"#).unwrap();
    pool.counters[0].counters.values_mut().for_each(|counter| counter.value.0 = "0.064k".into());
    server.publish(&pool);
    let time: Time = serde_json::from_str(r#""2026-01-02T03:04:05Z""#).unwrap();
    for slice in server.slices.values_mut() {
        for device in slice.spec.devices.iter_mut().flatten() {
            device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = Some(time.clone()));
        }
        for set in slice.spec.shared_counters.iter_mut().flatten() {
            set.counters.values_mut().for_each(|counter| counter.value.0 = "64".into());
        }
    }
    assert_eq!(server.plan(&pool).writes, []);

    pool.devices[1].binds_to_node = Some(true);
    server.publish(&pool);
    let (devices, _) = server.complete().unwrap();
    assert_eq!(
        devices[0].taints.as_ref().unwrap()[0].time_added,
        Some(time),
        "tolerations do not start again"
    );
}

#[test]
fn an_update_sets_label_and_owner_and_keeps_other_metadata() {
    let mut server = Server::default();
    server.publish(&pool(0, 0..1));
    for slice in server.slices.values_mut() {
        slice.metadata.labels = Some([("mine".to_owned(), "x".to_owned())].into());
    }
    let owner = OwnerReference {
        kind: "Node".into(),
        name: "n1".into(),
        uid: "u".into(),
        ..OwnerReference::default()
    };
    let pool = Pool { owner: Some(owner.clone()), ..pool(0, 0..1) };
    let existing: Vec<_> = server.slices.values().collect();
    let plan = plan(&config(), &pool, &existing, &Adopted::default()).unwrap();
    let [Write::Update(slice)] = &plan.writes[..] else { panic!("{plan:?}") };
    assert_eq!(publisher_of(slice), Some("agent"));
    assert_eq!(slice.metadata.labels.as_ref().unwrap()["mine"], "x");
    assert_eq!(slice.metadata.owner_references, Some(vec![owner]));
}

#[test]
fn annotations_of_the_driver_are_those_of_the_pool_and_others_stay() {
    let mut server = Server::default();
    let with = |annotations: &[(&str, &str)]| {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Pool { annotations: annotations.collect(), ..pool(0, 0..2) }
    };
    server.publish(&with(&[("netclaim.dev/a", "1"), ("example.com/not-ours", "1")]));
    let slice = server.slices.values_mut().next().unwrap();
    slice.metadata.annotations.get_or_insert_default().insert("example.com/b".into(), "2".into());
    assert_eq!(kinds(&server.publish(&with(&[("netclaim.dev/a", "1")]))), "");
    assert_eq!(kinds(&server.publish(&with(&[("netclaim.dev/c", "3")]))), "=d0000");
    let slice = server.slices.values().next().unwrap();
    let annotations: Vec<_> =
        slice.metadata.annotations.iter().flatten().map(|(name, _)| name.as_str()).collect();
    assert_eq!(annotations, ["example.com/b", "netclaim.dev/c"]);
    assert_eq!(kinds(&server.publish(&pool(0, 0..2))), "=d0000");
    // Several slices, without a moment in which the pool is incomplete.
    let many =
        |value: &str| Pool { annotations: with(&[("netclaim.dev/a", value)]).annotations, ..pool(1, 0..150) };
    server.publish(&many("1"));
    let generation = server.plan(&many("1")).generation;
    let plan = server.publish(&many("2"));
    assert_eq!((kinds(&plan).as_str(), plan.generation), ("=c0000 =d0000 =d0001 =d0002", generation));
}

#[test]
fn slices_of_another_publisher_are_not_touched() {
    let mut server = Server::default();
    server.publish(&pool(0, 0..1));
    for slice in server.slices.values_mut() {
        slice.metadata.labels = Some([(PUBLISHER_LABEL.to_owned(), "other".to_owned())].into());
    }
    let existing: Vec<_> = server.slices.values().collect();
    let error = plan(&config(), &pool(0, 0..1), &existing, &Adopted::default()).unwrap_err();
    assert!(matches!(error, PublishError::Taken { publisher, .. } if publisher == "other"));
    assert_eq!(withdraw(&config(), &existing).writes, []);
}

#[test]
fn only_slices_with_our_label_are_withdrawn() {
    let mut server = Server::default();
    server.publish(&pool(0, 0..65));
    server.slices.first_entry().unwrap().get_mut().metadata.labels = None;
    let existing: Vec<_> = server.slices.values().collect();
    assert_eq!(kinds(&withdraw(&config(), &existing)), "-d0001");
}

#[test]
fn a_foreign_slice_in_our_pool_is_removed_and_nothing_else_is_written() {
    let mut server = Server::default();
    server.publish(&pool(1, 0..3));
    let mut foreign = server.slices.values().next().unwrap().clone();
    foreign.metadata.name = Some("foreign".into());
    foreign.metadata.labels = None;
    foreign.spec.pool.generation = 99;
    server.slices.insert("foreign".into(), foreign);
    assert_eq!(kinds(&server.publish(&pool(1, 0..3))), "-foreign");
}

#[test]
fn a_server_without_a_gate_gets_each_slice_once() {
    let sent = pool(1, 0..2);
    let plan_with = |server: &Server, adopted: &Adopted| {
        let existing: Vec<_> = server.slices.values().collect();
        plan(&config(), &sent, &existing, adopted).unwrap()
    };
    let (mut server, mut adopted) = (Server::default(), Adopted::default());
    for write in plan_with(&server, &adopted).writes {
        let Write::Create(slice) = &write else { panic!("{write:?}") };
        let (name, sent) = (write.name().to_owned(), slice.spec.clone());
        server.apply(write);
        let stored = server.slices.get_mut(&name).unwrap();
        stored.spec.shared_counters = None;
        stored.spec.devices.iter_mut().flatten().for_each(|device| device.consumes_counters = None);
        adopted.record(&name, &sent, stored);
    }
    assert_eq!(plan_with(&server, &adopted).writes, []);
}

/// A pool of up to six uplinks and some of 200 devices: enough for every kind of growing and shrinking.
fn any_pool() -> impl Strategy<Value = Pool> {
    let uplinks = 0..=2 * COUNTER_SETS_PER_SLICE + 1;
    let devices = proptest::collection::btree_set(0..3 * DEVICES_PER_SLICE, 0..=3 * DEVICES_PER_SLICE);
    let full = (uplinks.clone(), 0..3 * DEVICES_PER_SLICE).prop_map(|(u, n)| pool(u, 0..n));
    prop_oneof![(uplinks, devices).prop_map(|(u, d)| pool(u, d)), full]
}

#[derive(Clone, Debug)]
enum Step {
    /// A pool is desired; the publisher crashes, or gets another pool, after so many writes.
    Publish(Box<Pool>, usize),
    /// Someone deletes the slice of this index.
    Wipe(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any_pool(), 0..8_usize).prop_map(|(pool, writes)| Step::Publish(Box::new(pool), writes)),
        1 => (0..8_usize).prop_map(Step::Wipe),
    ]
}

proptest! {
    #[test]
    fn a_pool_whose_number_of_slices_stays_is_complete_and_consistent_after_every_write(
        pools in proptest::collection::vec(
            (1..=COUNTER_SETS_PER_SLICE, proptest::collection::btree_set(0..2 * DEVICES_PER_SLICE, 1..=DEVICES_PER_SLICE)),
            2..5,
        ),
        writes in proptest::collection::vec(0..3_usize, 5),
    ) {
        let mut server = Server::default();
        for ((uplinks, devices), writes) in pools.into_iter().zip(writes) {
            let pool = pool(uplinks, devices);
            if server.slices.is_empty() {
                server.publish(&pool);
            }
            for write in server.plan(&pool).writes.into_iter().take(writes) {
                server.apply(write);
                prop_assert!(server.complete().is_some());
                prop_assert!(server.is_consistent());
            }
        }
    }

    #[test]
    fn a_complete_pool_is_consistent_after_every_write_and_the_next_plan_reaches_the_goal(
        steps in proptest::collection::vec(any_step(), 0..8),
        goal in any_pool(),
    ) {
        let mut server = Server::default();
        for step in steps {
            match step {
                Step::Publish(pool, writes) => {
                    for write in server.plan(&pool).writes.into_iter().take(writes) {
                        server.apply(write);
                        prop_assert!(server.is_consistent());
                    }
                }
                Step::Wipe(index) => {
                    if let Some(name) = server.slices.keys().nth(index).cloned() {
                        server.slices.remove(&name);
                        prop_assert!(server.is_consistent());
                    }
                }
            }
        }
        for _ in 0..2 {
            for write in server.plan(&goal).writes {
                server.apply(write);
                prop_assert!(server.is_consistent());
            }
        }
        prop_assert_eq!(server.plan(&goal).writes, vec![]);
        prop_assert!(server.holds(&goal));
        for slice in server.slices.values() {
            prop_assert!(slice.spec.devices.as_ref().is_none_or(|d| d.len() <= DEVICES_PER_SLICE));
            prop_assert!(slice.spec.shared_counters.as_ref().is_none_or(|c| c.len() <= COUNTER_SETS_PER_SLICE));
        }
    }
}
