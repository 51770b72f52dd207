//! The Ethernet frames by which hosts find out who has an address, and say that they have it. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, Icmpv6Type, LinkSlice, NetSlice, PacketBuilder, SlicedPacket,
    TransportSlice,
};

use crate::links::packets::Mac;

const NO_MAC: Mac = [0; 6];
const EVERYBODY: Mac = [0xff; 6];
/// The hardware address of [`ALL_NODES`] (RFC 2464, section 7).
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// With another hop limit, a message of neighbour discovery may come from beyond the link, and is not valid
/// (RFC 4861, section 7.1).
const ON_LINK: u8 = 255;
/// The option with the target's hardware address, which is 8 bytes long (RFC 4861, section 4.6.1).
const TARGET_MAC: [u8; 2] = [2, 1];

/// What a frame says of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Says {
    pub(super) ip: IpAddr,
    /// Hardware address of the sender.
    pub(super) by: Mac,
    /// Whether the sender has the address. Otherwise it wants it, and asks who has it, as we do.
    pub(super) has_it: bool,
}

/// Returns the frame that asks who has an address, without saying that the sender has it: an ARP probe (RFC
/// 5227, section 1.1), or a neighbour solicitation for duplicate address detection (RFC 4862, section 5.4.2).
pub(super) fn probe(ip: IpAddr, own: Mac) -> Option<Vec<u8>> {
    match ip {
        IpAddr::V4(ip) => arp(own, own, Ipv4Addr::UNSPECIFIED, ip),
        IpAddr::V6(ip) => {
            let (group, mac) = solicited_node(ip);
            neighbour(own, mac, Ipv6Addr::UNSPECIFIED, group, Icmpv6Type::NeighborSolicitation, &ip.octets())
        }
    }
}

