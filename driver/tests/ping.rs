//! What links of two nodes hear of each other through a switch: a bridge of this test's own, whose ports drop
//! what rules of nftables say.
//!
//! Needs root, nft, and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;
use netclaim_driver::links::{self, Heard, Ping, Pinged};

use plugin_host::{Netns, on_a_host, run};

/// Two nodes with the link `eth1`, whose ports of the bridge `sw` are `port0` and `port1`.
fn two_nodes() -> [Netns; 2] {
    run("ip link add sw type bridge");
    run("ip link set sw up");
    [0, 1].map(|n| {
        let node = Netns::new();
        run(&format!(
            "ip link add port{n} mtu 9000 type veth peer name eth1 mtu 9000 netns {}",
            node.path().display()
        ));
        run(&format!("ip link set port{n} master sw up"));
        node.inside(|| run("ip link set eth1 up"));
        node
    })
}

/// Has the switch drop what comes by `port0` and matches.
fn drop_from_the_first(what: &str) {
    run("nft add table bridge sw");
    run("nft add chain bridge sw forward { type filter hook forward priority 0; }");
    run(&format!("nft add rule bridge sw forward iifname port0 {what} drop"));
}

/// What each has sent and heard in a run of both, of which the second begins later.
async fn ping_late(nodes: &[Netns; 2], vlan: Option<u16>, late: Duration) -> [Pinged; 2] {
    let runs = nodes.iter().zip([Duration::ZERO, late]).enumerate().map(async |(place, (node, late))| {
        tokio::time::sleep(late).await;
        let place = place.try_into().unwrap();
        let ping = Ping { run: 7, place, many: 2, vlan, mtu: 9000, has_second_mac: true };
        links::Netns::open(node.path()).unwrap().ping("eth1", ping).await.unwrap()
    });
    join_all(runs).await.try_into().unwrap()
}

async fn ping(nodes: &[Netns; 2], vlan: Option<u16>) -> [Pinged; 2] {
    ping_late(nodes, vlan, Duration::ZERO).await
}

