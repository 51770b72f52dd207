//! Golden tests of what Kubernetes documents for selectors of devices.

use serde_json::json;

use super::*;

fn device() -> Device {
    serde_json::from_value(json!({
        "name": "net-storage",
        "allowMultipleAllocations": true,
        "attributes": {
            "network": {"string": "storage"},
            "mtu": {"int": 9000},
            "fast": {"bool": true},
            "firmware": {"version": "2.10.3"},
            "switch.example.com/rack": {"string": "r7"},
            "vlans": {"ints": [100, 200]},
            "releases": {"versions": ["1.0.0", "1.2.0"]},
            "tags": {"strings": ["a", "b"]},
        },
        "capacity": {"bandwidth": {"value": "10G"}, "addresses": {"value": "254"}},
    }))
    .unwrap()
}

fn evaluated(expression: &str) -> Evaluation {
    Selector::new(expression).evaluate(&SelectableDevice::new("netclaim.dev", &device()))
}

const MATCHING: &[&str] = &[
    "true",
    r#"device.driver == "netclaim.dev""#,
    r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "storage""#,
    r#"device.attributes["netclaim.dev"]["network"] == "storage""#,
    r#"device.attributes["switch.example.com"].rack == "r7""#,
    r#"device.attributes["netclaim.dev"].fast"#,
    r#"device.attributes["netclaim.dev"].mtu >= 1500 && device.attributes["netclaim.dev"].mtu % 1000 == 0"#,
    r#""netclaim.dev" in device.attributes && !("other.example.com" in device.attributes)"#,
    r#""network" in device.attributes["netclaim.dev"] && !("colour" in device.attributes["other.example.com"])"#,
    r#"has(device.attributes["netclaim.dev"].mtu) && !has(device.attributes["netclaim.dev"].colour)"#,
    r#"device.attributes["netclaim.dev"].?colour.orValue("none") == "none""#,
    r#"device.attributes["netclaim.dev"].?network.orValue("none") == "storage""#,
    r#"device.attributes["netclaim.dev"][?"mtu"].hasValue()"#,
    r#"device.attributes["other.example.com"].?colour.orValue("") == """#,
    r#"!device.attributes["other.example.com"][?"colour"].hasValue()"#,
    r#"device.capacity["netclaim.dev"].bandwidth.isGreaterThan(quantity("9G"))"#,
    r#"device.capacity["netclaim.dev"].bandwidth.compareTo(quantity("10000M")) == 0"#,
    r#"device.capacity["netclaim.dev"].addresses == quantity("254")"#,
    r#"device.capacity["netclaim.dev"].addresses.isLessThan(quantity("1Ki"))"#,
    r#"device.capacity["netclaim.dev"].addresses.sub(quantity("54")).asInteger() == 200"#,
    r#"quantity("50k").add(20).sub(quantity("100k")).sub(-50000) == quantity("20")"#,
    r#"isQuantity("1.3Gi") && !isQuantity("200K") && sign(quantity("-1")) == -1"#,
    r#"quantity("1500m").isInteger() == false && quantity("0.5").asApproximateFloat() == 0.5"#,
    r#"device.attributes["netclaim.dev"].firmware.isGreaterThan(semver("2.9.0"))"#,
    r#"device.attributes["netclaim.dev"].firmware.compareTo(semver("2.10.3")) == 0"#,
    r#"device.attributes["netclaim.dev"].firmware == semver("2.10.3")"#,
    r#"semver("1.0.0-alpha.1").isLessThan(semver("1.0.0")) && semver("1.2.3").minor() == 2"#,
    r#"semver("v1.2", true).compareTo(semver("1.2.0")) == 0 && semver("01.01.01", true) == semver("1.1.1")"#,
    r#"isSemver("1.2.3") && !isSemver("v1.2") && isSemver("v1.2", true)"#,
    r#"cel.bind(a, device.attributes["netclaim.dev"], a.network == "storage" && a.mtu > 1500)"#,
    r#"device.attributes["netclaim.dev"].vlans.includes(200) && !device.attributes["netclaim.dev"].vlans.includes(7)"#,
    r#"device.attributes["netclaim.dev"].network.includes("storage")"#,
    r#"device.attributes["netclaim.dev"].releases.includes(semver("1.2.0"))"#,
    r#"100 in device.attributes["netclaim.dev"].vlans && device.attributes["netclaim.dev"].vlans.size() == 2"#,
    r#"device.attributes["netclaim.dev"].tags.all(tag, tag.size() == 1)"#,
    r#"device.attributes["netclaim.dev"].releases.exists(v, v.isGreaterThan(semver("1.1.0")))"#,
    r#"device.attributes.exists_one(domain, domain == "switch.example.com")"#,
    r#"device.attributes["netclaim.dev"].network.matches("^sto[a-z]+$") && matches("eth12", "^eth\\d+$")"#,
    r#"device.attributes["netclaim.dev"].network.startsWith("sto") && "A".lowerAscii() == "a""#,
    r#"device.attributes["switch.example.com"].rack in ["r6", "r7"]"#,
    r#"device.allowMultipleAllocations == true"#,
    r#"device.attributes["netclaim.dev"].colour == "red" || device.driver == "netclaim.dev""#,
    r#"device.driver == "netclaim.dev" ? true : device.attributes["netclaim.dev"].colour == "red""#,
];

