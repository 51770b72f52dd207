//! GC and CHECK by the real plugins, in network namespaces of this test's own.
//!
//! Needs root, and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use netclaim_cni::{AddOutcome, Cache, Cached, NetworkList, Runtime};
use netclaim_driver::attach::{Attach as _, Checked, CniPlugins, Sandbox, Spec};
use netclaim_driver::links::Links;
use serde_json::{Value, json};

use plugin_host::{Host, LONG, Netns, attachment, on_a_host, run};

fn network(host: &Host) -> CniPlugins {
    let bin = std::env::var_os("NETCLAIM_CNI_BIN").unwrap();
    let runtime = Runtime::new(vec![bin.into()]).unwrap();
    CniPlugins::new(runtime, Cache::new(host.data.path().join("cache")), Links::new("/sys"), LONG)
}

/// An attachment `net1` to a network of this name, with `more` in its conflist.
fn spec(host: &Host, name: &str, more: Value) -> Spec {
    let mut list = json!({
        "cniVersion": "1.1.0", "name": name,
        "plugins": [{"type": "ptp", "ipam": host.subnet("10.9.0.0/24")}, {"type": "tuning", "mtu": 1400}]
    });
    list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Spec {
        tenant: "default".to_owned(),
        if_name: "net1".parse().unwrap(),
        conflist: parsed(&list),
        args: Default::default(),
        capability_args: Default::default(),
        wire: Default::default(),
    }
}

fn parsed(list: &Value) -> NetworkList {
    NetworkList::parse(list.to_string().as_bytes()).unwrap()
}

