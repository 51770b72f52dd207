//! Networks for every reference plugin, and what is done with them.

use serde_json::{Map, Value, json};

use super::{Case, Ours, Step};

const VERSIONS: [&str; 5] = ["0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// STATUS, ADD, CHECK, GC, and DEL twice.
const LIFE: &str = "STATUS c1; ADD c1; CHECK c1; GC c1; DEL c1; DEL c1";

/// Steps from text, with semicolons in between.
fn parse(steps: &'static str) -> Vec<Step> {
    let step = |step: &'static str| {
        let (verb, rest) = step.split_once(' ').unwrap();
        match verb {
            "blind" => Step::DelBlind(rest),
            "self" => Step::OnHost(rest),
            "anyway" => Step::CheckAnyway(rest),
            "end" => Step::End(rest),
            "host" => Step::Host(rest),
            "pod" => rest.split_once(' ').map(|(pod, line)| Step::InPod(pod, line)).unwrap(),
            verb => Step::Do(verb, rest),
        }
    };
    steps.split("; ").map(step).collect()
}

fn case(name: impl Into<String>, plugins: Value) -> Case {
    Case {
        name: name.into(),
        needs: Vec::new(),
        host: Vec::new(),
        list: json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins}),
        if_name: "net1",
        args: Vec::new(),
        capability_args: Map::new(),
        steps: parse(LIFE),
        explained: Vec::new(),
        ours: Ours::Runtime,
    }
}

impl Case {
    fn version(mut self, version: &str) -> Self {
        self.list["cniVersion"] = version.into();
        self
    }

    fn needs(mut self, needs: &'static str) -> Self {
        self.needs.extend(needs.split_whitespace());
        self
    }

    fn host(mut self, line: &'static str) -> Self {
        self.host.push(line);
        self
    }

    fn steps(mut self, steps: &'static str) -> Self {
        self.steps = parse(steps);
        self
    }

    fn args(mut self, args: &[(&str, &str)]) -> Self {
        self.args = args.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        self
    }

    fn capability(mut self, name: &str, value: Value) -> Self {
        self.capability_args.insert(name.into(), value);
        self
    }

    fn explained(mut self, rows: &[&'static str]) -> Self {
        self.explained.extend(rows);
        self
    }
}

/// What the agent alone does otherwise: it does not begin an ADD that must fail, and owes nothing then. It
/// fails an ADD whose interface is not what was asked.
pub fn of_the_agent() -> Vec<Case> {
    vec![
        case(
            "a link of another program in the pod",
            json!([{"type": "bridge", "bridge": "br0", "ipam": v4()}]),
        )
        .steps("DEL c1; pod c1 add veth net1 other; ADD c1; DEL c1")
        .explained(&["another-programs-link"]),
        case("a plugin that is missing", json!([{"type": "no-such-plugin"}]))
            .steps("ADD c1; DEL c1")
            .explained(&["made-nothing"]),
        case("an interface of another name", json!([{"type": "loopback"}]))
            .steps("ADD c1; DEL c1")
            .explained(&["other-than-asked"]),
    ]
}

/// host-local with one range for each subnet.
fn local(subnets: &[&str]) -> Value {
    let ranges: Vec<_> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"type": "host-local", "ranges": ranges, "dataDir": "<root>/ipam"})
}

fn v4() -> Value {
    local(&["10.1.0.0/24"])
}

/// Main plugins with what they need, less their IPAM.
fn mains() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("bridge", json!({"type": "bridge", "bridge": "br0", "isGateway": true}), ""),
        ("ptp", json!({"type": "ptp"}), ""),
        ("macvlan", json!({"type": "macvlan", "master": "up0"}), "macvlan"),
        ("tap", json!({"type": "tap"}), "tap"),
        ("host-device", json!({"type": "host-device", "device": "up0"}), ""),
        ("ipvlan", json!({"type": "ipvlan", "master": "up0"}), "ipvlan"),
        ("vlan", json!({"type": "vlan", "master": "up0", "vlanId": 5}), "vlan"),
        ("dummy", json!({"type": "dummy"}), "dummy"),
    ]
}

fn with(mut plugin: Value, members: &Value) -> Value {
    let members = members.as_object().unwrap();
    plugin.as_object_mut().unwrap().extend(members.iter().map(|(key, value)| (key.clone(), value.clone())));
    plugin
}

pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, plugin, needs) in mains() {
        for version in VERSIONS {
            let plugin = with(plugin.clone(), &json!({"ipam": v4()}));
            cases.push(case(format!("{name} in {version}"), json!([plugin])).needs(needs).version(version));
        }
        let dual = with(plugin.clone(), &json!({"ipam": local(&["10.1.0.0/24", "fd01::/64"])}));
        let steps = "ADD c1; CHECK c1; DEL c1";
        cases.push(case(format!("{name} with both families"), json!([dual])).needs(needs).steps(steps));
        let fixed = json!({"type": "static", "addresses": [{"address": "10.2.0.7/24", "gateway": "10.2.0.1"}],
            "routes": [{"dst": "10.9.0.0/16"}], "dns": {"nameservers": ["10.2.0.1"], "search": ["a.b"]}});
        let plugin = with(plugin, &json!({"ipam": fixed}));
        cases.push(case(format!("{name} with a static address"), json!([plugin])).needs(needs));
    }
    for (name, plugin, needs) in mains() {
        let plugin = with(plugin, &json!({"ipam": v4()}));
        let gone = "ADD c1; end c1; blind c1; blind c1";
        cases.push(case(format!("{name} whose namespace is gone"), json!([plugin])).needs(needs).steps(gone));
        let again = "ADD c1; ADD c1; DEL c1";
        cases.push(case(format!("{name} added twice"), json!([plugin])).needs(needs).steps(again));
        let changed = "ADD c1; pod c1 flush net1; CHECK c1; DEL c1";
        cases.push(case(format!("{name} without its address"), json!([plugin])).needs(needs).steps(changed));
        let chain =
            json!([plugin, {"type": "tuning", "mtu": 1400, "dataDir": "<root>/ipam"}, {"type": "sbr"}]);
        cases.push(case(format!("{name}, tuning and sbr"), chain).needs(needs));
    }
    cases.extend(interfaces());
    cases.extend(addresses());
    cases.extend(chained());
    cases.extend(mistakes());
    cases
}