#[test]
fn expressions_that_kubernetes_documents_select_the_device() {
    for expression in MATCHING {
        assert_eq!(evaluated(expression), Evaluation::Matches, "{expression}");
    }
}

#[test]
fn expressions_that_do_not_hold_do_not_select_the_device() {
    for expression in [
        "false",
        r#"device.driver == "gpu.example.com""#,
        r#"device.driver == "gpu.example.com" && device.attributes["netclaim.dev"].colour == "red""#,
        r#"device.attributes["netclaim.dev"].network == "lab""#,
        r#"device.attributes["netclaim.dev"].network == 7"#,
        r#"device.capacity["netclaim.dev"].bandwidth.isGreaterThan(quantity("10G"))"#,
        r#"!device.allowMultipleAllocations"#,
        r#"!device.attributes["netclaim.dev"].fast"#,
    ] {
        assert_eq!(evaluated(expression), Evaluation::Differs, "{expression}");
    }
}

#[test]
fn an_expression_without_a_value_fails_as_in_the_scheduler() {
    for (expression, why) in [
        (r#"device.attributes["netclaim.dev"].colour == "red""#, "no such key: colour"),
        (r#"device.attributes["other.example.com"].colour == "red""#, "no such key: colour"),
        (r#"device.capacity["netclaim.dev"].memory.isGreaterThan(quantity("1"))"#, "no such key: memory"),
        (r#"device.attributes["netclaim.dev"].network > 0"#, "overload"),
        (r#"device.attributes["netclaim.dev"].network"#, "not a bool"),
        (r#"quantity("ten").isInteger()"#, "quantity"),
        (r#"semver("one") == semver("1.0.0")"#, "semver"),
        (r#"device.attributes["netclaim.dev"].mtu / 0 == 1"#, "division by zero"),
    ] {
        match evaluated(expression) {
            Evaluation::Fails(text) => assert!(text.contains(why), "{expression}: {text}"),
            other => panic!("{expression}: {other:?}"),
        }
    }
}

#[test]
fn nothing_is_claimed_of_what_cannot_be_evaluated_here() {
    for expression in [
        r#"ip("10.0.0.1").family() == 4"#,
        r#"cidr("10.0.0.0/8").containsIP("10.1.1.1")"#,
        r#"sets.contains(device.attributes["netclaim.dev"].vlans, [100])"#,
        r#"device.attributes["netclaim.dev"].network.newFunction()"#,
        r#""ä".matches("^.$")"#,
        r#"quantity("9999999999999999999999999999999999999G").isInteger()"#,
        "?!",
    ] {
        assert!(
            matches!(evaluated(expression), Evaluation::Unknown(_)),
            "{expression}: {:?}",
            evaluated(expression)
        );
    }
    // What stands before it may decide, though.
    assert_eq!(evaluated(r#"device.driver == "x" && ip("10.0.0.1").family() == 4"#), Evaluation::Differs);
}

#[test]
fn a_selector_names_the_network_that_it_requires() {
    let network = |expression: &str| Selector::new(expression).network("netclaim.dev").map(str::to_owned);
    let class = r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "lab""#;
    assert_eq!(network(class).as_deref(), Some("lab"));
    assert_eq!(network(r#""lab" == device.attributes["netclaim.dev"]["network"]"#).as_deref(), Some("lab"));
    assert_eq!(network(r#"device.attributes["netclaim.dev"].network == "a" || true"#), None);
    assert_eq!(network(r#"device.attributes["other.example.com"].network == "a""#), None);
    assert_eq!(network(r#"device.attributes["netclaim.dev"].network != "a""#), None);
}

#[test]
fn an_attribute_that_the_scheduler_cannot_read_fails_every_selector() {
    let mut device = device();
    let odd: DeviceAttribute = serde_json::from_value(json!({"version": "1.0"})).unwrap();
    device.attributes.as_mut().unwrap().insert("odd".to_owned(), odd);
    let evaluation = Selector::new("true").evaluate(&SelectableDevice::new("netclaim.dev", &device));
    assert!(
        matches!(&evaluation, Evaluation::Fails(text) if text.contains("attribute odd")),
        "{evaluation:?}"
    );
}

use k8s_openapi::api::resource::v1::DeviceAttribute;

#[test]
fn the_attributes_and_capacities_that_an_expression_names_are_known() {
    let reads = |expression: &str| {
        let reads = Selector::new(expression).reads();
        let shown = |read: Read| {
            let (kind, mark) = (
                if read.is_capacity { "capacity" } else { "attribute" },
                if read.is_optional { "?" } else { "" },
            );
            format!("{kind} {}/{}{mark}", read.domain, read.name)
        };
        (reads.values.into_iter().map(shown).collect::<Vec<_>>(), reads.narrows)
    };
    assert_eq!(reads(r#"device.driver == "netclaim.dev""#), (vec![], false));
    assert_eq!(reads("device.allowMultipleAllocations"), (vec![], true));
    assert_eq!(
        reads(
            r#"device.driver == "d" && device.attributes["d"].network == "lab" && device.capacity["d"]["bandwidth"].isInteger()"#
        ),
        (vec!["attribute d/network".to_owned(), "capacity d/bandwidth".to_owned()], true)
    );
    for optional in [
        r#"device.attributes["d"].?colour.orValue("") == "red""#,
        r#"device.attributes["d"][?"colour"].hasValue()"#,
        r#""colour" in device.attributes["d"]"#,
        r#"has(device.attributes["d"].colour)"#,
    ] {
        assert_eq!(reads(optional), (vec!["attribute d/colour?".to_owned()], true), "{optional}");
    }
    let (guarded, _) =
        reads(r#"has(device.attributes["d"].colour) && device.attributes["d"].colour == "red""#);
    assert_eq!(guarded, ["attribute d/colour?", "attribute d/colour?"]);
    let (looped, narrows) = reads(r#"["a", "b"].exists(c, device.attributes["d"].colour == c)"#);
    assert_eq!((looped, narrows), (vec!["attribute d/colour".to_owned()], true));
    assert_eq!(reads("?!"), (vec![], false));
    assert!(Selector::new("?!").problem().is_some() && Selector::new("true").problem().is_none());
}

#[test]
fn an_expression_of_any_length_fits_into_the_stack_of_a_thread() {
    const STACK: usize = 2 << 20;
    let used = |expression: &str| {
        let selector = Selector::new(expression);
        let device = SelectableDevice::new("netclaim.dev", &device());
        let _ = (selector.reads(), selector.evaluate(&device), selector.network("netclaim.dev"));
        selector.problem().map(str::to_owned)
    };
    let problem = |expression: String| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || used(&expression));
        thread.unwrap().join().unwrap()
    };
    let terms = |(first, more): (&str, &str), count| format!("{first}{}", more.repeat(count));
    for nested in [("1", "+1"), ("1", "==1"), ("a", ".b"), ("a", "[0]"), ("a", ".b()")] {
        assert_eq!(problem(terms(nested, MAX_DEPTH - 1)), None, "{nested:?}");
        let longest = terms(nested, MAX_LENGTH / nested.1.len() - 1);
        assert_eq!(problem(longest).as_deref(), Some("it is nested more than 32 deep"), "{nested:?}");
        let longer = terms(nested, 200_000);
        assert_eq!(problem(longer).as_deref(), Some("it is longer than 10240 bytes"), "{nested:?}");
    }
    for flat in [("true", "&&true"), ("true", "||true")] {
        assert_eq!(problem(terms(flat, MAX_LENGTH / flat.1.len() - 1)), None, "{flat:?}");
    }
    for (open, close) in [("!", ""), ("-", ""), ("(", ")"), ("[", "]"), ("true?true:", "")] {
        for length in [64, 256, MAX_LENGTH] {
            let depth = (length - 4) / (open.len() + close.len());
            problem(format!("{}true{}", open.repeat(depth), close.repeat(depth)));
        }
    }
}

/// Expressions of this many repetitions, each of another kind that makes a parser recurse.
fn chains(n: usize) -> Vec<String> {
    let mut chains: Vec<String> =
        ["+1", "-1", "*1", "/1", "%1", "==1", "!=1", "<1", ">=1", "in 1", "?1:1", "&&true", "||true"]
            .map(|operator| format!("1{}", operator.repeat(n)))
            .into();
    chains.extend([".a", ".?a", ".a()", "[0]", "[?0]"].map(|member| format!("device{}", member.repeat(n))));
    chains.extend(["!", "-", "--1", ".", "[", "(", "{1:", "a(", "a?"].map(|prefix| prefix.repeat(n)));
    chains.extend(
        [("(", ")"), ("[", "]"), ("{1:", "}"), ("[1].exists(x,", ")"), ("!(", ")"), ("cel.bind(a,1,", ")")]
            .map(|(open, close)| format!("{}true{}", open.repeat(n), close.repeat(n))),
    );
    chains
}

/// Does with an expression all that is done with selectors, in a thread as small as those of tokio.
fn survives(expression: String) -> Option<String> {
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        let selector = Selector::new(&expression);
        let _ = (selector.reads(), selector.network("netclaim.dev"));
        let _ = selector.evaluate(&SelectableDevice::new("netclaim.dev", &device()));
        selector.problem().map(str::to_owned)
    });
    thread.unwrap().join().unwrap()
}

#[test]
fn no_expression_overflows_the_stack() {
    for n in [20, 90, 300, 480, 990, 5_000, 100_000] {
        chains(n).into_iter().for_each(|chain| drop(survives(chain)));
    }
    // Nested as deep as `cel` allows, with chains in each level.
    for operator in ["+1", "==1", "[0]", ".a()"] {
        let nested = (0..90).fold("1".to_owned(), |inner, _| format!("({inner}{})", operator.repeat(5)));
        survives(nested);
    }
}
