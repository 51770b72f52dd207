//! Links and namespaces of a real kernel. Each test has a network namespace of its own. Needs root and
//! iproute2.

#[cfg(test)]
mod links {
    use std::collections::{BTreeMap, BTreeSet};
    use std::future::Future;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use netclaim_driver::links::{Error, Link, LinkWatch, Links, Netns, OperState, Snapshot, classify};
    use nix::sched::{CloneFlags, unshare};
    use tokio::time::timeout;

    /// Runs `test` on a thread in a new network namespace, which its threads and commands inherit.
    fn in_fresh_netns<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
        thread::scope(|scope| {
            let body = || {
                unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
            };
            if let Err(panic) = scope.spawn(body).join() {
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// A namespace that another thread made and left.
    fn another_netns() -> Netns {
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
            Netns::open("/proc/thread-self/ns/net").unwrap()
        });
        made.join().unwrap()
    }

    /// Runs `ip` in the calling thread's namespace, with the arguments as one line.
    fn ip(line: &str) {
        let output = Command::new("ip").args(line.split_whitespace()).output().expect("iproute2");
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn links() -> Links {
        Links::new("/sys")
    }

    async fn snapshot() -> Snapshot {
        links().snapshot().await.unwrap()
    }

    fn find<'a>(snapshot: &'a Snapshot, name: &str) -> &'a Link {
        snapshot
            .links
            .iter()
            .find(|link| link.name == name)
            .unwrap_or_else(|| panic!("no {name} in {snapshot:?}"))
    }

    fn routed(snapshot: &Snapshot) -> Vec<&str> {
        let is_routed = |link: &&Link| snapshot.default_route_links.contains(&link.index);
        snapshot.links.iter().filter(is_routed).map(|link| link.name.as_str()).collect()
    }

    /// The names of the links that are uplinks by default.
    fn uplinks(snapshot: &Snapshot) -> Vec<&str> {
        let uplinks = classify(snapshot, &BTreeSet::new()).filter(|(_, reason)| reason.is_ok());
        uplinks.map(|(link, _)| link.name.as_str()).collect()
    }

    /// A watch that has read everything.
    async fn watch() -> LinkWatch {
        let mut watch = links().watch();
        watch.snapshot().await.unwrap();
        watch
    }

    /// Whether a reader of all links sees a change.
    async fn changes_within(watch: &mut LinkWatch, time: Duration) -> bool {
        timeout(time, watch.changed(|_, _| true)).await.map(Result::unwrap).is_ok()
    }

    /// Whether a reader sees one who reads only the links that all read.
    async fn is_seen_within(watch: &mut LinkWatch, time: Duration) -> bool {
        timeout(time, watch.changed(|_, _| false)).await.map(Result::unwrap).is_ok()
    }

    const LONG: Duration = Duration::from_secs(5);
    /// Longer than the time within which changes become one.
    const QUIET: Duration = Duration::from_millis(200);

