//! What every reference plugin does to the links of a host and a container, from ADD to the DEL of a
//! container whose network namespace is gone; with what each is known to leave behind.
//!
//! The links are looked at by iproute2, which needs to be there. Where the kernel lacks a kind of link its
//! test says SKIPPED; `make test-qemu` runs all of them. Needs root and `NETCLAIM_CNI_BIN`, the directory of
//! the plugins: `NETCLAIM_CNI_BIN=/opt/cni/bin cargo test -p netclaim-cni --test plugin_links -- --ignored`

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use netclaim_cni::{Attachment, Error};
use serde_json::{Value, json};

use plugin_host::{BOND, Feature, LONG, Netns, VLAN, attachment, links, on_a_host, run, show};

const DUMMY: Feature =
    Feature { without: "this kernel has no dummy links", probe: "ip link add d0 type dummy" };
const IPVLAN: Feature = Feature {
    without: "this kernel has no ipvlan",
    probe: "ip link add v0 type veth && ip link add i0 link v0 type ipvlan",
};
const VRF: Feature = Feature { without: "this kernel has no VRFs", probe: "ip link add r0 type vrf table 7" };
const BRIDGE_VLANS: Feature = Feature {
    without: "this kernel has no bridges that filter VLANs",
    probe: "ip link add b0 type bridge vlan_filtering 1",
};
const POLICE: Feature = Feature {
    without: "this kernel has no tbf, ingress, u32, mirred and ifb to shape by",
    probe: "ip link add i0 type ifb && ip link set i0 up && tc qdisc add dev i0 ingress && \
        tc filter add dev i0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev i0 && \
        tc qdisc add dev i0 root tbf rate 1mbit burst 10k latency 10ms",
};
const NFTABLES: Feature = Feature {
    without: "nft is missing, or cannot translate addresses here",
    probe: "nft 'add table ip t; add chain ip t c { type nat hook prerouting priority dstnat; }; \
        add rule ip t c fib daddr type local tcp dport 1 dnat to 192.0.2.1:2'",
};
const IPTABLES: Feature = Feature {
    without: "iptables is missing, or cannot match comments and connections here",
    probe: "iptables -w -A FORWARD -m comment --comment c -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
};

/// Makes a pair of veth links, `up0` and `sw0`, both up: a NIC and the switch it is plugged into.
fn nic() {
    run("ip link add up0 address 02:00:00:00:00:0a type veth peer name sw0");
    run("ip link set up0 up");
    run("ip link set sw0 up");
}

fn index(name: &str) -> Value {
    show(&format!("ip -j link show dev {name}"))["ifindex"].clone()
}

/// The kind of a link that `ip -d` has shown, and one detail of it.
fn kind<'a>(link: &'a Value, detail: &str) -> (&'a str, &'a Value) {
    (link["linkinfo"]["info_kind"].as_str().unwrap(), &link["linkinfo"]["info_data"][detail])
}

fn is_up(link: &Value) -> bool {
    link["flags"].as_array().unwrap().contains(&json!("UP"))
}

fn addresses(link: &Value) -> Vec<&str> {
    let all = link["addr_info"].as_array().unwrap();
    all.iter().filter(|a| a["family"] == "inet").map(|a| a["local"].as_str().unwrap()).collect()
}

