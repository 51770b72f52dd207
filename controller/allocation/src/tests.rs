//! Every cause, with a node, a slice and claims as small as they can be.

use k8s_openapi::api::core::v1::{Node, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

use crate::{Answer, Cause, Holdings, KnownNode, NodeVerdict, Question, unfit};

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn node(name: &str) -> Node {
    from(
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "rack": "a", "slot": "7"}}}),
    )
}

fn class(name: &str, expression: &str) -> DeviceClass {
    from(json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}))
}

fn classes() -> Vec<DeviceClass> {
    let network = |name: &str| {
        let expression = format!(
            r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "{name}""#
        );
        class(name, &expression)
    };
    vec![
        network("storage"),
        network("lab"),
        class("any", r#"device.driver == "netclaim.dev""#),
        class(
            "ipvlan",
            r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].mode == "ipvlan""#,
        ),
        class("colour", r#"device.attributes["netclaim.dev"].colour == "red""#),
        class("ip", r#"ip("10.0.0.1").family() == 4"#),
    ]
}

/// A claim of namespace `shop` with these requests.
fn claim(name: &str, requests: Value) -> ResourceClaim {
    from(
        json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"devices": {"requests": requests}}}),
    )
}

/// A request of a class, with more fields.
fn request(class: &str, more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": class});
    exactly.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"name": "net", "exactly": exactly})
}

fn storage(name: &str) -> ResourceClaim {
    claim(name, json!([request("storage", json!({}))]))
}

