//! The reference plugins' own versions, addresses and failures, in network namespaces of this test's own.
//! What each of them does to links is in `plugin_links.rs`.
//!
//! Needs root, and `NETCLAIM_CNI_BIN`, the directory of the plugins:
//! `NETCLAIM_CNI_BIN=/opt/cni/bin cargo test -p netclaim-cni --test real_plugins -- --ignored`

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::collections::BTreeSet;
use std::fs;

use netclaim_cni::ipam::host_local::{HostLocal, reservations};
use netclaim_cni::reference::STATUS_LOOKS_AT_NOTHING;
use netclaim_cni::{BANDWIDTH_PLUGIN, Error, ErrorKind, Retry, SpecVersion, ValidAttachment};
use serde_json::json;

use plugin_host::{LONG, Netns, attachment, on_a_host};

/// The plugin gives this error the same code as every other.
fn has_no_address_left(error: &Error) -> bool {
    error.reported().is_some_and(|error| error.to_string().contains("no IP addresses available"))
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn plugins_whose_status_looks_at_nothing_are_ready_without_what_an_add_needs() {
    on_a_host(&[], async |host| {
        let plugins = STATUS_LOOKS_AT_NOTHING.into_iter().filter(|plugin| *plugin != BANDWIDTH_PLUGIN);
        // Neither a link, nor a daemon, nor free addresses.
        for (plugin, ipam) in
            plugins.flat_map(|plugin| ["host-local", "static", "dhcp"].map(|ipam| (plugin, ipam)))
        {
            let list = host.list("n", json!([{"type": plugin, "master": "none", "ipam": {"type": ipam}}]));
            host.runtime.find_all(&list).unwrap();
            let status = host.runtime.status(&list, LONG).await;
            assert!(status.is_ok(), "{plugin} with {ipam}: {status:?}");
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bridge_chain_is_added_checked_and_deleted() {
    on_a_host(&[], async |host| {
        let ipam = host.ipam(json!([[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]));
        let list = host.list("b", json!([
            {"type": "bridge", "bridge": "br9", "isGateway": true, "ipam": ipam, "capabilities": {"mac": true}},
            {"type": "tuning", "mtu": 1400},
        ]));
        host.runtime.find_all(&list).unwrap();
        let list = host.runtime.negotiate(&list).await.unwrap();
        assert_eq!(list.version(), SpecVersion::V1_1_0);
        let netns = Netns::new();
        let mut attachment = attachment("c1", &netns);
        attachment.capability_args.insert("mac", "02:00:00:00:00:99");

        let result = host.runtime.add(&list, &attachment, LONG).await.unwrap();
        let interface = result.interface_of(&attachment).unwrap();
        assert_eq!(interface.mac.as_deref(), Some("02:00:00:00:00:99"));
        assert_eq!(
            result.ips_of(&attachment).map(|ip| ip.address.to_string()).collect::<Vec<_>>(),
            ["10.9.0.2/24", "fd09::2/64"]
        );
        let contents = netns.contents();
        assert!(contents.contains("net1:") && contents.contains("10.9.0.2"), "{contents}");
        assert!(contents.contains("fd090000000000000000000000000002"), "{contents}");
        assert_eq!(host.reserved("b"), ["10.9.0.2 c1 net1", "fd09::2 c1 net1"]);

        host.runtime.check(&list, &attachment, &result, LONG).await.unwrap();
        host.runtime.status(&list, LONG).await.unwrap();
        let valid = ValidAttachment { container_id: "c1".parse().unwrap(), if_name: "net1".parse().unwrap() };
        host.runtime.gc(&list, &[valid], LONG).await.unwrap();

        for _ in 0..2 {
            host.runtime.del(&list, &attachment, Some(&result), LONG).await.unwrap();
            assert!(!netns.has_link("net1"));
            assert_eq!(host.reserved("b"), [""; 0]);
        }
        assert!(host.runtime.check(&list, &attachment, &result, LONG).await.is_err());
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn every_version_of_the_protocol_works_with_the_reference_plugins() {
    on_a_host(&[], async |host| {
        for (index, version) in SpecVersion::ALL.into_iter().enumerate() {
            let ipam = host.ipam(json!([[{"subnet": "10.9.1.0/24"}]]));
            let list = host
                .list("v", json!([{"type": "ptp", "ipam": ipam}, {"type": "tuning"}]))
                .pinned(version)
                .unwrap();
            let netns = Netns::new();
            let attachment = attachment(&format!("c{index}"), &netns);
            let result = host.runtime.add(&list, &attachment, LONG).await.unwrap();
            assert_eq!(result.version(), version);
            assert_eq!(result.ips_of(&attachment).count(), 1);
            assert!(netns.has_link("net1"), "{version}");
            if version.has_check() {
                host.runtime.check(&list, &attachment, &result, LONG).await.unwrap();
            }
            host.runtime.del(&list, &attachment, Some(&result), LONG).await.unwrap();
            assert!(!netns.has_link("net1"), "{version}");
            assert_eq!(host.reserved("v"), [""; 0]);
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_macvlan_is_deleted_after_its_namespace_is_gone() {
    on_a_host(&[], async |host| {
        let bridge = host.list("m0", json!([{"type": "bridge", "bridge": "up0"}]));
        let first = Netns::new();
        host.runtime.add(&bridge, &attachment("up", &first), LONG).await.unwrap();

        let ipam = host.ipam(json!([[{"subnet": "10.9.2.0/24"}]]));
        let list = host.list("m", json!([{"type": "macvlan", "master": "up0", "ipam": ipam}]));
        let netns = Netns::new();
        let mut attachment = attachment("c1", &netns);
        let result = host.runtime.add(&list, &attachment, LONG).await.unwrap();
        assert!(netns.contents().contains("10.9.2.2"));
        drop(netns);
        attachment.netns = None;
        host.runtime.del(&list, &attachment, Some(&result), LONG).await.unwrap();
        assert_eq!(host.reserved("m"), [""; 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn an_address_that_host_device_leaves_behind_is_released() {
    on_a_host(&[], async |host| {
        let ptp = host
            .list("h0", json!([{"type": "ptp", "ipam": host.ipam(json!([[{"subnet": "10.9.3.0/24"}]]))}]));
        let first = Netns::new();
        let links = host.runtime.add(&ptp, &attachment("up", &first), LONG).await.unwrap();
        let device = links.interfaces().iter().find(|i| i.sandbox.is_none()).unwrap().name.clone();

        let ipam = host.ipam(json!([[{"subnet": "10.9.4.0/24"}]]));
        let list = host.list("h", json!([{"type": "host-device", "device": device, "ipam": ipam}]));
        let netns = Netns::new();
        let mut attachment = attachment("c1", &netns);
        let result = host.runtime.add(&list, &attachment, LONG).await.unwrap();
        drop(netns);
        attachment.netns = None;
        // The plugin claims success, and keeps the address.
        host.runtime.del(&list, &attachment, Some(&result), LONG).await.unwrap();
        assert_eq!(host.reserved("h"), ["10.9.4.2 c1 net1"]);
        let errors = host.runtime.release(&list, &attachment, Some(&result), LONG, |_| false).await;
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(host.reserved("h"), [""; 0]);
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_failed_bridge_needs_a_del_before_it_can_be_tried_again() {
    on_a_host(&[], async |host| {
        let ipam = host.ipam(json!([[{"subnet": "10.9.5.0/30"}]]));
        let list = host.list("f", json!([{"type": "bridge", "bridge": "br5", "ipam": ipam}]));
        let (one, two) = (Netns::new(), Netns::new());
        let (one, two) = (attachment("c1", &one), (attachment("c2", &two), two));
        host.runtime.add(&list, &one, LONG).await.unwrap();
        let error = host.runtime.add(&list, &two.0, LONG).await.unwrap_err();
        assert!(has_no_address_left(&error.error) && error.needs_del(), "{error:?}");
        assert_eq!(error.error.retry(), Retry::Perhaps);
        host.runtime.del(&list, &two.0, None, LONG).await.unwrap();
        assert!(!two.1.has_link("net1"));
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn the_computed_capacity_is_what_host_local_hands_out() {
    on_a_host(&[], async |host| {
        let netns = Netns::new();
        for (index, ranges) in [
            json!([[{"subnet": "10.9.6.0/29"}]]),
            json!([[{"subnet": "10.9.6.0/28", "gateway": "10.9.6.5"}]]),
            json!([[{"subnet": "10.9.6.0/24", "rangeStart": "10.9.6.250", "rangeEnd": "10.9.6.255"}]]),
            json!([[{"subnet": "10.9.6.0/24", "rangeStart": "10.9.6.1", "rangeEnd": "10.9.6.1"}, {"subnet": "10.9.7.0/30"}]]),
            json!([[{"subnet": "10.9.6.0/29"}, {"subnet": "10.9.7.0/29"}], [{"subnet": "fd00::/125"}]]),
            json!([[{"subnet": "10.9.6.0/24", "gateway": "10.9.8.1", "rangeEnd": "10.9.6.3"}]]),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("n{index}");
            let ipam = host.ipam(ranges);
            let host_local = HostLocal::parse(&ipam.to_string()).unwrap();
            let list = host.list(&name, json!([{"type": "host-local", "ipam": ipam}]));
            let mut count = 0;
            let error = loop {
                let attachment = attachment(&format!("c{count}"), &netns);
                match host.runtime.add(&list, &attachment, LONG).await {
                    Ok(_) => count += 1,
                    Err(error) => break error.error,
                }
                let taken: Vec<_> =
                    reservations(&host.data.path().join(&name)).unwrap().into_iter().map(|r| r.ip).collect();
                assert_eq!(host_local.left(&taken) + count, host_local.capacity(), "{}", list.raw());
            };
            assert!(has_no_address_left(&error), "{error:?}");
            assert_eq!(count, host_local.capacity(), "{}", list.raw());
        }
    });
}

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn every_installed_plugin_answers_version() {
    on_a_host(&[], async |host| {
        let mut plugins = BTreeSet::new();
        for entry in fs::read_dir(&host.runtime.bin_dirs()[0]).unwrap() {
            plugins.insert(entry.unwrap().file_name().into_string().unwrap());
        }
        assert!(plugins.contains("bridge"));
        for plugin in plugins {
            match host.runtime.versions(&plugin.parse().unwrap()).await {
                Ok(versions) => assert!(versions.contains(&SpecVersion::V1_1_0), "{plugin}"),
                // Not everything that lies there is a plugin.
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::NotFound { .. }), "{plugin}: {error:?}")
                }
            }
        }
    });
}
