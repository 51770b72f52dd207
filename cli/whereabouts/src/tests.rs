use http::{Request, Response};
use kube::client::Body;
use kube::core::DynamicObject;
use serde_json::{Value, json};
use tower_test::mock;

use super::*;

fn objects(fixture: &str) -> Vec<DynamicObject> {
    serde_json::from_str(fixture).unwrap()
}

fn object(kind: &str, namespace: &str, name: &str, rest: Value) -> DynamicObject {
    let mut object =
        json!({"kind": kind, "apiVersion": "v1", "metadata": {"namespace": namespace, "name": name}});
    object.as_object_mut().unwrap().extend(rest.as_object().cloned().unwrap_or_default());
    serde_json::from_value(object).unwrap()
}

/// A NetworkAttachmentDefinition in the namespace `ns`.
fn nad(name: &str, mut ipam: Value) -> Result<Nad, DecodeError> {
    ipam["type"] = json!("whereabouts");
    let config =
        json!({"cniVersion": "0.3.1", "name": name, "type": "macvlan", "master": "eth1", "ipam": ipam})
            .to_string();
    let object = object("NetworkAttachmentDefinition", "ns", name, json!({"spec": {"config": config}}));
    Nad::decode(&object).map(|nad| nad.expect("whereabouts"))
}

fn pool(name: &str, range: &str, allocations: Value) -> IpPool {
    let allocations = allocations.as_object().unwrap().iter().map(|(offset, podref)| {
        (offset.clone(), json!({"id": "c0ffee", "podref": podref, "ifname": "net1"}))
    });
    let allocations: serde_json::Map<String, Value> = allocations.collect();
    let spec = json!({"spec": {"range": range, "allocations": allocations}});
    IpPool::decode(&object("IPPool", "kube-system", name, spec)).unwrap()
}

fn reservation(name: &str, podref: &str) -> Reservation {
    let spec = json!({"spec": {"podref": podref}});
    Reservation::decode(&object("OverlappingRangeIPReservation", "kube-system", name, spec)).unwrap()
}

/// A pod with addresses of a NetworkAttachmentDefinition of the namespace `ns`.
fn pod(name: &str, nad: &str, ips: &[&str]) -> Pod {
    let (namespace, name) = name.split_once('/').unwrap();
    let status = json!([
        {"name": "cbr0", "interface": "eth0", "ips": ["10.244.0.7"], "default": true, "dns": {}},
        {"name": nad, "interface": "net1", "ips": ips, "mac": "02:00:00:00:00:01", "dns": {}},
    ]);
    Pod {
        namespace: namespace.parse().unwrap(),
        name: name.parse().unwrap(),
        uid: format!("uid-of-{name}"),
        has_ended: false,
        network_status: Some(format!("{status:#}")),
    }
}

fn fixtures() -> Objects {
    let decoded = objects(include_str!("fixtures/nads.json"));
    let pools = objects(include_str!("fixtures/ippools.json"));
    let reservations = objects(include_str!("fixtures/reservations.json"));
    let slices = objects(include_str!("fixtures/nodeslices.json"));
    Objects {
        nads: decoded.iter().filter_map(|nad| Nad::decode(nad).unwrap()).collect(),
        pools: pools.iter().map(|pool| IpPool::decode(pool).unwrap()).collect(),
        reservations: reservations.iter().map(|one| Reservation::decode(one).unwrap()).collect(),
        slices: slices.iter().map(|slices| NodeSlicePool::decode(slices).unwrap()).collect(),
        pods: vec![
            pod("ns1/web-0", "ns1/storage", &["10.20.0.2"]),
            pod("ns2/db-0", "ns2/storage-twin", &["10.20.0.3"]),
        ],
        ..Objects::default()
    }
}

/// Plans with one NetworkAttachmentDefinition `lan`.
fn plan_one(ipam: Value, pools: Vec<IpPool>, pods: Vec<Pod>) -> PoolTakeover {
    let nads = vec![nad("lan", ipam).unwrap()];
    let mut takeover = plan(&Objects { nads, pools, pods, ..Objects::default() }, Orphans::Free);
    assert_eq!(takeover.pools.len(), 1, "{takeover:?}");
    assert_eq!(takeover.unclaimed, [], "every pool is used");
    takeover.pools.remove(0)
}

fn problems(pool: &PoolTakeover) -> Vec<String> {
    pool.problems.iter().map(ToString::to_string).collect()
}

fn leases(pool: &PoolTakeover) -> Vec<&str> {
    pool.leases.keys().map(String::as_str).collect()
}

fn dropped(pool: &PoolTakeover) -> Vec<&str> {
    pool.notes.iter().map(|note| note.field.as_str()).collect()
}

