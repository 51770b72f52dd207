//! Host links that the real `host-device` moves into a pod, in network namespaces of the tests' own.
//!
//! Needs root, and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use netclaim_cni::{Cache, CniResult, Runtime};
use netclaim_driver::attach::retry::Attempt;
use netclaim_driver::attach::{AddFailure, Attach as _, CniPlugins, Del, DelOutcome, Failure, Sandbox, Spec};
use netclaim_driver::links::{HostLink, Links};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use plugin_host::{Host, LONG, Netns, VLAN, links, on_a_host, run, show, state};

/// How `up0` is made, by kind of link. `sw0` is the other end of a veth, or a link beside it.
const KINDS: [&str; 4] = [
    "ip link add up0 type veth peer name sw0",
    "ip link add up0 link sw0 type macvlan mode bridge",
    "ip link add up0 type vxlan id 5 dstport 4789 local 127.0.0.1",
    "ip tuntap add up0 mode tap",
];

/// Shows the test the sysfs of its own host, as an agent sees it. Other threads keep theirs.
fn mount_own_sysfs() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    run("mount --make-rprivate /");
    run("mount -t sysfs sysfs /sys");
}

/// The file of a sysctl of `up0`, such as `ipv6/accept_ra`.
fn sysctl(name: &str) -> String {
    let (family, name) = name.split_once('/').unwrap();
    format!("/proc/sys/net/{family}/conf/up0/{name}")
}

/// Sets sysctls of `up0`.
fn set_sysctls(values: &[(&str, &str)]) {
    values.iter().for_each(|(name, value)| fs::write(sysctl(name), value).unwrap());
}

/// The sysctls of `up0`, without the one that cannot be read.
fn sysctls() -> BTreeMap<String, String> {
    let files = ["ipv4", "ipv6"].into_iter().flat_map(|family| {
        let files = fs::read_dir(format!("/proc/sys/net/{family}/conf/up0")).unwrap();
        files.map(move |file| format!("{family}/{}", file.unwrap().file_name().to_str().unwrap()))
    });
    let read = |name: String| Some((name.clone(), fs::read_to_string(sysctl(&name)).ok()?.trim().to_owned()));
    files.filter_map(read).collect()
}

/// Makes `up0`, the host's end of a veth, with everything that a link can lose.
fn make_up0() {
    run("ip link add up0 address 02:00:00:00:00:0a mtu 1450 type veth peer name sw0");
    run("ip link set sw0 up");
    run("ip link set up0 alias storage-card up");
    run("ip link property add dev up0 altname card0");
    run("ip address add 10.8.0.1/24 brd 10.8.0.255 metric 50 dev up0");
    run("ip address add 10.8.0.2/24 dev up0");
    run("ip address add 10.8.1.1 peer 10.8.1.2/32 scope link dev up0");
    run("ip address add 10.8.2.1/24 dev up0 noprefixroute");
    run("ip address add fd08::1/64 nodad dev up0");
}

/// The routes that the kernel makes for the addresses of `up0`.
fn routes() -> Vec<String> {
    let shown = ["ip -4 route show dev up0", "ip -6 route show dev up0"].map(run).concat();
    shown.lines().map(|line| line.trim().replace(" linkdown", "")).collect()
}

/// A pod that gets `up0` as `net1`, and an address from a range of one.
struct Pod {
    host: Host,
    plugins: CniPlugins,
    spec: Spec,
    /// `None` after the namespace has ended.
    netns: Option<Netns>,
    /// The journal's record of the link.
    noted: Option<HostLink>,
    /// The link as it was before the ADD.
    before: Value,
}

/// Runs a test on a host with a pod that has `up0`.
fn with_up0_in_a_pod<F: Future>(test: impl FnOnce(Pod) -> F + Send + 'static) {
    on_a_host(&[], async |host| {
        make_up0();
        test(Pod::new(host).with_link().await).await;
    });
}

impl Pod {
    fn new(host: Host) -> Self {
        mount_own_sysfs();
        let ipam =
            host.ipam(json!([[{"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.2", "rangeEnd": "10.9.0.2"}]]));
        let plugin = json!({"type": "host-device", "device": "up0", "ipam": ipam});
        let spec = Spec {
            tenant: "default".to_owned(),
            if_name: "net1".parse().unwrap(),
            conflist: host.list("h", json!([plugin])),
            args: Default::default(),
            capability_args: Default::default(),
            wire: Default::default(),
        };
        let bin = std::env::var_os("NETCLAIM_CNI_BIN").unwrap();
        let runtime = Runtime::new(vec![bin.into()]).unwrap();
        let cache = Cache::new(host.data.path().join("cache"));
        let plugins = CniPlugins::new(runtime, cache, Links::new("/sys"), LONG);
        Self { host, plugins, spec, netns: Some(Netns::new()), noted: None, before: Value::Null }
    }

