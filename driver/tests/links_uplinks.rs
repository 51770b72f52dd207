//! Which links are uplinks, for the links of real nodes.

#[cfg(test)]
mod links {
    use std::collections::{BTreeMap, BTreeSet};

    use netclaim_driver::links::{
        Link, LinkAddress, NodeTraffic, NotUplink, OperState, Relation, Snapshot, Traffic, classify,
    };

    /// A link that is up.
    fn link(index: u32, name: &str, kind: Option<&str>) -> Link {
        Link {
            index,
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            mac: Some(format!("02:00:00:00:00:{index:02x}")),
            admin_up: true,
            oper: OperState::Up,
            carrier: true,
            ..Link::default()
        }
    }

    fn nic(index: u32, name: &str) -> Link {
        link(index, name, None)
    }

    fn of(parent: u32, link: Link) -> Link {
        Link { parent: Some(parent), ..link }
    }

    fn port_of(master: u32, link: Link) -> Link {
        Link { master: Some(master), ..link }
    }

    fn veth(index: u32, name: &str) -> Link {
        link(index, name, Some("veth"))
    }

    fn lo() -> Link {
        Link { loopback: true, ..nic(1, "lo") }
    }

    fn snapshot(links: &[Link], default_routes: &[u32]) -> Snapshot {
        let default_route_links = default_routes.iter().copied().collect();
        Snapshot { links: links.to_vec(), default_route_links, ..Snapshot::default() }
    }

    fn names(links: &[Link], default_routes: &[u32]) -> Vec<String> {
        let snapshot = snapshot(links, default_routes);
        let uplinks = classify(&snapshot, &BTreeSet::new()).filter(|(_, reason)| reason.is_ok());
        uplinks.map(|(link, _)| link.name.clone()).collect()
    }

    fn reason_of(snapshot: &Snapshot, node_address: Option<&str>, name: &str) -> Result<(), NotUplink> {
        let node_addresses = node_address.map(|ip| ip.parse().unwrap()).into_iter().collect();
        let mut reasons = classify(snapshot, &node_addresses);
        reasons.find(|(link, _)| link.name == name).map(|(_, reason)| reason).unwrap()
    }

    fn reason(links: &[Link], default_routes: &[u32], name: &str) -> Result<(), NotUplink> {
        reason_of(&snapshot(links, default_routes), None, name)
    }

    fn carries(traffic: Traffic, link: &str) -> Result<(), NotUplink> {
        let link = link.to_owned();
        Err(NotUplink::NodeTraffic(NodeTraffic { traffic, link, relation: Relation::Carries }))
    }

    fn above(traffic: Traffic, link: &str) -> Result<(), NotUplink> {
        let link = link.to_owned();
        Err(NotUplink::NodeTraffic(NodeTraffic { traffic, link, relation: Relation::Above }))
    }

    fn with_addresses(links: &[Link], addresses: &[(u32, &str, bool)]) -> Snapshot {
        let mut by_link: BTreeMap<u32, Vec<LinkAddress>> = BTreeMap::new();
        for &(link, ip, global) in addresses {
            by_link.entry(link).or_default().push(LinkAddress { ip: ip.parse().unwrap(), global });
        }
        Snapshot { addresses: by_link, ..snapshot(links, &[]) }
    }

    #[test]
    fn a_link_with_a_global_address_or_a_route_carries_the_nodes_traffic_and_one_with_a_link_local_address_does_not()
     {
        let links = [lo(), nic(2, "eth0"), nic(3, "eth1"), nic(4, "eth2"), nic(5, "eth3")];
        let mut snapshot = with_addresses(
            &links,
            &[
                (1, "10.255.0.1", true),
                (2, "10.0.0.1", true),
                (3, "fe80::1", false),
                (4, "2001:db8::1", true),
            ],
        );
        snapshot.routes.insert(5, "10.99.0.0/16".parse().unwrap());
        let reason = |name| reason_of(&snapshot, Some("10.0.0.1"), name);
        assert_eq!(reason("eth0"), carries(Traffic::NodeAddress("10.0.0.1".parse().unwrap()), "eth0"));
        assert_eq!(reason("eth1"), Ok(()));
        assert_eq!(reason("eth2"), carries(Traffic::Address("2001:db8::1".parse().unwrap()), "eth2"));
        assert_eq!(reason("eth3"), carries(Traffic::Route("10.99.0.0/16".parse().unwrap()), "eth3"));
        let text = reason("eth3").unwrap_err().to_string();
        assert_eq!(text, "carries the node's own traffic: the route to 10.99.0.0/16 leads through eth3");
    }