#[test]
fn two_nads_on_one_range_become_networks_of_one_address_pool() {
    let takeover = plan(&fixtures(), Orphans::Free);
    assert_eq!(
        (takeover.pools.len(), takeover.unclaimed.len(), takeover.notes.len()),
        (1, 0, 0),
        "{takeover:?}"
    );
    let pool = &takeover.pools[0];
    assert_eq!(problems(pool), [""; 0]);
    let shared = pool.pool.as_ref().expect("an AddressPool");
    assert_eq!(shared.name, "10.20.0.0-24");
    assert_eq!(
        serde_json::to_value(&shared.spec).unwrap(),
        json!({"ranges": [{"subnet": "10.20.0.0/24", "gateway": "10.20.0.254",
            "exclude": ["10.20.0.1", "10.20.0.5", "10.20.0.224/28"]}], "routes": [{"dst": "10.0.0.0/8"}]})
    );
    assert_eq!(shared.spec.problems(), []);
    let networks: Vec<_> =
        pool.networks.iter().map(|one| (one.network.as_str(), one.addresses.pool.as_deref())).collect();
    assert_eq!(networks, [("ns1-storage", Some("10.20.0.0-24")), ("ns2-storage-twin", Some("10.20.0.0-24"))]);
    assert_eq!(leases(pool), ["pool.10.20.0.0-24.10.20.0.2", "pool.10.20.0.0-24.10.20.0.3"]);
    let lease = serde_json::to_value(&pool.leases["pool.10.20.0.0-24.10.20.0.3"]).unwrap();
    let holder = json!({"kind": "Pod", "namespace": "ns2", "name": "db-0", "uid": "uid-of-db-0"});
    let expected = json!({"poolName": "10.20.0.0-24", "networkName": "ns2-storage-twin", "address": "10.20.0.3", "holder": holder});
    assert_eq!(lease, expected, "the ClaimNetwork is that of the pod's network-status");
    assert_eq!(dropped(pool), [""; 0], "logs and etcd have nothing to do with addresses");
}

#[test]
fn an_orphan_is_reported_and_held_only_if_the_caller_wants_it() {
    let free = plan(&fixtures(), Orphans::Free);
    assert_eq!((free.pools[0].orphans.len(), free.pools[0].orphans[0].podref.as_str()), (1, "ns1/gone"));
    assert_eq!(free.pools[0].held, ["10.20.0.5".parse::<std::net::IpAddr>().unwrap()]);
    let held = plan(&fixtures(), Orphans::Hold);
    let spec = &held.pools[0].pool.as_ref().unwrap().spec;
    let exclude: Vec<String> = spec.ranges[0].exclude.iter().map(ToString::to_string).collect();
    assert_eq!(exclude, ["10.20.0.1", "10.20.0.4/31", "10.20.0.224/28"]);
    assert_eq!(held.pools[0].leases, free.pools[0].leases, "a lease of a pod that is gone would not last");
}

#[test]
fn an_allocation_without_a_pod_is_excluded() {
    let pools = vec![pool("10.0.0.0-24", "10.0.0.0/24", json!({"7": "", "8": "no-slash", "9": "/x"}))];
    let planned = plan_one(json!({"range": "10.0.0.0/24", "gateway": "10.0.0.1"}), pools, vec![]);
    assert_eq!(planned.networks[0].addresses.ranges[0].exclude[0].to_string(), "10.0.0.7-10.0.0.9");
    assert_eq!((planned.held.len(), planned.leases.len(), planned.orphans.len()), (3, 0, 0));
    assert_eq!(dropped(&planned), ["spec.allocations"; 2], "a podref that cannot be read is named");
}

#[test]
fn a_network_name_keeps_equal_ranges_apart() {
    let nads = vec![
        nad("plain", json!({"range": "10.0.0.0/24"})).unwrap(),
        nad("red", json!({"range": "10.0.0.0/24", "network_name": "red"})).unwrap(),
        nad("blue", json!({"range": "10.0.0.0/24", "network_name": "blue-2"})).unwrap(),
    ];
    let pools = vec![
        pool("10.0.0.0-24", "10.0.0.0/24", json!({"2": "ns/a"})),
        pool("red-10.0.0.0-24", "10.0.0.0/24", json!({"2": "ns/b"})),
        pool("blue-2-10.0.0.0-24", "10.0.0.0/24", json!({"2": "ns/c"})),
    ];
    let pods = [("ns/a", "ns/plain"), ("ns/b", "ns/red"), ("ns/c", "ns/blue")];
    let pods = pods.map(|(name, nad)| pod(name, nad, &["10.0.0.2"])).to_vec();
    let reservations = vec![reservation("10.0.0.2", "ns/a"), reservation("red-10.0.0.2", "ns/b")];
    let takeover = plan(&Objects { nads, pools, pods, reservations, ..Objects::default() }, Orphans::Free);
    let found: Vec<_> =
        takeover.pools.iter().map(|pool| (pool.network_name.as_str(), leases(pool))).collect();
    let expected = [
        ("", vec!["ns-plain.10.0.0.2"]),
        ("blue-2", vec!["ns-blue.10.0.0.2"]),
        ("red", vec!["ns-red.10.0.0.2"]),
    ];
    assert_eq!(found, expected);
    assert!(takeover.pools.iter().all(|pool| !pool.is_stopped() && pool.pool.is_none()), "{takeover:?}");
}

