//! Which links are uplinks, by tables of links as nodes really have them.

#[cfg(test)]
mod links {
    use std::collections::BTreeSet;

    use netclaim_driver::links::{Link, NotUplink, OperState, classify, uplinks};

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
        Link { peer_in_other_netns: true, ..link(index, name, Some("veth")) }
    }

    fn lo() -> Link {
        Link { loopback: true, ..nic(1, "lo") }
    }

    fn names(links: &[Link], default_routes: &[u32]) -> Vec<String> {
        let routes: BTreeSet<u32> = default_routes.iter().copied().collect();
        uplinks(links, &routes).into_iter().map(|link| link.name.clone()).collect()
    }

    fn verdict(links: &[Link], default_routes: &[u32], name: &str) -> Result<(), NotUplink> {
        let routes: BTreeSet<u32> = default_routes.iter().copied().collect();
        classify(links, &routes).find(|(link, _)| link.name == name).map(|(_, verdict)| verdict).unwrap()
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
        assert_eq!(
            verdict(&links, &[4], "eth0"),
            Err(NotUplink::NodeTraffic { default_route_link: "bond0".to_owned() })
        );
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
        assert_eq!(verdict(&links, &[2], "eth2"), Err(NotUplink::Enslaved { master: "bond1".to_owned() }));
    }

    #[test]
    fn a_vlan_with_the_default_route_keeps_the_bond_below_and_its_ports_but_not_its_sibling() {
        let links = [
            lo(),
            port_of(4, nic(2, "eth0")),
            port_of(4, nic(3, "eth1")),
            link(4, "bond0", Some("bond")),
            of(4, link(5, "bond0.100", Some("vlan"))),
            of(4, link(6, "bond0.200", Some("vlan"))),
        ];
        assert_eq!(names(&links, &[5]), ["bond0.200"]);
        assert_eq!(
            verdict(&links, &[5], "eth1"),
            Err(NotUplink::NodeTraffic { default_route_link: "bond0.100".to_owned() })
        );
    }

    #[test]
    fn a_vlan_above_the_nodes_card_is_a_network_of_its_own() {
        let links = [lo(), nic(2, "eth0"), of(2, link(3, "eth0.100", Some("vlan")))];
        assert_eq!(names(&links, &[2]), ["eth0.100"]);
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
        assert_eq!(
            verdict(&links, &[4], "eth0"),
            Err(NotUplink::NodeTraffic { default_route_link: "br0".to_owned() })
        );
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
        assert_eq!(verdict(&links, &[2], "cali0123456789a"), Err(NotUplink::PodEnd));
        assert_eq!(verdict(&links, &[2], "wg0"), Err(NotUplink::Virtual { kind: "wireguard".to_owned() }));
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
            assert_eq!(verdict(&[veth(2, name)], &[], name), Err(NotUplink::PodEnd), "{name}");
        }
    }

    #[test]
    fn the_other_end_of_a_veth_is_not_a_link_below() {
        // Both ends in one namespace, as in a lab: each is the other's "parent".
        let links = [of(3, link(2, "eth0", Some("veth"))), of(2, link(3, "eth1", Some("veth")))];
        assert_eq!(names(&links, &[2]), ["eth1"]);
    }

    #[test]
    fn a_route_through_a_link_that_is_gone_does_no_harm() {
        assert_eq!(names(&[nic(2, "eth0")], &[99]), ["eth0"]);
        let orphan = [port_of(98, nic(3, "eth1"))];
        assert_eq!(verdict(&orphan, &[], "eth1"), Err(NotUplink::Enslaved { master: "#98".to_owned() }));
    }

    #[test]
    fn links_that_point_at_each_other_do_not_go_round_for_ever() {
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