    #[test]
    #[ignore = "needs root"]
    fn a_snapshot_shows_the_links_that_ip_made() {
        in_fresh_netns(async || {
            ip("link set lo up");
            ip("link add eth1 address 02:00:00:00:00:0a mtu 1400 type veth peer name sw1");
            ip("link add br0 type bridge");
            ip("link set sw1 master br0");
            ip("link set eth1 up");
            ip("link add mac0 link eth1 type macvlan mode bridge");
            ip("link property add dev eth1 altname a-rather-long-name-for-a-card altname card1");

            let snapshot = snapshot().await;
            let lo = find(&snapshot, "lo");
            assert!(lo.loopback && lo.admin_up && lo.mac.is_none() && lo.kind.is_none());
            assert_eq!(lo.index, 1);

            let (eth1, sw1, br0) = (find(&snapshot, "eth1"), find(&snapshot, "sw1"), find(&snapshot, "br0"));
            assert_eq!(eth1.kind.as_deref(), Some("veth"));
            assert_eq!(eth1.mac.as_deref(), Some("02:00:00:00:00:0a"));
            assert_eq!(eth1.mtu, 1400);
            assert_eq!((eth1.parent, sw1.parent), (None, None));
            assert_eq!((eth1.master, sw1.master), (None, Some(br0.index)));
            assert!(!eth1.loopback);
            assert!(
                eth1.is_named("card1")
                    && eth1.is_named("a-rather-long-name-for-a-card")
                    && eth1.is_named("eth1")
            );
            assert!(!eth1.is_named("sw1"));
            assert_eq!(br0.kind.as_deref(), Some("bridge"));
            let mac0 = find(&snapshot, "mac0");
            assert_eq!((mac0.kind.as_deref(), mac0.parent), (Some("macvlan"), Some(eth1.index)));
            assert!(snapshot.links.is_sorted_by_key(|link| link.index));
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_link_is_up_when_both_ends_are() {
        in_fresh_netns(async || {
            ip("link add eth1 type veth peer name sw1");
            assert!(!find(&snapshot().await, "eth1").admin_up);
            let mut watch = watch().await;
            ip("link set eth1 up");
            let mut half = snapshot().await;
            // Older kernels find out a moment later.
            while find(&half, "eth1").oper == OperState::Unknown {
                assert!(changes_within(&mut watch, LONG).await, "{half:?}");
                half = snapshot().await;
            }
            let eth1 = find(&half, "eth1");
            assert_eq!((eth1.admin_up, eth1.carrier, eth1.oper), (true, false, OperState::LowerLayerDown));
            assert!(!eth1.is_up());
            ip("link set sw1 up");
            while !find(&snapshot().await, "eth1").is_up() {
                assert!(changes_within(&mut watch, LONG).await);
            }
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_peer_in_another_namespace_is_not_confused_with_a_link_of_this_one() {
        in_fresh_netns(async || {
            let pod = another_netns();
            ip("link add veth7 type veth peer name pod7");
            ip(&format!("link set pod7 netns {}", pod.path_for_plugins().display()));
            let snapshot = snapshot().await;
            let veth7 = find(&snapshot, "veth7");
            assert_eq!((veth7.parent, veth7.parent_elsewhere), (None, false));
            assert_eq!(uplinks(&snapshot), [""; 0]);
            assert!(pod.link_names().await.unwrap().contains("pod7"));
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_link_with_an_address_carries_the_nodes_traffic_unless_the_address_is_link_local() {
        in_fresh_netns(async || {
            for n in 1..5 {
                ip(&format!("link add eth{n} type veth peer name sw{n}"));
                ip(&format!("link set eth{n} up"));
                ip(&format!("link set sw{n} up"));
            }
            ip("address add 169.254.7.1/16 dev eth1");
            ip("address add 10.0.2.1/24 dev eth2");
            ip("-6 address add 2001:db8::1/64 dev eth3 nodad");
            assert_eq!(uplinks(&snapshot().await), ["eth1", "eth4"]);
            ip("route add 10.99.0.0/16 dev eth4");
            assert_eq!(uplinks(&snapshot().await), ["eth1"]);
            ip("route del 10.99.0.0/16 dev eth4");
            ip("address del 10.0.2.1/24 dev eth2");
            assert_eq!(uplinks(&snapshot().await), ["eth1", "eth2", "eth4"]);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn only_a_macvlan_in_another_namespace_adds_an_address_elsewhere() {
        in_fresh_netns(async || {
            for n in 1..3 {
                ip(&format!("link add eth{n} type veth peer name sw{n}"));
                ip(&format!("link set eth{n} up"));
            }
            ip("link add here link eth1 type macvlan mode bridge");
            ip("link set here up");
            let links = Links::new("/sys");
            assert_eq!(links.addresses_elsewhere().await.unwrap(), BTreeMap::new());
            let mut elsewhere = Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
            let pid = elsewhere.id();
            let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
            while namespace(&pid.to_string()) == namespace("thread-self") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ip("link add m2 link eth2 address 02:00:00:00:00:0a type macvlan mode bridge");
            ip(&format!("link set m2 netns {pid}"));
            let up = ["--target", &pid.to_string(), "--net", "ip", "link", "set", "m2", "up"];
            assert!(Command::new("nsenter").args(up).status().unwrap().success());
            let index = snapshot().await.links.iter().find(|link| link.name == "eth2").unwrap().index;
            let expected = BTreeMap::from([(index, BTreeSet::from(["02:00:00:00:00:0a".to_owned()]))]);
            assert_eq!(links.addresses_elsewhere().await.unwrap(), expected);
            elsewhere.kill().unwrap();
            elsewhere.wait().unwrap();
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn default_routes_of_both_families_every_table_and_every_path_are_found() {
        in_fresh_netns(async || {
            for n in 0..6 {
                ip(&format!("link add eth{n} type veth peer name sw{n}"));
                ip(&format!("link set eth{n} up"));
                ip(&format!("link set sw{n} up"));
                ip(&format!("address add 10.0.{n}.1/24 dev eth{n}"));
            }
            assert!(snapshot().await.default_route_links.is_empty(), "routes to a subnet do not count");
            assert!(snapshot().await.routes.is_empty(), "nor as other ones");
            ip("route add 10.99.0.0/16 via 10.0.5.2");
            ip("-6 route add 2001:db8:7::/48 dev eth4");
            ip("route add blackhole default table 77");
            let others = snapshot().await;
            assert!(others.default_route_links.is_empty());
            let (four, five) = (find(&others, "eth4").index, find(&others, "eth5").index);
            let routes: Vec<_> = others.routes.iter().map(|(link, to)| (*link, to.to_string())).collect();
            assert_eq!(routes, [(four, "2001:db8:7::/48".to_owned()), (five, "10.99.0.0/16".to_owned())]);

            ip("route add default via 10.0.0.2");
            assert_eq!(routed(&snapshot().await), ["eth0"]);
            ip("route add default via 10.0.1.2 table 1234");
            ip("-6 route add default dev eth2 metric 5");
            ip("route add default metric 50 nexthop via 10.0.3.2 nexthop via 10.0.4.2");
            let all = snapshot().await;
            assert_eq!(routed(&all), ["eth0", "eth1", "eth2", "eth3", "eth4"]);
            assert_eq!(uplinks(&all), [""; 0], "all have addresses");
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_default_route_over_a_nexthop_object_is_found_or_refused() {
        in_fresh_netns(async || {
            ip("link add eth0 type veth peer name sw0");
            ip("link set eth0 up");
            ip("link set sw0 up");
            ip("address add 10.0.0.1/24 dev eth0");
            ip("nexthop add id 7 via 10.0.0.2 dev eth0");
            ip("route add default nhid 7");
            assert_eq!(routed(&snapshot().await), ["eth0"]);
            // /proc/sys/net is that of the thread that opens it.
            std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").unwrap();
            assert!(matches!(links().snapshot().await, Err(Error::HiddenNexthop)));
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn the_kernel_supports_veth_but_not_nonsense_and_asking_makes_no_link() {
        in_fresh_netns(async || {
            let before = snapshot().await;
            for kind in ["veth", "bridge", "macvlan", "ifb", "vxlan"] {
                assert!(links().kernel_has(kind).await.unwrap(), "{kind}");
            }
            for kind in ["bond", "dummy", "ipvlan", "vlan", "vrf"] {
                links().kernel_has(kind).await.expect(kind);
            }
            for kind in
                ["nonsense", "", "a-kind-whose-name-is-longer-than-the-kernel-takes-for-a-name-of-a-kind"]
            {
                assert!(!links().kernel_has(kind).await.is_ok_and(|has| has), "{kind}");
            }
            assert_eq!(snapshot().await, before);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_change_is_reported_once() {
        in_fresh_netns(async || {
            let mut watch = watch().await;
            ip("link add eth1 type veth peer name sw1");
            ip("link set eth1 up");
            ip("link set sw1 up");
            ip("address add 10.0.0.1/24 dev eth1");
            // The carrier, IPv6 address detection and bridge timers may still talk for a while.
            while changes_within(&mut watch, Duration::from_secs(3)).await {}

            ip("link set eth1 mtu 1400");
            assert!(changes_within(&mut watch, LONG).await);
            assert!(!changes_within(&mut watch, QUIET).await);
            ip("route add default via 10.0.0.2");
            assert!(changes_within(&mut watch, LONG).await);
            ip("route add 10.99.0.0/16 via 10.0.0.2");
            assert!(changes_within(&mut watch, LONG).await, "the link is the node's then");
            ip("route add 10.98.0.0/16 dev eth1 proto kernel");
            assert!(!changes_within(&mut watch, QUIET).await, "the kernel's own routes come with addresses");
            ip("route del default");
            assert!(changes_within(&mut watch, LONG).await);
            ip("link del eth1");
            assert!(changes_within(&mut watch, LONG).await);
        });
    }

    /// Waits until the watch shows what the kernel lists.
    async fn converge(watch: &mut LinkWatch) {
        let until = Instant::now() + LONG;
        loop {
            changes_within(watch, QUIET).await;
            let (kept, fresh) = (watch.snapshot().await.unwrap().clone(), snapshot().await);
            if kept == fresh {
                return;
            }
            assert!(Instant::now() < until, "the watch shows\n{kept:#?}\nand the kernel\n{fresh:#?}");
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn links_of_pods_come_and_go_unseen_and_every_change_of_an_uplink_is_seen_once() {
        in_fresh_netns(async || {
            let pod = another_netns();
            ip("link add eth1 type veth peer name sw1");
            ip("link set eth1 up");
            ip("link set sw1 up");
            let mut watch = watch().await;
            while is_seen_within(&mut watch, Duration::from_secs(3)).await {}
            let to_pod =
                |link: &str| ip(&format!("link set {link} netns {}", pod.path_for_plugins().display()));

            ip("link add veth7 type veth peer name pod7");
            to_pod("pod7");
            ip("link add cni0 type bridge");
            ip("address add 10.88.0.1/16 dev cni0");
            ip("link set cni0 up");
            ip("link set veth7 master cni0");
            ip("link set veth7 up");
            ip("route add 10.1.0.7/32 dev veth7");
            ip("link add mac7 link cni0 type macvlan mode bridge");
            to_pod("mac7");
            assert!(!is_seen_within(&mut watch, LONG).await);
            converge(&mut watch).await;
            ip("link del veth7");
            ip("link del cni0");
            assert!(!is_seen_within(&mut watch, LONG).await);
            converge(&mut watch).await;

            for change in [
                "link set eth1 mtu 1400",
                "link set eth1 address 02:00:00:00:00:0b",
                "link set sw1 down",
                "link set sw1 up",
                "address add 10.0.0.1/24 dev eth1",
                "route add default via 10.0.0.2",
                "link add mac1 link eth1 type macvlan mode bridge",
                "link del mac1",
                "link property add dev eth1 altname card",
            ] {
                ip(change);
                assert!(is_seen_within(&mut watch, LONG).await, "{change}");
                watch.snapshot().await.unwrap();
                // Carriers and IPv6 addresses follow.
                if !change.starts_with("link set") {
                    assert!(!is_seen_within(&mut watch, QUIET).await, "{change} again");
                }
                converge(&mut watch).await;
            }
            assert_eq!(watch.dumps(), 1);
            // Silently for the node's routes.
            ip("link set eth1 down");
            assert!(is_seen_within(&mut watch, LONG).await);
            converge(&mut watch).await;
            assert!(routed(watch.snapshot().await.unwrap()).is_empty());
            assert_eq!(watch.dumps(), 1);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn the_next_caller_gets_a_change_that_a_cancelled_one_did_not() {
        in_fresh_netns(async || {
            let mut watch = watch().await;
            ip("link add eth1 type veth peer name sw1");
            assert!(!changes_within(&mut watch, Duration::from_millis(5)).await, "too early");
            assert!(changes_within(&mut watch, LONG).await);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn an_overrun_has_everything_read_again_and_the_watch_goes_on() {
        in_fresh_netns(async || {
            ip("link add eth1 type veth peer name sw1");
            let mut watch = watch().await;
            let batch: String =
                (0..2000).map(|n| format!("link set eth1 mtu {}\n", 1300 + n % 100)).collect();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), batch).unwrap();
            ip(&format!("-batch {}", file.path().display()));
            assert!(changes_within(&mut watch, LONG).await);
            assert!(!changes_within(&mut watch, QUIET).await, "all of it is one change");
            ip("link set eth1 mtu 1200");
            assert!(changes_within(&mut watch, LONG).await);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_list_taken_while_links_come_and_go_misses_no_other_link() {
        in_fresh_netns(async || {
            const STABLE: usize = 100;
            let batch = |lines: Vec<String>| {
                let file = tempfile::NamedTempFile::new().unwrap();
                std::fs::write(file.path(), lines.concat()).unwrap();
                file
            };
            // The churned links have indices all over the list: made between the stable ones.
            let make = batch(
                (0..STABLE)
                    .map(|n| format!("link add s{n} type bridge\nlink add c{n} type bridge\n"))
                    .collect(),
            );
            ip(&format!("-batch {}", make.path().display()));
            let churn =
                batch((0..STABLE).map(|n| format!("link del c{n}\nlink add c{n} type bridge\n")).collect());
            let stop = Arc::new(AtomicBool::new(false));
            let churning = thread::spawn({
                let stop = Arc::clone(&stop);
                move || {
                    while !stop.load(Ordering::Relaxed) {
                        ip(&format!("-batch {}", churn.path().display()));
                    }
                }
            });
            let missing_of = |snapshot: &Snapshot| {
                STABLE - snapshot.links.iter().filter(|link| link.name.starts_with('s')).count()
            };
            let (mut whole, mut interrupted, mut missing) = (0, 0, 0);
            let until = Instant::now() + Duration::from_secs(3);
            while Instant::now() < until {
                match links().snapshot().await {
                    Ok(snapshot) => {
                        whole += 1;
                        missing += missing_of(&snapshot);
                    }
                    Err(Error::Interrupted { .. }) => interrupted += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            stop.store(true, Ordering::Relaxed);
            churning.join().unwrap();
            assert_eq!(missing, 0, "in {whole} whole lists; {interrupted} given up");
            // On a slow machine each of the others may have been given up.
            assert_eq!(missing_of(&links().snapshot().await.unwrap()), 0, "once it is quiet");
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_pinned_namespace_outlives_its_path_and_does_not_keep_it_busy() {
        in_fresh_netns(async || {
            let pod = another_netns();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("cni-1");
            std::fs::write(&path, "").unwrap();
            assert!(matches!(Netns::open(&path), Err(Error::NotANetns { .. })));

            let mount =
                Command::new("mount").arg("--bind").arg(pod.path_for_plugins()).arg(&path).status().unwrap();
            assert!(mount.success());
            let again = Netns::open(&path).unwrap();
            assert_eq!(again.id(), pod.id());
            assert_ne!(again.id(), another_netns().id());
            // Not `umount -l`: a pin must not make the mount busy.
            assert!(Command::new("umount").arg(&path).status().unwrap().success());

            assert!(matches!(Netns::open(&path), Err(Error::NotANetns { .. })));
            assert_eq!(Netns::open(again.path_for_plugins()).unwrap().id(), pod.id());
            assert_eq!(again.link_names().await.unwrap(), BTreeSet::from(["lo".to_owned()]));
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn the_process_recognizes_its_own_namespace() {
        assert!(Netns::open("/proc/self/ns/net").unwrap().is_own().unwrap());
        assert!(!another_netns().is_own().unwrap());
    }

    #[test]
    #[ignore = "needs root"]
    fn work_in_a_namespace_leaves_no_thread_in_it() {
        in_fresh_netns(async || {
            let here = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
            let before = here();
            let pod = another_netns();
            let inside: PathBuf = pod.run(here).await.unwrap();
            assert_eq!(inside, PathBuf::from(format!("net:[{}]", pod.id().ino)));
            assert_eq!(here(), before);
            assert!(matches!(pod.run(|| panic!("on purpose")).await, Err(Error::NetnsPanic { .. })));
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn alternative_names_count_as_taken() {
        in_fresh_netns(async || {
            let here = Netns::open("/proc/thread-self/ns/net").unwrap();
            ip("link add eth1 type veth peer name sw1");
            ip("link property add dev eth1 altname data0");
            let names = here.link_names().await.unwrap();
            assert_eq!(names, ["data0", "eth1", "lo", "sw1"].map(str::to_owned).into());
        });
    }

    #[test]
    #[ignore = "needs root and iproute2"]
    fn counters_are_of_the_link_of_the_name() {
        in_fresh_netns(async || {
            ip("link add one type veth peer name other");
            ip("link set one up");
            ip("link set other up");
            ip("address add 10.9.0.1/24 dev one");
            ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 nud permanent dev one");
            let names = || ["one", "other", "none"].map(str::to_owned).to_vec();
            let netns = Netns::of_thread().unwrap();
            let before = netns.counters(names()).await.unwrap();
            let socket = std::net::UdpSocket::bind("10.9.0.1:0").unwrap();
            for _ in 0..10 {
                socket.send_to(&[0; 958], "10.9.0.2:9").unwrap();
            }
            let after = netns.counters(names()).await.unwrap();
            let passed = |n: usize| (before[n].unwrap(), after[n].unwrap());
            let (one, other) = (passed(0), passed(1));
            // Others may send at the same time: router solicitations, for example.
            assert!(one.1.sent.bytes - one.0.sent.bytes >= 10_000, "{one:?}");
            assert!(other.1.received.packets - other.0.received.packets >= 10, "{other:?}");
            assert_eq!(after[2], None);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_file_that_is_not_a_network_namespace_cannot_be_pinned() {
        assert!(matches!(Netns::open("/proc/self/ns/mnt"), Err(Error::NotANetns { .. })));
        assert!(matches!(Netns::open("/dev/null"), Err(Error::NotANetns { .. })));
        assert!(matches!(Netns::open("/nowhere"), Err(Error::NetnsOpen { .. })));
    }
}