    fn netns(&self) -> &Netns {
        self.netns.as_ref().unwrap()
    }

    fn sandbox(&self) -> Sandbox {
        let value =
            json!({"id": "s1", "netns": self.netns().path(), "netnsId": {"dev": 4, "ino": 1}, "bootId": "b"});
        serde_json::from_value(value).unwrap()
    }

    async fn add(&self) -> Result<CniResult, AddFailure> {
        self.plugins.add(&self.spec, &self.sandbox()).await
    }

    async fn del(&self, failures: u32) -> Result<DelOutcome, Failure> {
        let netns = self.netns.as_ref().map(Netns::path);
        let (netns, moved_link, attempt) = (netns.as_deref(), self.noted.as_ref(), Attempt(failures));
        self.plugins
            .del(&self.spec, Del { sandbox_id: "s1", netns, moved_link, attempt, ..Del::default() })
            .await
    }

    /// Notes the link in the journal, and runs ADD.
    async fn with_link(mut self) -> Self {
        let noted = self.plugins.link_to_move(&self.spec).await.unwrap().expect("up0 is noted");
        self.before = state("up0");
        self.add().await.unwrap();
        let index_in_pod = self.plugins.index_in_pod(&self.spec, &self.sandbox()).await;
        assert!(index_in_pod.is_some());
        let journal = serde_json::to_string(&HostLink { index_in_pod, ..noted }).unwrap();
        self.noted = serde_json::from_str(&journal).unwrap();
        self
    }

    /// Runs commands in the pod's network namespace, as a pod with `NET_ADMIN` can.
    fn in_pod(&self, commands: &[&str]) {
        self.netns().inside(|| commands.iter().for_each(|command| drop(run(command))));
    }

    /// Changes all that a pod with `NET_ADMIN` can change of its link.
    fn spoil(&self) {
        self.in_pod(&["ip link set net1 down", "ip link set net1 address 02:ff:ff:ff:ff:ff mtu 1280 up"]);
        self.in_pod(&["ip link set net1 promisc on allmulticast on"]);
    }

    /// Ends the pod's network namespace. Moves the link to the host before, as the kernel does with hardware.
    fn lose_netns_of_hardware(&mut self) {
        let here = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        self.in_pod(&[&format!("ip link set net1 netns {here}")]);
        self.netns = None;
    }

    fn is_restored(&self, del: Result<DelOutcome, Failure>) {
        assert_eq!(del, Ok(DelOutcome::Clean));
        assert_eq!(state("up0"), self.before);
        assert_eq!(self.host.reserved("h"), [""; 0]);
    }

