//! What `validate` calls an error is what the reference plugins refuse, in their own words; and what it only
//! warns of is more than once taken.
//!
//! Needs root, and `NETCLAIM_CNI_BIN`, the directory of the plugins:
//! `NETCLAIM_CNI_BIN=/opt/cni/bin cargo test -p netclaim-cni --test refusals -- --ignored`

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use netclaim_cni::validate::{Severity, validate};
use netclaim_cni::{NetworkList, Runtime, SpecVersion};
use plugin_host::{LONG, Netns, attachment};
use serde_json::{Value, json};

/// Runs a test with a host that has a link `up0`.
fn on_a_host<F: Future>(test: impl FnOnce(Runtime) -> F + Send + 'static) {
    plugin_host::on_a_host(&[], async |host| {
        let pod = Netns::new();
        let bridge = list(&json!([{"type": "bridge", "bridge": "up0"}]));
        add(&host.runtime, &bridge, &pod).await.unwrap();
        test(host.runtime).await;
    });
}

fn list(plugins: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins})
}

/// The plugins' error, if there is one, for a pod of its own.
async fn add(runtime: &Runtime, list: &Value, pod: &Netns) -> Result<(), String> {
    let list = NetworkList::parse(list.to_string().as_bytes()).map_err(|error| error.to_string())?;
    let attachment = attachment("c1", pod);
    let result = runtime.add(&list, &attachment, LONG).await;
    let _ = runtime.del(&list, &attachment, None, LONG).await;
    result.map(drop).map_err(|error| format!("{error:?}"))
}