fn interfaces() -> Vec<Case> {
    let bridge = |members: Value| with(json!({"type": "bridge", "bridge": "br0", "ipam": v4()}), &members);
    let macvlan = |members: Value| with(json!({"type": "macvlan", "master": "up0", "ipam": v4()}), &members);
    let two = "ADD c1; ADD c2; CHECK c1; DEL c1; CHECK c2; DEL c2";
    let stale = "ADD c1; ADD c2; GC c1; CHECK c1; DEL c1";
    let mac = || json!("02:00:00:00:00:42");
    vec![
        case("loopback", json!([{"type": "loopback"}])),
        Case { if_name: "lo", ..case("loopback as lo", json!([{"type": "loopback"}])) },
        case("two pods on a bridge", json!([bridge(json!({}))])).host("add bridge br0").steps(two),
        case("GC of a pod on a bridge", json!([bridge(json!({}))])).host("add bridge br0").steps(stale),
        case(
            "a bridge with everything",
            json!([bridge(json!({"isDefaultGateway": true, "mtu": 1400, "hairpinMode": true, "forceAddress": true}))]),
        ),
        case("a bridge port in a VLAN", json!([bridge(json!({"vlan": 7}))])).needs("vlan-bridge"),
        case("an isolated bridge port", json!([bridge(json!({"portIsolation": true}))])),
        case("a bridge without addresses", json!([{"type": "bridge", "bridge": "br0"}])),
        case("a promiscuous bridge", json!([bridge(json!({"promiscMode": true, "isGateway": true}))])),
        case(
            "a bridge whose interface stays down",
            json!([{"type": "bridge", "bridge": "br0", "disableContainerInterface": true}]),
        ),
        case(
            "a bridge with a hardware address",
            json!([bridge(json!({"capabilities": {"mac": true}}))]),
        )
        .capability("mac", mac()),
        case("a bridge with a hardware address in CNI_ARGS", json!([bridge(json!({}))]))
            .args(&[("MAC", "02:00:00:00:00:43"), ("K8S_POD_NAME", "p")]),
        case("a bridge that loses its link", json!([bridge(json!({}))]))
            .steps("ADD c1; pod c1 del net1; CHECK c1; DEL c1"),
        case("a bridge that is gone", json!([bridge(json!({}))]))
            .steps("ADD c1; host del br0; CHECK c1; DEL c1"),
        case("a bridge with another MTU", json!([bridge(json!({"mtu": 1300}))]))
            .steps("ADD c1; pod c1 mtu net1 1200; CHECK c1; DEL c1"),
        case("a bridge without its routes", json!([bridge(json!({"isDefaultGateway": true}))]))
            .steps("ADD c1; pod c1 unroute; CHECK c1; DEL c1"),
        case("a private macvlan", json!([macvlan(json!({"mode": "private", "mtu": 1300}))])).needs("macvlan"),
        case("a macvlan in VEPA mode", json!([macvlan(json!({"mode": "vepa"}))])).needs("macvlan"),
        case("a macvlan with the whole link", json!([macvlan(json!({"mode": "passthru"}))]))
            .needs("macvlan")
            .steps(two),
        case("two macvlans", json!([macvlan(json!({}))])).needs("macvlan").steps(two),
        case("GC of a macvlan", json!([macvlan(json!({}))])).needs("macvlan").steps(stale),
        case(
            "a macvlan with a hardware address",
            json!([macvlan(json!({"capabilities": {"mac": true}}))]),
        )
        .needs("macvlan")
        .capability("mac", mac()),
        case("a macvlan that loses its link", json!([macvlan(json!({}))]))
            .needs("macvlan")
            .steps("ADD c1; pod c1 del net1; CHECK c1; DEL c1"),
        case("a macvlan whose uplink is gone", json!([macvlan(json!({}))]))
            .needs("macvlan")
            .steps("ADD c1; host del up0; CHECK c1; DEL c1"),
        case("a macvlan without addresses", json!([{"type": "macvlan", "master": "up0"}])).needs("macvlan"),
        case(
            "a tap with everything",
            json!([{"type": "tap", "mtu": 1400, "multiQueue": true, "owner": 0, "group": 0, "mac": "02:00:00:00:00:44"}]),
        )
        .needs("tap"),
        // The plugin looks for the bridge in the pod.
        case("a tap on a bridge", json!([{"type": "tap", "bridge": "br1", "ipam": v4()}]))
            .needs("tap")
            .host("add bridge br1")
            .steps("STATUS c1; ADD c1; DEL c1"),
        case(
            "a ptp with masquerade's absence and an MTU",
            json!([{"type": "ptp", "mtu": 1300, "ipam": v4()}]),
        )
        .steps(two),
        case("a device and its return under its name", json!([{"type": "host-device", "device": "up0"}])),
        Case { if_name: "up0", ..case("a device that keeps its name", json!([{"type": "host-device", "device": "up0"}])) },
        case("two pods for one device", json!([{"type": "host-device", "device": "up0"}]))
            .steps("ADD c1; ADD c2; DEL c2; DEL c1"),
        case(
            "an ipvlan in mode l3",
            json!([{"type": "ipvlan", "master": "up0", "mode": "l3", "ipam": v4()}]),
        )
        .needs("ipvlan")
        .steps(two),
        case(
            "an ipvlan in mode l3s",
            json!([{"type": "ipvlan", "master": "up0", "mode": "l3s", "mtu": 1400, "ipam": v4()}]),
        )
        .needs("ipvlan"),
        case(
            "a VLAN with an MTU",
            json!([{"type": "vlan", "master": "up0", "vlanId": 4094, "mtu": 1300, "ipam": v4()}]),
        )
        .needs("vlan"),
        case(
            "one VLAN twice",
            json!([{"type": "vlan", "master": "up0", "vlanId": 6, "ipam": v4()}]),
        )
        .needs("vlan")
        .steps(two),
        case(
            "a VLAN whose uplink is gone",
            json!([{"type": "vlan", "master": "up0", "vlanId": 6, "ipam": v4()}]),
        )
        .needs("vlan")
        .steps("ADD c1; host del up0; CHECK c1; DEL c1"),
        case(
            "a VLAN in a bond",
            json!([{"type": "vlan", "master": "bond7", "vlanId": 6, "ipam": v4()}]),
        )
        .needs("vlan bond")
        .host("add bond bond7"),
        case("a macvlan on a bond", json!([{"type": "macvlan", "master": "bond7", "ipam": v4()}]))
            .needs("macvlan bond")
            .host("add bond bond7"),
        // The kernel does not let one go.
        case("a bond as a device", json!([{"type": "host-device", "device": "bond7", "ipam": v4()}]))
            .needs("bond")
            .host("add bond bond7")
            .steps("STATUS c1; ADD c1; DEL c1"),
        case("two dummies", json!([{"type": "dummy", "ipam": v4()}])).needs("dummy").steps(two),
        case("a bridge in a VRF", json!([bridge(json!({})), {"type": "vrf", "vrfname": "red"}])).needs("vrf"),
        case(
            "a VRF with a table",
            json!([macvlan(json!({})), {"type": "vrf", "vrfname": "red", "table": 77}]),
        )
        .needs("vrf macvlan")
        .steps(two),
    ]
}