/// A claim that has been given a device.
fn holding(claim: &str, pool: &str, device: &str, consumed: Option<Value>) -> ResourceClaim {
    let mut result = json!({"request": "net", "driver": "netclaim.dev", "pool": pool, "device": device});
    if let Some(consumed) = consumed {
        result["shareID"] = json!("1d4a6b8e-0000-4000-8000-000000000000");
        result["consumedCapacity"] = consumed;
    }
    from(json!({"metadata": {"namespace": "shop", "name": claim}, "spec": {}, "status": {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": format!("{claim}-pod"), "uid": "u"}]}}))
}

fn slice(node: &str, pool: &str, devices: Value) -> ResourceSlice {
    from(
        json!({"metadata": {"name": format!("{pool}-1")}, "spec": {"driver": "netclaim.dev", "nodeName": node,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "devices": devices}}),
    )
}

/// The device of ClaimNetwork storage, with more fields.
fn network_device(more: Value) -> Value {
    let mut device = json!({"name": "net-storage", "allowMultipleAllocations": true,
        "attributes": {"network": {"string": "storage"}, "uplink": {"string": "eth1"}, "mode": {"string": "macvlan"}},
        "capacity": {
            "addresses": {"value": "2", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}},
            "bandwidth": {"value": "10G", "requestPolicy": {"default": "0", "validRange": {"min": "0"}}}}});
    device.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    device
}

fn link_device(name: &str, mode: &str, more: Value) -> Value {
    let mut device = json!({"name": name,
        "attributes": {"network": {"string": ""}, "uplink": {"string": "eth1"}, "mode": {"string": mode}}});
    device.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    device
}

struct Case {
    claims: Vec<ResourceClaim>,
    slices: Vec<ResourceSlice>,
    others: Vec<ResourceClaim>,
}

impl Case {
    fn new(claim: ResourceClaim, devices: Value) -> Self {
        Self { claims: vec![claim], slices: vec![slice("a", "a", devices)], others: Vec::new() }
    }

    fn held_by(mut self, others: impl IntoIterator<Item = ResourceClaim>) -> Self {
        self.others.extend(others);
        self
    }

    fn verdict(&self) -> NodeVerdict {
        let mut holdings = Holdings::default();
        self.others.iter().for_each(|claim| holdings.add(claim));
        Question::new(&self.claims, &classes()).judge(&node("a"), &self.slices, &holdings)
    }

    /// The answer, and the sentences.
    fn words(&self) -> (Answer, Vec<String>) {
        let verdict = self.verdict();
        let reasons = verdict.requests.iter().flat_map(|request| &request.reasons).map(ToString::to_string);
        (verdict.answer, reasons.chain(verdict.together.iter().map(ToString::to_string)).collect())
    }

    fn refusal(&self) -> String {
        let (answer, words) = self.words();
        assert_eq!(answer, Answer::No, "{words:?}");
        words.join(" | ")
    }
}

#[test]
fn a_node_that_has_what_a_claim_wants_can_serve_it() {
    assert_eq!(Case::new(storage("web"), json!([network_device(json!({}))])).words(), (Answer::Yes, vec![]));
}

#[test]
fn a_class_that_does_not_exist_is_named() {
    let case = Case::new(claim("web", json!([request("stroage", json!({}))])), json!([]));
    assert!(case.refusal().starts_with("there is no DeviceClass stroage"), "{}", case.refusal());
}

#[test]
fn a_node_without_slices_and_one_without_the_network_differ() {
    let mut case = Case::new(storage("web"), json!([network_device(json!({}))]));
    case.claims = vec![claim("web", json!([request("lab", json!({}))]))];
    assert_eq!(case.refusal(), "the node does not offer ClaimNetwork lab");
    case.slices = vec![slice("b", "b", json!([network_device(json!({}))]))];
    assert!(
        case.refusal().starts_with("the node has no ResourceSlice of netclaim.dev"),
        "{}",
        case.refusal()
    );
}

#[test]
fn selectors_that_select_nothing_are_told_with_each_device() {
    let selector =
        json!({"selectors": [{"cel": {"expression": r#"device.attributes["netclaim.dev"].mode == "nic""#}}]});
    let case =
        Case::new(claim("web", json!([request("storage", selector)])), json!([network_device(json!({}))]));
    assert_eq!(case.refusal(), "class storage and the request select no device of the node");
    let verdict = case.verdict();
    let cause = &verdict.requests[0].devices[0].causes[0];
    assert!(
        cause.to_string().starts_with("the request's selector does not select it: device.attributes"),
        "{cause}"
    );
}

#[test]
fn an_attribute_that_is_missing_stops_the_scheduler() {
    let case =
        Case::new(claim("web", json!([request("colour", json!({}))])), json!([network_device(json!({}))]));
    let refusal = case.refusal();
    assert!(refusal.starts_with(
        "ClaimNetwork storage: class colour has no value for it, so the scheduler tries no further node"
    ));
    assert!(refusal.contains("no such key: colour"), "{refusal}");
    assert!(case.verdict().requests[0].reasons[0].cause.stops_the_scheduler());
}

#[test]
fn a_device_that_is_taken_is_not_evaluated() {
    let nic = json!([link_device("nic-eth1", "nic", json!({}))]);
    let case = Case::new(claim("web", json!([request("colour", json!({}))])), nic)
        .held_by([holding("db", "a", "nic-eth1", None)]);
    assert_eq!(
        case.refusal(),
        "device nic-eth1: it is held, and serves one claim at a time; held by claim shop/db (pod shop/db-pod)"
    );
}

#[test]
fn nothing_is_claimed_of_a_selector_that_cannot_be_evaluated() {
    let case = Case::new(claim("web", json!([request("ip", json!({}))])), json!([network_device(json!({}))]));
    let (answer, words) = case.words();
    assert_eq!(answer, Answer::Unknown);
    assert!(words[0].contains("not known whether class ip selects it"), "{words:?}");
}

#[test]
fn a_pool_that_lacks_slices_is_not_used() {
    let mut case = Case::new(storage("web"), json!([network_device(json!({}))]));
    case.slices[0].spec.pool.resource_slice_count = 2;
    assert_eq!(case.refusal(), "pool a is being updated: 1 of its 2 ResourceSlices are there");
    // A slice of an older generation does not count.
    case.slices[0].spec.pool.resource_slice_count = 1;
    let mut older = slice("a", "a", json!([network_device(json!({})), network_device(json!({}))]));
    older.spec.pool.generation = 0;
    case.slices.push(older);
    assert_eq!(case.words().0, Answer::Yes);
}

#[test]
fn a_pool_that_contradicts_itself_is_not_used() {
    let device = network_device(json!({}));
    assert_eq!(
        Case::new(storage("web"), json!([device, device])).refusal(),
        "the scheduler cannot use pool a: there are two devices net-storage"
    );
    let consumes = json!({"consumesCounters": [{"counterSet": "eth1", "counters": {"c": {"value": "1"}}}]});
    let case = Case::new(storage("web"), json!([network_device(consumes)]));
    assert!(case.refusal().contains("device net-storage needs counter set eth1, which is not there"));
}

#[test]
fn counter_sets_without_counters_are_checked_as_others() {
    let case = |sets: &[&str], of_device: &str| {
        let consumes = json!({"consumesCounters": [{"counterSet": of_device, "counters": {}}]});
        let mut case = Case::new(storage("web"), json!([network_device(consumes)]));
        for (number, set) in (1..).zip(sets) {
            let mut sets = slice("a", "a", json!([]));
            sets.metadata.name = Some(format!("sets-{number}"));
            sets.spec.shared_counters = Some(vec![from(json!({"name": set, "counters": {}}))]);
            case.slices.push(sets);
        }
        let count = i64::try_from(case.slices.len()).unwrap();
        case.slices.iter_mut().for_each(|slice| slice.spec.pool.resource_slice_count = count);
        case
    };
    assert_eq!(case(&["eth1"], "eth1").words().0, Answer::Yes);
    assert!(case(&["eth1", "eth1"], "eth1").refusal().contains("there are two counter sets eth1"));
    let refusal = case(&["eth1"], "eth9").refusal();
    assert!(refusal.contains("device net-storage needs counter set eth9, which is not there"), "{refusal}");
}

#[test]
fn nothing_is_claimed_of_devices_with_fields_that_are_not_judged() {
    let groups = json!([{"counterSet": "eth1", "counters": {}, "compatibilityGroups": ["a"]}]);
    let with_groups = network_device(json!({"consumesCounters": groups}));
    let of_node = network_device(json!({"nodeAllocatableResources": {"cpu": {}}}));
    let case = |device: Value, change: fn(&mut ResourceSlice)| {
        let mut case = Case::new(storage("web"), json!([device]));
        change(&mut case.slices[0]);
        case
    };
    let sets = |slice: &mut ResourceSlice| {
        slice.spec.shared_counters = Some(vec![from(json!({"name": "eth1", "counters": {}}))]);
    };
    let skips = |slice: &mut ResourceSlice| slice.spec.skip_node_operations = Some(vec!["*".to_owned()]);
    for (case, field) in [
        (case(with_groups, sets), "compatibilityGroups"),
        (case(of_node, |_| {}), "nodeAllocatableResources"),
        (case(network_device(json!({})), skips), "skipNodeOperations"),
    ] {
        let all = json!([request("storage", json!({"allocationMode": "All"}))]);
        for claims in [vec![storage("web")], vec![claim("web", all)], vec![storage("web"), storage("log")]] {
            let case = Case { claims, slices: case.slices.clone(), others: Vec::new() };
            let (answer, words) = case.words();
            assert_eq!(answer, Answer::Unknown, "{field}: {words:?}");
            assert!(words[0].contains(&format!("not known, because of its {field}")), "{words:?}");
        }
    }
}

#[test]
fn slices_of_a_node_serve_until_they_are_incomplete_or_replaced() {
    let of = |name: &str, node: &str, generation: i64, count: i64| {
        let mut slice = slice(node, "shared", json!([]));
        slice.metadata.name = Some(name.to_owned());
        slice.spec.pool.generation = generation;
        slice.spec.pool.resource_slice_count = count;
        slice
    };
    let case = |count: i64| {
        let mut case = Case::new(storage("web"), json!([]));
        let mut old = of("old", "a", 1, count);
        old.spec.devices = Some(vec![from(network_device(json!({})))]);
        case.slices = vec![old, of("new", "b", 2, 1)];
        case
    };
    assert_eq!(
        case(1).words().0,
        Answer::Yes,
        "the scheduler looks at the slices of other nodes only if some lack"
    );
    assert_eq!(case(2).words().0, Answer::No);
}

#[test]
fn a_taint_is_told_in_words_unless_it_is_tolerated() {
    let down = json!({"taints": [{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]});
    let case = Case::new(storage("web"), json!([network_device(down.clone())]));
    assert_eq!(
        case.refusal(),
        "ClaimNetwork storage: it takes no new pods: netclaim.dev/link-down (the uplink is down or has no carrier)"
    );
    let other = json!({"taints": [{"key": "example.com/repair", "value": "rack7", "effect": "NoExecute"}]});
    assert!(
        Case::new(storage("web"), json!([network_device(other)]))
            .refusal()
            .ends_with("example.com/repair=rack7")
    );
    let none = json!({"taints": [{"key": "example.com/note", "effect": "None"}]});
    assert_eq!(Case::new(storage("web"), json!([network_device(none)])).words().0, Answer::Yes);
    for toleration in [json!({"operator": "Exists"}), json!({"key": "netclaim.dev/link-down"})] {
        let tolerant = claim("web", json!([request("storage", json!({"tolerations": [toleration]}))]));
        assert_eq!(Case::new(tolerant, json!([network_device(down.clone())])).words().0, Answer::Yes);
    }
}

#[test]
fn a_rule_taints_the_devices_that_it_selects_and_is_named() {
    let rule = |selector: Value, effect: &str| -> DeviceTaintRule {
        let taint = json!({"key": "example.com/maintenance", "value": "switch", "effect": effect});
        from(
            json!({"metadata": {"name": "switch-work"}, "spec": {"deviceSelector": selector, "taint": taint}}),
        )
    };
    let case = |claim: ResourceClaim, rule: DeviceTaintRule| {
        let slices = [slice("a", "a", json!([network_device(json!({}))]))];
        let mut question = Question::new(&[claim], &classes()).with_rules(&[rule]);
        let verdict = question.judge(&node("a"), &slices, &Holdings::default());
        let reason = verdict.requests[0].reasons.first().map(ToString::to_string);
        (verdict.answer, reason.unwrap_or_default())
    };
    let told = "ClaimNetwork storage: it takes no new pods: example.com/maintenance=switch (DeviceTaintRule switch-work)";
    for (selector, effect) in [
        (json!({"driver": "netclaim.dev", "device": "net-storage"}), "NoSchedule"),
        (json!({"pool": "a"}), "NoExecute"),
        (json!({}), "NoSchedule"),
    ] {
        assert_eq!(case(storage("web"), rule(selector, effect)), (Answer::No, told.to_owned()));
    }
    for (selector, effect) in [
        (json!({"driver": "gpu.example.com"}), "NoSchedule"),
        (json!({"driver": "netclaim.dev", "pool": "b"}), "NoSchedule"),
        (json!({"pool": "a", "device": "net-lab"}), "NoSchedule"),
        (Value::Null, "NoSchedule"),
        (json!({}), "None"),
    ] {
        assert_eq!(case(storage("web"), rule(selector.clone(), effect)).0, Answer::Yes, "{selector}");
    }
    let toleration = json!({"tolerations": [{"key": "example.com/maintenance", "operator": "Exists"}]});
    let tolerant = claim("web", json!([request("storage", toleration)]));
    assert_eq!(case(tolerant, rule(json!({}), "NoSchedule")).0, Answer::Yes);
}

#[test]
fn a_capacity_that_others_have_is_told_with_its_numbers() {
    let taken = || {
        ["x", "y"]
            .map(|name| holding(name, "a", "net-storage", Some(json!({"addresses": "1", "bandwidth": "3G"}))))
    };
    let case = Case::new(storage("web"), json!([network_device(json!({}))])).held_by(taken());
    assert_eq!(
        case.refusal(),
        "ClaimNetwork storage: 0 of 2 addresses free; held by claim shop/x (pod shop/x-pod), claim shop/y (pod shop/y-pod)"
    );
    assert_eq!(case.verdict().requests[0].reasons[0].brief(), "ClaimNetwork storage: 0 of 2 addresses free");
    let wanted = |amount: &str| {
        let more = json!({"capacity": {"requests": {"bandwidth": amount}}});
        let case =
            Case::new(claim("web", json!([request("storage", more)])), json!([network_device(json!({}))]));
        case.held_by(taken().into_iter().take(1)).words()
    };
    assert_eq!(wanted("7G").0, Answer::Yes);
    assert_eq!(
        wanted("8G").1,
        ["ClaimNetwork storage: bandwidth: 8G wanted, 7G of 10G free; held by claim shop/x (pod shop/x-pod)"]
    );
    assert_eq!(wanted("11G").1, ["ClaimNetwork storage: bandwidth: 11G wanted, but there are 10G in all"]);
}

#[test]
fn a_claim_with_ips_is_told_that_it_needs_no_address_of_a_node() {
    let asking = |ips: Value, more: Value, min: &str| {
        let mut claim = serde_json::to_value(claim("db", json!([request("storage", more)]))).unwrap();
        let parameters =
            json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AttachmentConfig", "ips": ips});
        claim["spec"]["devices"]["config"] =
            json!([{"opaque": {"driver": "netclaim.dev", "parameters": parameters}}]);
        let policy = json!({"default": "1", "validRange": {"min": min}});
        let device = json!({"capacity": {"addresses": {"value": "0", "requestPolicy": policy}}});
        Case::new(from(claim), json!([network_device(device)]))
    };
    let ips = || json!(["10.30.0.5"]);
    let none = json!({"capacity": {"requests": {"addresses": "0"}}});
    assert_eq!(asking(ips(), none, "0").words().0, Answer::Yes);
    assert_eq!(
        asking(ips(), json!({}), "0").refusal(),
        "ClaimNetwork storage: 0 of 0 addresses free, and a request with ips needs none of them: write \
         capacity.requests.addresses: \"0\""
    );
    let others = [asking(ips(), json!({}), "1"), asking(json!([]), json!({}), "0")];
    for other in others {
        assert_eq!(
            other.refusal(),
            "ClaimNetwork storage: addresses: 1 wanted, but there are 0 in all",
            "no reserved addresses, or the claim asks for none"
        );
    }
}

#[test]
fn a_claim_that_asks_for_no_bandwidth_is_told_that_it_must() {
    let asking = |requests: Value| {
        let policy = json!({"default": "1E", "validRange": {"min": "64k"}});
        let device =
            network_device(json!({"capacity": {"bandwidth": {"value": "10G", "requestPolicy": policy}}}));
        let asks = request("storage", json!({"capacity": {"requests": requests}}));
        Case::new(claim("web", json!([asks])), json!([device]))
    };
    assert_eq!(
        asking(json!({})).refusal(),
        "ClaimNetwork storage: the claim asks for no bandwidth, and only claims that do get it \
         (spec.bandwidth.unrequested: Refuse): write capacity.requests.bandwidth, such as 1G"
    );
    assert_eq!(asking(json!({"bandwidth": "1G"})).words().0, Answer::Yes);
    assert!(asking(json!({"bandwidth": "11G"})).refusal().contains("11G wanted, but there are 10G in all"));
}

#[test]
fn a_capacity_that_the_device_lacks_or_does_not_grant_is_told() {
    let asking = |capacity: &str, amount: &str| {
        let more = json!({"capacity": {"requests": {capacity: amount}}});
        let device = json!({"capacity": {"segment120": {"value": "1", "requestPolicy": {"default": "0", "validValues": ["0", "1"]}}}});
        Case::new(claim("web", json!([request("storage", more)])), json!([network_device(device)]))
    };
    assert!(asking("vlans", "1").refusal().contains("it has no capacity vlans"));
    assert!(asking("segment120", "2").refusal().contains("2 of segment120 is not what one claim may have"));
    let taken = holding("x", "a", "net-storage", Some(json!({"segment120": "1"})));
    assert_eq!(
        asking("segment120", "1").held_by([taken]).refusal(),
        "ClaimNetwork storage: segmentation id 120 is taken; held by claim shop/x (pod shop/x-pod)"
    );
}

#[test]
fn a_negative_capacity_stops_the_scheduler() {
    let device = json!({"capacity": {"addresses": {"value": "2", "requestPolicy": {"default": "1"}}}});
    let more = json!({"capacity": {"requests": {"addresses": "-5"}}});
    let case = Case::new(claim("web", json!([request("storage", more)])), json!([network_device(device)]));
    assert!(case.refusal().contains("stops the scheduler: capacity value is negative"), "{}", case.refusal());
}

/// The pool of a link: ipvlan and macvlan exclude each other, and the whole link both.
fn link_pool() -> Vec<ResourceSlice> {
    let counters = |amount: &str| json!([{"counterSet": "eth1", "counters": {"ipvlan": {"value": amount}}}]);
    let shared = |name: &str, mode: &str, amount: &str| {
        link_device(
            name,
            mode,
            json!({"allowMultipleAllocations": true, "consumesCounters": counters(amount)}),
        )
    };
    let mut devices = slice(
        "a",
        "a/eth1",
        json!([
            shared("ipvlan-eth1", "ipvlan", "64"),
            shared("macvlan-eth1", "macvlan", "1"),
            link_device("nic-eth1", "nic", json!({"consumesCounters": counters("64")}))
        ]),
    );
    devices.spec.pool.resource_slice_count = 2;
    let mut sets = slice("a", "a/eth1", json!([]));
    sets.spec.devices = None;
    sets.spec.pool.resource_slice_count = 2;
    sets.spec.shared_counters =
        Some(vec![from(json!({"name": "eth1", "counters": {"ipvlan": {"value": "64"}}}))]);
    vec![sets, devices]
}

#[test]
fn another_use_of_the_link_is_told_with_who_has_it() {
    let ask = |others: Vec<ResourceClaim>| {
        let claims = vec![claim("web", json!([request("ipvlan", json!({}))]))];
        Case { claims, slices: link_pool(), others }
    };
    assert_eq!(ask(vec![]).words().0, Answer::Yes);
    let macvlan = holding("db", "a/eth1", "macvlan-eth1", Some(json!({})));
    assert_eq!(
        ask(vec![macvlan]).refusal(),
        "device ipvlan-eth1: eth1 is used as macvlan; held by claim shop/db (pod shop/db-pod)"
    );
    // Another share of the device itself charges nothing more.
    assert_eq!(ask(vec![holding("db", "a/eth1", "ipvlan-eth1", Some(json!({})))]).words().0, Answer::Yes);
    let many: Vec<_> =
        (1..=5).map(|i| holding(&format!("db{i}"), "a/eth1", "macvlan-eth1", Some(json!({})))).collect();
    assert!(ask(many).refusal().ends_with("claim shop/db3 (pod shop/db3-pod) and others"));
}

#[test]
fn two_requests_may_be_too_much_where_each_alone_fits() {
    let two = |name: &str, more: Value| {
        let mut other = request("storage", more);
        other["name"] = json!("other");
        claim(name, json!([request("storage", json!({})), other]))
    };
    let device = || json!([network_device(json!({}))]);
    assert_eq!(Case::new(two("web", json!({})), device()).words().0, Answer::Yes);
    let one_left = holding("x", "a", "net-storage", Some(json!({"addresses": "1"})));
    let case = Case::new(two("web", json!({})), device()).held_by([one_left]);
    let lacks = "ClaimNetwork storage: needs 2 addresses, 1 of them is free";
    assert_eq!(case.refusal(), format!("{lacks}; held by claim shop/x (pod shop/x-pod)"));
    // Two claims of a pod take from each other, too.
    let mut case = Case::new(storage("web"), device()).held_by(case.others);
    case.claims.push(storage("web2"));
    let together = case.verdict().together.unwrap();
    assert_eq!(together.brief().to_string(), lacks);
    // Not a capacity, but a constraint.
    let distinct = json!({"distinctAttribute": "netclaim.dev/network"});
    case.claims = vec![two("web", json!({}))];
    case.claims[0].spec.as_mut().unwrap().devices.as_mut().unwrap().constraints = Some(vec![from(distinct)]);
    assert_eq!(case.verdict().together, Some(Cause::NoCombination));
}

#[test]
fn whatever_capacity_lacks_is_named_with_what_all_requests_want_of_it() {
    let device = network_device(json!({"capacity": {
        "addresses": {"value": "6", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}},
        "bandwidth": {"value": "10G", "requestPolicy": {"default": "0", "validRange": {"min": "0"}}},
        "segment150": {"value": "1", "requestPolicy": {"default": "0", "validRange": {"min": "0"}}}}}));
    let asking = |amounts: &[Value]| {
        let requests = amounts.iter().enumerate().map(|(i, amounts)| {
            let mut one = request("storage", json!({"capacity": {"requests": amounts}}));
            one["name"] = json!(format!("r{i}"));
            one
        });
        Case::new(claim("web", json!(requests.collect::<Vec<_>>())), json!([device.clone()])).refusal()
    };
    assert_eq!(asking(&vec![json!({}); 9]), "ClaimNetwork storage: needs 9 addresses, 6 of them are free");
    let bandwidth = [json!({"bandwidth": "6G"}), json!({"bandwidth": "6G"})];
    assert_eq!(asking(&bandwidth), "ClaimNetwork storage: needs 12G of bandwidth, 10G are free");
    let segments = [json!({"segment150": "1"}), json!({"segment150": "1"})];
    let expected = "ClaimNetwork storage: its requests want segmentation id 150 2 times, and one can have it";
    assert_eq!(asking(&segments), expected);
}

#[test]
fn a_device_that_one_request_takes_cannot_stop_the_scheduler_for_another() {
    let mut red = link_device("nic-eth2", "nic", json!({}));
    red["attributes"]["colour"] = json!({"string": "red"});
    let devices = json!([link_device("nic-eth1", "ipvlan", json!({})), red]);
    let mut other = request("colour", json!({}));
    other["name"] = json!("other");
    let two = claim("web", json!([request("ipvlan", json!({})), other.clone()]));
    assert_eq!(Case::new(two, devices.clone()).verdict().answer, Answer::Yes);
    let alone = Case::new(claim("web", json!([other])), devices);
    assert!(alone.refusal().contains("no such key: colour"), "{}", alone.refusal());
}

#[test]
fn the_work_for_all_nodes_is_bounded() {
    // Each mode has six devices, and seven of one mode are wanted: all combinations of six are tried.
    let devices: Vec<Value> =
        (0..24).map(|i| link_device(&format!("nic-eth{i}"), &format!("mode{}", i % 4), json!({}))).collect();
    let mut hard = claim("web", json!([request("any", json!({"count": 7}))]));
    hard.spec.as_mut().unwrap().devices.as_mut().unwrap().constraints =
        Some(vec![from(json!({"matchAttribute": "netclaim.dev/mode"}))]);
    let slices = [slice("a", "a", json!(devices))];
    let mut question = Question::new(&[hard], &classes());
    let holdings = Holdings::default();
    assert_eq!(question.judge(&node("a"), &slices, &holdings).together, Some(Cause::NoCombination));
    let mut judged = 1;
    while question.judge(&node("a"), &slices, &holdings).answer == Answer::No {
        judged += 1;
        assert!(judged < 1_000_000, "the work is not bounded");
    }
    let verdict = question.judge(&node("a"), &slices, &holdings);
    assert_eq!((verdict.answer, verdict.together), (Answer::Unknown, Some(Cause::CombinationUnknown)));
}

#[test]
fn constraints_are_met_by_a_combination_or_by_none() {
    let devices = json!([link_device("nic-eth1", "nic", json!({})), {"name": "nic-eth2",
        "attributes": {"network": {"string": ""}, "uplink": {"string": "eth2"}, "mode": {"string": "nic"}}}]);
    let constrained = |constraint: Value| {
        let mut other = request("any", json!({}));
        other["name"] = json!("other");
        let mut claim = claim("web", json!([request("any", json!({})), other]));
        claim.spec.as_mut().unwrap().devices.as_mut().unwrap().constraints = Some(vec![from(constraint)]);
        Case::new(claim, devices.clone()).verdict()
    };
    assert_eq!(constrained(json!({"matchAttribute": "netclaim.dev/mode"})).answer, Answer::Yes);
    assert_eq!(constrained(json!({"distinctAttribute": "netclaim.dev/uplink"})).answer, Answer::Yes);
    for constraint in [
        json!({"matchAttribute": "netclaim.dev/uplink"}),
        json!({"distinctAttribute": "netclaim.dev/mode"}),
        json!({"matchAttribute": "netclaim.dev/colour"}),
    ] {
        assert_eq!(constrained(constraint.clone()).together, Some(Cause::NoCombination), "{constraint}");
    }
    // It is about one request only.
    let one = json!({"matchAttribute": "netclaim.dev/uplink", "requests": ["net"]});
    assert_eq!(constrained(one).answer, Answer::Yes);
}

#[test]
fn several_devices_are_counted() {
    let devices =
        json!([link_device("nic-eth1", "nic", json!({})), link_device("nic-eth2", "nic", json!({}))]);
    let asking = |more: Value| Case::new(claim("web", json!([request("any", more)])), devices.clone());
    assert_eq!(asking(json!({"count": 2})).words().0, Answer::Yes);
    assert_eq!(
        asking(json!({"count": 3})).refusal(),
        "the request wants 3 devices, and can have 2: it gets none of them twice"
    );
    assert_eq!(asking(json!({"allocationMode": "All"})).words().0, Answer::Yes);
    let all = json!({"allocationMode": "All", "capacity": {"requests": {"bandwidth": "1G"}}});
    let some = json!([link_device("nic-eth1", "nic", json!({})), network_device(json!({}))]);
    assert_eq!(Case::new(claim("web", json!([request("any", all)])), some).words().0, Answer::Yes);
    let taken = asking(json!({"allocationMode": "All"})).held_by([holding("db", "a", "nic-eth2", None)]);
    assert!(taken.refusal().starts_with("device nic-eth2: it is held"), "{}", taken.refusal());
}

#[test]
fn a_claim_for_more_devices_than_a_claim_can_have_stops_the_scheduler() {
    let nics: Vec<Value> = (0..40).map(|i| link_device(&format!("nic-eth{i}"), "nic", json!({}))).collect();
    let asking = |more: Value| Case::new(claim("web", json!([request("any", more)])), json!(nics));
    let refusal = "its requests are for 33 devices, and one claim can have 32: use several claims";
    assert_eq!(asking(json!({"count": 32})).words().0, Answer::Yes);
    assert_eq!(asking(json!({"count": 33})).refusal(), refusal);
    assert!(asking(json!({"allocationMode": "All"})).refusal().contains("are for 40 devices"));
    let verdict = asking(json!({"count": 33})).verdict();
    let about_claim = verdict.requests.last().unwrap();
    assert_eq!(about_claim.request.to_string(), "claim web");
    assert!(about_claim.reasons[0].cause.stops_the_scheduler());

    // The alternative with the fewest devices counts, and requests for other drivers do, too.
    let alternatives = |fewest: usize| {
        let mut other = request("ip", json!({"count": 20}));
        other["name"] = json!("gpu");
        let either = json!({"name": "net", "firstAvailable": [{"name": "many", "deviceClassName": "any", "count": 30},
            {"name": "few", "deviceClassName": "any", "count": fewest}]});
        let mut question = Question::new(&[claim("web", json!([either, other]))], &classes());
        question.retain(|request| request.request.as_deref() == Some("net"));
        question.judge(&node("a"), &[slice("a", "a", json!(nics))], &Holdings::default()).answer
    };
    assert_eq!(alternatives(12), Answer::Yes);
    assert_eq!(alternatives(13), Answer::No);
}

#[test]
fn each_alternative_is_judged() {
    let alternatives = json!([{"name": "net", "firstAvailable": [
        {"name": "fast", "deviceClassName": "lab"}, {"name": "slow", "deviceClassName": "storage"}]}]);
    let case = Case::new(claim("web", alternatives), json!([network_device(json!({}))]));
    let verdict = case.verdict();
    assert_eq!(verdict.answer, Answer::Yes);
    let judged: Vec<_> = verdict.requests.iter().map(|v| (v.request.to_string(), v.answer)).collect();
    let expected =
        [("request net/fast of claim web", Answer::No), ("request net/slow of claim web", Answer::Yes)];
    assert_eq!(judged, expected.map(|(name, answer)| (name.to_owned(), answer)));
}

#[test]
fn an_alternative_that_is_not_judged_may_be_served() {
    let alternatives = json!([{"name": "net", "firstAvailable": [
        {"name": "fast", "deviceClassName": "ip"}, {"name": "slow", "deviceClassName": "lab"}]}]);
    let claims = [claim("web", alternatives)];
    let mut question = Question::new(&claims, &classes());
    question.retain(|request| request.alternative.as_deref() == Some("slow"));
    let slices = [slice("a", "a", json!([network_device(json!({}))]))];
    let verdict = question.judge(&node("a"), &slices, &Holdings::default());
    assert_eq!(verdict.answer, Answer::Unknown);
    let answers: Vec<_> = verdict.requests.iter().map(|request| request.answer).collect();
    assert_eq!(answers, [Answer::Unknown, Answer::No]);
}

#[test]
fn an_alternative_whose_class_does_not_exist_stops_the_scheduler() {
    let alternatives = json!([{"name": "net", "firstAvailable": [
        {"name": "slow", "deviceClassName": "storage"}, {"name": "fast", "deviceClassName": "stroage"}]}]);
    let case = Case::new(claim("web", alternatives), json!([network_device(json!({}))]));
    assert!(case.refusal().starts_with("there is no DeviceClass stroage"), "{}", case.refusal());
}

#[test]
fn a_claim_that_is_allocated_stays_where_it_is() {
    let allocated = |selector: Value| {
        let mut claim = storage("web");
        claim.status = Some(from(json!({"allocation": {"nodeSelector": selector}})));
        Case::new(claim, json!([]))
    };
    let named = |name: &str| json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]});
    assert_eq!(allocated(named("b")).refusal(), "the claim is allocated for node b");
    assert_eq!(allocated(named("a")).words().0, Answer::Yes);
    let rack = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["a"]}]}]});
    assert_eq!(allocated(rack).refusal(), "the claim is allocated for nodes with rack NotIn [a]");
}