#[test]
fn offsets_count_from_the_address_of_the_range_as_it_is_written() {
    for name in ["10.0.0.5-24", "10.0.0.0-24"] {
        let pools = vec![pool(name, "10.0.0.5/24", json!({"3": "ns/a"}))];
        let planned =
            plan_one(json!({"range": "10.0.0.5/24"}), pools, vec![pod("ns/a", "ns/lan", &["10.0.0.8"])]);
        assert_eq!((problems(&planned), leases(&planned)), (vec![], vec!["ns-lan.10.0.0.8"]));
    }
}

#[test]
fn a_range_is_limited_as_whereabouts_limits_it() {
    let range = |ipam: Value| {
        serde_json::to_value(&plan_one(ipam, vec![], vec![]).networks[0].addresses.ranges[0]).unwrap()
    };
    assert_eq!(
        range(json!({"range": "10.0.0.10-10.0.0.20/24", "gateway": "10.0.0.1", "range_start": "10.0.0.99"})),
        json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.20", "gateway": "10.0.0.1"})
    );
    assert_eq!(
        range(
            json!({"Range": "10.0.0.0/24", "range_start": "10.0.0.010", "range_end": "10.0.1.1", "gateway": null})
        ),
        json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10"}),
        "keys have any case, and what is outside is ignored"
    );
    assert_eq!(
        range(
            json!({"range": "10.0.0.0/24", "range_start": "10.0.0.50", "range_end": "10.0.0.40", "exclude":
            ["10.0.0.33/30", "10.9.0.0/16", "10.0.0.36", "fd00::/64"]})
        ),
        json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.50", "exclude": ["10.0.0.32-10.0.0.36"]})
    );
}

#[test]
fn an_ipv6_pool_has_offsets_of_64_bits() {
    let offsets = json!({"1": "ns/a", "9223372036854775808": "ns/b", "18446744073709551616": "ns/x"});
    let pools = vec![pool("fd00-0-0-1---64", "fd00:0:0:1::/64", offsets)];
    let pods =
        vec![pod("ns/a", "ns/lan", &["fd00:0:0:1::1"]), pod("ns/b", "ns/lan", &["fd00:0:0:1:8000::0"])];
    let nads = vec![nad("lan", json!({"range": "fd00:0:0:1::/64", "gateway": "fd00:0:0:1::f"})).unwrap()];
    let reservations = vec![reservation("fd00-0-0-1--1", "ns/a"), reservation("fd00-0-0-1-8000--0", "ns/b")];
    let takeover = plan(&Objects { nads, pools, pods, reservations, ..Objects::default() }, Orphans::Free);
    let planned = &takeover.pools[0];
    assert_eq!(problems(planned), [""; 0]);
    assert_eq!(leases(planned), ["ns-lan.fd00-0-0-1-0-0-0-1", "ns-lan.fd00-0-0-1-8000-0-0-0"]);
    assert_eq!(takeover.notes.len(), 1, "an offset of more than 64 bits is named: {takeover:?}");
}

#[test]
fn a_pod_gets_one_address_of_each_family() {
    let dual =
        json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64", "range_start": "fd00::100"}]});
    let pools = vec![
        pool("10.0.0.0-24", "10.0.0.0/24", json!({"2": "ns/a"})),
        pool("fd00---64", "fd00::/64", json!({"256": "ns/a"})),
    ];
    let planned = plan_one(dual, pools, vec![pod("ns/a", "ns/lan", &["10.0.0.2", "fd00::100"])]);
    assert_eq!(
        (problems(&planned), planned.leases.len(), planned.networks[0].addresses.ranges.len()),
        (vec![], 2, 2)
    );
    assert_eq!(planned.networks[0].addresses.problems(), []);

    let two = json!({"range": "10.0.0.0/24", "ipRanges": [{"range": "10.1.0.0/24"}]});
    let planned = plan_one(two, vec![], vec![]);
    assert_eq!(
        problems(&planned),
        [
            "NetworkAttachmentDefinition ns/lan: pods get one address of each of [10.0.0.0/24, 10.1.0.0/24], and netclaim \
          gives one IPv4 address: make two networks"
        ]
    );
}

