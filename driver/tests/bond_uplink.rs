//! A bond of a real kernel as an uplink. Needs root and `NETCLAIM_CNI_BIN`, the directory of the plugins.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plugin_host;

use std::collections::BTreeSet;

use netclaim_driver::links::{Links, NotUplink, classify};

use plugin_host::{BOND, on_a_host, run};

#[test]
#[ignore = "needs root and NETCLAIM_CNI_BIN"]
fn a_bond_is_an_uplink_and_its_ports_are_not() {
    on_a_host(&[BOND], async |_| {
        run("ip link add bond0 type bond mode active-backup miimon 100");
        for port in ["p0", "p1"] {
            run(&format!("ip link add {port} type veth peer name sw-{port}"));
            run(&format!("ip link set sw-{port} up"));
            run(&format!("ip link set {port} master bond0"));
        }
        run("ip link set bond0 up");

        let snapshot = Links::new("/sys").snapshot().await.unwrap();
        let find = |name: &str| snapshot.links.iter().find(|link| link.name == name).unwrap();
        let bond = find("bond0");
        assert_eq!(bond.kind.as_deref(), Some("bond"));
        assert_eq!(find("p0").master, Some(bond.index));
        assert_eq!(find("p0").mac, bond.mac, "one address for all");
        let verdicts: Vec<_> = classify(&snapshot, &BTreeSet::new())
            .filter(|(link, _)| ["bond0", "p0", "p1"].contains(&link.name.as_str()))
            .collect();
        assert_eq!(verdicts.len(), 3);
        for (link, verdict) in verdicts {
            match link.name.as_str() {
                "bond0" => assert_eq!(verdict, Ok(())),
                _ => assert_eq!(verdict, Err(NotUplink::Enslaved { master: "bond0".to_owned() })),
            }
        }
    });
}