/// What the plugin said when it failed.
fn said(error: &Error) -> &str {
    error.reported().map_or_else(|| panic!("{error:?}"), |reported| &reported.msg)
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_macvlan_lives_on_its_master_in_its_mode() {
    on_a_host(&[], async |host| {
        nic();
        let (mtu, mode) = (1400, "private");
        let ipam = host.subnet("10.8.0.0/24");
        let list = host.list(
            "macvlan",
            json!([{"type": "macvlan", "master": "up0", "mode": mode, "mtu": mtu, "ipam": ipam, "capabilities": {"mac": true}}]),
        );
        host.live(&list, &json!({"mac": "02:00:00:00:00:99"}), |attached| {
            let link = attached.link();
            assert_eq!(kind(&link, "mode"), ("macvlan", &json!(mode)));
            assert_eq!((&link["link_index"], &link["mtu"]), (&index("up0"), &json!(mtu)));
            assert_eq!(link["address"], "02:00:00:00:00:99");
            assert!(is_up(&link));
            assert_eq!(attached.ips(), ["10.8.0.2/24"]);
            assert_eq!(addresses(&link), ["10.8.0.2"]);
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_ipvlan_lives_on_its_master_in_each_mode() {
    on_a_host(&[IPVLAN], async |host| {
        nic();
        for mode in ["l2", "l3", "l3s"] {
            let ipam = host.subnet("10.8.1.0/24");
            let list = host.list(
                &format!("ipvlan-{mode}"),
                json!([{"type": "ipvlan", "master": "up0", "mode": mode, "ipam": ipam}]),
            );
            host.live(&list, &json!({}), |attached| {
                let link = attached.link();
                assert_eq!(kind(&link, "mode"), ("ipvlan", &json!(mode)));
                assert_eq!(link["link_index"], index("up0"));
                assert_eq!(link["address"], "02:00:00:00:00:0a", "that of its master");
                assert!(is_up(&link));
                assert_eq!(addresses(&link), ["10.8.1.2"]);
            })
            .await;
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_macvlan_and_an_ipvlan_cannot_share_a_master() {
    on_a_host(&[IPVLAN], async |host| {
        nic();
        let macvlan = host.list("macvlan", json!([{"type": "macvlan", "master": "up0"}]));
        let attached = host.attach(&macvlan, &json!({})).await;
        let ipam = host.subnet("10.8.2.0/24");
        let ipvlan = host.list("ipvlan", json!([{"type": "ipvlan", "master": "up0", "ipam": ipam}]));
        let netns = Netns::new();
        let refused = host.runtime.add(&ipvlan, &attachment("c2", &netns), LONG).await.unwrap_err();
        assert!(said(&refused.error).contains("busy"), "{}", said(&refused.error));
        assert!(!netns.has_link("net1"));
        host.runtime.del(&ipvlan, &attachment("c2", &netns), None, LONG).await.unwrap();
        assert_eq!(host.reserved("ipvlan"), [""; 0]);
        host.del(&macvlan, &attached).await.unwrap();
        let attached = host.attach(&ipvlan, &json!({})).await;
        host.del(&ipvlan, &attached).await.unwrap();
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_vlan_lives_on_its_master_with_its_id() {
    on_a_host(&[VLAN], async |host| {
        nic();
        let ipam = host.subnet("10.8.3.0/24");
        let list = host.list("vlan", json!([{"type": "vlan", "master": "up0", "vlanId": 42, "ipam": ipam}]));
        host.live(&list, &json!({}), |attached| {
            let link = attached.link();
            assert_eq!(kind(&link, "id"), ("vlan", &json!(42)));
            assert_eq!(kind(&link, "protocol").1, "802.1Q");
            assert_eq!(link["link_index"], index("up0"));
            assert!(is_up(&link));
            assert_eq!(addresses(&link), ["10.8.3.2"]);
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_vlan_id_is_given_once_on_a_master() {
    on_a_host(&[VLAN], async |host| {
        nic();
        let ipam = host.subnet("10.8.4.0/24");
        let list = host.list("vlan", json!([{"type": "vlan", "master": "up0", "vlanId": 42, "ipam": ipam}]));
        let attached = host.attach(&list, &json!({})).await;
        let netns = Netns::new();
        let refused = host.runtime.add(&list, &attachment("c2", &netns), LONG).await.unwrap_err();
        assert!(said(&refused.error).contains("file exists"), "{}", said(&refused.error));
        assert!(!netns.has_link("net1"));
        host.runtime.del(&list, &attachment("c2", &netns), None, LONG).await.unwrap();
        assert_eq!(host.reserved("vlan"), ["10.8.4.2 c1 net1"]);
        host.del(&list, &attached).await.unwrap();
        host.nothing_is_left(&list, &attached);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_vlan_whose_master_has_gone_is_released() {
    on_a_host(&[VLAN], async |host| {
        nic();
        let ipam = host.subnet("10.8.5.0/24");
        let list = host.list("vlan", json!([{"type": "vlan", "master": "up0", "vlanId": 42, "ipam": ipam}]));
        let attached = host.attach(&list, &json!({})).await;
        run("ip link del up0");
        // The plugin looks for the master before anything else.
        let error = host.del(&list, &attached).await.unwrap_err();
        assert!(said(&error).contains("Link not found"), "{}", said(&error));
        assert!(!attached.netns.has_link("net1"), "it has gone with its master");
        assert_eq!(host.reserved("vlan"), ["10.8.5.2 c1 net1"]);

        for _ in 0..2 {
            let errors = host.release(&list, &attached).await;
            assert!(errors.len() == 1 && said(&errors[0]).contains("Link not found"), "{errors:?}");
            assert_eq!(host.reserved("vlan"), [""; 0]);
        }
        let errors = host.release(&list, &attached.lose_netns()).await;
        assert!(errors.is_empty(), "nothing can be left of it now: {errors:?}");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_vrf_lives_as_long_as_an_interface_is_in_it() {
    on_a_host(&[VRF], async |host| {
        nic();
        let vrf = json!({"type": "vrf", "vrfname": "blue", "table": 7});
        let ipam = host.subnet("10.8.6.0/24");
        let plugins = json!([{"type": "macvlan", "master": "up0", "ipam": ipam}, vrf]);
        let list = host.list("vrf", plugins.clone());
        let attached = host.add(&list, &json!({})).await;
        // The routes are in the VRF's table, where the plugin before it does not look for them.
        let missing = host.check(&list, &attached).await.unwrap_err();
        assert!(said(&missing).contains("Failed to find Gateway"), "{}", said(&missing));
        host.del(&list, &attached).await.unwrap();

        let list = host.unchecked_list("vrf", plugins);
        host.live(&list, &json!({}), |attached| {
            let blue = attached.netns.show("ip -d -j link show dev blue");
            assert_eq!(kind(&blue, "table"), ("vrf", &json!(7)));
            assert_eq!(attached.link()["master"], "blue");
            let route = attached.netns.show("ip -j route show table 7 10.8.6.0/24");
            assert_eq!(route["dev"], "net1");
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_dummy_lives_in_the_container_only() {
    on_a_host(&[DUMMY], async |host| {
        let ipam = json!({"type": "static", "addresses": [{"address": "10.8.7.7/24"}]});
        let list = host.list("dummy", json!([{"type": "dummy", "ipam": ipam}]));
        host.live(&list, &json!({}), |attached| {
            let link = attached.link();
            assert_eq!(kind(&link, "").0, "dummy");
            assert!(is_up(&link));
            assert_eq!(addresses(&link), ["10.8.7.7"]);
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bond_is_a_master() {
    on_a_host(&[BOND, VLAN, IPVLAN], async |host| {
        run("ip link add bond0 type bond mode active-backup miimon 100");
        for port in ["p0", "p1"] {
            run(&format!("ip link add {port} type veth peer name sw-{port}"));
            run(&format!("ip link set sw-{port} up"));
            run(&format!("ip link set {port} master bond0"));
        }
        run("ip link set bond0 up");

        for (plugin, more) in
            [("macvlan", json!({})), ("ipvlan", json!({"mode": "l2"})), ("vlan", json!({"vlanId": 7}))]
        {
            let mut conf = json!({"type": plugin, "master": "bond0", "ipam": host.subnet("10.8.8.0/24")});
            conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            host.live(&host.list(plugin, json!([conf])), &json!({}), |attached| {
                let link = attached.link();
                assert_eq!((kind(&link, "").0, &link["link_index"]), (plugin, &index("bond0")));
            })
            .await;
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_host_device_is_given_back_as_it_was() {
    on_a_host(&[], async |host| {
        nic();
        run("ip link set up0 mtu 1450");
        let ipam = host.subnet("10.8.9.0/24");
        let tuning = json!({"type": "tuning", "mtu": 1300, "mac": "02:00:00:00:00:77", "promisc": true, "dataDir": host.data.path()});
        let list =
            host.list("device", json!([{"type": "host-device", "device": "up0", "ipam": ipam}, tuning]));
        let attached = host.attach(&list, &json!({})).await;
        let link = attached.link();
        assert_eq!((&link["address"], &link["mtu"]), (&json!("02:00:00:00:00:77"), &json!(1300)));
        assert_eq!(link["promiscuity"], 1);
        assert_eq!(addresses(&link), ["10.8.9.2"]);
        assert!(!links().contains("up0"));

        host.del(&list, &attached).await.unwrap();
        host.nothing_is_left(&list, &attached);
        let link = show("ip -d -j address show dev up0");
        assert_eq!((&link["address"], &link["mtu"]), (&json!("02:00:00:00:00:0a"), &json!(1450)));
        assert_eq!((&link["promiscuity"], is_up(&link)), (&json!(0), false));
        assert_eq!(addresses(&link), [""; 0]);

        // A second DEL finds no device, and fails for good.
        let error = host.del(&list, &attached).await.unwrap_err();
        assert!(said(&error).contains("net1"), "{}", said(&error));
        assert_eq!(host.release(&list, &attached).await.len(), 1);
        host.nothing_is_left(&list, &attached);
        // What was given back can be had again.
        let again = host.attach(&list, &json!({})).await;
        host.del(&list, &again).await.unwrap();
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_ptp_link_has_a_route_to_it_on_the_host() {
    on_a_host(&[], async |host| {
        let mut ipam = host.subnet("10.8.10.0/24");
        ipam["routes"] = json!([{"dst": "10.99.0.0/16"}]);
        let list = host.list("ptp", json!([{"type": "ptp", "mtu": 1400, "ipam": ipam}]));
        host.live(&list, &json!({}), |attached| {
            let link = attached.link();
            assert_eq!((kind(&link, "").0, &link["mtu"]), ("veth", &json!(1400)));
            let there = attached.result.interfaces().iter().find(|i| i.sandbox.is_none()).unwrap();
            assert_eq!(show("ip -j route show 10.8.10.2")["dev"], there.name.as_str());
            let route = attached.netns.show("ip -j route show 10.99.0.0/16");
            assert_eq!((&route["dev"], &route["gateway"]), (&json!("net1"), &json!("10.8.10.1")));
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_tap_is_a_tap() {
    on_a_host(&[], async |host| {
        // The plugin makes a tap with an owner in another way, and forgets the address there.
        for (owner, has_mac) in [(json!({}), true), (json!({"owner": 0, "group": 0}), false)] {
            let mut conf = json!({"type": "tap", "multiQueue": true, "ipam": host.subnet("10.8.11.0/24"), "capabilities": {"mac": true}});
            conf.as_object_mut().unwrap().extend(owner.as_object().unwrap().clone());
            let list = host.list("tap", json!([conf]));
            host.live(&list, &json!({"mac": "02:00:00:00:00:88"}), |attached| {
                let link = attached.link();
                assert_eq!(kind(&link, "type"), ("tun", &json!("tap")));
                assert_eq!(
                    (kind(&link, "multi_queue").1, kind(&link, "persist").1),
                    (&json!(true), &json!(true))
                );
                assert_eq!(link["address"] == "02:00:00:00:00:88", has_mac);
                assert!(addresses(&link)[0].starts_with("10.8.11."));
            })
            .await;
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bridge_port_is_in_its_vlan() {
    on_a_host(&[BRIDGE_VLANS], async |host| {
        run("ip link add br0 type bridge vlan_filtering 1");
        let ipam = host.subnet("10.8.12.0/24");
        let list =
            host.list("bridge", json!([{"type": "bridge", "bridge": "br0", "vlan": 42, "ipam": ipam}]));
        host.live(&list, &json!({}), |attached| {
            let port = attached.result.interfaces().iter().find(|i| i.name.starts_with("veth")).unwrap();
            assert_eq!(show(&format!("ip -j link show dev {}", port.name))["master"], "br0");
            let vlans = show(&format!("bridge -j vlan show dev {}", port.name))["vlans"].clone();
            let own = json!({"vlan": 42, "flags": ["PVID", "Egress Untagged"]});
            assert!(vlans.as_array().unwrap().contains(&own), "{vlans}");
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn source_based_routes_go_with_the_interface() {
    on_a_host(&[], async |host| {
        nic();
        let mut ipam = host.subnet("10.8.13.0/24");
        ipam["routes"] = json!([{"dst": "0.0.0.0/0"}]);
        let list =
            host.list("sbr", json!([{"type": "macvlan", "master": "up0", "ipam": ipam}, {"type": "sbr"}]));
        let rules = |netns: &Netns| netns.inside(|| run("ip rule show table 100"));

        let attached = host.add(&list, &json!({})).await;
        // It moves the routes to a table of its own, where the plugin before it does not look for them.
        let missing = host.check(&list, &attached).await.unwrap_err();
        assert!(said(&missing).contains("Failed to find Gateway"), "{}", said(&missing));
        assert!(rules(&attached.netns).contains("from 10.8.13.2"), "{}", rules(&attached.netns));
        let route = attached.netns.show("ip -j route show table 100 default");
        assert_eq!((&route["dev"], &route["gateway"]), (&json!("net1"), &json!("10.8.13.1")));
        for _ in 0..2 {
            host.del(&list, &attached).await.unwrap();
            assert_eq!(rules(&attached.netns), "");
            host.nothing_is_left(&list, &attached);
        }

        // The plugin cannot do without the namespace, which keeps the one before it from its part.
        let attached = host.add(&list, &json!({})).await.lose_netns();
        host.del(&list, &attached).await.unwrap_err();
        assert_eq!(host.reserved("sbr"), ["10.8.13.3 c1 net1"]);
        let errors = host.release(&list, &attached).await;
        assert!(errors.is_empty(), "{errors:?}");
        host.nothing_is_left(&list, &attached);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_check_misses_the_subnet_of_an_address_without_one() {
    on_a_host(&[], async |host| {
        nic();
        let ipam = json!({"type": "static", "addresses": [{"address": "10.8.17.7/32"}]});
        let list = host.list("host", json!([{"type": "macvlan", "master": "up0", "ipam": ipam}]));
        let attached = host.add(&list, &json!({})).await;
        assert_eq!(attached.ips(), ["10.8.17.7/32"]);
        let missing = host.check(&list, &attached).await.unwrap_err();
        assert!(said(&missing).contains("Failed to find Gateway"), "{}", said(&missing));
        host.del(&list, &attached).await.unwrap();
        host.nothing_is_left(&list, &attached);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn tuning_sets_what_the_container_sees() {
    on_a_host(&[], async |host| {
        nic();
        let tuning = json!({"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "txQLen": 77, "allmulti": true, "dataDir": host.data.path()});
        let list = host.list("tuning", json!([{"type": "macvlan", "master": "up0"}, tuning]));
        host.live(&list, &json!({}), |attached| {
            let link = attached.link();
            assert_eq!((&link["txqlen"], &link["allmulti"]), (&json!(77), &json!(1)));
            let sysctl = || std::fs::read_to_string("/proc/sys/net/ipv4/conf/net1/arp_filter").unwrap();
            assert_eq!(attached.netns.inside(sysctl), "1\n");
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_veth_is_shaped_both_ways() {
    on_a_host(&[POLICE], async |host| {
        let ipam = host.subnet("10.8.14.0/24");
        let list = host.list("bandwidth", json!([{"type": "ptp", "ipam": ipam}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}]));
        let args = json!({"bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 800_000}});
        host.live(&list, &args, |attached| {
            let here = |prefix: &str| {
                let mut names = attached.result.interfaces().iter().filter(|i| i.sandbox.is_none());
                names.find(|i| i.name.starts_with(prefix)).unwrap().name.clone()
            };
            for (link, bytes_per_second) in [(here("veth"), 1_000_000), (here("bwp"), 2_000_000)] {
                let qdiscs = run(&format!("tc -j qdisc show dev {link}"));
                let qdiscs: Vec<Value> = serde_json::from_str(&qdiscs).unwrap();
                let tbf = qdiscs.iter().find(|q| q["kind"] == "tbf").unwrap_or_else(|| panic!("{qdiscs:?}"));
                assert_eq!(tbf["options"]["rate"], bytes_per_second);
            }
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_container_is_shaped_on_two_interfaces_of_one_network() {
    on_a_host(&[POLICE], async |host| {
        run("ip link add br0 type bridge");
        // Not ptp: its second interface wants the first one's route.
        let bridge = json!({"type": "bridge", "bridge": "br0", "ipam": host.subnet("10.8.18.0/24")});
        let plugins = json!([bridge, {"type": "bandwidth", "capabilities": {"bandwidth": true}}]);
        let list = host.list("twice", plugins);
        let args = json!({"bandwidth": {"egressRate": 16_000_000, "egressBurst": 800_000}});
        let shapers = || links().into_iter().filter(|link| link.starts_with("bwp")).count();
        let first = host.attach(&list, &args).await;
        let second = Attachment { if_name: "net2".parse().unwrap(), ..first.attachment.clone() };
        let result = host.runtime.add(&list, &second, LONG).await.unwrap();
        assert_eq!(shapers(), 2);
        host.runtime.del(&list, &second, Some(&result), LONG).await.unwrap();
        assert_eq!(shapers(), 1);
        host.check(&list, &first).await.unwrap();
        host.del(&list, &first).await.unwrap();
        host.nothing_is_left(&list, &first);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_port_is_mapped_by_nftables_until_the_end() {
    on_a_host(&[NFTABLES], async |host| {
        let ipam = host.subnet("10.8.15.0/24");
        let list = host.list("portmap", json!([
            {"type": "ptp", "ipam": ipam},
            {"type": "portmap", "backend": "nftables", "snat": false, "capabilities": {"portMappings": true}},
        ]));
        let args = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
        host.live(&list, &args, |_| {
            let rules = run("nft list chain ip cni_hostport hostports");
            assert!(rules.contains("tcp dport 8080 dnat to 10.8.15.2:80"), "{rules}");
        })
        .await;
        let rules = run("nft list chain ip cni_hostport hostports");
        assert!(!rules.contains("8080"), "{rules}");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_firewall_lets_the_container_through_until_the_end() {
    on_a_host(&[IPTABLES], async |host| {
        let ipam = host.subnet("10.8.16.0/24");
        let list = host.list(
            "firewall",
            json!([{"type": "ptp", "ipam": ipam}, {"type": "firewall", "backend": "iptables"}]),
        );
        let rules = || run("iptables -w -S CNI-FORWARD");
        host.live(&list, &json!({}), |_| assert!(rules().contains("-s 10.8.16.2/32"), "{}", rules())).await;
        assert!(!rules().contains("10.8.16."), "{}", rules());
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn the_loopback_is_up_while_attached() {
    on_a_host(&[], async |host| {
        let list = host.list("lo", json!([{"type": "loopback"}]));
        let attached = host.attach(&list, &json!({})).await;
        let is_lo_up = || is_up(&attached.netns.show("ip -j link show dev lo"));
        assert_eq!(attached.result.interfaces()[0].name, "lo");
        assert!(is_lo_up());
        for _ in 0..2 {
            host.del(&list, &attached).await.unwrap();
            assert!(!is_lo_up());
        }
        let attached = host.attach(&list, &json!({})).await.lose_netns();
        host.del(&list, &attached).await.unwrap();
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn leftovers_of_dhcp_without_its_daemon_end_with_the_namespace() {
    on_a_host(&[], async |host| {
        nic();
        let ipam = json!({"type": "dhcp", "daemonSocketPath": host.data.path().join("dhcp.sock")});
        let list = host.list("dhcp", json!([{"type": "macvlan", "master": "up0", "ipam": ipam}]));
        let netns = Netns::new();
        let attachment = attachment("c1", &netns);
        let failed = host.runtime.add(&list, &attachment, LONG).await.unwrap_err();
        assert!(said(&failed.error).contains("dhcp.sock"), "{}", said(&failed.error));
        assert!(failed.needs_del());
        // No DEL can succeed without the daemon: macvlan asks it before it looks after its own link.
        host.runtime.del(&list, &attachment, None, LONG).await.unwrap_err();
        let errors = host.runtime.release(&list, &attachment, None, LONG, |_| true).await;
        assert!(
            errors.len() == 2 && errors.iter().all(|error| said(error).contains("dhcp.sock")),
            "{errors:?}"
        );
        assert!(netns.has_link("net1"));
        let again = host.runtime.add(&list, &attachment, LONG).await.unwrap_err();
        assert!(said(&again.error).contains("file exists"), "{}", said(&again.error));
        let errors = host
            .runtime
            .release(&list, &Attachment { netns: None, ..attachment }, None, LONG, |_| false)
            .await;
        assert!(errors.is_empty(), "nothing can be left of it now: {errors:?}");
    });
}