#[test]
fn where_an_allocated_claim_is_may_be_unknown_without_the_node() {
    let judge = |requirement: Value| {
        let mut claim = storage("web");
        let selector = json!({"nodeSelectorTerms": [requirement]});
        claim.status = Some(from(json!({"allocation": {"nodeSelector": selector}})));
        let mut question = Question::new(&[claim], &classes());
        question.judge(KnownNode::Named("a"), [], &Holdings::default()).answer
    };
    let name =
        |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
    assert_eq!(judge(name("a")), Answer::Yes);
    assert_eq!(judge(name("b")), Answer::No);
    let rack = json!({"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]});
    assert_eq!(judge(rack), Answer::Unknown);
}

#[test]
fn an_amount_that_cannot_be_read_is_unknown_and_never_nothing() {
    let device = || json!([network_device(json!({}))]);
    let more = json!({"capacity": {"requests": {"bandwidth": "much"}}});
    let asking = Case::new(claim("web", json!([request("storage", more)])), device());
    let holding = Case::new(storage("web"), device()).held_by([holding(
        "x",
        "a",
        "net-storage",
        Some(json!({"addresses": "many"})),
    )]);
    let offering = network_device(json!({"capacity": {"addresses": {"value": "many",
        "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}}}));
    let offering = Case::new(storage("web"), json!([offering]));
    let mut counting = Case { claims: vec![storage("web")], slices: link_pool(), others: Vec::new() };
    counting.claims = vec![claim("web", json!([request("ipvlan", json!({}))]))];
    counting.slices[0].spec.shared_counters =
        Some(vec![from(json!({"name": "eth1", "counters": {"ipvlan": {"value": "many"}}}))]);
    for case in [asking, holding, offering, counting] {
        let (answer, words) = case.words();
        assert_eq!(answer, Answer::Unknown, "{words:?}");
        assert!(
            words.iter().any(|words| words.starts_with("not known") || words.contains(": not known")),
            "{words:?}"
        );
    }
}

#[test]
fn admin_access_looks_at_what_others_have() {
    let nic = json!([link_device("nic-eth1", "nic", json!({}))]);
    let case = Case::new(claim("web", json!([request("any", json!({"adminAccess": true}))])), nic)
        .held_by([holding("db", "a", "nic-eth1", None)]);
    assert_eq!(case.words().0, Answer::Yes);
}

#[test]
fn a_pool_of_the_cluster_serves_the_nodes_that_it_selects() {
    let mut case = Case::new(storage("web"), json!([network_device(json!({}))]));
    case.slices[0].spec.node_name = None;
    for (operator, values, answer) in [
        ("In", vec!["a"], Answer::Yes),
        ("In", vec!["b"], Answer::No),
        ("NotIn", vec!["a"], Answer::No),
        ("Exists", vec![], Answer::Yes),
        ("DoesNotExist", vec![], Answer::No),
    ] {
        case.slices[0].spec.node_selector = Some(from(json!({"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "rack", "operator": operator, "values": values}]}]})));
        assert_eq!(case.words().0, answer, "{operator}");
    }
}

#[test]
fn a_node_that_does_not_take_the_pod_is_told_briefly() {
    let words = |pod: Value, spec: Value| {
        let mut node = node("a");
        node.spec = Some(from(spec));
        let mut pod = pod;
        pod["containers"] = json!([]);
        let unfit = unfit(&from::<PodSpec>(pod), &node);
        unfit.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let affinity = |operator: &str, value: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchExpressions": [{"key": "slot", "operator": operator, "values": [value]}]}]}}}})
    };
    let not_selected = ["not selected by the pod's nodeSelector or affinity"];
    let control_plane =
        json!({"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]});
    assert_eq!(words(json!({}), json!({})), [""; 0]);
    assert_eq!(words(json!({}), json!({"unschedulable": true})), ["cordoned"]);
    assert_eq!(words(json!({"nodeSelector": {"rack": "b"}}), json!({})), not_selected);
    assert_eq!(words(json!({"nodeSelector": {"rack": "a"}}), json!({})), [""; 0]);
    assert_eq!(words(affinity("Gt", "7"), json!({})), not_selected);
    assert_eq!(words(affinity("Lt", "8"), json!({})), [""; 0]);
    let taint = ["the pod does not tolerate taint node-role.kubernetes.io/control-plane"];
    assert_eq!(words(json!({}), control_plane.clone()), taint);
    assert_eq!(words(json!({"tolerations": [{"operator": "Exists"}]}), control_plane), [""; 0]);
}

#[test]
fn a_question_knows_its_networks_and_its_requests() {
    let claims = [storage("web"), claim("gpu", json!([request("gpu", json!({}))]))];
    let question = Question::new(&claims, &classes());
    assert_eq!(question.networks().collect::<Vec<_>>(), [vec![Some("storage")], vec![None]]);
    let mut allocated = storage("web");
    allocated.status = Some(from(json!({"allocation": {}})));
    assert_eq!(Question::new(&[allocated], &classes()).networks().count(), 0);
    let ours: Vec<_> = question.of_driver().iter().map(ToString::to_string).collect();
    assert_eq!(ours, ["request net of claim web"]);
}