    /// Expects that DEL gives the link up, and frees the address.
    async fn is_given_up(&self) {
        let undone = self.del(0).await.unwrap();
        assert!(
            matches!(&undone, DelOutcome::GivenUp(why) if why.contains("link up0 is gone")),
            "{undone:?}"
        );
        assert_eq!(self.host.reserved("h"), [""; 0]);
    }
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_comes_back_with_all_that_it_had_and_the_pod_changed() {
    on_a_host(&[], async |host| {
        make_up0();
        let routed = routes();
        let pod = Pod::new(host).with_link().await;
        assert!(!links().contains("up0") && pod.netns().has_link("net1"));
        pod.spoil();
        pod.is_restored(pod.del(0).await);
        assert_eq!(routes(), routed);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_that_was_down_comes_back_down() {
    on_a_host(&[], async |host| {
        make_up0();
        run("ip link set up0 down");
        let pod = Pod::new(host).with_link().await;
        pod.spoil();
        pod.is_restored(pod.del(0).await);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn the_next_agent_restores_a_link_that_a_killed_agent_has_not() {
    with_up0_in_a_pod(async |mut pod| {
        pod.spoil();
        // The killed agent only ran the plugin's DEL.
        let noted = pod.noted.take();
        assert_eq!(pod.del(0).await, Ok(DelOutcome::Clean));
        assert_ne!(state("up0"), pod.before);
        pod.noted = noted;
        pod.is_restored(pod.del(0).await);
        // Again, with nothing to do.
        pod.is_restored(pod.del(0).await);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_that_came_back_under_the_pods_name_gets_its_own() {
    with_up0_in_a_pod(async |mut pod| {
        pod.spoil();
        pod.lose_netns_of_hardware();
        assert!(links().contains("net1"));
        pod.is_restored(pod.del(0).await);
        assert!(!links().contains("net1"));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_virtual_link_that_ended_with_its_namespace_does_not_block_the_release() {
    with_up0_in_a_pod(async |mut pod| {
        pod.netns = None;
        // The kernel takes some time to end a namespace, and the other end of the veth with it.
        let end = Instant::now() + LONG;
        while links().contains("sw0") && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        // A new link of the same name.
        run("ip link add up0 mtu 1300 type veth peer name sw0");
        let other = state("up0");
        pod.is_given_up().await;
        assert_eq!(state("up0"), other);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_release_waits_for_hardware_that_is_not_back_yet() {
    on_a_host(&[], async |host| {
        let noted =
            json!({"index": 3, "name": "up0", "permanentMac": "02:00:00:00:00:0a", "mtu": 1500, "up": true});
        let noted = serde_json::from_value(noted).unwrap();
        let pod = Pod { netns: None, noted, ..Pod::new(host) };
        let error = pod.del(0).await.unwrap_err().message;
        assert!(error.contains("link up0 that the pod had is not back on the node"), "{error}");
        assert_eq!(pod.del(100).await, Ok(DelOutcome::Stray(error)));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_add_that_failed_before_it_moved_the_link_can_be_undone_and_retried() {
    on_a_host(&[], async |host| {
        let pod = Pod::new(host);
        assert_eq!(pod.plugins.link_to_move(&pod.spec).await, Ok(None), "there is no link yet");
        pod.add().await.unwrap_err();
        assert_eq!(pod.del(0).await, Ok(DelOutcome::Clean));
        make_up0();
        let mut pod = pod.with_link().await;
        // As if the agent had ended before the ADD reported the index.
        pod.noted = pod.noted.map(|noted| HostLink { index_in_pod: None, ..noted });
        pod.is_restored(pod.del(0).await);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_pod_cannot_keep_a_link_by_a_name_that_the_host_has() {
    with_up0_in_a_pod(async |pod| {
        run("ip link add eth1 type veth peer name sw1");
        pod.in_pod(&["ip link property add dev net1 altname eth1"]);
        pod.is_restored(pod.del(0).await);
        assert!(!pod.netns().has_link("net1"));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_pod_does_not_choose_the_name_of_its_link_on_the_host() {
    with_up0_in_a_pod(async |pod| {
        let before = links();
        pod.in_pod(&[
            "ip link set net1 down",
            "ip link property add dev net1 altname eth1",
            "ip link set net1 name x alias eth0 up",
        ]);
        pod.is_restored(pod.del(0).await);
        assert_eq!(&links() - &before, ["up0".to_owned()].into());
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_of_the_pods_own_is_not_confused_with_the_hosts() {
    with_up0_in_a_pod(async |pod| {
        let before = links();
        pod.in_pod(&[
            "ip link set net1 down",
            "ip link set net1 name x up",
            "ip link add net1 type veth peer name other",
            "ip link set net1 alias eth1 up",
        ]);
        pod.is_restored(pod.del(0).await);
        assert_eq!(&links() - &before, ["up0".to_owned()].into());
        assert!(pod.netns().has_link("other"), "the pod's own links stay in the pod");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_that_the_pod_made_in_place_of_a_removed_one_stays_in_the_pod() {
    with_up0_in_a_pod(async |pod| {
        pod.in_pod(&[
            "ip link del net1",
            "ip link add net1 index 77 type veth peer name other",
            "ip link set net1 alias up0",
        ]);
        let before = links();
        pod.is_given_up().await;
        assert_eq!(links(), before);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn names_that_a_pod_gave_a_link_do_not_outlive_its_namespace() {
    with_up0_in_a_pod(async |mut pod| {
        for name in ["eth7", "up0"] {
            pod.in_pod(&[&format!("ip link property add dev net1 altname {name}")]);
        }
        pod.lose_netns_of_hardware();
        pod.is_restored(pod.del(0).await);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_whose_name_is_taken_is_a_stray_until_the_name_is_free() {
    with_up0_in_a_pod(async |mut pod| {
        pod.lose_netns_of_hardware();
        run("ip link add up0 type veth peer name sw1");
        let error = pod.del(0).await.unwrap_err().message;
        assert!(error.contains("cannot rename it to up0"), "{error}");
        assert_eq!(pod.del(100).await, Ok(DelOutcome::Stray(error)));
        let noted = pod.noted.as_ref().unwrap();
        pod.plugins.give_back(&pod.spec, noted).await.unwrap_err();
        run("ip link del up0");
        pod.is_restored(pod.plugins.give_back(&pod.spec, noted).await);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_comes_back_with_its_own_sysctls_and_is_not_up_without_them() {
    on_a_host(&[], async |host| {
        make_up0();
        set_sysctls(&[("ipv6/accept_ra", "0"), ("ipv6/autoconf", "0"), ("ipv6/forwarding", "1")]);
        set_sysctls(&[("ipv4/forwarding", "1"), ("ipv4/rp_filter", "2"), ("ipv4/arp_ignore", "1")]);
        set_sysctls(&[("ipv4/arp_announce", "2"), ("ipv4/arp_notify", "1"), ("ipv4/arp_filter", "1")]);
        set_sysctls(&[("ipv4/arp_accept", "1"), ("ipv4/arp_evict_nocarrier", "0")]);
        let before = sysctls();
        let mut pod = Pod::new(host).with_link().await;
        pod.netns().inside(|| fs::write("/proc/sys/net/ipv6/conf/net1/accept_ra", "2").unwrap());
        let noted = pod.noted.take();
        // One that the kernel refuses.
        let mut spoiled = serde_json::to_value(&noted).unwrap();
        spoiled["sysctls"]["ipv6/accept_ra"] = json!("never");
        pod.noted = serde_json::from_value(spoiled).unwrap();
        let error = pod.del(0).await.unwrap_err().message;
        assert!(error.contains("link up0: cannot set its sysctl ipv6/accept_ra to never"), "{error}");
        assert_eq!(state("up0")["up"], json!(false));
        pod.noted = noted;
        pod.is_restored(pod.del(1).await);
        assert_eq!(sysctls(), before);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_without_ipv6_comes_back_without_it() {
    on_a_host(&[], async |host| {
        make_up0();
        set_sysctls(&[("ipv6/disable_ipv6", "1")]);
        let before = sysctls();
        let pod = Pod::new(host).with_link().await;
        pod.is_restored(pod.del(0).await);
        assert_eq!(sysctls(), before);
        assert_eq!(run("ip -6 -o address show dev up0"), "");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_sysctl_that_was_the_hosts_default_is_that_of_the_return() {
    with_up0_in_a_pod(async |pod| {
        fs::write("/proc/sys/net/ipv4/conf/default/rp_filter", "2").unwrap();
        pod.is_restored(pod.del(0).await);
        assert_eq!(sysctls()["ipv4/rp_filter"], "2");
    });
}

/// Runs a test on a host with a pod that has a link `up0` which was made by this command, beside `sw0`.
fn with_up0_made<F: Future>(make: &'static str, test: impl FnOnce(Pod) -> F + Send + 'static) {
    on_a_host(&[], async move |host| test(Pod::with(host, make).await).await);
}

impl Pod {
    /// A pod that has a link `up0` which was made by this command, beside `sw0`.
    async fn with(host: Host, make: &str) -> Self {
        if !make.ends_with("sw0") {
            run("ip link add sw0 type veth peer name sw9");
            // A VLAN cannot be up on a link that is down.
            run("ip link set sw0 up");
        }
        run(make);
        Self::new(host).with_link().await
    }

    /// Ends while another link has the name of its link. Expects that this comes back under a free name, and
    /// is a stray until its own is free.
    async fn ends_while_its_name_is_taken(mut self) {
        run("ip link add up0 mtu 1280 type veth peer name sw1");
        let (other, before) = (state("up0"), links());
        for failures in 0..5 {
            let error = self.del(failures).await.unwrap_err().message;
            assert!(error.contains("file exists"), "{error}");
        }
        // The next agent knows nothing of the failures.
        let error = self.del(0).await.unwrap_err().message;
        assert!(error.contains("cannot rename it to up0"), "{error}");
        // The agent lets go of the namespace, and the kernel takes it apart in its own time.
        self.netns = None;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let back = (&links() - &before).into_iter().next().expect("the link is on the host");
        let error = self.del(5).await.unwrap_err().message;
        assert!(error.contains(&format!("link {back}: cannot rename it to up0")), "{error}");
        assert_eq!(self.del(7).await, Ok(DelOutcome::Stray(error)));
        assert_eq!(state("up0"), other);
        let noted = self.noted.as_ref().unwrap();
        self.plugins.give_back(&self.spec, noted).await.unwrap_err();
        run("ip link del up0");
        self.is_restored(self.plugins.give_back(&self.spec, noted).await);
    }
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_virtual_link_whose_name_is_taken_is_a_stray_and_does_not_end_with_its_namespace() {
    KINDS.into_iter().for_each(|make| with_up0_made(make, Pod::ends_while_its_name_is_taken));
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_vlan_whose_name_is_taken_is_a_stray_and_does_not_end_with_its_namespace() {
    on_a_host(&[VLAN], async |host| {
        let pod = Pod::with(host, "ip link add up0 link sw0 type vlan id 5").await;
        pod.ends_while_its_name_is_taken().await;
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_virtual_link_whose_del_always_fails_does_not_end_with_its_namespace() {
    on_a_host(&[], async |host| {
        make_up0();
        run("ip link add card1 type veth peer name sw1");
        run("ip link property add dev up0 altname other0");
        let mut pod = Pod::new(host).with_link().await;
        // The name of the pod's link is not to be had, and neither is one of its alternative names on the
        // host.
        run("ip link property add dev card1 altname other0");
        for failures in 0..5 {
            pod.del(failures).await.unwrap_err();
        }
        pod.netns = None;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let error = pod.del(7).await;
        assert!(
            matches!(&error, Ok(DelOutcome::Stray(why)) if why.contains("add its alternative name other0")),
            "{error:?}"
        );
        run("ip link property del dev card1 altname other0");
        let noted = pod.noted.as_ref().unwrap();
        pod.is_restored(pod.plugins.give_back(&pod.spec, noted).await);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn another_link_that_has_the_name_of_a_destroyed_one_stays_as_it_is() {
    KINDS.into_iter().for_each(|make| {
        with_up0_made(make, async move |pod| {
            pod.in_pod(&["ip link del net1"]);
            run(make);
            run("ip link set up0 address 02:71:00:00:00:99");
            run("ip link set up0 mtu 1300");
            let other = state("up0");
            // The second DEL is that of the next agent.
            for _ in 0..2 {
                pod.is_given_up().await;
                assert_eq!(state("up0"), other);
            }
            let stray = pod.plugins.give_back(&pod.spec, pod.noted.as_ref().unwrap()).await;
            assert!(matches!(stray, Ok(DelOutcome::GivenUp(_))), "{stray:?}");
            assert_eq!(state("up0"), other);
        });
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_that_is_made_again_after_a_killed_agents_del_stays_as_it_is() {
    with_up0_in_a_pod(async |mut pod| {
        // The killed agent only ran the plugin's DEL.
        let noted = pod.noted.take();
        assert_eq!(pod.del(0).await, Ok(DelOutcome::Clean));
        pod.noted = noted;
        run("ip link del up0");
        run("ip link add up0 mtu 1300 type veth peer name sw0");
        let other = state("up0");
        pod.is_given_up().await;
        assert_eq!(state("up0"), other);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_that_a_pod_made_with_the_index_of_a_removed_one_gets_nothing_of_the_hosts() {
    with_up0_in_a_pod(async |pod| {
        let index = pod.netns().show("ip -j link show dev net1")["ifindex"].clone();
        pod.in_pod(&[
            "ip link del net1",
            &format!("ip link add net1 index {index} type veth peer name other"),
        ]);
        pod.is_given_up().await;
        assert_eq!(show("ip -j address show dev up0")["addr_info"], json!([]));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_macvlan_that_cannot_have_the_asked_mac_fails_and_its_del_removes_it() {
    on_a_host(&[], async |host| {
        make_up0();
        let mut pod = Pod::new(host);
        let ipam = pod.host.ipam(json!([[{"subnet": "10.9.0.0/24"}]]));
        let macvlan = |mode: &str| json!([{"type": "macvlan", "master": "up0", "mode": mode, "capabilities": {"mac": true}, "ipam": ipam}]);
        pod.spec.capability_args.mac = Some("02:73:00:00:00:01".to_owned().try_into().unwrap());
        pod.spec.conflist = pod.host.list("h", macvlan("passthru"));
        let failed = pod.add().await.unwrap_err();
        let words = "MAC address 02:00:00:00:00:0a instead of 02:73:00:00:00:01";
        assert!(failed.failure.message.contains(words), "{failed:?}");
        assert!(failed.owes_del() && pod.netns().has_link("net1"));
        assert_eq!(pod.del(0).await, Ok(DelOutcome::Clean));
        assert!(!pod.netns().has_link("net1"));
        pod.spec.conflist = pod.host.list("h", macvlan("bridge"));
        pod.add().await.unwrap();
        assert_eq!(pod.netns().show("ip -j link show dev net1")["address"], "02:73:00:00:00:01");
    });
}