#[test]
fn an_address_that_two_have_stops_its_pool() {
    let pools = || {
        vec![
            pool("10.0.0.0-24", "10.0.0.0/24", json!({"2": "ns/a"})),
            pool("10.0.0.5-24", "10.0.0.5/24", json!({"1": "ns/b"})),
        ]
    };
    let ipam = || json!({"range": "10.0.0.0/24"});
    let in_no_pool = plan_one(ipam(), pools(), vec![pod("ns/c", "ns/lan", &["10.0.0.9"])]);
    assert_eq!(
        problems(&in_no_pool),
        [
            "pod ns/c has 10.0.0.9 of NetworkAttachmentDefinition ns/lan by its network-status, and no IPPool has it: restart \
          the pod, or exclude the address"
        ]
    );
    let two_pods = plan_one(ipam(), pools(), vec![pod("ns/c", "ns/lan", &["10.0.0.2"])]);
    assert_eq!(
        problems(&two_pods),
        [
            "pod ns/c has 10.0.0.2 by its network-status, but IPPool kube-system/10.0.0.0-24 has it for \"ns/a\": restart one \
          of the pods"
        ]
    );
    let mut twice = pools();
    twice.push(pool("10.0.0.1-24", "10.0.0.1/24", json!({"1": "ns/z"})));
    assert_eq!(
        problems(&plan_one(ipam(), twice, vec![])),
        [
            "10.0.0.2 is in IPPool kube-system/10.0.0.0-24 for \"ns/a\" and in IPPool kube-system/10.0.0.1-24 for \"ns/z\": \
          delete the pod that does not use it"
        ]
    );
    let mut ended = pod("ns/c", "ns/lan", &["10.0.0.9"]);
    ended.has_ended = true;
    assert_eq!(
        problems(&plan_one(ipam(), pools(), vec![ended])),
        [""; 0],
        "a pod that has ended uses nothing"
    );
    let excluded = json!({"range": "10.0.0.0/24", "exclude": ["10.0.0.9"]});
    let planned = plan_one(excluded, pools(), vec![pod("ns/c", "ns/lan", &["10.0.0.9"])]);
    assert_eq!(problems(&planned), [""; 0], "an excluded address is not handed out");
}

#[test]
fn a_reservation_without_an_allocation_stops_its_pool() {
    let run = |reservations: Vec<Reservation>, pods: Vec<Pod>| {
        let nads = vec![nad("lan", json!({"range": "10.0.0.0/24"})).unwrap()];
        let pools = vec![pool("10.0.0.0-24", "10.0.0.0/24", json!({"2": "ns/a"}))];
        let takeover =
            plan(&Objects { nads, pools, pods, reservations, ..Objects::default() }, Orphans::Free);
        (problems(&takeover.pools[0]), takeover.notes.len())
    };
    let (found, _) = run(vec![reservation("10.0.0.7", "ns/b")], vec![]);
    assert_eq!(
        found,
        [
            "OverlappingRangeIPReservation kube-system/10.0.0.7 reserves 10.0.0.7 for \"ns/b\", and no IPPool has it: delete it \
          if the pod does not use it"
        ]
    );
    let (found, _) = run(vec![reservation("10.0.0.2", "ns/b")], vec![pod("ns/b", "ns/x", &[])]);
    assert_eq!(found.len(), 1, "of two pods that exist, one is wrong: {found:?}");
    let left_behind = vec![reservation("10.0.0.2", "ns/b"), reservation("10.99.0.2", "ns/b")];
    assert_eq!(run(left_behind, vec![]), (vec![], 0), "a pod that is gone, and another range");
    assert_eq!(
        run(vec![reservation("fnord", "ns/b")], vec![]),
        (vec![], 1),
        "a name without an address is noted"
    );
}

#[test]
fn pools_of_node_slices_are_found_by_the_status_of_their_node_slice_pool() {
    let nads = vec![
        nad("fast", json!({"range": "10.60.0.0/24", "node_slice_size": "/26", "gateway": "10.60.0.254"}))
            .unwrap(),
    ];
    let pools = vec![
        pool("node-a-10.60.0.0-26", "10.60.0.0/26", json!({"5": "ns/a"})),
        pool("node-b-10.60.0.64-26", "10.60.0.64/26", json!({"5": "ns/b"})),
        pool("node-gone-10.60.0.128-26", "10.60.0.128/26", json!({"5": "ns/c"})),
    ];
    let pods = ["ns/a", "ns/b", "ns/c"].map(|name| pod(name, "ns/none", &[])).to_vec();
    let slices = fixtures().slices;
    let takeover = plan(&Objects { nads, pools, pods, slices, ..Objects::default() }, Orphans::Free);
    let planned = &takeover.pools[0];
    assert_eq!(leases(planned), ["ns-fast.10.60.0.133", "ns-fast.10.60.0.5", "ns-fast.10.60.0.69"]);
    assert_eq!(
        planned.networks[0].addresses.ranges[0].subnet.to_string(),
        "10.60.0.0/24",
        "the mask is the range's"
    );
    assert_eq!(
        (problems(planned), dropped(planned), takeover.unclaimed.len()),
        (vec![], vec!["ipam.node_slice_size"], 0)
    );

    let nads = vec![
        nad("fast", json!({"range": "10.60.0.0/24", "node_slice_size": "/26", "network_name": "n"})).unwrap(),
    ];
    let mut slices = fixtures().slices;
    slices[0].object.name = "n".into();
    slices[0].slices[0].slice_range = "nonsense".into();
    let pools = vec![pool("n-node-b-10.60.0.64-26", "10.60.0.64/26", json!({"5": "ns/gone"}))];
    let takeover = plan(&Objects { nads, pools, slices, ..Objects::default() }, Orphans::Free);
    assert_eq!(takeover.pools[0].orphans.len(), 1, "{takeover:?}");
    assert_eq!(
        problems(&takeover.pools[0]),
        [
            "NodeSlicePool kube-system/n: status.allocations[0].sliceRange: \"nonsense\" is not a CIDR, so the addresses in use are \
          unknown: correct it"
        ]
    );
}

