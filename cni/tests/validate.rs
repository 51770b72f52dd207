//! What `validate` says about network configurations.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use netclaim_cni::placeholder::PlaceholderValue;
use netclaim_cni::validate::{Finding, MAX_FINDINGS, UnknownPlaceholder, validate, validate_template};
use serde_json::{Value, json};

/// Findings as `severity pointer: problem`.
fn found(json: &Value) -> Vec<String> {
    lines(validate(json.to_string().as_bytes()))
}

fn lines(findings: Vec<Finding>) -> Vec<String> {
    findings.into_iter().map(|f| format!("{} {}: {}", f.severity, f.pointer, f.problem)).collect()
}

/// Texts of some forms, as the author of a template may describe them.
const IPV4: PlaceholderValue = PlaceholderValue::Like { example: "10.20.0.5", stands_for_all: true };
const IPV6: PlaceholderValue = PlaceholderValue::Like { example: "fd00::5", stands_for_all: true };
const CIDR: PlaceholderValue = PlaceholderValue::Like { example: "10.20.0.0/24", stands_for_all: true };
const MAC: PlaceholderValue = PlaceholderValue::Like { example: "02:00:5e:10:00:01", stands_for_all: true };
const HOSTNAME: PlaceholderValue = PlaceholderValue::Like { example: "ns1.lab", stands_for_all: false };

/// Findings in a template of which nothing is known but that it has placeholders.
fn of_template(json: &[u8]) -> Vec<Finding> {
    validate_template(json, &|_| Ok(PlaceholderValue::Any))
}

/// A conflist of these plugins, in which nothing else is wrong.
fn list(plugins: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins})
}

/// Findings in one plugin, with pointers from there.
fn of_plugin(plugin: &Value) -> Vec<String> {
    let mut plugins = vec![plugin.clone()];
    // Those that need one before them.
    let first = match plugin["type"].as_str() {
        Some(
            "tuning" | "sbr" | "vrf" | "bandwidth" | "netclaim-bandwidth" | "netclaim-route" | "firewall"
            | "portmap",
        ) => 1,
        _ => 0,
    };
    if first == 1 {
        plugins.insert(0, json!({"type": "bridge"}));
    }
    let prefix = format!("/plugins/{first}");
    found(&list(&json!(plugins))).iter().map(|line| line.replacen(&prefix, "", 1)).collect()
}

fn host_local(ipam: &Value) -> Vec<String> {
    let mut ipam = ipam.clone();
    ipam["type"] = json!("host-local");
    of_plugin(&json!({"type": "bridge", "ipam": ipam}))
}

