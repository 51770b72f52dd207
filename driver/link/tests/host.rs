//! Links of a host, in network namespaces of the tests' own, by the program that the image has.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod call;
#[path = "../../../cni/tests/plugin_host/mod.rs"]
mod plugin_host;

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use call::Call;
use plugin_host::{Feature, Host, LONG, Netns, VLAN, links, on_a_host, run, show, state};
use serde_json::{Value, json};

/// Runs a test on a host with two uplinks.
fn with_uplinks<F: Future>(needs: &[Feature], test: impl FnOnce(Host) -> F + Send + 'static) {
    on_a_host(needs, async |host| {
        for uplink in ["eth1", "eth2"] {
            run(&format!("ip link add {uplink} type veth peer name sw-{uplink}"));
            run(&format!("ip link set sw-{uplink} up"));
            run(&format!("ip link set {uplink} up"));
        }
        test(host).await;
    });
}

fn bridge(name: &str, master: &str) -> Value {
    json!({"kind": "bridge", "bridge": name, "master": master})
}

fn add(container: &str, network: &str, own: &Value) -> Result<Value, (i64, String)> {
    Call::new("ADD", container, "node0").run(network, own, json!({}))
}

fn check(container: &str, network: &str, own: &Value) -> Result<Value, (i64, String)> {
    Call::new("CHECK", container, "node0").run(network, own, json!({}))
}

fn del(container: &str, network: &str, own: &Value) {
    assert_eq!(Call::new("DEL", container, "node0").run(network, own, json!({})), Ok(Value::Null));
}