#[test]
fn ranges_that_share_addresses_with_different_settings_are_stopped() {
    let run = |one: Value, other: Value| {
        let nads = vec![nad("one", one).unwrap(), nad("two", other).unwrap()];
        let pools = vec![pool("10.0.0.0-24", "10.0.0.0/24", json!({"2": "ns/a", "200": "ns/b"}))];
        let pods = ["ns/a", "ns/b"].map(|name| pod(name, "ns/none", &[])).to_vec();
        plan(&Objects { nads, pools, pods, ..Objects::default() }, Orphans::Free).pools
    };
    let pools =
        run(json!({"range": "10.0.0.0/24"}), json!({"range": "10.0.0.0/16", "range_end": "10.0.0.50"}));
    assert_eq!(pools.iter().map(|pool| pool.problems.len()).collect::<Vec<_>>(), [1, 1]);
    assert!(problems(&pools[0])[0].contains("make range, range_end equal"), "{:?}", problems(&pools[0]));
    let apart = run(
        json!({"range": "10.0.0.0/24"}),
        json!({"range": "10.0.0.0/16", "range_end": "10.0.0.50", "enable_overlapping_ranges": false}),
    );
    assert!(
        apart.iter().all(|pool| !pool.is_stopped()),
        "ranges that need not agree are kept apart: {apart:?}"
    );
    let halves = run(
        json!({"range": "10.0.0.0/24", "range_end": "10.0.0.127"}),
        json!({"range": "10.0.0.0/24", "range_start": "10.0.0.128"}),
    );
    let found: Vec<_> = halves.iter().map(|pool| (leases(pool), problems(pool))).collect();
    let expected = [(vec!["ns-one.10.0.0.2"], vec![]), (vec!["ns-two.10.0.0.200"], vec![])];
    assert_eq!(found, expected, "each address is leased where it could be handed out");
}

#[test]
fn addresses_of_a_range_that_was_widened_are_leased_in_the_new_one() {
    let pools = vec![
        pool("10.0.0.0-16", "10.0.0.0/16", json!({"2": "ns/a"})),
        pool("10.0.3.0-24", "10.0.3.0/24", json!({"9": "ns/b"})),
        pool("10.99.0.0-24", "10.99.0.0/24", json!({"9": "ns/b"})),
        pool("renamed", "10.0.0.0/16", json!({"9": "ns/b"})),
        pool("10.98.0.0-24", "broken", json!({})),
    ];
    let nads = vec![nad("lan", json!({"range": "10.0.0.0/16"})).unwrap()];
    let pods = vec![pod("ns/a", "ns/lan", &["10.0.0.2"]), pod("ns/b", "ns/lan", &["10.0.3.9"])];
    let takeover = plan(&Objects { nads, pools, pods, ..Objects::default() }, Orphans::Free);
    assert_eq!(leases(&takeover.pools[0]), ["ns-lan.10.0.0.2", "ns-lan.10.0.3.9"]);
    assert_eq!(problems(&takeover.pools[0]), [""; 0]);
    let unclaimed: Vec<_> =
        takeover.unclaimed.iter().map(|one| (one.pool.name.as_str(), one.addresses)).collect();
    assert_eq!(unclaimed, [("renamed", 1), ("10.98.0.0-24", 0), ("10.99.0.0-24", 1)]);
}

#[test]
fn fixed_addresses_become_those_that_claims_ask_for() {
    let ipam = || {
        json!({"range": "10.0.0.0/24", "gateway": "10.0.0.1",
        "addresses": [{"address": "10.0.0.9/24", "gateway": "10.0.0.1"}, {"address": "10.9.0.9/24"}]})
    };
    let planned = plan_one(ipam(), vec![], vec![pod("ns/a", "ns/lan", &["10.0.0.9"])]);
    let addresses = &planned.networks[0].addresses;
    assert_eq!((addresses.reserved.len(), addresses.reserved[0].to_string().as_str()), (1, "10.0.0.9"));
    assert_eq!((leases(&planned), problems(&planned)), (vec!["ns-lan.10.0.0.9"], vec![]), "its pod keeps it");
    assert_eq!(dropped(&planned), ["ipam.addresses[0].gateway", "ipam.addresses", "ipam.addresses[1]"]);
    let pods = vec![pod("ns/a", "ns/lan", &["10.0.0.9"]), pod("ns/b", "ns/lan", &["10.0.0.9"])];
    assert_eq!(
        problems(&plan_one(ipam(), vec![], pods)),
        ["pods ns/b and ns/a both have the fixed address 10.0.0.9: stop one of them"]
    );
}

