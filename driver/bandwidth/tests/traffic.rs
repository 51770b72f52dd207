//! Traffic through interfaces that the plugin has limited, in network namespaces of the tests' own. The
//! driver's CNI runtime runs it after the reference plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../cni/tests/plugin_host/mod.rs"]
mod plugin_host;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use netclaim_bandwidth::{Failure, Limit, Limits, restore, share};
use netclaim_cni::{Attachment, NetworkList, Runtime};
use plugin_host::{Attached, Feature, Host, LONG, Netns, attachment, on_a_host, run};
use serde_json::{Value, json};

const IPVLAN: Feature = Feature {
    without: "this kernel has no ipvlan",
    probe: "ip link add v0 type veth && ip link add i0 link v0 type ipvlan",
};

/// Runs a test on a host with an uplink, eth1.
fn with_uplink<F: Future>(needs: &[Feature], test: impl FnOnce(Host) -> F + Send + 'static) {
    on_a_host(needs, async |mut host| {
        let reference = std::env::var_os("NETCLAIM_CNI_BIN").unwrap();
        let ours = Path::new(env!("CARGO_BIN_EXE_netclaim-bandwidth")).parent().unwrap();
        host.runtime = Runtime::new(vec![reference.into(), ours.into()]).unwrap();
        run("ip link add eth1 type veth peer name sw1");
        run("ip link set eth1 up");
        run("ip link set sw1 up");
        test(host).await;
    });
}

/// A network of `plugin` on the uplink, with IPv4 and IPv6, and the limits that the claims request.
fn network(host: &Host, plugin: Value) -> NetworkList {
    let ipam = host.ipam(json!([[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]]));
    let mut plugin = plugin;
    plugin["ipam"] = ipam;
    let bandwidth = json!({"type": "netclaim-bandwidth", "capabilities": {"bandwidth": true}});
    host.list("limited", json!([plugin, bandwidth]))
}

fn macvlan(host: &Host) -> NetworkList {
    network(host, json!({"type": "macvlan", "master": "eth1", "mode": "bridge"}))
}

/// Another container on the network, without limits, with its addresses.
async fn neighbour(host: &Host, list: &NetworkList) -> (Netns, Vec<IpAddr>) {
    let netns = Netns::new();
    let attachment = attachment("neighbour", &netns);
    let result = host.runtime.add(list, &attachment, LONG).await.unwrap();
    let addresses = result.ips_of(&attachment).map(|ip| ip.address.addr()).collect();
    (netns, addresses)
}

/// The addresses of an attachment, IPv4 and IPv6.
fn addresses(attached: &Attached) -> Vec<IpAddr> {
    attached.ips().iter().map(|ip| ip.split('/').next().unwrap().parse().unwrap()).collect()
}

/// How many bit/s arrive in `to` at `address` from `from`, over TCP, for 2 s.
fn measure(from: &Netns, to: &Netns, address: IpAddr) -> f64 {
    const TIME: Duration = Duration::from_secs(2);
    let any: IpAddr = if address.is_ipv4() { "0.0.0.0".parse().unwrap() } else { "::".parse().unwrap() };
    let listener = to.inside(|| TcpListener::bind((any, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let send = || {
        // An IPv6 address is not used before its uniqueness is proven.
        let end = Instant::now() + LONG;
        let mut stream = loop {
            match TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(1)) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < end, "{address}: {error}"),
            }
        };
        // Until the other side has seen enough.
        while stream.write_all(&[0; 64 * 1024]).is_ok() {}
    };
    let receive = || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 1 << 20];
        let (mut bytes, start) = (0, Instant::now());
        while start.elapsed() < TIME {
            bytes += stream.read(&mut buffer).unwrap();
        }
        bytes as f64 * 8.0 / start.elapsed().as_secs_f64()
    };
    thread::scope(|scope| {
        scope.spawn(|| from.inside(send));
        scope.spawn(|| to.inside(receive)).join().unwrap()
    })
}