fn sandbox(netns: &Netns) -> Sandbox {
    let file = fs::metadata(netns.path()).unwrap();
    let id = json!({"dev": file.dev(), "ino": file.ino()});
    serde_json::from_value(json!({"id": "s1", "netns": netns.path(), "netnsId": id, "bootId": "b"})).unwrap()
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn gc_releases_addresses_without_a_holder_in_a_network_of_ours() {
    on_a_host(&[], async |host| {
        let network = network(&host);
        for (name, more, collected) in [
            ("netclaim-n", json!({}), 1),
            ("netclaim-off", json!({"disableGC": true}), 0),
            ("somebodys", json!({}), 0),
        ] {
            let (spec, netns) = (spec(&host, name, more), Netns::new());
            network.add(&spec, &sandbox(&netns)).await.unwrap();
            let lease = host.data.path().join(name).join("10.9.0.77");
            fs::write(&lease, "never-was\r\nnet1").unwrap();
            let mine = || vec![("s1".parse().unwrap(), "net1".parse().unwrap())];
            assert_eq!(network.collect(&spec, mine).await, Ok(collected), "{name}");
            assert_eq!(lease.exists(), collected == 0, "{name}");
            assert_eq!(host.reserved(name)[0], "10.9.0.2 s1 net1");
            assert_eq!(network.collect(&spec, mine).await, Ok(0), "{name}");
            assert!(netns.has_link("net1"));
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_add_does_not_begin_where_another_programs_link_has_the_name_or_a_plugin_is_missing() {
    on_a_host(&[], async |host| {
        let (network, spec, netns) = (network(&host), spec(&host, "netclaim-n", json!({})), Netns::new());
        let sandbox = sandbox(&netns);
        let refusal = async || network.can_begin(&spec, &sandbox).await.err().map(|failure| failure.message);
        netns.inside(|| run("ip link add other type veth peer name peer"));
        assert_eq!(refusal().await, None);
        netns.inside(|| run("ip link property add dev other altname net1"));
        assert!(refusal().await.unwrap().contains("a link net1 already"));
        netns.inside(|| run("ip link property del dev other altname net1"));
        assert_eq!(refusal().await, None);
        netns.inside(|| run("ip link set other name net1"));
        assert!(refusal().await.unwrap().contains("a link net1 already"));
        let plugins = json!({"plugins": [{"type": "ptp"}, {"type": "no-such"}]});
        let missing = self::spec(&host, "netclaim-n", plugins);
        let refused = network.can_begin(&missing, &sandbox).await.unwrap_err().message;
        assert!(refused.contains("`no-such`"), "{refused}");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn attachments_of_other_programs_are_kept() {
    on_a_host(&[], async |host| {
        let (network, spec, netns) = (network(&host), spec(&host, "netclaim-n", json!({})), Netns::new());
        // It is in the cache, as `netclaimctl cni add` leaves it, and in no journal.
        let list = spec.conflist.clone();
        let attachment = attachment("s1", &netns);
        let result = host.runtime.add(&list, &attachment, LONG).await.unwrap();
        let cached = Cached { list, attachment, outcome: AddOutcome::Attached(result) };
        Cache::new(host.data.path().join("cache")).store(&cached).unwrap();
        drop(netns);
        assert_eq!(network.collect(&spec, Vec::new).await, Ok(0));
        assert_eq!(host.reserved("netclaim-n"), ["10.9.0.2 s1 net1"]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_attachment_in_the_cache_alone_is_kept_until_its_namespace_is_gone() {
    on_a_host(&[], async |host| {
        let (network, spec, netns) = (network(&host), spec(&host, "netclaim-n", json!({})), Netns::new());
        network.add(&spec, &sandbox(&netns)).await.unwrap();
        assert_eq!(network.collect(&spec, Vec::new).await, Ok(0));
        assert_eq!(host.reserved("netclaim-n"), ["10.9.0.2 s1 net1"]);
        drop(netns);
        assert_eq!(network.collect(&spec, Vec::new).await, Ok(1));
        assert_eq!(host.reserved("netclaim-n"), [""; 0]);
        let (known, _) = Cache::new(host.data.path().join("cache")).attachments().unwrap();
        assert_eq!(known, []);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_check_finds_what_is_missing_and_what_is_there_again() {
    on_a_host(&[], async |host| {
        let (network, spec, netns) = (network(&host), spec(&host, "netclaim-n", json!({})), Netns::new());
        let sandbox = sandbox(&netns);
        let result = network.add(&spec, &sandbox).await.unwrap();
        assert_eq!(network.check(&spec, &sandbox, &result).await, Checked::Fine);
        netns.inside(|| run("ip link set net1 mtu 1300"));
        let Checked::Failed(found) = network.check(&spec, &sandbox, &result).await else {
            panic!("a wrong MTU was not found")
        };
        assert!(found.message.contains("tuning") && found.message.contains("MTU"), "{found}");
        assert!(!found.is_of_interface, "no reason to take the interface");
        netns.inside(|| run("ip link set net1 mtu 1400"));
        assert_eq!(network.check(&spec, &sandbox, &result).await, Checked::Fine);
        netns.inside(|| run("ip link del net1"));
        let checked = network.check(&spec, &sandbox, &result).await;
        assert!(matches!(&checked, Checked::Failed(found) if found.is_of_interface), "{checked:?}");
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_look_finds_each_difference_that_a_check_may_find() {
    on_a_host(&[], async |host| {
        let mut ipam = host.ipam(json!([[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]));
        ipam["routes"] =
            json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.77.0.0/16", "gw": "10.9.0.1"}]);
        let plugins = json!({"plugins": [{"type": "ptp", "ipam": ipam}]});
        let (network, spec, netns) = (network(&host), spec(&host, "netclaim-n", plugins), Netns::new());
        let sandbox = sandbox(&netns);
        let result = network.add(&spec, &sandbox).await.unwrap();
        let lease = |ip: &str| host.data.path().join("netclaim-n").join(ip);
        let is_as_made = async || network.is_as_made(&spec, &sandbox, &result).await;
        assert!(is_as_made().await, "{}", netns.contents());
        assert_eq!(network.check(&spec, &sandbox, &result).await, Checked::Fine);

        let mac = result.interface_of(&attachment("s1", &netns)).unwrap().mac.clone().unwrap();
        for (break_it, fix) in [
            ("address del 10.9.0.2/24 dev net1", "address add 10.9.0.2/24 dev net1"),
            ("route del 10.77.0.0/16", "route add 10.77.0.0/16 via 10.9.0.1 dev net1"),
            ("-6 route del default", "-6 route add default via fd09::1 dev net1"),
            ("link set net1 address 02:00:00:00:00:77", &format!("link set net1 address {mac}")),
        ] {
            netns.inside(|| run(&format!("ip {break_it}")));
            assert!(!is_as_made().await, "{break_it}");
            netns.inside(|| run(&format!("ip {fix}")));
            if break_it.starts_with("address") {
                // They went with the address.
                netns.inside(|| {
                    run("ip route replace 10.9.0.1 dev net1 scope link");
                    run("ip route replace default via 10.9.0.1 dev net1");
                    run("ip route replace 10.77.0.0/16 via 10.9.0.1 dev net1");
                });
            }
            assert!(is_as_made().await, "{fix}: {}", netns.contents());
        }
        fs::remove_file(lease("10.9.0.2")).unwrap();
        assert!(is_as_made().await, "a check is content with the other address");
        fs::write(lease("fd09::2"), "another\r\nnet1").unwrap();
        assert!(!is_as_made().await);
        assert!(matches!(network.check(&spec, &sandbox, &result).await, Checked::Failed(_)));
        fs::write(lease("fd09::2"), "s1\r\nnet1").unwrap();
        assert!(is_as_made().await);

        let mut list: Value = serde_json::from_str(spec.conflist.raw()).unwrap();
        list["plugins"].as_array_mut().unwrap().push(json!({"type": "tuning"}));
        let tuned = Spec { conflist: parsed(&list), ..spec.clone() };
        assert!(!network.is_as_made(&tuned, &sandbox, &result).await, "its CHECK looks at more");
        netns.inside(|| run("ip link set net1 down"));
        assert!(!is_as_made().await);
        netns.inside(|| run("ip link del net1"));
        assert!(!is_as_made().await);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_check_that_cannot_be_made_says_nothing() {
    on_a_host(&[], async |host| {
        let (network, spec, netns) = (network(&host), spec(&host, "netclaim-n", json!({})), Netns::new());
        let there = sandbox(&netns);
        let result = network.add(&spec, &there).await.unwrap();
        let unknown = async |spec: &Spec, sandbox: &Sandbox| match network.check(spec, sandbox, &result).await
        {
            Checked::Unknown(reason) => reason,
            other => panic!("{other:?}"),
        };
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut list = serde_json::from_str(spec.conflist.raw()).unwrap();
            change(&mut list);
            Spec { conflist: parsed(&list), ..spec.clone() }
        };
        let off = changed(&|list| list["disableCheck"] = json!(true));
        assert_eq!(unknown(&off, &there).await, "the network has disableCheck");
        let old = changed(&|list| list["cniVersion"] = json!("0.3.1"));
        assert!(unknown(&old, &there).await.contains("0.3.1"));
        let missing = changed(&|list| list["plugins"][1]["type"] = json!("no-such-plugin"));
        assert!(unknown(&missing, &there).await.contains("no-such-plugin"));
        let gone = Sandbox { netns: "/run/netns/none".into(), ..there };
        assert_eq!(unknown(&spec, &gone).await, "the sandbox is not where it was");
    });
}