#[test]
fn everything_that_is_dropped_is_named() {
    let planned = plan_one(
        json!({"range": "10.0.0.0/24", "gateway": "10.9.0.1", "dns": {"nameservers": ["10.0.0.53"]}, "rnage_end": "10.0.0.9",
            "routes": [{"dst": "10.1.0.0/16"}, {"dst": "10.2.0.0/16", "gw": "10.0.0.1", "mtu": 1400, "priority": 50}],
            "datastore": "kubernetes", "etcd_host": "e", "leader_lease_duration": 1500, "sleep_for_race": 0}),
        vec![],
        vec![],
    );
    let expected = [
        "ipam.rnage_end",
        "ipam.routes[1].mtu",
        "ipam.dns",
        "ipam.gateway",
        "ipam.gateway",
        "ipam.routes[0]",
    ];
    assert_eq!(dropped(&planned), expected);
    let routes = &planned.networks[0].addresses.routes;
    assert_eq!(
        routes.iter().map(|route| (route.priority, route.table)).collect::<Vec<_>>(),
        [(Some(50), None)]
    );
    assert!(planned.notes.iter().all(|note| note.reason.split(' ').count() > 3), "{:?}", planned.notes);
}

#[test]
fn an_error_names_object_field_and_value() {
    let error = |ipam: Value| nad("lan", ipam).expect_err("refused").to_string();
    for (ipam, expected) in [
        (
            json!({}),
            "spec.config.ipam.range: is not set: write it here; defaults of whereabouts.conf on the nodes are not read",
        ),
        (
            json!({"range": "10.0.0.0"}),
            r#"spec.config.ipam.range: "10.0.0.0" is not a CIDR, such as 10.20.0.0/24"#,
        ),
        (
            json!({"range": "10.0.0.0/31"}),
            r#"spec.config.ipam.range: "10.0.0.0/31" has no usable address: at most /30, or /126 for IPv6"#,
        ),
        (
            json!({"range": "10.1.0.1-10.0.0.9/24"}),
            r#"spec.config.ipam.range: "10.1.0.1-10.0.0.9/24" begins outside of its subnet"#,
        ),
        (json!({"range": 7}), "spec.config.ipam.range: invalid type: integer `7`, expected a string"),
        (
            json!({"ipRanges": [{"range": "10.0.0.0/24", "exclude": ["x"]}]}),
            r#"spec.config.ipam.ipRanges[0].exclude[0]: "x" is not a CIDR or address, and whereabouts hands out nothing with it"#,
        ),
        (
            json!({"range": "10.0.0.0/24", "routes": [{"gw": "10.0.0.1"}]}),
            r#"spec.config.ipam.routes[0].dst: "" is not a CIDR"#,
        ),
    ] {
        assert_eq!(error(ipam), format!("NetworkAttachmentDefinition ns/lan: {expected}"));
    }
    let broken = object(
        "IPPool",
        "kube-system",
        "p",
        json!({"spec": {"range": "10.0.0.0/24", "allocations": {"1": 7}}}),
    );
    let error = IpPool::decode(&broken).expect_err("refused").to_string();
    assert!(error.starts_with("IPPool kube-system/p: spec.allocations.1: invalid type"), "{error}");
    let broken =
        object("NetworkAttachmentDefinition", "ns", "x", json!({"spec": {"config": "{whereabouts"}}));
    assert!(matches!(Nad::decode(&broken), Err(DecodeError::Config { .. })));
}