fn assert_limited(what: &str, found: f64, rate: f64) {
    let megabits = |bits: f64| bits / 1e6;
    eprintln!("{what}: {:.1} Mbit/s of {:.1}", megabits(found), megabits(rate));
    assert!(
        (0.5 * rate..=1.15 * rate).contains(&found),
        "{what}: {:.1} Mbit/s instead of {:.1}",
        megabits(found),
        megabits(rate)
    );
}

/// Measures a container with limits beside one without.
async fn both_ways(host: &Host, list: &NetworkList) {
    // A burst of a tenth of a second, as netclaim asks for.
    let args = json!({"bandwidth": {
        "ingressRate": 20_000_000, "ingressBurst": 2_000_000, "egressRate": 40_000_000, "egressBurst": 4_000_000}});
    let limited = host.attach(list, &args).await;
    let (free, outside) = neighbour(host, list).await;
    for (inside, outside) in addresses(&limited).into_iter().zip(outside) {
        assert_limited(&format!("to {inside}"), measure(&free, &limited.netns, inside), 20e6);
        assert_limited(&format!("from {inside}"), measure(&limited.netns, &free, outside), 40e6);
    }
    host.check(list, &limited).await.unwrap();
}

fn qdiscs(netns: &Netns) -> Vec<Value> {
    let shown: Value = serde_json::from_str(&netns.inside(|| run("tc -j qdisc show"))).unwrap();
    shown.as_array().unwrap().iter().filter(|qdisc| qdisc["kind"] != "noqueue").cloned().collect()
}

/// The rates of all token buckets, in bytes per second.
fn rates(netns: &Netns) -> Vec<u64> {
    let mut rates: Vec<_> =
        qdiscs(netns).iter().filter_map(|qdisc| qdisc["options"]["rate"].as_u64()).collect();
    rates.sort_unstable();
    rates
}