    #[test]
    fn links_below_and_above_a_link_with_an_address_are_the_nodes() {
        let links = [
            port_of(4, nic(2, "eth1")),
            port_of(4, nic(3, "eth2")),
            link(4, "bond0", Some("bond")),
            of(4, link(5, "bond0.100", Some("vlan"))),
            of(4, link(6, "bond0.200", Some("vlan"))),
            nic(7, "eth3"),
            of(7, link(8, "shim0", Some("macvlan"))),
        ];
        let snapshot = with_addresses(&links, &[(5, "10.1.0.1", true), (8, "10.2.0.1", true)]);
        let reason = |name| reason_of(&snapshot, None, name);
        let of_vlan = Traffic::Address("10.1.0.1".parse().unwrap());
        for name in ["eth1", "bond0", "bond0.100"] {
            assert_eq!(reason(name), carries(of_vlan, "bond0.100"), "{name}");
        }
        assert_eq!(reason("bond0.200"), above(of_vlan, "bond0.100"));
        // A program on the node talks to its pods by a macvlan of its own.
        assert_eq!(reason("eth3"), carries(Traffic::Address("10.2.0.1".parse().unwrap()), "shim0"));
        assert_eq!(reason("shim0"), Err(NotUplink::Virtual { kind: "macvlan".to_owned() }));
    }

    #[test]
    fn only_a_vital_link_can_never_be_given_away() {
        let links = [nic(2, "eth0"), of(2, link(3, "eth0.7", Some("vlan"))), nic(4, "eth1")];
        let mut snapshot = with_addresses(&links, &[(4, "10.1.0.1", true)]);
        snapshot.default_route_links.insert(2);
        let dispensable = |name, node: Option<&str>| match reason_of(&snapshot, node, name) {
            Err(NotUplink::NodeTraffic(traffic)) => traffic.is_dispensable(),
            reason => panic!("{reason:?}"),
        };
        assert!(!dispensable("eth0", None) && dispensable("eth0.7", None));
        assert!(dispensable("eth1", None) && !dispensable("eth1", Some("10.1.0.1")));
    }

    #[test]
    fn the_second_card_and_its_vfs_are_uplinks_and_the_first_is_not() {
        let links = [lo(), nic(2, "eno1"), nic(3, "ens2f0np0"), nic(4, "ens2f0v0"), nic(5, "ens2f0v1")];
        assert_eq!(names(&links, &[2]), ["ens2f0np0", "ens2f0v0", "ens2f0v1"]);
    }

    #[test]
    fn a_node_without_a_default_route_keeps_nothing_for_itself() {
        assert_eq!(names(&[lo(), nic(2, "eth0"), nic(3, "eth1")], &[]), ["eth0", "eth1"]);
    }

    #[test]
    fn several_default_routes_keep_several_links() {
        let links = [lo(), nic(2, "eth0"), nic(3, "eth1"), nic(4, "eth2")];
        assert_eq!(names(&links, &[2, 3]), ["eth2"]);
    }

    #[test]
    fn a_bond_with_the_default_route_keeps_its_ports() {
        let links = [
            lo(),
            port_of(4, nic(2, "eth0")),
            port_of(4, nic(3, "eth1")),
            link(4, "bond0", Some("bond")),
            nic(5, "eth2"),
        ];
        assert_eq!(names(&links, &[4]), ["eth2"]);
        assert_eq!(reason(&links, &[4], "eth0"), carries(Traffic::DefaultRoute, "bond0"));
    }

    #[test]
    fn a_bond_aside_is_an_uplink_and_its_ports_are_not() {
        let links = [
            lo(),
            nic(2, "eth0"),
            port_of(5, nic(3, "eth1")),
            port_of(5, nic(4, "eth2")),
            link(5, "bond1", Some("bond")),
        ];
        assert_eq!(names(&links, &[2]), ["bond1"]);
        assert_eq!(reason(&links, &[2], "eth2"), Err(NotUplink::Enslaved { master: "bond1".to_owned() }));
    }

    #[test]
    fn a_vlan_with_the_default_route_keeps_the_bond_below_and_its_ports_and_its_sibling_is_on_their_wire() {
        let links = [
            lo(),
            port_of(4, nic(2, "eth0")),
            port_of(4, nic(3, "eth1")),
            link(4, "bond0", Some("bond")),
            of(4, link(5, "bond0.100", Some("vlan"))),
            of(4, link(6, "bond0.200", Some("vlan"))),
        ];
        assert_eq!(names(&links, &[5]), [""; 0]);
        assert_eq!(reason(&links, &[5], "bond0.200"), above(Traffic::DefaultRoute, "bond0.100"));
        assert_eq!(reason(&links, &[5], "eth1"), carries(Traffic::DefaultRoute, "bond0.100"));
    }

    #[test]
    fn a_vlan_above_the_nodes_card_is_not_taken_by_itself() {
        let links = [lo(), nic(2, "eth0"), of(2, link(3, "eth0.100", Some("vlan")))];
        assert_eq!(names(&links, &[2]), [""; 0]);
        assert_eq!(reason(&links, &[2], "eth0.100"), above(Traffic::DefaultRoute, "eth0"));
    }