#[test]
fn a_good_conflist_has_no_findings() {
    let good = json!({"cniVersion": "1.1.0", "cniVersions": ["1.0.0", "1.1.0"], "name": "net", "disableGC": "true", "plugins": [
        {"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "mtu": 1500, "vlanTrunk": [{"id": 5}, {"minID": 7, "maxID": 9}],
         "capabilities": {"mac": true, "ips": true}, "dns": {"nameservers": ["10.0.0.1"]},
         "ipam": {"type": "host-local", "dataDir": "/run/ipam", "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400}, {"dst": "::/0"}],
                  "ranges": [[{"subnet": "10.0.0.0/25", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.20", "gateway": "10.0.0.1"}, {"subnet": "10.0.0.128/25"}],
                             [{"subnet": "fd00::/64"}]]}},
        {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "txQLen": 10, "capabilities": {"mac": false}},
        {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        {"type": "bandwidth", "ingressRate": 1000, "ingressBurst": 1000},
        {"type": "firewall", "backend": "iptables"}, {"type": "sbr", "table": 100}, {"type": "vrf", "vrfname": "blue"},
        {"type": "of-somebody-else", "whatever": [1], "capabilities": {"x": true}, "ipam": {"type": "theirs", "y": 2}}]});
    assert_eq!(found(&good), Vec::<String>::new());
    for plugin in [
        json!({"type": "macvlan", "master": "eth1", "mode": "passthru", "mac": "02-00-00-00-00-01", "ipam": {"type": "dhcp", "request": [{"option": "routers"}, {"option": "121"}]}}),
        json!({"type": "ipvlan", "master": "eth1", "mode": "l3s", "ipam": {"type": "static", "addresses": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1"}]}}),
        json!({"type": "vlan", "master": "eth1", "vlanId": 5, "ipam": {"type": "static", "addresses": [{"address": "fd00::5/64"}]}}),
        json!({"type": "host-device", "capabilities": {"deviceID": true}}),
        json!({"type": "host-device", "kernelpath": "/sys/devices/pci0000:00/0000:00:01.0"}),
        json!({"type": "tap", "multiQueue": true, "owner": 0, "mac": null}),
        json!({"type": "loopback"}),
        json!({"type": "netclaim-link", "kind": "vlan", "master": "eth1", "id": 4094, "mtu": 9000}),
        json!({"type": "netclaim-link", "kind": "bridge", "bridge": "br0", "master": "eth1"}),
    ] {
        assert_eq!(of_plugin(&plugin), Vec::<String>::new(), "{plugin}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let bad = json!({"name": "-net", "disableCheck": 1, "plugins": [
        {"type": "bridge", "vlan": 5000, "isGatway": true},
        7,
        {"type": "a/b", "prevResult": {}}]});
    assert_eq!(
        found(&bad),
        [
            r#"error /name: network name "-net" must start with a letter or digit"#,
            "warning : `cniVersion` is missing, which means 0.1.0: without CHECK, STATUS and GC",
            "error /disableCheck: must be true or false, not a number",
            "error /plugins/1: must be an object, not a number",
            "warning /plugins/0/isGatway: plugin `bridge` has no key `isGatway`: it has no effect",
            "error /plugins/0/vlan: 5000 is out of range",
            r#"error /plugins/2/type: plugin type "a/b" must be a file name, without `/`, `\` and NUL"#,
            "warning /plugins/2/prevResult: `prevResult` is the runtime's to write: the plugin does not get this value",
        ]
    );
}

#[test]
fn text_that_is_not_an_object_is_one_finding() {
    for (text, problem) in
        [("", "is not JSON: EOF"), ("[]", "must be an object, not a list"), ("{} x", "is not JSON: trailing")]
    {
        let findings = lines(validate(text.as_bytes()));
        assert!(
            findings.len() == 1 && findings[0].starts_with(&format!("error : {problem}")),
            "{findings:?}"
        );
    }
}

#[test]
fn a_repeated_key_is_found_at_any_depth() {
    let text = r#"{"cniVersion":"1.1.0","name":"a","name":"b","plugins":[{"type":"x","y":{"z":1,"z":2}}]}"#;
    assert_eq!(
        lines(validate(text.as_bytes())),
        [
            "error /name: key `name` stands more than once",
            "error /plugins/0/y/z: key `z` stands more than once"
        ]
    );
}

#[test]
fn a_misspelt_key_comes_with_the_key_that_was_probably_meant() {
    let advice = |plugin: Value| validate(list(&json!([plugin])).to_string().as_bytes()).remove(0).advice;
    assert_eq!(
        advice(json!({"type": "bridge", "isGatway": true})),
        "write `isGateway` if that is meant, else remove it"
    );
    assert_eq!(advice(json!({"type": "bridge", "colour": "red"})), "remove it");
    assert_eq!(advice(json!({"type": "bridge", "MTU": 1500})), "write `mtu`");
    assert_eq!(advice(json!({"type": "bridge", "mtu": "1500"})), "write it without quotes");
}

#[test]
fn versions_are_judged_as_the_runtime_reads_them() {
    let versions = |one: Value, several: Value| {
        let mut list = list(&json!([{"type": "x"}]));
        list["cniVersion"] = one;
        list["cniVersions"] = several;
        found(&list)
    };
    assert_eq!(
        versions(json!("0.4.0"), json!(["2.0.0"])),
        ["warning /cniVersions/0: version 2.0.0 is not known to this runtime, which skips it"]
    );
    assert_eq!(
        versions(json!(""), json!(["2.0.0", 1])),
        [
            "warning /cniVersions/0: version 2.0.0 is not known to this runtime, which skips it",
            "error /cniVersions/1: must be a string, not a number",
            "error /cniVersions: names no version this runtime supports",
        ]
    );
    let old =
        json!({"cniVersion": "0.3.0", "name": "n", "plugins": [{"type": "bridge"}, {"type": "firewall"}]});
    assert_eq!(found(&old), ["error /plugins/1/type: `firewall` does not support CNI 0.3.0"]);
    let unknown = json!({"cniVersion": "1.1", "name": "n", "plugins": [{"type": "x"}]});
    assert_eq!(found(&unknown).len(), 1);
}

#[test]
fn a_single_configuration_is_read_and_called_deprecated() {
    assert_eq!(
        found(&json!({"cniVersion": "1.0.0", "name": "n", "type": "macvlan", "mode": "x"})),
        [
            "warning : a single plugin's configuration is deprecated since CNI 1.0.0",
            r#"error /mode: "x" is not known to the plugin"#,
            "warning : `master` is missing: the interface of the default route is taken, the node's own traffic's",
        ]
    );
}

#[test]
fn capabilities_that_no_plugin_takes_are_named() {
    assert_eq!(
        of_plugin(
            &json!({"type": "bridge", "capabilities": {"mac": true, "ips": true, "portMappings": true, "dns": false},
                          "ipam": {"type": "static"}})
        ),
        ["warning /capabilities/portMappings: `bridge` does not take the capability `portMappings`"]
    );
    // What another IPAM plugin takes is not known.
    assert_eq!(
        of_plugin(&json!({"type": "bridge", "capabilities": {"x": true}, "ipam": {"type": "theirs"}})),
        Vec::<String>::new()
    );
    assert_eq!(
        of_plugin(&json!({"type": "theirs", "capabilities": {"x": "yes"}})),
        ["error /capabilities/x: must be true or false, not a string"]
    );
}

#[test]
fn settings_that_exclude_each_other_are_found() {
    let cases = [
        (
            json!({"type": "bridge", "hairpinMode": true, "promiscMode": true}),
            "error /promiscMode: the plugin refuses `hairpinMode` together",
        ),
        (
            json!({"type": "bridge", "disableContainerInterface": true, "ipam": {"type": "dhcp"}}),
            "error /disableContainerInterface: an interface that is left down",
        ),
        (
            json!({"type": "bridge", "isGateway": true}),
            "warning /isGateway: `isGateway` has no effect without `ipam`",
        ),
        (
            json!({"type": "bridge", "vlanTrunk": [{"minID": 1}]}),
            "error /vlanTrunk/0: `minID` and `maxID` go together",
        ),
        (
            json!({"type": "bridge", "VlanTrunk": [{"minID": 9, "maxID": 8}]}),
            "warning /VlanTrunk: key is spelt differently from `vlanTrunk`",
        ),
        (json!({"type": "host-device"}), "error : no device is named"),
        (
            json!({"type": "host-device", "device": "eth1", "hwaddr": "02:00:00:00:00:01"}),
            "warning /hwaddr: `hwaddr` has no effect beside `device`",
        ),
        (json!({"type": "vlan", "vlanId": 1, "ipam": {"type": "dhcp"}}), "error : `master` is missing"),
        (json!({"type": "dummy"}), "error : `ipam` is missing, which `dummy` requires"),
        (
            json!({"type": "dummy", "ipam": {"type": "bridge"}}),
            "error /ipam/type: `bridge` gives no addresses",
        ),
        (
            json!({"type": "macvlan", "master": "eth1", "mac": "01:00:5e:00:00:01"}),
            r#"error /mac: "01:00:5e:00:00:01" is a multicast address"#,
        ),
        (json!({"type": "macvlan", "master": "a-name-that-is-too-long"}), "warning /master: interface name"),
        (json!({"type": "macvlan", "master": "eth1", "mtu": 20}), "warning /mtu: 20 is not a possible MTU"),
        (
            json!({"type": "tuning", "sysctl": {"kernel.panic": "1"}}),
            "error /sysctl/kernel.panic: sysctl `kernel.panic` is not of a network namespace",
        ),
        (
            json!({"type": "tuning", "sysctl": {"net.core.somaxconn": 1}}),
            "error /sysctl/net.core.somaxconn: must be a string, not a number",
        ),
        (
            json!({"type": "bandwidth", "egressRate": 5}),
            "error /egressRate: `egressRate` is refused without `egressBurst`",
        ),
        (json!({"type": "bandwidth"}), "warning : nothing is limited"),
        (
            json!({"type": "bandwidth", "ingressRate": 5, "ingressBurst": 5, "capabilities": {"bandwidth": true}}),
            "warning /ingressRate: the capability `bandwidth` has no effect beside rates",
        ),
        (
            json!({"type": "netclaim-bandwidth", "egressBurst": 5}),
            "error /egressBurst: `egressBurst` is refused without `egressRate`",
        ),
        (
            json!({"type": "netclaim-bandwidth", "egressRate": 5}),
            "error /egressRate: 5 bit/s are less than a byte per second",
        ),
        (
            json!({"type": "netclaim-bandwidth", "ingressRate": 5, "capabilities": {"bandwidth": true}}),
            "warning /ingressRate: 5 bit/s are less than a byte per second",
        ),
        (
            json!({"type": "netclaim-bandwidth", "ingressRate": 50, "ingressBurst": 34359738361i64}),
            "error /ingressBurst: a burst of 34359738361 bits is too much",
        ),
        (json!({"type": "netclaim-bandwidth"}), "warning : nothing is limited"),
        (
            json!({"type": "netclaim-bandwidth", "rate": 5, "ingressRate": 50}),
            "warning /rate: plugin `netclaim-bandwidth` has no key `rate`",
        ),
        (
            json!({"type": "netclaim-bandwidth", "capabilities": {"bandwidth": true, "mac": true}}),
            "warning /capabilities/mac: `netclaim-bandwidth` does not take the capability `mac`",
        ),
        (json!({"type": "netclaim-link"}), "error : `kind` is missing"),
        (
            json!({"type": "netclaim-link", "kind": "vxlan"}),
            r#"error /kind: "vxlan" is not known to the plugin"#,
        ),
        (json!({"type": "netclaim-link", "kind": "vlan", "id": 5}), "error : `master` is missing"),
        (json!({"type": "netclaim-link", "kind": "vlan", "master": "eth1"}), "error : `id` is missing"),
        (
            json!({"type": "netclaim-link", "kind": "vlan", "master": "eth1", "id": 4095}),
            "error /id: 4095 is out of range",
        ),
        (
            json!({"type": "netclaim-link", "kind": "vlan", "master": "a-name-too-long-1", "id": 5}),
            r#"error /master: interface name "a-name-too-long-1" is longer"#,
        ),
        (
            json!({"type": "netclaim-link", "kind": "vlan", "master": "eth1", "id": 5, "bridge": "br0"}),
            "error /bridge: the plugin refuses `bridge` with this `kind`",
        ),
        (
            json!({"type": "netclaim-link", "kind": "vlan", "master": "eth1", "id": 5, "vlanId": 5}),
            "warning /vlanId: plugin `netclaim-link` has no key `vlanId`",
        ),
        (
            json!({"type": "netclaim-link", "kind": "vlan", "master": "eth1", "id": 5, "ipam": {"type": "dhcp"}}),
            "warning /ipam: `netclaim-link` calls no IPAM plugin",
        ),
        (
            json!({"type": "netclaim-link", "kind": "bridge", "name": "br0", "master": "eth1"}),
            "error : `bridge` is missing",
        ),
        (
            json!({"type": "netclaim-link", "kind": "bridge", "bridge": "br0", "master": "eth1", "id": 5}),
            "error /id: the plugin refuses `id` with this `kind`",
        ),
        (
            json!({"type": "netclaim-link", "kind": "bridge", "bridge": "br0"}),
            "error : the bridge has no port",
        ),
        (json!({"type": "tuning", "dataDir": "backup"}), r#"warning /dataDir: path "backup" is relative"#),
        (json!({"type": "portmap"}), "warning : without the capability `portMappings` no port is mapped"),
        (
            json!({"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables", "conditionsV4": ["-d", "10.0.0.1"]}),
            "error /conditionsV4: its conditions are written for iptables",
        ),
        (json!({"type": "netclaim-route", "table": 7}), "error : `keep` is missing"),
        (
            json!({"type": "netclaim-route", "keep": [], "gateway": "10.0.0.1"}),
            "warning /gateway: plugin `netclaim-route` has no key",
        ),
        (json!({"type": "vrf"}), "error : `vrfname` is missing"),
        (json!({"type": "sbr", "ipam": {"type": "dhcp"}}), "warning /ipam: `sbr` calls no IPAM plugin"),
        (
            json!({"type": "bridge", "ipam": {"type": "dhcp", "provide": [{"option": "hostname"}]}}),
            r#"error /ipam/provide/0: DHCP option "hostname" is not known"#,
        ),
        (
            json!({"type": "bridge", "ipam": {"type": "dhcp", "request": [{}]}}),
            "warning /ipam/request/0: names no option to ask for",
        ),
    ];
    for (plugin, expected) in cases {
        let findings = of_plugin(&plugin);
        assert!(findings.iter().any(|line| line.starts_with(expected)), "{plugin}: {findings:?}");
    }
}

#[test]
fn the_order_of_a_chain_is_checked() {
    assert_eq!(
        found(&list(&json!([{"type": "tuning"}, {"type": "macvlan", "master": "eth1"}, {"type": "bridge"},
                            {"type": "bandwidth", "capabilities": {"bandwidth": true}}]))),
        [
            "error /plugins/0/type: `tuning` works on the result of a plugin before it, and is the first",
            "warning /plugins/2/type: `bridge` makes the interface that `macvlan` has made already",
            "warning /plugins/3/type: `bandwidth` limits veth pairs only, and `macvlan` makes none",
        ]
    );
}

#[test]
fn a_bridge_has_one_port_its_masters_or_that_of_the_plugin_before() {
    let vlan = json!({"type": "netclaim-link", "kind": "vlan", "master": "eth1", "id": 5});
    let bridge = json!({"type": "netclaim-link", "kind": "bridge", "bridge": "br0"});
    assert_eq!(found(&list(&json!([vlan, bridge]))), Vec::<String>::new());
    let both = json!({"type": "netclaim-link", "kind": "bridge", "bridge": "br0", "master": "eth1"});
    let refused = "error /plugins/1/master: the plugin refuses `master` after another plugin, whose interface is the port";
    assert_eq!(found(&list(&json!([vlan, both]))), [refused]);
}

#[test]
fn a_bandwidth_plugin_fits_the_interface_and_stands_alone() {
    let asked = |plugin: &str| json!({"type": plugin, "capabilities": {"bandwidth": true}});
    let macvlan = json!({"type": "macvlan", "master": "eth1"});
    let bridge = json!({"type": "bridge"});
    let in_vain = "`bandwidth` limits veth pairs only, and `macvlan` makes none; use `netclaim-bandwidth`, which takes \
                   the same keys, or `bridge` or `ptp`";
    let cases = [
        (json!([macvlan, asked("netclaim-bandwidth")]), vec![]),
        (json!([bridge, asked("netclaim-bandwidth")]), vec![]),
        (json!([bridge, {"type": "netclaim-bandwidth", "egressRate": 1000}]), vec![]),
        (json!([macvlan, asked("bandwidth")]), vec![format!("warning /plugins/1/type: {in_vain}")]),
        (
            json!([macvlan, {"type": "bandwidth", "egressRate": 5, "egressBurst": 5}]),
            vec![format!("error /plugins/1/type: {in_vain}")],
        ),
        (
            json!([bridge, asked("bandwidth"), asked("netclaim-bandwidth")]),
            vec![
                "warning /plugins/2/type: `netclaim-bandwidth` limits what `bandwidth` limits already; keep one of them"
                    .to_owned(),
            ],
        ),
        (
            json!([bridge, asked("netclaim-bandwidth"), asked("netclaim-bandwidth")]),
            vec![
                "warning /plugins/2/type: `netclaim-bandwidth` stands twice: the later one removes what the earlier one \
                 sets; keep one of them"
                    .to_owned(),
            ],
        ),
        (
            json!([{"type": "ipvlan", "master": "eth1", "mode": "l3s"}, asked("netclaim-bandwidth")]),
            vec![
                "warning /plugins/1/type: what `ipvlan` in mode l3s receives is not limited: it does not pass traffic \
                 control; use its mode l2 or l3"
                    .to_owned(),
            ],
        ),
        (
            json!([asked("netclaim-bandwidth")]),
            vec![
                "error /plugins/0/type: `netclaim-bandwidth` works on the result of a plugin before it, and is the first; \
                 put the plugin that makes the interface before it"
                    .to_owned(),
            ],
        ),
    ];
    for (plugins, expected) in cases {
        let findings = validate(list(&plugins).to_string().as_bytes());
        let told: Vec<String> = findings
            .iter()
            .map(|finding| {
                format!("{} {}: {}; {}", finding.severity, finding.pointer, finding.problem, finding.advice)
            })
            .collect();
        assert_eq!(told, expected, "{plugins}");
    }
}

#[test]
fn ranges_must_lie_in_their_subnets_and_apart() {
    let cases = [
        (json!({}), vec!["error /ipam: there is no range to take addresses from"]),
        (
            json!({"subnet": "10.0.0.0/31"}),
            vec!["error /ipam/subnet: 10.0.0.0/31 is too small to allocate from"],
        ),
        (json!({"subnet": "10.0.0.5/24"}), vec!["error /ipam/subnet: 10.0.0.5/24 has host bits set"]),
        (
            json!({"subnet": "10.0.0.0"}),
            vec![r#"error /ipam/subnet: "10.0.0.0" is not a network in CIDR notation"#],
        ),
        (
            json!({"ranges": [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1", "rangeEnd": "10.0.0.x", "gateway": "10.0.9.1"}]]}),
            vec![
                r#"error /ipam/ranges/0/0/rangeEnd: "10.0.0.x" is not an IP address"#,
                "error /ipam/ranges/0/0/rangeStart: 10.0.1.1 is not in 10.0.0.0/24",
                "warning /ipam/ranges/0/0/gateway: gateway 10.0.9.1 is not in 10.0.0.0/24: routes through it fail",
            ],
        ),
        (
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.3"}),
            vec!["error /ipam: the range ends before it starts"],
        ),
        (
            json!({"subnet": "10.0.0.0/16", "ranges": [[{"subnet": "10.0.3.0/24"}, {"subnet": "fd00::/64"}], []]}),
            vec![
                "error /ipam/ranges/0: the range set mixes IPv4 and IPv6",
                "error /ipam/ranges/1: the range set is empty",
                "error /ipam/ranges/0/0: its addresses overlap with those of the range at `/plugins/0/ipam`",
            ],
        ),
        (
            json!({"subnet": "10.0.0.0/24", "routes": [{"gw": "10.0.0.1"}, {"dst": "::/0", "gw": "10.0.0.1"}]}),
            vec![
                "error /ipam/routes/0: `dst` is missing",
                "error /ipam/routes/1: destination ::/0 and gateway 10.0.0.1 are of different families",
            ],
        ),
    ];
    for (ipam, expected) in cases {
        assert_eq!(host_local(&ipam), expected, "{ipam}");
    }
    let old = json!({"cniVersion": "0.2.0", "name": "n", "plugins": [{"type": "bridge",
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.1.0/24"}]]}}]});
    assert_eq!(
        found(&old),
        ["error /plugins/0/ipam/ranges: CNI versions before 0.3.0 allow one address of each family"]
    );
}

#[test]
fn a_long_report_keeps_the_first_findings_of_each_severity() {
    let unread = |n: usize| (format!("key{n}"), json!(0));
    let mut plugin = json!({"type": "dummy", "ipam": {"type": "static", "addresses": vec![json!({}); 1000]}});
    plugin.as_object_mut().unwrap().extend((0..1000).map(unread));
    let found = of_plugin(&plugin);
    let of = |severity: &str| found.iter().filter(|line| line.starts_with(severity)).count();
    assert_eq!((of("error"), of("warning")), (MAX_FINDINGS, MAX_FINDINGS));
    assert!(found[0].starts_with("error /ipam/addresses/0: `address` is missing"), "{}", found[0]);
}

#[test]
fn each_range_that_overlaps_with_an_earlier_one_is_named() {
    let subnets = ["10.0.2.0/24", "10.0.0.0/16", "10.1.0.0/24", "fd00::/64", "10.0.9.0/30", "fd00::/96"];
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    let overlaps = |a, b| {
        format!(
            "error /ipam/ranges/{b}/0: its addresses overlap with those of the range at `/plugins/0/ipam/ranges/{a}/0`"
        )
    };
    assert_eq!(host_local(&json!({"ranges": ranges})), [overlaps(0, 1), overlaps(1, 4), overlaps(3, 5)]);
}

#[test]
fn the_placeholders_of_a_template_are_left_alone() {
    let template =
        list(&json!([{"type": "vlan", "master": "${uplink.name}", "vlanId": "${parameters.vlan}", "mtuu": 1,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "${parameters.subnet}"}]]}}]));
    assert_eq!(
        lines(of_template(template.to_string().as_bytes())),
        ["warning /plugins/0/mtuu: plugin `vlan` has no key `mtuu`: it has no effect"]
    );
    assert!(found(&template).len() > 3);
}

/// Findings of a list with one such plugin, where the places are these.
fn with_placeholders(plugin: Value, placeholders: &[(&str, PlaceholderValue)]) -> Vec<String> {
    let known = |name: &str| {
        let found = placeholders.iter().find(|(known, _)| *known == name);
        let unknown = || UnknownPlaceholder { problem: format!("no {name}"), advice: "remove it".into() };
        found.map(|(_, place)| place.clone()).ok_or_else(unknown)
    };
    let findings = validate_template(list(&json!([plugin])).to_string().as_bytes(), &known);
    lines(findings).iter().map(|line| line.replacen("/plugins/0", "", 1)).collect()
}

#[test]
fn a_placeholder_is_judged_by_its_possible_values() {
    let vlan = |place: PlaceholderValue| {
        let plugin = json!({"type": "vlan", "master": "eth1", "vlanId": "${v}", "ipam": {"type": "dhcp"}});
        with_placeholders(plugin, &[("v", place)])
    };
    assert_eq!(vlan(PlaceholderValue::Any), [""; 0]);
    assert_eq!(vlan(PlaceholderValue::Between(1, 4094)), [""; 0]);
    assert_eq!(
        vlan(PlaceholderValue::Between(1, 5000)),
        ["warning /vlanId: `${v}` may become 5000: 5000 is out of range"]
    );
    assert_eq!(
        vlan(PlaceholderValue::Text),
        ["error /vlanId: must be a whole number, and `${v}` becomes a string"]
    );
    assert_eq!(
        vlan(PlaceholderValue::OneOf(vec![json!(7), json!(4095)])),
        ["warning /vlanId: `${v}` may become 4095: 4095 is out of range"]
    );
    assert_eq!(
        vlan(PlaceholderValue::OneOf(vec![json!("7")])),
        [r#"error /vlanId: `${v}` may become "7": must be a whole number, not a string"#]
    );
    // Within a longer text, whatever comes is a text.
    let plugin = json!({"type": "macvlan", "master": "${link}.${v}", "mtu": "1${v}"});
    assert_eq!(
        with_placeholders(
            plugin,
            &[("link", PlaceholderValue::Text), ("v", PlaceholderValue::Between(1, 9))]
        ),
        ["error /mtu: must be a whole number, and `1${v}` becomes a string"]
    );
}

#[test]
fn a_placeholder_of_a_form_is_judged_by_all_values_of_the_form() {
    let at = |plugin: Value, format| with_placeholders(plugin, &[("v", format)]);
    let address = || json!({"type": "macvlan", "master": "e", "ipam": {"type": "static", "routes": [], "addresses": [{"address": "${v}"}]}});
    assert_eq!(at(address(), CIDR), [""; 0]);
    for (format, example) in [(IPV4, "10.20.0.5"), (IPV6, "fd00::5"), (MAC, "02:00:5e:10:00:01")] {
        let problem =
            format!("`${{v}}` may become {example:?}: {example:?} is not a network in CIDR notation");
        assert_eq!(at(address(), format), [format!("error /ipam/addresses/0/address: {problem}")]);
    }
    let mac = |format| at(json!({"type": "macvlan", "master": "e", "mac": "${v}"}), format);
    assert_eq!(mac(MAC), [""; 0]);
    assert_eq!(
        mac(IPV4),
        [r#"error /mac: `${v}` may become "10.20.0.5": "10.20.0.5" is not a hardware address"#]
    );
    // A name may be one of those that the plugin knows.
    let mode = at(json!({"type": "macvlan", "master": "e", "mode": "${v}"}), HOSTNAME);
    assert_eq!(mode, [r#"warning /mode: `${v}` may become "ns1.lab": "ns1.lab" is not known to the plugin"#]);
    let mtu = at(json!({"type": "macvlan", "master": "e", "mtu": "${v}"}), HOSTNAME);
    assert_eq!(mtu, ["error /mtu: must be a whole number, and `${v}` becomes a string"]);
}

#[test]
fn a_list_comes_where_a_list_belongs_and_nowhere_else() {
    let list = |place| [("v", PlaceholderValue::List(Box::new(place)))];
    let dns = |at: &str, place| {
        let mut plugin = json!({"type": "macvlan", "master": "e", "dns": {}});
        plugin["dns"][at] = json!("${v}");
        with_placeholders(plugin, &list(place))
    };
    assert_eq!(dns("nameservers", IPV4), [""; 0]);
    assert_eq!(
        dns("nameservers", PlaceholderValue::Between(1, 2)),
        ["error /dns/nameservers: `${v}[*]` may become 1: must be a string, not a number"]
    );
    assert_eq!(
        dns("domain", PlaceholderValue::Text),
        ["error /dns/domain: must be a string, and `${v}` becomes a list"]
    );
    let trunk = json!({"type": "bridge", "vlanTrunk": "${v}"});
    assert_eq!(
        with_placeholders(trunk, &list(PlaceholderValue::OneOf(vec![json!(7)]))),
        ["error /vlanTrunk: `${v}[*]` may become 7: must be an object, not a number"]
    );
    let unknown = json!({"type": "theirs", "a": "${v}", "b": {"c": "x${v}"}});
    assert_eq!(
        with_placeholders(unknown, &list(PlaceholderValue::Text)),
        ["error /b/c: ${v} is a list and cannot stand inside a text"]
    );
}

#[test]
fn the_type_of_a_plugin_is_known_beforehand() {
    let typed = |place: PlaceholderValue| with_placeholders(json!({"type": "${v}"}), &[("v", place)]);
    assert_eq!(typed(PlaceholderValue::OneOf(vec![json!("dummy")])), [""; 0]);
    for place in [PlaceholderValue::Text, HOSTNAME, PlaceholderValue::List(Box::new(PlaceholderValue::Text))]
    {
        assert_eq!(typed(place), ["error /type: `${v}` may become any plugin that is installed"]);
    }
    let ipam = with_placeholders(
        json!({"type": "macvlan", "master": "e", "ipam": {"type": "${v}"}}),
        &[("v", PlaceholderValue::Text)],
    );
    assert_eq!(ipam, ["error /ipam/type: `${v}` may become any plugin that is installed"]);
}

#[test]
fn a_placeholder_without_value_or_end_is_an_error_anywhere() {
    let plugin = json!({"type": "theirs", "a": ["${w}"], "b": {"c": "${open"}, "d": "$${literal}"});
    assert_eq!(
        with_placeholders(plugin, &[]),
        [
            "error /a/0: no w",
            r#"error /b/c: "${open" has a placeholder without an end: write ${NAME}, or $${ for the text"#,
        ]
    );
}

#[test]
fn a_fault_in_a_replaced_value_is_only_a_warning() {
    let mac = |capabilities: Value| {
        of_plugin(&json!({"type": "macvlan", "master": "eth1", "mac": "x", "capabilities": capabilities}))
    };
    assert_eq!(mac(json!({})), [r#"error /mac: "x" is not a hardware address"#]);
    assert_eq!(mac(json!({"mac": true})), [r#"warning /mac: "x" is not a hardware address"#]);
    let ipam = json!({"type": "static", "addresses": [{"address": "10.0.0.5"}]});
    assert_eq!(
        of_plugin(&json!({"type": "bridge", "capabilities": {"ips": true}, "ipam": ipam})),
        [r#"warning /ipam/addresses/0/address: "10.0.0.5" is not a network in CIDR notation"#]
    );
    assert_eq!(
        of_plugin(&json!({"type": "host-device", "device": "eth1", "kernelpath": "/sys/class"})),
        [
            "warning /kernelpath: `kernelpath` has no effect beside `device`",
            r#"warning /kernelpath: "/sys/class" is not below /sys/devices"#,
        ]
    );
    assert_eq!(
        of_plugin(&json!({"type": "firewall", "backend": "nftables"})),
        [r#"warning /backend: "nftables" is not known to the plugin"#]
    );
}

#[test]
fn an_unknown_plugin_is_judged_by_the_protocol_only() {
    let plugin = json!({"type": "theirs", "mtu": "x", "runtimeConfig": {}, "cni.dev/x": 1, "args": {"cni": {"ips": []}},
        "ipam": {"type": "host-local", "subnet": "10.0.0.0/24", "routes": [{"dst": "::/0", "gw": "10.0.0.1"}]}});
    assert_eq!(
        of_plugin(&plugin),
        [
            "warning /args: `args` is the runtime's to write: the plugin does not get this value",
            "warning /cni.dev~1x: `cni.dev/x` is the runtime's to write: the plugin does not get this value",
            "warning /runtimeConfig: `runtimeConfig` is the runtime's to write: the plugin does not get this value",
            // Whether it sets the routes is its own affair.
            "warning /ipam/routes/0: destination ::/0 and gateway 10.0.0.1 are of different families",
        ]
    );
}

#[test]
fn a_plugin_that_needs_one_before_it_is_refused_as_the_first_and_not_behind_a_placeholder() {
    let found = |plugins: Value| lines(of_template(list(&plugins).to_string().as_bytes()));
    assert_eq!(found(json!(["${parameters.plugin}", {"type": "tuning"}])), [""; 0]);
    let first = found(json!([{"type": "tuning"}, "${parameters.plugin}"]));
    assert!(first.len() == 1 && first[0].starts_with("error /plugins/0"), "{first:?}");
}