/// The device for ingress of the container's one interface.
fn device(netns: &Netns) -> String {
    netns.inside(plugin_host::links).into_iter().find(|name| name.starts_with("bw")).unwrap()
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_macvlan_interface_is_limited_both_ways_over_ipv4_and_ipv6() {
    with_uplink(&[], async |host| both_ways(&host, &macvlan(&host)).await);
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_ipvlan_interface_is_limited_both_ways() {
    with_uplink(&[IPVLAN], async |host| {
        let list = network(&host, json!({"type": "ipvlan", "master": "eth1", "mode": "l2"}));
        both_ways(&host, &list).await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_whole_link_is_limited_both_ways_and_given_back_without_qdiscs() {
    with_uplink(&[], async |host| {
        // The other end of the cable.
        run("ip address add 10.9.1.1/24 dev sw1");
        let here = Netns::here();
        let ipam = json!({"type": "static", "addresses": [{"address": "10.9.1.2/24"}]});
        let nic = json!({"type": "host-device", "device": "eth1", "ipam": ipam});
        let list = host.list(
            "nic",
            json!([nic, {"type": "netclaim-bandwidth", "ingressRate": 20_000_000, "egressRate": 40_000_000}]),
        );
        let attached = host.attach(&list, &json!({})).await;
        let (inside, outside) = ("10.9.1.2".parse().unwrap(), "10.9.1.1".parse().unwrap());
        assert_limited("to the link", measure(&here, &attached.netns, inside), 20e6);
        assert_limited("from the link", measure(&attached.netns, &here, outside), 40e6);
        host.del(&list, &attached).await.unwrap();
        let left = run("tc qdisc show dev eth1");
        assert!(!left.contains("tbf") && !left.contains("ingress"), "{left}");
        assert_eq!(qdiscs(&attached.netns), [] as [Value; 0]);
        host.nothing_is_left(&list, &attached);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn limits_come_and_go_with_the_attachment_and_the_result_is_passed_on() {
    with_uplink(&[], async |host| {
        let list = macvlan(&host);
        let args = json!({"bandwidth": {"ingressRate": 8_000_000, "egressRate": 100_000_000_000_u64}});
        host.live(&list, &args, |attached| {
            assert_eq!(rates(&attached.netns), [1_000_000, 12_500_000_000]);
            let filters = attached.netns.inside(|| run("tc filter show dev net1 ingress"));
            assert!(
                filters.contains("protocol all") && filters.contains("mirred (Egress Redirect"),
                "{filters}"
            );
            let names: Vec<_> = attached.result.interfaces().iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, ["net1"]);
            // Nothing of its own is sent by the device: it has no address.
            let device =
                attached.netns.show(&format!("ip -d -j address show dev {}", device(&attached.netns)));
            assert_eq!(device["ifalias"], "ingress of net1");
            assert_eq!(device["addr_info"], json!([]));
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_container_without_rates_is_not_limited() {
    with_uplink(&[], async |host| {
        let list = macvlan(&host);
        host.live(&list, &json!({}), |attached| assert_eq!(qdiscs(&attached.netns), [] as [Value; 0])).await;
        let args = json!({"bandwidth": {"egressRate": 8_000_000}});
        let one_way = host.attach(&list, &args).await;
        assert_eq!(rates(&one_way.netns), [1_000_000]);
        assert_eq!(one_way.netns.inside(plugin_host::links).len(), 2, "no device for ingress: lo and net1");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn two_interfaces_of_a_container_have_limits_of_their_own() {
    with_uplink(&[], async |host| {
        let list = macvlan(&host);
        let args = json!({"bandwidth": {"ingressRate": 8_000_000, "egressRate": 8_000_000}});
        let first = host.attach(&list, &args).await;
        let second = Attachment { if_name: "a-long-name-123".parse().unwrap(), ..first.attachment.clone() };
        let result = host.runtime.add(&list, &second, LONG).await.unwrap();
        assert_eq!(rates(&first.netns), [1_000_000; 4]);
        host.runtime.del(&list, &second, Some(&result), LONG).await.unwrap();
        host.check(&list, &first).await.unwrap();
        host.del(&list, &first).await.unwrap();
        host.nothing_is_left(&list, &first);
    });
}

/// Runs the plugin itself on an attachment, as after a crash of the runtime.
fn plugin(command: &str, attached: &Attached, bandwidth: Value) -> bool {
    let config = json!({"cniVersion": "1.1.0", "name": "limited", "type": "netclaim-bandwidth",
        "runtimeConfig": {"bandwidth": bandwidth}, "prevResult": {"cniVersion": "1.1.0"}});
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_netclaim-bandwidth"))
        .envs([("CNI_COMMAND", command), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "net1")])
        .env("CNI_NETNS", attached.netns.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    child.wait().unwrap().success()
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn the_next_add_repairs_an_incomplete_one() {
    with_uplink(&[], async |host| {
        let list = macvlan(&host);
        let attached = host.attach(&list, &json!({})).await;
        let (old, new) = (
            json!({"ingressRate": 8_000_000, "egressRate": 8_000_000}),
            json!({"ingressRate": 16_000_000, "egressRate": 24_000_000}),
        );
        let cut_short = [
            "true".to_owned(),
            "tc qdisc del dev net1 root".to_owned(),
            "tc filter del dev net1 ingress".to_owned(),
            "tc qdisc del dev net1 ingress".to_owned(),
            "ip link set DEVICE down".to_owned(),
            "tc qdisc del dev DEVICE root".to_owned(),
        ];
        for change in cut_short {
            assert!(plugin("ADD", &attached, old.clone()));
            let command = change.replace("DEVICE", &device(&attached.netns));
            attached.netns.inside(|| run(&command));
            assert_eq!(plugin("CHECK", &attached, old.clone()), change == "true", "{change}");
            assert!(!plugin("CHECK", &attached, new.clone()), "{change}");
            assert!(plugin("ADD", &attached, new.clone()), "{change}");
            assert!(plugin("CHECK", &attached, new.clone()), "{change}");
            assert_eq!(rates(&attached.netns), [2_000_000, 3_000_000], "{change}");
        }
        let command = format!("ip link del {}", device(&attached.netns));
        attached.netns.inside(|| run(&command));
        assert!(!plugin("CHECK", &attached, new.clone()));
        assert!(plugin("DEL", &attached, new) && rates(&attached.netns).is_empty());
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_share_changes_under_traffic_and_what_the_plugin_made_comes_back() {
    with_uplink(&[], async |host| {
        let list = macvlan(&host);
        let both = |rate| Limits { ingress: Some(Limit::of_rate(rate)), egress: Some(Limit::of_rate(rate)) };
        let set = |of: &Attached, set: fn(&str, &Limits) -> Result<(), Failure>, limits: Limits| {
            of.netns.inside(|| set("net1", &limits).unwrap());
        };
        let own = json!({"bandwidth": {"egressRate": 80_000_000}});
        let only_egress = Limits { egress: Some(Limit::of_rate(80_000_000)), ..Limits::default() };
        for (args, made) in [(json!({}), Limits::default()), (own, only_egress)] {
            let attached = host.attach(&list, &args).await;
            let before = rates(&attached.netns);
            for rate in [40_000_000, 16_000_000, 24_000_000] {
                set(&attached, share, both(rate));
                assert_eq!(rates(&attached.netns), [rate / 8; 2]);
                host.check(&list, &attached).await.unwrap();
            }
            let (free, outside) = neighbour(&host, &list).await;
            thread::scope(|scope| {
                let found = scope.spawn(|| measure(&attached.netns, &free, outside[0]));
                thread::sleep(Duration::from_secs(1));
                set(&attached, share, both(12_000_000));
                // A second of each.
                assert_limited("egress", found.join().unwrap(), 18e6);
            });
            attached.netns.inside(|| run("tc qdisc del dev net1 root"));
            set(&attached, share, both(8_000_000));
            assert_eq!(rates(&attached.netns), [1_000_000; 2], "it is whole again");
            set(&attached, restore, made);
            assert_eq!(rates(&attached.netns), before);
            host.check(&list, &attached).await.unwrap();
            set(&attached, share, both(8_000_000));
            host.del(&list, &attached).await.unwrap();
            host.runtime.del(&list, &attachment("neighbour", &free), None, LONG).await.unwrap();
            attached.netns.inside(|| assert!(share("gone", &both(8)).is_ok()));
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn qdiscs_of_other_programs_survive_a_del() {
    with_uplink(&[], async |host| {
        let attached = host.attach(&macvlan(&host), &json!({})).await;
        for command in [
            "tc qdisc add dev net1 root tbf rate 1mbit burst 10k latency 9ms",
            "tc qdisc add dev net1 ingress",
        ] {
            attached.netns.inside(|| run(command));
        }
        let before = qdiscs(&attached.netns);
        assert!(plugin("DEL", &attached, json!({})));
        assert_eq!(qdiscs(&attached.netns), before);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_burst_smaller_than_an_offloaded_packet_lets_traffic_pass() {
    with_uplink(&[], async |host| {
        let list = macvlan(&host);
        let args = json!({"bandwidth": {"ingressRate": 20_000_000, "ingressBurst": 1, "egressRate": 20_000_000, "egressBurst": 24_000}});
        let limited = host.attach(&list, &args).await;
        let (free, outside) = neighbour(&host, &list).await;
        let inside = addresses(&limited)[0];
        for (what, found) in [
            ("ingress", measure(&free, &limited.netns, inside)),
            ("egress", measure(&limited.netns, &free, outside[0])),
        ] {
            eprintln!("{what}: {:.1} Mbit/s", found / 1e6);
            assert!((1e6..=23e6).contains(&found), "{what}: {found} bit/s");
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_rate_beyond_32_bits_does_not_wrap_around() {
    with_uplink(&[], async |host| {
        let list = macvlan(&host);
        let args =
            json!({"bandwidth": {"ingressRate": 100_000_000_000_u64, "egressRate": 100_000_000_000_u64}});
        let limited = host.attach(&list, &args).await;
        let (free, outside) = neighbour(&host, &list).await;
        let found = measure(&limited.netns, &free, outside[0]);
        assert!(found > 200e6, "{:.1} Mbit/s of 100 Gbit/s", found / 1e6);
        let found = measure(&free, &limited.netns, addresses(&limited)[0]);
        assert!(found > 200e6, "{:.1} Mbit/s of 100 Gbit/s", found / 1e6);
    });
}