fn addresses() -> Vec<Case> {
    let bridge = |ipam: Value| json!([{"type": "bridge", "bridge": "br0", "ipam": ipam}]);
    let alone = |ipam: Value| json!([{"type": "host-local", "ipam": ipam}]);
    let range = |members: Value| json!({"type": "host-local", "ranges": [[with(json!({"subnet": "10.3.0.0/24"}), &members)]], "dataDir": "<root>/ipam"});
    let three = "ADD c1; ADD c2; ADD c3; DEL c1; ADD c3; DEL c2";
    let mut cases = vec![
        case("addresses that run out", bridge(local(&["10.3.0.0/30"]))).steps(three),
        case("addresses that run out, without an interface", alone(local(&["10.3.0.0/30"]))).steps(three),
        case(
            "a range of one address",
            alone(range(json!({"rangeStart": "10.3.0.9", "rangeEnd": "10.3.0.9"}))),
        )
        .steps(three),
        case(
            "a gateway in the middle",
            alone(range(json!({"rangeStart": "10.3.0.4", "rangeEnd": "10.3.0.6", "gateway": "10.3.0.5"}))),
        )
        .steps(three),
        case("three range sets", alone(local(&["10.3.0.0/24", "10.4.0.0/24", "fd03::/64"]))),
        case(
            "a range set of two subnets",
            alone(json!({"type": "host-local", "ranges": [[{"subnet": "10.3.0.0/30"}, {"subnet": "10.4.0.0/30"}]], "dataDir": "<root>/ipam"})),
        )
        .steps(three),
        case(
            "the old form of a range",
            alone(json!({"type": "host-local", "subnet": "10.3.0.0/24", "rangeStart": "10.3.0.8", "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "<root>/ipam"})),
        ),
        case(
            "routes of every form",
            alone(with(v4(), &json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.7.0.0/16", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 9, "scope": 253}]}))),
        ),
        case(
            "a range that is asked for",
            json!([{"type": "bridge", "bridge": "br0", "capabilities": {"ipRanges": true}, "ipam": {"type": "host-local", "dataDir": "<root>/ipam"}}]),
        )
        .capability("ipRanges", json!([[{"subnet": "10.5.0.0/24", "gateway": "10.5.0.254"}], [{"subnet": "fd05::/64"}]]))
        .steps("ADD c1; DEL c1"),
        case(
            "an address that is asked for",
            json!([{"type": "bridge", "bridge": "br0", "capabilities": {"ips": true}, "ipam": v4()}]),
        )
        .capability("ips", json!(["10.1.0.77/24"])),
        case(
            "an address that is asked for and not switched on",
            json!([{"type": "bridge", "bridge": "br0", "capabilities": {"ips": false}, "ipam": v4()}]),
        )
        .capability("ips", json!(["10.1.0.77/24"])),
        case("an address in CNI_ARGS", bridge(v4())).args(&[("IP", "10.1.0.78")]),
        case("an address in CNI_ARGS that is taken", bridge(v4()))
            .args(&[("IP", "10.1.0.78")])
            .steps("ADD c1; ADD c2; DEL c2; DEL c1"),
        case("an address outside of the range", bridge(v4()))
            .args(&[("IP", "10.9.0.1")])
            .steps("STATUS c1; ADD c1; DEL c1"),
        case(
            "a static address that is asked for",
            json!([{"type": "bridge", "bridge": "br0", "capabilities": {"ips": true}, "ipam": {"type": "static"}}]),
        )
        .capability("ips", json!(["10.6.0.7/24", "10.6.0.8/24"])),
        case("static addresses in CNI_ARGS", bridge(json!({"type": "static"})))
            .args(&[("IP", "10.6.0.9/24"), ("GATEWAY", "10.6.0.1")]),
        case(
            "static addresses in the configuration's args",
            json!([{"type": "bridge", "bridge": "br0", "args": {"cni": {"ips": ["10.6.0.9/24"]}}, "ipam": {"type": "static"}}]),
        )
        .explained(&["reserved-args"])
        .steps("STATUS c1; ADD c1; DEL c1"),
        case(
            "a static network without addresses",
            bridge(json!({"type": "static", "addresses": []})),
        )
        .steps("ADD c1; DEL c1"),
        case("host-local alone", alone(v4())),
        case(
            "static alone",
            json!([{"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.6.0.2/24"}]}}]),
        ),
        case(
            "dhcp without its daemon",
            json!([{"type": "macvlan", "master": "up0", "ipam": {"type": "dhcp", "daemonSocketPath": "<root>/dhcp.sock"}}]),
        )
        .needs("macvlan")
        .steps("STATUS c1; ADD c1; DEL c1; blind c1"),
        case(
            "dhcp on a bridge without its daemon",
            bridge(json!({"type": "dhcp", "daemonSocketPath": "<root>/dhcp.sock"})),
        )
        .steps("STATUS c1; ADD c1; DEL c1"),
    ];
    for version in VERSIONS {
        cases.push(
            case(format!("host-local alone in {version}"), alone(local(&["10.1.0.0/24", "fd01::/64"])))
                .version(version),
        );
    }
    cases
}

fn chained() -> Vec<Case> {
    let under = |rest: Value| {
        let mut plugins = vec![json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": v4()})];
        plugins.extend(rest.as_array().unwrap().iter().cloned());
        Value::from(plugins)
    };
    let tuning =
        |members: Value| under(json!([with(json!({"type": "tuning", "dataDir": "<root>/ipam"}), &members)]));
    let rates = || json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 4_000_000, "egressBurst": 400_000});
    let port = || json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"}]);
    let mut cases = vec![
        case(
            "tuning of every link setting",
            tuning(json!({"mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 777, "mac": "02:00:00:00:00:45"})),
        ),
        case(
            "tuning of sysctls",
            tuning(json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "500"}})),
        ),
        case(
            "tuning of a sysctl that does not exist",
            tuning(json!({"sysctl": {"net.no.such": "1"}})),
        )
        .steps("STATUS c1; ADD c1; DEL c1"),
        case(
            "tuning with a hardware address that is asked for",
            tuning(json!({"capabilities": {"mac": true}})),
        )
        .capability("mac", json!("02:00:00:00:00:46")),
        case("tuning that is undone by others", tuning(json!({"mtu": 1400})))
            .steps("ADD c1; pod c1 mtu net1 1300; CHECK c1; DEL c1"),
        case("sbr with a table", under(json!([{"type": "sbr", "table": 555}]))),
        case("sbr whose namespace is gone", under(json!([{"type": "sbr"}])))
            .steps("ADD c1; end c1; blind c1"),
        case(
            "bandwidth from the configuration",
            under(json!([with(json!({"type": "bandwidth"}), &rates())])),
        )
        .needs("ifb"),
        case(
            "bandwidth that is asked for",
            under(json!([{"type": "bandwidth", "capabilities": {"bandwidth": true}}])),
        )
        .needs("ifb")
        .capability("bandwidth", rates()),
        case(
            "bandwidth of one direction",
            under(json!([{"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000}])),
        ),
        case(
            "bandwidth that is not requested",
            under(json!([{"type": "bandwidth", "capabilities": {"bandwidth": true}}])),
        ),
        case(
            "bandwidth without a burst",
            under(json!([{"type": "bandwidth", "ingressRate": 8_000_000}])),
        )
        .steps("ADD c1; DEL c1"),
        case(
            "bandwidth whose namespace is gone",
            under(json!([with(json!({"type": "bandwidth"}), &rates())])),
        )
        .needs("ifb")
        .steps("ADD c1; end c1; blind c1"),
        case("three plugins with every capability", under(json!([
            {"type": "tuning", "capabilities": {"mac": true}, "dataDir": "<root>/ipam"},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        ]))).needs("ifb").capability("mac", json!("02:00:00:00:00:47")).capability("bandwidth", rates()).capability("portMappings", port()),
        case(
            "a chain that fails at its end",
            under(json!([{"type": "tuning", "mtu": 1400, "dataDir": "<root>/ipam"}, {"type": "vrf"}])),
        )
        .steps("STATUS c1; ADD c1; DEL c1"),
        case(
            "a chain that ends with a plugin that is missing",
            under(json!([{"type": "no-such-plugin"}])),
        )
        .explained(&["all-binaries-first"])
        .steps("ADD c1; DEL c1"),
        case("a chained plugin first", json!([{"type": "tuning", "mtu": 1400}]))
            .steps("STATUS c1; ADD c1; DEL c1"),
        case(
            "portmap of nothing",
            under(json!([{"type": "portmap", "capabilities": {"portMappings": true}}])),
        )
        .steps("STATUS c1; ADD c1; DEL c1"),
        case(
            "portmap by iptables",
            under(json!([{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}])),
        )
        .needs("/iptables")
        .capability("portMappings", port()),
        case(
            "portmap by nftables",
            under(json!([{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}])),
        )
        .needs("/nft")
        .capability("portMappings", port()),
        case("firewall by iptables", under(json!([{"type": "firewall", "backend": "iptables"}])))
            .needs("/iptables"),
        case(
            "firewall of one bridge",
            under(json!([{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}])),
        )
        .needs("/iptables"),
        case(
            "masquerade of a bridge",
            json!([{"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "ipam": v4()}]),
        )
        .needs("/iptables"),
        case(
            "masquerade by nftables",
            json!([{"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables", "ipam": v4()}]),
        )
        .needs("/nft"),
    ];
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let chain = under(
            json!([{"type": "tuning", "mtu": 1400, "dataDir": "<root>/ipam"}, with(json!({"type": "bandwidth"}), &rates())]),
        );
        cases.push(
            case(format!("bridge, tuning and bandwidth in {version}"), chain).needs("ifb").version(version),
        );
    }
    cases
}

fn mistakes() -> Vec<Case> {
    let steps = "STATUS c1; ADD c1; DEL c1; blind c1";
    let wrong = |name: &str, plugins: Value| case(name, plugins).steps(steps);
    vec![
        wrong("an uplink that is not there", json!([{"type": "macvlan", "master": "up7", "ipam": v4()}]))
            .needs("macvlan"),
        wrong(
            "a macvlan mode that is none",
            json!([{"type": "macvlan", "master": "up0", "mode": "x", "ipam": v4()}]),
        )
        .needs("macvlan"),
        wrong(
            "an MTU above the uplink's",
            json!([{"type": "macvlan", "master": "up0", "mtu": 9000, "ipam": v4()}]),
        )
        .needs("macvlan"),
        wrong("a device that is not there", json!([{"type": "host-device", "device": "up7"}])),
        wrong("a device without a name", json!([{"type": "host-device"}])),
        wrong(
            "a bridge in two VLAN modes",
            json!([{"type": "bridge", "bridge": "br0", "vlan": 7, "vlanTrunk": [{"id": 8}], "ipam": v4()}]),
        ),
        wrong(
            "a bridge in a VLAN that is none",
            json!([{"type": "bridge", "bridge": "br0", "vlan": 5000, "ipam": v4()}]),
        ),
        wrong("a bridge with values of other types", json!([{"type": "bridge", "bridge": 7, "ipam": v4()}])),
        wrong("a network without IPAM where one is needed", json!([{"type": "ptp"}])),
        wrong(
            "an IPAM plugin that is not there",
            json!([{"type": "bridge", "bridge": "br0", "ipam": {"type": "no-such-ipam"}}]),
        ),
        wrong(
            "a range that is none",
            json!([{"type": "bridge", "bridge": "br0", "ipam": local(&["10.1.0.0/31"])}]),
        ),
        wrong(
            "a subnet that is none",
            json!([{"type": "bridge", "bridge": "br0", "ipam": local(&["10.1.0.0"])}]),
        ),
        wrong(
            "ranges that overlap",
            json!([{"type": "bridge", "bridge": "br0", "ipam": local(&["10.1.0.0/24", "10.1.0.0/25"])}]),
        ),
        wrong("a VLAN without a master", json!([{"type": "vlan", "vlanId": 7, "ipam": v4()}])),
        wrong(
            "a VRF without a name",
            json!([{"type": "bridge", "bridge": "br0", "ipam": v4()}, {"type": "vrf"}]),
        ),
        wrong(
            "bandwidth without an interface",
            json!([{"type": "host-local", "ipam": v4()}, {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000}]),
        ),
        wrong(
            "a version that a plugin does not have",
            json!([{"type": "bridge", "bridge": "br0", "ipam": v4()}, {"type": "firewall"}]),
        )
        .version("0.3.1"),
        case("the runtime's own namespace", json!([{"type": "bridge", "bridge": "br0", "ipam": v4()}]))
            .steps("self ADD; self DEL; ADD c2; DEL c2"),
        case("an interface name that is taken", json!([{"type": "bridge", "bridge": "br0", "ipam": v4()}]))
            .steps("STATUS c1; ADD c1; pod c1 mtu net1 1400; ADD c1; DEL c1"),
        case("CHECK after DEL", json!([{"type": "bridge", "bridge": "br0", "ipam": v4()}]))
            .steps("ADD c1; DEL c1; anyway c1")
            .explained(&["check-needs-a-result"]),
    ]
}