#[test]
fn nads_without_whereabouts_are_none() {
    for config in [
        json!(null),
        json!(""),
        json!("{"),
        json!("[]"),
        json!(r#"{"ipam": 7}"#),
        json!(r#"{"ipam": {"type": "dhcp"}}"#),
    ] {
        let object = object("NetworkAttachmentDefinition", "ns", "x", json!({"spec": {"config": config}}));
        assert_eq!(Nad::decode(&object), Ok(None), "{config}");
    }
}

#[test]
fn garbage_is_reported_and_never_panics() {
    let garbage = [
        json!(null),
        json!(7),
        json!(-1),
        json!(""),
        json!("-"),
        json!("/"),
        json!("::"),
        json!("::/0"),
        json!("0.0.0.0/0"),
        json!("255.255.255.255/30"),
        json!("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/120"),
        json!("::ffff:10.0.0.0/120"),
        json!("10.0.0.0/24-"),
        json!("é".repeat(200)),
        json!([null]),
        json!([{}]),
        json!({"a": "b"}),
        json!(true),
    ];
    let keys = [
        "range",
        "range_start",
        "range_end",
        "exclude",
        "ipRanges",
        "gateway",
        "routes",
        "network_name",
        "node_slice_size",
        "enable_overlapping_ranges",
        "addresses",
        "dns",
    ];
    let mut decoded = Vec::new();
    for key in keys {
        for value in &garbage {
            let mut ipam = json!({"range": "10.0.0.0/24"});
            ipam[key] = value.clone();
            decoded.extend(nad("lan", ipam.clone()));
            ipam["ipRanges"] = json!([{key: value, "range": "fd00::/64"}]);
            decoded.extend(nad("lan", ipam));
        }
    }
    let texts: Vec<&str> = garbage.iter().filter_map(Value::as_str).collect();
    let mut objects = fixtures();
    for text in &texts {
        let allocations = json!({"": text, "-1": text, "+5": text, "5": text, "99999999999999999999999": text, *text: text});
        objects.pools.extend(
            texts.iter().map(|range| pool(&text.replace([':', '/'], "-"), range, allocations.clone())),
        );
        objects.reservations.push(reservation(text, text));
        let mut odd = pod("ns/odd", text, &[text]);
        objects.pods.push(odd.clone());
        odd.network_status = Some((*text).to_owned());
        objects.pods.push(odd);
        objects.slices[0].slices.push(NodeSlice { node_name: (*text).into(), slice_range: (*text).into() });
    }
    for nad in decoded {
        objects.nads = vec![nad.clone(), nad];
        let takeover = plan(&objects, Orphans::Hold);
        assert!(
            takeover.pools.iter().all(PoolTakeover::is_stopped),
            "two Nads of one name become one ClaimNetwork"
        );
    }
    let spans: Vec<String> = (0..20_000).map(|i| format!("10.0.{}.{}", i / 128, i % 128 * 2)).collect();
    let planned = plan_one(json!({"range": "10.0.0.0/16", "exclude": spans}), vec![], vec![]);
    assert_eq!(
        problems(&planned)[0],
        "NetworkAttachmentDefinition ns/lan: exclude has 20000 entries after they were joined, and at most 256 are possible: \
         reduce them"
    );
}

#[test]
fn a_plan_survives_being_written_to_a_file() {
    let mut objects = fixtures();
    objects.pods.push(pod("ns/c", "ns1/storage", &["10.20.0.9"]));
    objects.unreadable.extend(nad("x", json!({})).err());
    let takeover = plan(&objects, Orphans::Free);
    assert!(takeover.pools[0].is_stopped());
    let text = serde_json::to_string_pretty(&takeover).unwrap();
    assert_eq!(serde_json::from_str::<Takeover>(&text).unwrap(), takeover);
}

#[test]
fn a_long_name_of_a_network_is_cut_and_stays_unique() {
    let name = |name: &str| default_network("namespace", name).map(|name| name.to_string());
    assert_eq!(name("a.b").unwrap(), "namespace-a-b");
    let (one, other) =
        (name(&format!("{}1", "x".repeat(80))).unwrap(), name(&format!("{}2", "x".repeat(80))).unwrap());
    assert_eq!(one.len(), 58);
    assert_ne!(one, other);
    assert!(name("Ü").is_err());
}

/// Runs `work` against a fake API server and returns its result and the requests that change something.
async fn with_fake<T>(
    answer: impl Fn(&str, &str) -> (u16, Value) + Send + 'static,
    work: impl AsyncFnOnce(kube::Client) -> T,
) -> (T, Vec<String>) {
    let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
    let server = tokio::spawn(async move {
        let mut writes = Vec::new();
        while let Some((request, respond)) = requests.next_request().await {
            let (method, path) = (request.method().as_str(), request.uri().path());
            if method != "GET" {
                let body = request.into_body().collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let (kind, name) =
                    (body["kind"].as_str().unwrap(), body["metadata"]["name"].as_str().unwrap());
                writes.push(format!("{kind} {name}"));
                let (status, body) = answer("POST", name);
                respond.send_response(response(status, &body));
            } else {
                let (status, body) = answer("GET", path);
                respond.send_response(response(status, &body));
            }
        }
        writes
    });
    let result = work(kube::Client::new(service, "default")).await;
    (result, server.await.unwrap())
}

fn response(status: u16, body: &Value) -> Response<Body> {
    Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn failure(code: u16) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "AlreadyExists",
        _ => "InternalError",
    };
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason});
    (code, status)
}

/// What the API server has of the first lease or pool of the fixtures.
fn stored(kind: &str, name: &str, spec: &impl serde::Serialize) -> (u16, Value) {
    (
        200,
        json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}),
    )
}