fn everything(heard: Heard, vlan: Option<u16>, mtu: u16) {
    let Heard { untagged, broadcast, second_mac, unicast, to_second_mac, longest, lost_tag } = heard;
    assert!(broadcast > 3 && second_mac > 3 && unicast > 3 && to_second_mac > 3, "{heard:?}");
    assert_eq!((longest, untagged > 3, lost_tag), (mtu, vlan.is_some(), 0), "{heard:?}");
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn links_hear_everything_of_each_other_without_a_tag_and_with_one() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        for vlan in [None, Some(100)] {
            let [first, second] = ping(&nodes, vlan).await;
            everything(first.heard[1], vlan, 9000);
            everything(second.heard[0], vlan, 9000);
            assert_eq!(first.heard[0], Heard::default(), "its own");
            assert_ne!(first.mac, second.mac);
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn links_hear_everything_of_each_other_that_begin_two_seconds_apart() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        let [first, second] = ping_late(&nodes, Some(100), Duration::from_millis(2500)).await;
        for heard in [first.heard[1], second.heard[0]] {
            let Heard { untagged, broadcast, second_mac, unicast, longest, .. } = heard;
            assert!(untagged > 0 && broadcast > 0 && second_mac > 0 && unicast > 0, "{heard:?}");
            assert_eq!(longest, 9000, "{heard:?}");
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn frames_to_a_second_mac_address_that_do_not_pass_are_not_heard() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        let mac = nodes[1].show("ip -j link show dev eth1")["address"].as_str().unwrap().to_owned();
        drop_from_the_first(&format!("ether daddr != {{ {mac}, ff:ff:ff:ff:ff:ff }}"));
        let [first, second] = ping(&nodes, None).await;
        let Heard { second_mac, unicast, to_second_mac, .. } = second.heard[0];
        assert!(second_mac > 3 && unicast > 3 && to_second_mac == 0, "{second:?}");
        everything(first.heard[1], None, 9000);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_receives_all_frames_only_during_a_run() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        let is_promiscuous = || nodes[0].show("ip -j -d link show dev eth1")["promiscuity"] == 1;
        let during = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            is_promiscuous()
        };
        let (_, during) = tokio::join!(ping(&nodes, Some(100)), during);
        assert!(during && !is_promiscuous());
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn frames_of_a_vlan_that_does_not_pass_are_not_heard() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        drop_from_the_first("vlan id 100");
        let [first, second] = ping(&nodes, Some(100)).await;
        let heard = second.heard[0];
        assert_eq!(heard, Heard { untagged: heard.untagged, ..Heard::default() });
        assert!(heard.untagged > 3, "{heard:?}");
        assert!(first.heard[1].broadcast > 3 && first.heard[1].unicast == 0, "{first:?}");
        let [_, second] = ping(&nodes, Some(101)).await;
        everything(second.heard[0], Some(101), 9000);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_port_that_takes_one_mac_address_drops_frames_from_a_second_one() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        let mac = nodes[0].show("ip -j link show dev eth1")["address"].as_str().unwrap().to_owned();
        drop_from_the_first(&format!("ether saddr != {mac}"));
        let [first, second] = ping(&nodes, None).await;
        let Heard { broadcast, second_mac, unicast, longest, .. } = second.heard[0];
        assert!(broadcast > 3 && second_mac == 0 && unicast > 3 && longest == 9000, "{second:?}");
        // The other does not know the second address, and sends nothing to it.
        let Heard { broadcast, second_mac, unicast, to_second_mac, .. } = first.heard[1];
        assert!(broadcast > 3 && second_mac > 3 && unicast > 3 && to_second_mac == 0, "{first:?}");
        assert_ne!(first.second_mac.as_ref(), Some(&mac));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn long_frames_pass_up_to_the_smallest_mtu_on_the_way() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        run("ip link set port1 mtu 1500");
        for vlan in [None, Some(100)] {
            let [first, second] = ping(&nodes, vlan).await;
            assert_eq!((first.mtu, second.heard[0].longest), (9000, 1500), "{second:?}");
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn traffic_on_the_link_takes_no_frame_away() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        for (n, node) in nodes.iter().enumerate() {
            node.inside(|| run(&format!("ip address add 10.9.0.{}/24 dev eth1", n + 1)));
        }
        // More than a receive buffer has room for.
        let flood = |node: &Netns| {
            node.inside(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                let end = Instant::now() + Duration::from_secs(5);
                let mut sent = 0;
                while Instant::now() < end {
                    sent += usize::from(socket.send_to(&[0; 8000], "10.9.0.2:9").is_ok());
                }
                sent
            })
        };
        let (sent, [first, second]) = thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&nodes[0]));
            let pinged = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(ping(&nodes, None))
            });
            (flood.join().unwrap(), pinged.join().unwrap())
        });
        assert!(sent > 1000, "{sent}");
        everything(first.heard[1], None, 9000);
        everything(second.heard[0], None, 9000);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_address_of_a_running_pod_that_another_host_has_is_found_and_stays_the_pods() {
    on_a_host(&[], async |_| {
        let nodes = two_nodes();
        let [first, second] = &nodes;
        let other = Netns::new();
        run(&format!("ip link add port2 type veth peer name eth1 netns {}", other.path().display()));
        run("ip link set port2 master sw up");
        first.inside(|| run("ip address add 10.9.0.7/24 dev eth1"));
        second.inside(|| run("ip address add 10.9.0.2/24 dev eth1"));
        other.inside(|| {
            run("ip link set eth1 up");
            run("ip address add 10.9.0.7/24 dev eth1");
        });
        let mac =
            |node: &Netns| node.show("ip -j link show dev eth1")["address"].as_str().unwrap().to_owned();
        let (own, of_other) = (mac(first), mac(&other));
        second.inside(|| run(&format!("ip neighbour replace 10.9.0.7 lladdr {own} dev eth1 nud reachable")));
        let netns = links::Netns::open(first.path()).unwrap();
        let found = netns.used_twice("eth1", vec!["10.9.0.7".parse().unwrap()]).await.unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].by.as_ref(), Some(&of_other));
        let known = second.show("ip -j neighbour show 10.9.0.7 dev eth1")["lladdr"].clone();
        assert_eq!(known, own.as_str(), "the pod's neighbours talk to it as before");
    });
}
