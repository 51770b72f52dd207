//! Links of the host that a pod has had, by the real `host-device`, in network namespaces of this test's own.
//!
//! Needs root, and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use netclaim_cni::{Cache, Runtime};
use netclaim_driver::attach::record::{Plan, Sandbox};
use netclaim_driver::attach::{CniNetwork, Failure, Network as _, Undone};
use netclaim_driver::links::{HostLink, Links};
use serde_json::{Value, json};

use plugin_host::{Host, LONG, Netns, links, on_a_host, run, state};

/// A link with everything that can be lost: `up0`, the plugged-in end of a veth.
fn nic() {
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

/// What the kernel routes to the link by its addresses.
fn routes() -> Vec<String> {
    ["ip -4 route show dev up0", "ip -6 route show dev up0"]
        .iter()
        .flat_map(|command| {
            run(command).lines().map(|line| line.trim().replace(" linkdown", "")).collect::<Vec<_>>()
        })
        .collect()
}

struct Pod {
    network: CniNetwork,
    plan: Plan,
    netns: Netns,
}

impl Pod {
    /// A pod that gets `up0` as `net1`, and an address from a range of one.
    fn new(host: &Host) -> Self {
        let ipam =
            host.ipam(json!([[{"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.2", "rangeEnd": "10.9.0.2"}]]));
        let object = |name: &str| json!({"namespace": "default", "name": name, "uid": format!("{name}-uid")});
        let plan = json!({
            "claim": object("c"), "index": 0, "of": 1, "pod": object("p"), "network": "n", "ifName": "net1",
            "device": {"request": "net", "pool": "node0", "device": "nic-up0"},
            "conflist": {"cniVersion": "1.0.0", "name": "h", "plugins": [{"type": "host-device", "device": "up0", "ipam": ipam}]}
        });
        let bin = std::env::var_os("NETCLAIM_CNI_BIN").unwrap();
        let runtime = Runtime::new(vec![bin.into()]).unwrap();
        let cache = Cache::new(host.data.path().join("cache"));
        let network = CniNetwork::new(runtime, cache, Links::new("/sys"), LONG);
        Self { network, plan: serde_json::from_value(plan).unwrap(), netns: Netns::new() }
    }

    fn sandbox(&self) -> Sandbox {
        let value =
            json!({"id": "s1", "netns": self.netns.path(), "netnsId": {"dev": 4, "ino": 1}, "bootId": "b"});
        serde_json::from_value(value).unwrap()
    }

    async fn note(&self) -> HostLink {
        // As it comes back from the journal of an agent that was killed.
        let lent = self.network.lends(&self.plan).await.unwrap().expect("up0 is lent");
        serde_json::from_str(&serde_json::to_string(&lent).unwrap()).unwrap()
    }

    /// What the journal has of the link once the ADD has succeeded.
    async fn noted_in_pod(&self, lent: HostLink) -> HostLink {
        let index_in_pod = self.network.index_in_pod(&self.plan, &self.sandbox()).await;
        assert!(index_in_pod.is_some());
        HostLink { index_in_pod, ..lent }
    }

    async fn add(&self) -> Result<Value, Failure> {
        self.network.add(&self.plan, &self.sandbox()).await
    }

    async fn del(&self, lent: Option<&HostLink>) -> Result<(), Failure> {
        let undone = self.network.del(&self.plan, "s1", Some(&self.netns.path()), None, lent, 0).await?;
        assert_eq!(undone, Undone::All);
        Ok(())
    }

    /// A pod that has the link; with what was noted of it, and how it was.
    async fn with_link(host: &Host) -> (Self, HostLink, Value) {
        let (pod, before) = (Self::new(host), state("up0"));
        let lent = pod.note().await;
        pod.add().await.unwrap();
        let lent = pod.noted_in_pod(lent).await;
        (pod, lent, before)
    }

    /// Does what a pod with `NET_ADMIN` may.
    fn spoil(&self) {
        self.netns.inside(|| {
            run("ip link set net1 down");
            run("ip link set net1 address 02:ff:ff:ff:ff:ff mtu 1280");
            run("ip link set net1 up");
        });
    }
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_comes_back_with_all_that_it_had_and_the_pod_changed() {
    on_a_host(&[], async |host| {
        nic();
        let routed = routes();
        let (pod, lent, before) = Pod::with_link(&host).await;
        assert!(!links().contains("up0") && pod.netns.has_link("net1"));
        pod.spoil();
        pod.del(Some(&lent)).await.unwrap();
        assert_eq!(state("up0"), before);
        assert_eq!(routes(), routed);
        assert_eq!(host.reserved("h"), [""; 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_that_was_down_comes_back_down() {
    on_a_host(&[], async |host| {
        nic();
        run("ip link set up0 down");
        let (pod, lent, before) = Pod::with_link(&host).await;
        pod.spoil();
        pod.del(Some(&lent)).await.unwrap();
        assert_eq!(state("up0"), before);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn what_a_killed_agent_has_not_given_back_the_next_one_does() {
    on_a_host(&[], async |host| {
        nic();
        let (pod, lent, before) = Pod::with_link(&host).await;
        pod.spoil();
        // The plugin's DEL was all that was done.
        pod.del(None).await.unwrap();
        assert_ne!(state("up0"), before);
        pod.del(Some(&lent)).await.unwrap();
        assert_eq!(state("up0"), before);
        // And once more, with nothing to do.
        pod.del(Some(&lent)).await.unwrap();
        assert_eq!(state("up0"), before);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_that_came_back_under_the_pods_name_gets_its_own() {
    on_a_host(&[], async |host| {
        nic();
        let (pod, lent, before) = Pod::with_link(&host).await;
        pod.spoil();
        // What the kernel does with hardware when its namespace ends.
        let here = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        pod.netns.inside(|| run(&format!("ip link set net1 netns {here}")));
        assert!(links().contains("net1"));
        pod.network.del(&pod.plan, "s1", None, None, Some(&lent), 0).await.unwrap();
        assert_eq!(state("up0"), before);
        assert!(!links().contains("net1"));
        assert_eq!(host.reserved("h"), [""; 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_virtual_link_that_ended_with_its_namespace_holds_nobody_up() {
    on_a_host(&[], async |host| {
        nic();
        let (mut pod, lent, _) = Pod::with_link(&host).await;
        pod.netns = Netns::new();
        // The kernel takes a namespace apart in its own time, and the other end with it.
        let end = std::time::Instant::now() + LONG;
        while links().contains("sw0") && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        // Somebody else's of that name is not touched.
        run("ip link add up0 mtu 1300 type veth peer name sw0");
        let other = state("up0");
        let undone = pod.network.del(&pod.plan, "s1", None, None, Some(&lent), 0).await.unwrap();
        assert!(matches!(undone, Undone::GivenUp(why) if why.contains("link up0 is gone")));
        assert_eq!(state("up0"), other);
        assert_eq!(host.reserved("h"), [""; 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn hardware_that_is_not_back_yet_is_waited_for() {
    on_a_host(&[], async |host| {
        let pod = Pod::new(&host);
        let lent =
            json!({"index": 3, "name": "up0", "permanentMac": "02:00:00:00:00:0a", "mtu": 1500, "up": true});
        let lent: HostLink = serde_json::from_value(lent).unwrap();
        let del = async |tries| pod.network.del(&pod.plan, "s1", None, None, Some(&lent), tries).await;
        let error = del(0).await.unwrap_err().message;
        assert!(error.contains("link up0 that the pod had is not back on the node"), "{error}");
        assert!(matches!(del(100).await, Ok(Undone::Stray(why)) if why == error));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_add_that_failed_before_it_took_the_link_can_be_undone_and_tried_again() {
    on_a_host(&[], async |host| {
        let pod = Pod::new(&host);
        assert_eq!(pod.network.lends(&pod.plan).await.unwrap(), None, "there is no link to lend yet");
        pod.add().await.unwrap_err();
        pod.del(None).await.unwrap();
        nic();
        let (before, lent) = (state("up0"), pod.note().await);
        pod.add().await.unwrap();
        pod.del(Some(&lent)).await.unwrap();
        assert_eq!(state("up0"), before);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_pod_cannot_keep_a_link_by_a_name_that_the_host_has() {
    on_a_host(&[], async |host| {
        nic();
        run("ip link add eth1 type veth peer name sw1");
        let (pod, lent, before) = Pod::with_link(&host).await;
        pod.netns.inside(|| run("ip link property add dev net1 altname eth1"));
        pod.del(Some(&lent)).await.unwrap();
        assert_eq!(state("up0"), before);
        assert!(!pod.netns.has_link("net1"));
        assert_eq!(host.reserved("h"), [""; 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_pod_does_not_choose_what_its_link_is_called_on_the_host() {
    on_a_host(&[], async |host| {
        nic();
        let (pod, lent, before) = Pod::with_link(&host).await;
        let links_before = links();
        pod.netns.inside(|| {
            run("ip link set net1 down");
            run("ip link property add dev net1 altname eth1");
            run("ip link set net1 name x alias eth0 up");
        });
        pod.del(Some(&lent)).await.unwrap();
        assert_eq!(state("up0"), before);
        assert_eq!(&links() - &links_before, ["up0".to_owned()].into());
        assert_eq!(host.reserved("h"), [""; 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_of_the_pods_making_is_not_taken_for_the_hosts() {
    on_a_host(&[], async |host| {
        nic();
        let (pod, lent, before) = Pod::with_link(&host).await;
        let links_before = links();
        pod.netns.inside(|| {
            run("ip link set net1 down");
            run("ip link set net1 name x up");
            run("ip link add net1 type veth peer name other");
            run("ip link set net1 alias eth1 up");
        });
        pod.del(Some(&lent)).await.unwrap();
        assert_eq!(state("up0"), before);
        assert_eq!(&links() - &links_before, ["up0".to_owned()].into());
        assert!(pod.netns.has_link("other"), "what is the pod's stays in the pod");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn what_a_pod_has_put_in_the_place_of_a_link_that_it_removed_stays_in_the_pod() {
    on_a_host(&[], async |host| {
        nic();
        let (pod, lent, _) = Pod::with_link(&host).await;
        pod.netns.inside(|| {
            run("ip link del net1");
            run("ip link add net1 index 77 type veth peer name other");
            run("ip link set net1 alias up0");
        });
        let before = links();
        let undone = pod.network.del(&pod.plan, "s1", Some(&pod.netns.path()), None, Some(&lent), 0).await;
        let undone = format!("{undone:?}");
        assert!(undone.contains("GivenUp") && undone.contains("link up0 is gone"), "{undone}");
        assert_eq!(links(), before);
        assert_eq!(host.reserved("h"), [""; 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn names_that_a_pod_gave_a_link_do_not_outlive_its_namespace() {
    on_a_host(&[], async |host| {
        nic();
        let (pod, lent, before) = Pod::with_link(&host).await;
        // As the kernel brings hardware back.
        let here = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        pod.netns.inside(|| {
            run("ip link property add dev net1 altname eth7");
            run("ip link property add dev net1 altname up0");
            run(&format!("ip link set net1 netns {here}"));
        });
        pod.network.del(&pod.plan, "s1", None, None, Some(&lent), 0).await.unwrap();
        assert_eq!(state("up0"), before);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_link_whose_name_another_has_is_a_stray_until_the_name_is_free() {
    on_a_host(&[], async |host| {
        nic();
        let (pod, lent, before) = Pod::with_link(&host).await;
        let here = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        pod.netns.inside(|| run(&format!("ip link set net1 netns {here}")));
        run("ip link add up0 type veth peer name sw1");
        let del = async |tries| pod.network.del(&pod.plan, "s1", None, None, Some(&lent), tries).await;
        let error = del(0).await.unwrap_err().message;
        assert!(error.contains("cannot rename it to up0"), "{error}");
        assert!(matches!(del(100).await, Ok(Undone::Stray(why)) if why == error));
        assert!(pod.network.give_back(&pod.plan, &lent).await.is_err());
        run("ip link del up0");
        assert_eq!(pod.network.give_back(&pod.plan, &lent).await, Ok(Undone::All));
        assert_eq!(state("up0"), before);
    });
}