#[tokio::test]
async fn leases_are_created_before_pools() {
    let takeover = plan(&fixtures(), Orphans::Free);
    let plan = takeover.clone();
    let spec = takeover.pools[0].pool.clone().unwrap().spec;
    let leases = takeover.pools[0].leases.clone();
    let answer = move |method: &str, name: &str| match (method, leases.get(name)) {
        ("POST", Some(lease)) => stored("AddressLease", name, lease),
        ("POST", None) => stored("AddressPool", name, &spec),
        _ => failure(404),
    };
    let (applied, writes) = with_fake(answer, async |client| apply(&client, &plan).await).await;
    assert_eq!(applied.unwrap(), Applied { leases: 2, pools: 1, created: 3, stopped: 0 });
    assert_eq!(writes.len(), 3);
    assert_eq!(writes[2], "AddressPool 10.20.0.0-24", "{writes:?}");

    let mut stopped = takeover;
    stopped.pools[0].problems.push(Problem::FixedTwice {
        address: "10.20.0.2".parse().unwrap(),
        pod: "a/b".into(),
        other: "c/d".into(),
    });
    let (applied, writes) =
        with_fake(|_, _| failure(500), async |client| apply(&client, &stopped).await).await;
    assert_eq!((applied.unwrap(), writes.len()), (Applied { stopped: 1, ..Applied::default() }, 0));
    stopped.unreadable.extend(nad("x", json!({})).err());
    let (applied, _) = with_fake(|_, _| failure(500), async |client| apply(&client, &stopped).await).await;
    assert!(matches!(applied, Err(ApplyError::Unreadable(_))));
}

#[tokio::test]
async fn a_lease_that_exists_is_fine_if_its_holder_is_the_same() {
    let run = async |change: fn(&mut Value)| {
        let mut takeover = plan(&fixtures(), Orphans::Free);
        takeover.pools[0].leases.retain(|name, _| name.ends_with(".2"));
        takeover.pools[0].pool = None;
        let mut found = serde_json::to_value(takeover.pools[0].leases.values().next().unwrap()).unwrap();
        change(&mut found);
        let answer = move |method: &str, name: &str| match method {
            "POST" => failure(409),
            _ if name.ends_with("/addressblocks") => failure(404),
            _ => stored("AddressLease", name, &found),
        };
        with_fake(answer, async |client| apply(&client, &takeover).await)
            .await
            .0
            .map_err(|error| error.to_string())
    };
    assert_eq!(run(|_| ()).await.map(|applied| (applied.leases, applied.created)), Ok((1, 0)));
    assert_eq!(run(|found| found["holder"]["uid"] = json!("")).await.map(|applied| applied.leases), Ok(1));
    assert_eq!(
        run(|found| found["holder"]["name"] = json!("db-7")).await.unwrap_err(),
        "AddressLease pool.10.20.0.0-24.10.20.0.2 is Pod ns1/db-7's (UID uid-of-web-0), and whereabouts has the address for \
         Pod ns1/web-0 (UID uid-of-web-0): stop one of them, or wait until the first is gone"
    );
    assert!(
        run(|found| found["holder"]["uid"] = json!("before")).await.is_err(),
        "a pod of the same name came later"
    );
}

#[tokio::test]
async fn nothing_is_created_if_a_node_hands_out_an_address_of_a_pod() {
    let run = async |network: &'static str, ranges: Value| {
        let mut takeover = plan(&fixtures(), Orphans::Free);
        takeover.pools[0].leases.retain(|name, _| name.ends_with(".2"));
        takeover.pools[0].pool = None;
        let (name, spec) = takeover.pools[0].leases.first_key_value().unwrap();
        let pool = &spec.pool;
        let block = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": "block"},
            "spec": {"networkName": network, "poolName": pool, "nodeName": "n1", "cidr": "10.20.0.0/28", "ranges": ranges}});
        let lease = stored("AddressLease", name, spec);
        let answer = move |method: &str, path: &str| match method {
            "GET" if path.ends_with("/addressblocks") => {
                (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [block]}))
            }
            _ => lease.clone(),
        };
        let (applied, writes) = with_fake(answer, async |client| apply(&client, &takeover).await).await;
        (applied.map(|applied| applied.created).map_err(|error| error.to_string()), writes.len())
    };
    let (refused, writes) = run("storage", json!([])).await;
    assert_eq!(writes, 0);
    assert_eq!(
        refused.unwrap_err(),
        "node n1 hands out 10.20.0.2, which Pod ns1/web-0 has of whereabouts, in AddressBlock block: delete that block, and go on \
         when it is gone"
    );
    assert_eq!(run("storage", json!(["10.20.0.8/29"])).await, (Ok(1), 1), "another part of the block");
}

#[tokio::test]
async fn nothing_is_created_if_a_pool_of_the_name_has_other_settings() {
    let takeover = plan(&fixtures(), Orphans::Free);
    let answer = |_: &str, name: &str| stored("AddressPool", name, &json!({"ranges": []}));
    let (error, writes) = with_fake(answer, async |client| apply(&client, &takeover).await).await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "AddressPool 10.20.0.0-24 exists with other settings: make it equal to the plan, or delete it"
    );
    assert_eq!(writes, [""; 0]);
}