    #[test]
    fn a_bridge_with_the_default_route_keeps_its_ports_and_what_is_under_them() {
        let links = [
            lo(),
            nic(2, "eth0"),
            port_of(4, of(2, link(3, "eth0.7", Some("vlan")))),
            link(4, "br0", Some("bridge")),
            port_of(4, veth(5, "vnet0")),
            nic(6, "eth1"),
        ];
        assert_eq!(names(&links, &[4]), ["eth1"]);
        assert_eq!(reason(&links, &[4], "eth0"), carries(Traffic::DefaultRoute, "br0"));
    }

    #[test]
    fn a_default_route_on_a_port_keeps_the_other_ports_too() {
        let links = [
            lo(),
            port_of(4, nic(2, "eth0")),
            port_of(4, nic(3, "eth1")),
            link(4, "bond0", Some("bond")),
            nic(5, "eth2"),
        ];
        assert_eq!(names(&links, &[2]), ["eth2"]);
    }

    #[test]
    fn a_macvlan_with_the_default_route_keeps_the_card_below() {
        let links = [lo(), nic(2, "eth0"), of(2, link(3, "mac0", Some("macvlan"))), nic(4, "eth1")];
        assert_eq!(names(&links, &[3]), ["eth1"]);
    }

    #[test]
    fn other_plugins_links_are_not_uplinks() {
        let links = [
            lo(),
            nic(2, "eth0"),
            link(3, "docker0", Some("bridge")),
            link(4, "cni0", Some("bridge")),
            port_of(4, veth(5, "veth1a2b3c4d")),
            veth(6, "cali0123456789a"),
            veth(7, "lxc0a1b2c3d4e5f"),
            veth(8, "eni1a2b3c4d5e6"),
            veth(9, "gke0123456789a"),
            veth(10, "azv0123456789a"),
            link(11, "lxc_netkit", Some("netkit")),
            link(12, "flannel.1", Some("vxlan")),
            link(13, "genev_sys_6081", Some("geneve")),
            link(14, "tunl0", Some("ipip")),
            link(15, "wg0", Some("wireguard")),
            link(16, "kube-ipvs0", Some("dummy")),
            link(17, "nodelocaldns", Some("dummy")),
            link(18, "ifb0", Some("ifb")),
            link(19, "tap0", Some("tun")),
            of(2, link(20, "mv0", Some("macvlan"))),
            of(2, link(21, "iv0", Some("ipvlan"))),
            link(22, "vrf0", Some("vrf")),
            link(23, "br-int", Some("openvswitch")),
            link(24, "new0", Some("a-kind-of-tomorrow")),
        ];
        assert_eq!(names(&links, &[2]), [""; 0]);
        assert_eq!(reason(&links, &[2], "cali0123456789a"), Err(NotUplink::PodEnd));
        assert_eq!(reason(&links, &[2], "wg0"), Err(NotUplink::Virtual { kind: "wireguard".to_owned() }));
    }

    #[test]
    fn a_veth_is_an_uplink_only_under_a_cards_name() {
        for name in ["eth1", "eth10", "eno1", "ens3", "enp3s0f1np1", "enP2p1s0", "enx025000000001", "env3"] {
            assert_eq!(names(&[veth(2, name)], &[]), [name]);
        }
        for name in [
            "eth",
            "eth1a",
            "ethernet",
            "eth0-a-1a2b3c",
            "ens5-pod-1a2b3c",
            "en",
            "ens",
            "eni1a2b3c4d5e6",
            "net1",
        ] {
            assert_eq!(reason(&[veth(2, name)], &[], name), Err(NotUplink::PodEnd), "{name}");
        }
    }

    #[test]
    fn a_route_through_a_missing_link_is_ignored() {
        assert_eq!(names(&[nic(2, "eth0")], &[99]), ["eth0"]);
        let orphan = [port_of(98, nic(3, "eth1"))];
        assert_eq!(reason(&orphan, &[], "eth1"), Err(NotUplink::Enslaved { master: "#98".to_owned() }));
    }

    #[test]
    fn links_that_point_at_each_other_do_not_cause_an_endless_loop() {
        let links = [of(3, link(2, "a", Some("vlan"))), port_of(2, of(2, link(3, "b", Some("vlan"))))];
        assert_eq!(names(&links, &[2]), [""; 0]);
    }

    #[test]
    fn a_link_is_up_with_a_carrier_and_no_state_against_it() {
        let up = nic(2, "eth0");
        assert!(up.is_up());
        assert!(Link { oper: OperState::Unknown, ..up.clone() }.is_up());
        assert!(!Link { oper: OperState::LowerLayerDown, ..up.clone() }.is_up());
        assert!(!Link { oper: OperState::Dormant, ..up.clone() }.is_up());
        assert!(!Link { carrier: false, ..up.clone() }.is_up());
        assert!(!Link { admin_up: false, ..up }.is_up());
    }
}