/// Which link each port is in.
fn master(name: &str) -> Value {
    show(&format!("ip -j link show dev {name}"))["master"].clone()
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bridge_has_the_uplink_as_its_port_until_del_and_the_uplink_is_as_it_was() {
    with_uplinks(&[], async |_| {
        run("ip link set eth1 alias rack-7");
        let (before, all) = (state("eth1"), links());
        let own = json!({"kind": "bridge", "bridge": "br100", "master": "eth1", "mtu": 1400});
        let result = add("c1", "net-a", &own).unwrap();
        let shown = show("ip -j -d address show dev br100");
        let made =
            json!({"name": "br100", "mac": shown["address"], "mtu": 1400, "sandbox": "/proc/self/ns/net"});
        assert_eq!(result, json!({"cniVersion": "1.1.0", "interfaces": [made]}));
        assert_eq!(shown["ifalias"], "netclaim-made net-a c1 node0");
        assert!(shown["flags"].as_array().unwrap().contains(&json!("UP")), "{shown}");
        assert_eq!((&shown["addr_info"], &shown["group"]), (&json!([]), &json!("default")));
        let accept = std::fs::read_to_string("/proc/thread-self/root/proc/sys/net/ipv6/conf/br100/accept_ra");
        assert_eq!(accept.unwrap().trim(), "0");
        assert_eq!(master("eth1"), "br100");
        check("c1", "net-a", &own).unwrap();
        for _ in 0..2 {
            del("c1", "net-a", &own);
            assert_eq!((state("eth1"), links()), (before.clone(), all.clone()));
        }
        assert_eq!(master("eth1"), Value::Null);
        assert_eq!(check("c1", "net-a", &own).unwrap_err().0, 103);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn frames_pass_between_the_uplink_and_the_links_of_the_bridge() {
    with_uplinks(&[], async |_| {
        let own = bridge("br100", "eth1");
        add("c1", "net-a", &own).unwrap();
        // Another program's port, as a pod's.
        let pod = Netns::new();
        run("ip link add pod0 type veth peer name net1");
        run(&format!("ip link set net1 netns {}", pod.path().display()));
        run("ip link set pod0 master br100 up");
        pod.inside(|| run("ip address add 10.9.0.2/24 dev net1"));
        pod.inside(|| run("ip link set net1 up"));
        run("ip address add 10.9.0.1/24 dev sw-eth1");
        let listener = TcpListener::bind("10.9.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        pod.inside(|| TcpStream::connect_timeout(&address, LONG).unwrap());
        // The bridge goes with the last port of the plugin's, and what is another's stays.
        del("c1", "net-a", &own);
        assert!(!links().contains("br100") && links().contains("pod0"));
        assert_eq!(master("pod0"), Value::Null);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn the_interface_of_the_plugin_before_becomes_a_port_and_its_result_is_passed_on() {
    with_uplinks(&[], async |_| {
        let previous = json!({"cniVersion": "0.3.1", "x": [1], "interfaces": [{"name": "eth1", "y": 2}]});
        let own = json!({"kind": "bridge", "bridge": "br100"});
        let chained = json!({"cniVersion": "0.3.1", "prevResult": previous});
        let result = Call::new("ADD", "c1", "eth1").run("net-a", &own, chained.clone()).unwrap();
        let mac = show("ip -j link show dev br100")["address"].clone();
        let made = json!({"name": "br100", "mac": mac, "sandbox": "/proc/self/ns/net"});
        let expected =
            json!({"cniVersion": "0.3.1", "x": [1], "interfaces": [{"name": "eth1", "y": 2}, made]});
        assert_eq!(result, expected, "0.3.1 has no MTU");
        assert_eq!(master("eth1"), "br100");
        Call::new("DEL", "c1", "eth1").run("net-a", &own, chained).unwrap();
        assert_eq!((master("eth1"), links().contains("br100")), (Value::Null, false));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_of_another_owner_is_refused_with_a_reason_and_the_del_that_is_owed_changes_nothing() {
    with_uplinks(&[], async |_| {
        for command in [
            "ip link add theirs type bridge",
            "ip link add f0 type veth peer name f1",
            "ip link set f0 up master theirs",
            "ip link add named type bridge",
            "ip link set named alias netclaim-made-by-hand",
            "ip link add idle type veth peer name up",
            "ip link add addressed type veth peer name a1",
            "ip link set addressed up",
            "ip address add 10.9.0.1/24 dev addressed",
            "ip link add busy type veth peer name b1",
            "ip link set busy up",
            "ip link add m0 link busy type macvlan",
        ] {
            run(command);
        }
        add("other", "net-b", &bridge("br-b", "eth2")).unwrap();
        // The kernel finds out a moment later that the bridge has a port that works.
        for _ in 0..100 {
            if show("ip -j link show dev br-b")["operstate"] == "UP" {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let vlan = json!({"kind": "vlan", "master": "nowhere", "id": 5});
        let cases = [
            (
                bridge("theirs", "eth1"),
                101,
                "theirs (bridge) is there already, not netclaim-link's: choose another",
            ),
            (bridge("named", "eth1"), 101, "named (bridge) is there already, not netclaim-link's"),
            (bridge("f1", "eth1"), 101, "or remove it (ip link delete f1)"),
            (bridge("br-b", "eth1"), 101, "made for the network net-b (container other, interface node0)"),
            (bridge("br0", "f0"), 102, "f0 is in theirs already, where another program put it"),
            (bridge("br0", "eth2"), 102, "eth2 is a port already, for the network net-b (container other"),
            (
                bridge("br0", "addressed"),
                102,
                "addressed has addresses, and as a port of a bridge it would no longer",
            ),
            (bridge("br0", "idle"), 11, "idle is down: set it up (ip link set idle up)"),
            (bridge("br0", "nowhere"), 11, "there is no link nowhere"),
            (bridge("br0", "busy"), 100, "busy: cannot make it a port of the bridge"),
            (vlan, 11, "there is no link nowhere"),
        ];
        let before = show("ip -j link show");
        let names = links();
        for (own, code, words) in cases {
            let (found, message) = add("c1", "net-a", &own).unwrap_err();
            assert!(found == code && message.contains(words), "{own}: {found} {message}");
            del("c1", "net-a", &own);
            assert_eq!(links(), names, "{own}");
            assert_eq!(show("ip -j link show"), before, "{own}");
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bridge_goes_with_the_last_port_and_one_attachment_does_not_take_anothers() {
    with_uplinks(&[], async |_| {
        let (first, second) = (bridge("br100", "eth1"), bridge("br100", "eth2"));
        add("c1", "net-a", &first).unwrap();
        add("c2", "net-a", &second).unwrap();
        let (_, message) = add("c3", "net-a", &second).unwrap_err();
        assert!(message.contains("eth2 is a port already"), "{message}");
        del("c3", "net-a", &second);
        check("c2", "net-a", &second).unwrap();
        del("c1", "net-a", &first);
        assert_eq!((master("eth1"), master("eth2")), (Value::Null, json!("br100")));
        // Another program takes the port away, and puts it elsewhere.
        run("ip link add theirs type bridge");
        run("ip link set eth2 master theirs");
        let (code, message) = check("c2", "net-a", &second).unwrap_err();
        assert!(
            code == 103
                && message.contains("br100 is not the network's bridge with this attachment's port eth2"),
            "{message}"
        );
        del("c2", "net-a", &second);
        assert_eq!((master("eth2"), links().contains("br100")), (json!("theirs"), false));
        assert_eq!(state("eth2")["alias"], Value::Null);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn many_at_once_make_one_bridge_and_leave_nothing() {
    with_uplinks(&[], async |_| {
        const MANY: usize = 8;
        for n in 0..MANY {
            run(&format!("ip link add u{n} type veth peer name p{n}"));
            run(&format!("ip link set u{n} up"));
        }
        let before = links();
        let here = Netns::here();
        let all = |work: fn(&str, &Value)| {
            thread::scope(|scope| {
                for n in 0..MANY {
                    let here = &here;
                    scope.spawn(move || {
                        here.inside(|| work(&format!("c{n}"), &bridge("br100", &format!("u{n}"))));
                    });
                }
            });
        };
        for _ in 0..5 {
            all(|container, own| drop(add(container, "net-a", own).unwrap()));
            all(|container, own| drop(check(container, "net-a", own).unwrap()));
            // DELs of the last ports beside ADDs of new ones.
            all(|container, own| {
                del(container, "net-a", own);
                add(container, "net-a", own).unwrap();
            });
            all(|container, own| drop(check(container, "net-a", own).unwrap()));
            all(|container, own| del(container, "net-a", own));
            assert_eq!(links(), before);
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_process_that_is_killed_leaves_nothing_after_its_del() {
    with_uplinks(&[], async |_| {
        let own = bridge("br100", "eth1");
        let (before, all) = (state("eth1"), links());
        let kill = |command, after: Duration| {
            let mut child =
                Call::new(command, "c1", "node0").start(&call::config("net-a", own.clone(), json!({})));
            thread::sleep(after);
            child.kill().unwrap();
            child.wait().unwrap();
        };
        // A call takes a few milliseconds.
        for step in 0..40 {
            let after = Duration::from_micros(200 * step);
            kill("ADD", after);
            if step % 2 == 0 {
                add("c1", "net-a", &own).unwrap();
                kill("DEL", after);
            }
            del("c1", "net-a", &own);
            assert_eq!((state("eth1"), master("eth1"), links()), (before.clone(), Value::Null, all.clone()));
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn gc_leaves_the_valid_attachments_of_its_network_and_all_of_others() {
    with_uplinks(&[], async |_| {
        run("ip link add u3 type veth peer name p3");
        run("ip link set u3 up");
        add("c1", "net-a", &bridge("br-a", "eth1")).unwrap();
        add("c2", "net-a", &bridge("br-a", "eth2")).unwrap();
        add("c1", "net-b", &bridge("br-b", "u3")).unwrap();
        let gc = |valid: Value| {
            let call = Call { netns: "", ..Call::new("GC", "", "") };
            call.run("net-a", &bridge("br-a", "eth1"), json!({"cni.dev/valid-attachments": valid})).unwrap()
        };
        gc(json!([{"containerID": "c2", "ifname": "node0"}, {"containerID": "c1", "ifname": "other"}]));
        assert_eq!(["eth1", "eth2", "u3"].map(master), [Value::Null, json!("br-a"), json!("br-b")]);
        gc(json!([]));
        assert_eq!(["eth2", "u3"].map(master), [Value::Null, json!("br-b")]);
        assert!(!links().contains("br-a"));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn another_namespace_is_worked_in_as_the_hosts_own_is() {
    with_uplinks(&[], async |_| {
        let there = Netns::new();
        there.inside(|| run("ip link add eth5 type veth peer name p5"));
        there.inside(|| run("ip link set eth5 up"));
        let path: &'static str = there.path().to_string_lossy().into_owned().leak();
        let call = |command| Call { netns: path, is_override: false, ..Call::new(command, "c1", "node0") };
        let before = links();
        call("ADD").run("net-a", &bridge("br5", "eth5"), json!({})).unwrap();
        assert_eq!(there.inside(|| master("eth5")), "br5");
        call("CHECK").run("net-a", &bridge("br5", "eth5"), json!({})).unwrap();
        call("DEL").run("net-a", &bridge("br5", "eth5"), json!({})).unwrap();
        assert!(!there.has_link("br5"));
        assert_eq!(links(), before);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_vlan_is_made_without_addresses_and_removed_and_its_id_is_one_attachments() {
    with_uplinks(&[VLAN], async |_| {
        let own = json!({"kind": "vlan", "master": "eth1", "id": 100, "mtu": 1400});
        let (before, all) = (state("eth1"), links());
        let call = |command, container: &str| {
            Call::new(command, container, "eth1.100").run("net-a", &own, json!({}))
        };
        let result = call("ADD", "c1").unwrap();
        let shown = show("ip -d -j address show dev eth1.100");
        let made =
            json!({"name": "eth1.100", "mac": shown["address"], "mtu": 1400, "sandbox": "/proc/self/ns/net"});
        assert_eq!(result["interfaces"], json!([made]));
        assert_eq!((&shown["link"], &shown["linkinfo"]["info_data"]["id"]), (&json!("eth1"), &json!(100)));
        assert!(shown["flags"].as_array().unwrap().contains(&json!("UP")), "{shown}");
        assert_eq!(shown["addr_info"], json!([]));
        call("CHECK", "c1").unwrap();
        // Another attachment, by its name and by its id.
        let (code, message) = call("ADD", "c2").unwrap_err();
        assert!(
            code == 101 && message.contains("eth1.100 (vlan 100) is there already, made for"),
            "{message}"
        );
        call("DEL", "c2").unwrap();
        let (code, message) = Call::new("ADD", "c2", "v100").run("net-b", &own, json!({})).unwrap_err();
        assert!(
            code == 101 && message.contains("eth1.100 (vlan 100) is there already, made for"),
            "{message}"
        );
        call("CHECK", "c1").unwrap();
        run("ip link set eth1.100 down");
        let (code, message) = call("CHECK", "c1").unwrap_err();
        assert!(code == 103 && message.contains("eth1.100 is down"), "{message}");
        for _ in 0..2 {
            call("DEL", "c1").unwrap();
            assert_eq!((state("eth1"), links()), (before.clone(), all.clone()));
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_vlan_and_a_bridge_in_one_chain_are_made_and_removed_in_turn() {
    with_uplinks(&[VLAN], async |_| {
        let all = links();
        let (vlan, bridge) = (
            json!({"kind": "vlan", "master": "eth1", "id": 100}),
            json!({"kind": "bridge", "bridge": "br100"}),
        );
        let call =
            |command, own: &Value, more: Value| Call::new(command, "c1", "eth1.100").run("net-a", own, more);
        let first = call("ADD", &vlan, json!({})).unwrap();
        let result = call("ADD", &bridge, json!({"prevResult": first})).unwrap();
        let names: Vec<_> = result["interfaces"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["eth1.100", "br100"]);
        assert_eq!(master("eth1.100"), "br100");
        let previous = json!({"prevResult": result});
        call("CHECK", &vlan, previous.clone()).unwrap();
        call("CHECK", &bridge, previous.clone()).unwrap();
        call("DEL", &bridge, previous.clone()).unwrap();
        assert!(links().contains("eth1.100") && !links().contains("br100"));
        call("CHECK", &vlan, previous.clone()).unwrap();
        call("DEL", &vlan, previous).unwrap();
        assert_eq!(links(), all);
    });
}