/// Chains with one fault, where it is, and what the plugin says.
fn refused() -> Vec<(Value, &'static str, &'static str)> {
    let addressed = |routes: Value| json!({"type": "static", "addresses": [{"address": "10.9.0.5/24"}], "routes": routes});
    let ipam = addressed(json!([]));
    let veth = json!({"type": "bridge", "bridge": "br9"});
    let bridge = |more: Value| {
        let mut plugin = veth.clone();
        plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([plugin])
    };
    let chained = |plugin: Value| json!([veth, plugin]);
    vec![
        // Types.
        (bridge(json!({"mtu": "1500"})), "/plugins/0/mtu", "cannot unmarshal string"),
        (bridge(json!({"isGateway": "true"})), "/plugins/0/isGateway", "cannot unmarshal string"),
        (bridge(json!({"vlanTrunk": {}})), "/plugins/0/vlanTrunk", "cannot unmarshal object"),
        (bridge(json!({"mtu": 1.5})), "/plugins/0/mtu", "cannot unmarshal number"),
        (
            json!([{"type": "macvlan", "master": "up0", "bcqueuelen": -1}]),
            "/plugins/0/bcqueuelen",
            "cannot unmarshal number",
        ),
        (json!([{"type": "tap", "owner": 4294967296i64}]), "/plugins/0/owner", "cannot unmarshal number"),
        // bridge
        (bridge(json!({"vlan": 4095})), "/plugins/0/vlan", "invalid VLAN ID 4095"),
        (bridge(json!({"vlanTrunk": [{"id": 0}]})), "/plugins/0/vlanTrunk/0/id", "incorrect trunk id"),
        (
            bridge(json!({"vlanTrunk": [{"minID": 5}]})),
            "/plugins/0/vlanTrunk/0",
            "minID and maxID should be configured simultaneously",
        ),
        (
            bridge(json!({"vlanTrunk": [{"minID": 9, "maxID": 8}]})),
            "/plugins/0/vlanTrunk/0",
            "minID is greater than maxID",
        ),
        (
            bridge(json!({"hairpinMode": true, "promiscMode": true})),
            "/plugins/0/promiscMode",
            "cannot set hairpin mode and promiscuous mode",
        ),
        (
            bridge(json!({"disableContainerInterface": true, "ipam": ipam})),
            "/plugins/0/disableContainerInterface",
            "cannot use IPAM when DisableContainerInterface",
        ),
        (bridge(json!({"bridge": "a-name-that-is-too-long"})), "/plugins/0/bridge", "could not add"),
        (
            bridge(json!({"ipMasq": true, "ipMasqBackend": "ebtables", "ipam": ipam})),
            "/plugins/0/ipMasqBackend",
            "unknown ipmasq backend",
        ),
        (bridge(json!({"ipam": {"type": "bridge"}})), "/plugins/0/ipam/type", "already exists"),
        // The others that make interfaces.
        (
            json!([{"type": "macvlan", "master": "up0", "mode": "x"}]),
            "/plugins/0/mode",
            "unknown macvlan mode",
        ),
        (json!([{"type": "ipvlan", "master": "up0", "mode": "x"}]), "/plugins/0/mode", "unknown ipvlan mode"),
        (
            json!([{"type": "macvlan", "master": "up0", "mac": "x"}]),
            "/plugins/0/mac",
            "invalid args x for MAC",
        ),
        (
            json!([{"type": "macvlan", "master": "up0", "mac": "01:00:5e:00:00:01"}]),
            "/plugins/0/mac",
            "failed to create macvlan",
        ),
        (
            json!([{"type": "macvlan", "master": "up0", "mac": "00:00:00:00:00:00"}]),
            "/plugins/0/mac",
            "failed to create macvlan",
        ),
        (json!([{"type": "vlan", "vlanId": 5, "ipam": ipam}]), "/plugins/0", "field is required"),
        (
            json!([{"type": "vlan", "master": "up0", "vlanId": 4095, "ipam": ipam}]),
            "/plugins/0/vlanId",
            "invalid VLAN ID",
        ),
        (json!([{"type": "ptp"}]), "/plugins/0", "no plugin name provided"),
        (json!([{"type": "dummy"}]), "/plugins/0", "requires an IPAM configuration"),
        (json!([{"type": "host-device"}]), "/plugins/0", "specify either"),
        (json!([{"type": "host-device", "hwaddr": "x"}]), "/plugins/0/hwaddr", "failed to parse MAC address"),
        (
            json!([{"type": "host-device", "kernelpath": "/sys/class/net/up0"}]),
            "/plugins/0/kernelpath",
            "must be absolute and begin with /sys/devices/",
        ),
        // What works on an interface.
        (json!([{"type": "tuning"}]), "/plugins/0/type", "Required prevResult missing"),
        (json!([{"type": "sbr"}]), "/plugins/0/type", "must be called as chained plugin"),
        (json!([{"type": "vrf", "vrfname": "v"}]), "/plugins/0/type", "missing prevResult"),
        (json!([{"type": "firewall"}]), "/plugins/0/type", "missing prevResult"),
        (
            json!([{"type": "portmap", "capabilities": {"portMappings": true}}]),
            "/plugins/0/type",
            "must be called as chained plugin",
        ),
        (
            json!([{"type": "bandwidth", "ingressRate": 1000, "ingressBurst": 1000}]),
            "/plugins/0/type",
            "must be called as chained plugin",
        ),
        (
            json!([{"type": "bandwidth", "capabilities": {"bandwidth": true}}]),
            "/plugins/0/type",
            "nil pointer",
        ),
        (
            chained(json!({"type": "tuning", "sysctl": {"kernel.panic": "1"}})),
            "/plugins/1/sysctl/kernel.panic",
            "invalid net sysctl key",
        ),
        (
            chained(json!({"type": "tuning", "mac": "01:00:5e:00:00:01"})),
            "/plugins/1/mac",
            "cannot assign requested address",
        ),
        (chained(json!({"type": "vrf"})), "/plugins/1", "valid vrf name"),
        (
            chained(json!({"type": "vrf", "vrfname": "v", "table": -1})),
            "/plugins/1/table",
            "cannot unmarshal number",
        ),
        (
            chained(json!({"type": "bandwidth", "egressRate": 5})),
            "/plugins/1/egressRate",
            "if rate is set, burst must also be set",
        ),
        (
            chained(json!({"type": "bandwidth", "ingressBurst": 5, "capabilities": {"bandwidth": true}})),
            "/plugins/1/ingressBurst",
            "if burst is set, rate must also be set",
        ),
        (
            chained(json!({"type": "bandwidth", "ingressRate": 5, "ingressBurst": 34359738360i64})),
            "/plugins/1/ingressBurst",
            "burst cannot be more than 4GB",
        ),
        (
            json!([{"type": "macvlan", "master": "up0"}, {"type": "bandwidth", "ingressRate": 8000, "ingressBurst": 8000}]),
            "/plugins/1/type",
            "has no veth peer",
        ),
        (
            chained(json!({"type": "firewall", "ingressPolicy": "closed"})),
            "/plugins/1/ingressPolicy",
            "unknown ingress policy",
        ),
        (
            chained(json!({"type": "portmap", "capabilities": {"portMappings": true}, "backend": ""})),
            "/plugins/1/backend",
            "unrecognized backend",
        ),
        (
            chained(json!({"type": "portmap", "capabilities": {"portMappings": true}, "markMasqBit": 32})),
            "/plugins/1/markMasqBit",
            "must be between 0 and 31",
        ),
        (
            chained(
                json!({"type": "portmap", "capabilities": {"portMappings": true}, "markMasqBit": 3, "externalSetMarkChain": "X"}),
            ),
            "/plugins/1/externalSetMarkChain",
            "Cannot specify externalSetMarkChain and markMasqBit",
        ),
        (
            chained(
                json!({"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables", "externalSetMarkChain": "X"}),
            ),
            "/plugins/1/externalSetMarkChain",
            "iptables-specific options",
        ),
        (
            chained(
                json!({"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables", "conditionsV4": ["-d", "10.0.0.1"]}),
            ),
            "/plugins/1/conditionsV4",
            "iptables-specific options",
        ),
        // Addresses; of host-local's ranges a test of their own tells.
        (
            bridge(json!({"ipam": {"type": "static", "addresses": [{"address": "10.9.0.5"}]}})),
            "/plugins/0/ipam/addresses/0/address",
            "expected to be in CIDR notation",
        ),
        (
            bridge(json!({"ipam": {"type": "static", "addresses": [{"gateway": "10.9.0.1"}]}})),
            "/plugins/0/ipam/addresses/0",
            "expected to be in CIDR notation",
        ),
        (
            bridge(
                json!({"ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24", "gateway": "10.9.0.1/24"}]}}),
            ),
            "/plugins/0/ipam/addresses/0/gateway",
            "invalid IP address",
        ),
        (
            bridge(json!({"ipam": addressed(json!([{"gw": "10.9.0.1"}]))})),
            "/plugins/0/ipam/routes/0",
            "invalid CIDR address",
        ),
        (
            bridge(json!({"ipam": addressed(json!([{"dst": "0.0.0.0"}]))})),
            "/plugins/0/ipam/routes/0/dst",
            "invalid CIDR address",
        ),
        (
            bridge(json!({"ipam": addressed(json!([{"dst": "fd00::/64", "gw": "10.9.0.1"}]))})),
            "/plugins/0/ipam/routes/0",
            "same IP family",
        ),
        (
            bridge(json!({"ipam": addressed(json!([{"dst": "10.0.0.0/8", "mtu": -1}]))})),
            "/plugins/0/ipam/routes/0/mtu",
            "expected u32",
        ),
        (bridge(json!({"ipam": {"type": "host-local"}})), "/plugins/0/ipam", "no IP ranges specified"),
    ]
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn every_error_is_what_the_plugin_refuses() {
    on_a_host(async |runtime| {
        let mut wrong = Vec::new();
        for (plugins, pointer, words) in refused() {
            let list = list(&plugins);
            let errors: Vec<_> = validate(list.to_string().as_bytes())
                .into_iter()
                .filter(|finding| finding.severity == Severity::Error)
                .collect();
            let said = add(&runtime, &list, &Netns::new()).await.err().unwrap_or_default();
            let found = matches!(errors.as_slice(), [error] if error.pointer == pointer);
            if !found || !said.contains(words) {
                wrong.push(format!("{plugins}\n  found {errors:?}\n  and the plugin said {said:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_configuration_that_a_plugin_takes_is_not_an_error() {
    let ipam = json!({"type": "static", "addresses": [{"address": "10.9.0.5/24", "gateway": "10.8.0.1"}]});
    let veth = json!({"type": "bridge", "bridge": "br9", "mtu": -1, "ipMasqBackend": "ebtables"});
    let taken = [
        json!([veth, {"type": "portmap"}, {"type": "bandwidth"}]),
        json!([veth, {"type": "tuning", "sysctl": {"/net..core/somaxconn": "100"}, "dataDir": "tuning"}]),
        json!([{"type": "bridge", "bridge": "br9", "ipam": ipam, "isGatway": true, "runtimeConfig": {}, "args": {"cni": {}}}]),
        json!([{"type": "bridge", "bridge": "br9", "ipam": {"type": ""}}, {"type": "bandwidth"}, {"type": "bandwidth"}]),
        json!([{"type": "macvlan", "master": "up0"}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}]),
        json!([{"type": "bridge", "bridge": "br9", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24"}],
            "routes": [{"dst": "10.0.0.0/8", "scope": 256}]}}]),
    ];
    on_a_host(async move |runtime| {
        for plugins in taken {
            let list = list(&plugins);
            add(&runtime, &list, &Netns::new()).await.unwrap_or_else(|error| panic!("{plugins}: {error}"));
            let findings = validate(list.to_string().as_bytes());
            assert!(
                !findings.is_empty() && findings.iter().all(|finding| finding.severity == Severity::Warning),
                "{plugins}: {findings:?}"
            );
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_plugin_is_too_old_for_a_version_exactly_when_it_says_so() {
    let plugins = [
        "bridge",
        "macvlan",
        "ipvlan",
        "vlan",
        "host-device",
        "ptp",
        "tap",
        "dummy",
        "loopback",
        "tuning",
        "sbr",
        "vrf",
        "bandwidth",
        "firewall",
        "portmap",
        "host-local",
        "static",
        "dhcp",
    ];
    on_a_host(async move |runtime| {
        for plugin in plugins {
            let said = runtime.versions(&plugin.parse().unwrap()).await.unwrap();
            for version in SpecVersion::ALL {
                let mut list = list(&json!([{"type": plugin}]));
                list["cniVersion"] = json!(version.as_str());
                let findings = validate(list.to_string().as_bytes());
                let too_old = findings.iter().any(|finding| finding.problem.contains("does not support CNI"));
                assert_eq!(too_old, !said.contains(&version), "{plugin} {version}");
            }
        }
    });
}