/// Returns the frame that tells all neighbours that the host `of` has an address: an ARP announcement (RFC
/// 5227, section 1.1), or an unsolicited neighbour advertisement (RFC 4861, section 7.2.6). `own` sends it.
pub(super) fn announcement(ip: IpAddr, of: Mac, own: Mac) -> Option<Vec<u8>> {
    match ip {
        IpAddr::V4(ip) => arp(own, of, ip, ip),
        IpAddr::V6(ip) => {
            let flags = NeighborAdvertisementHeader { router: false, solicited: false, r#override: true };
            let payload = [&ip.octets()[..], &TARGET_MAC, &of].concat();
            neighbour(own, ALL_NODES_MAC, ip, ALL_NODES, Icmpv6Type::NeighborAdvertisement(flags), &payload)
        }
    }
}

/// Reads what a frame says of an address; `None` for all other frames.
pub(super) fn read(frame: &[u8]) -> Option<Says> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    // What is of a VLAN says nothing of the network without one.
    let LinkSlice::Ethernet2(ethernet) = packet.link.as_ref().filter(|_| packet.link_exts.is_empty())? else {
        return None;
    };
    match &packet.net? {
        NetSlice::Arp(arp) => {
            let arp = arp.to_packet().try_eth_ipv4().ok()?;
            let (sender, by) = (arp.sender_ipv4_addr(), arp.sender_mac);
            if !sender.is_unspecified() {
                return Some(Says { ip: sender.into(), by, has_it: true });
            }
            let is_probe = arp.operation == ArpOperation::REQUEST;
            is_probe.then(|| Says { ip: arp.target_ipv4_addr().into(), by, has_it: false })
        }
        NetSlice::Ipv6(ipv6) if ipv6.header().hop_limit() == ON_LINK => {
            let TransportSlice::Icmpv6(message) = &packet.transport? else { return None };
            let target: &[u8; 16] = message.payload().first_chunk()?;
            let (ip, by) = (IpAddr::from(*target), ethernet.source());
            match message.icmp_type() {
                Icmpv6Type::NeighborAdvertisement(_) => Some(Says { ip, by, has_it: true }),
                Icmpv6Type::NeighborSolicitation if ipv6.header().source_addr().is_unspecified() => {
                    Some(Says { ip, by, has_it: false })
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn arp(own: Mac, sender_mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Option<Vec<u8>> {
    let packet = ArpEthIpv4Packet {
        operation: ArpOperation::REQUEST,
        sender_mac,
        sender_ipv4: sender.octets(),
        target_mac: NO_MAC,
        target_ipv4: target.octets(),
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(own, EVERYBODY).arp(packet.into()).write(&mut frame).ok()?;
    Some(frame)
}

fn neighbour(
    own: Mac,
    to_mac: Mac,
    from: Ipv6Addr,
    to: Ipv6Addr,
    kind: Icmpv6Type,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let ethernet = PacketBuilder::ethernet2(own, to_mac);
    let message = ethernet.ipv6(from.octets(), to.octets(), ON_LINK).icmpv6(kind);
    let mut frame = Vec::new();
    message.write(&mut frame, payload).ok()?;
    Some(frame)
}

/// Returns the group that who has an address listens to (RFC 4291, section 2.7.1), and its hardware address.
fn solicited_node(ip: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., a, b, c] = ip.octets();
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    (group, [0x33, 0x33, 0xff, a, b, c])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 0x99];
    const ADDRESSES: [&str; 2] = ["10.9.0.7", "fd09::1:2:7"];

    #[test]
    fn a_probe_says_that_the_sender_wants_the_address_but_not_that_it_has_it() {
        for ip in ADDRESSES.map(|ip| ip.parse().unwrap()) {
            let says = read(&probe(ip, OWN).unwrap());
            assert_eq!(says, Some(Says { ip, by: OWN, has_it: false }));
        }
    }

    #[test]
    fn an_announcement_says_who_has_the_address() {
        let [v4, v6] = ADDRESSES.map(|ip| ip.parse().unwrap());
        let says = read(&announcement(v4, OTHER, OWN).unwrap());
        assert_eq!(says, Some(Says { ip: v4, by: OTHER, has_it: true }));
        let frame = announcement(v6, OTHER, OWN).unwrap();
        assert!(frame.ends_with(&[&[2, 1][..], &OTHER].concat()), "{frame:x?}");
        assert_eq!(read(&frame).map(|says| says.ip), Some(v6));
    }

    #[test]
    fn an_arp_probe_is_as_rfc_5227_writes_it() {
        let frame = probe("10.9.0.7".parse().unwrap(), OWN).unwrap();
        let expected = [
            &[0xff; 6][..], // to everybody
            &OWN,
            &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1], // ARP, Ethernet, IPv4, lengths, request
            &OWN,
            &[0, 0, 0, 0],
            &[0; 6],
            &[10, 9, 0, 7],
        ];
        assert_eq!(frame, expected.concat());
    }

    #[test]
    fn a_solicitation_goes_to_the_group_of_the_address() {
        let frame = probe("fd09::1:2345:6789".parse().unwrap(), OWN).unwrap();
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x45, 0x67, 0x89]);
        assert_eq!(frame[38..54], "ff02::1:ff45:6789".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!((frame[21], frame[54]), (255, 135), "hop limit and type");
    }

    #[test]
    fn a_neighbour_message_from_beyond_the_link_says_nothing() {
        let mut frame = announcement("fd09::7".parse().unwrap(), OTHER, OTHER).unwrap();
        assert!(read(&frame).is_some());
        frame[21] = 64;
        assert_eq!(read(&frame), None);
    }

    #[test]
    fn who_only_looks_for_its_neighbour_does_not_want_its_address() {
        let ip: Ipv6Addr = "fd09::7".parse().unwrap();
        let (group, mac) = solicited_node(ip);
        let from = "fe80::1".parse().unwrap();
        let frame =
            neighbour(OTHER, mac, from, group, Icmpv6Type::NeighborSolicitation, &ip.octets()).unwrap();
        assert_eq!(read(&frame), None);
    }

    proptest! {
        #[test]
        fn no_frame_is_too_strange_to_read(frame in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = read(&frame);
        }

        #[test]
        fn a_frame_that_is_cut_or_changed_can_be_read(cut in 0_usize..90, at in 0_usize..86, byte: u8) {
            for ip in ADDRESSES.map(|ip| ip.parse().unwrap()) {
                let mut frame = announcement(ip, OTHER, OWN).unwrap();
                if let Some(changed) = frame.get_mut(at) {
                    *changed = byte;
                }
                frame.truncate(cut);
                let _ = read(&frame);
            }
        }
    }
}
