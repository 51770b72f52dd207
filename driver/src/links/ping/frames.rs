//! The frames by which nodes and pods find out what the network between them passes. Pure.
//!
//! ```text
//!   Ethernet, 802.1Q if the network has a VLAN, 0x88b5 │ "netclaim" │ kind │ from │ length │ run │ zeros
//! ```

use etherparse::{EtherType, Ethernet2Header, Ethernet2Slice, SingleVlanHeader, VlanId, VlanPcp};
use socket2::SockFilter;

use crate::links::packets::Mac;

/// The EtherType for experiments on a local network (IEEE 802, section 9.2.4). Nothing else answers to it.
const EXPERIMENTAL: EtherType = EtherType(0x88b5);
const MAGIC: [u8; 8] = *b"netclaim";
/// The shortest payload, in bytes: frames are longer than what the [`filter`] leaves of them.
pub(super) const SHORT: u16 = 128;
/// In what length frames are passed on that came without and with the VLAN's tag, which the kernel has taken
/// off. Both have all that is read.
const WITHOUT_TAG: u32 = 64;
const WITH_TAG: u32 = 96;

/// What a frame finds out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Whether frames without a tag pass, where the network has a VLAN.
    Untagged,
    /// Whether frames to all pass.
    Broadcast,
    /// Whether frames from another MAC address than the link's own pass.
    SecondMac,
    /// Whether frames to the MAC address of one pass.
    Unicast,
    /// Whether frames to its second MAC address pass.
    ToSecondMac,
    /// Whether frames of this length pass.
    Long,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Untagged, Self::Broadcast, Self::SecondMac, Self::Unicast, Self::ToSecondMac, Self::Long];
}

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) kind: Kind,
    /// The place of its sender in the run.
    pub(super) from: u8,
    /// Length of the payload, in bytes.
    pub(super) length: u16,
    /// The run that it is of.
    pub(super) run: u64,
}

/// A frame that was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) probe: Probe,
    /// Hardware address of the sender.
    pub(super) by: Mac,
    /// Hardware address that it was sent to.
    pub(super) to: Mac,
    /// Whether it came with the VLAN's tag.
    pub(super) is_tagged: bool,
}

/// Returns a frame; `None` for a VLAN id that there is not.
pub(super) fn frame(probe: Probe, by: Mac, to: Mac, vlan: Option<u16>) -> Option<Vec<u8>> {
    let ether_type = if vlan.is_some() { EtherType::VLAN_TAGGED_FRAME } else { EXPERIMENTAL };
    let mut frame = Ethernet2Header { source: by, destination: to, ether_type }.to_bytes().to_vec();
    if let Some(id) = vlan {
        let vlan_id = VlanId::try_new(id).ok()?;
        let tag = SingleVlanHeader {
            pcp: VlanPcp::ZERO,
            drop_eligible_indicator: false,
            vlan_id,
            ether_type: EXPERIMENTAL,
        };
        frame.extend(tag.to_bytes());
    }
    let length = probe.length.max(SHORT);
    let end = frame.len() + usize::from(length);
    frame.extend(MAGIC);
    frame.extend([probe.kind as u8, probe.from]);
    frame.extend(length.to_be_bytes());
    frame.extend(probe.run.to_be_bytes());
    frame.resize(end, 0);
    Some(frame)
}

/// Reads what the [`filter`] has passed on; `None` for a frame of others.
pub(super) fn read(frame: &[u8]) -> Option<Heard> {
    let ethernet = Ethernet2Slice::from_slice_without_fcs(frame).ok()?;
    let payload = Some(ethernet.payload_slice()).filter(|_| ethernet.ether_type() == EXPERIMENTAL)?;
    let payload = payload.strip_prefix(&MAGIC)?;
    let (&[kind, from], rest) = payload.split_first_chunk()?;
    let (&length, rest) = rest.split_first_chunk()?;
    let run = u64::from_be_bytes(*rest.first_chunk()?);
    let kind = *Kind::ALL.get(usize::from(kind))?;
    let probe = Probe { kind, from, length: u16::from_be_bytes(length), run };
    let (by, to) = (ethernet.source(), ethernet.destination());
    Some(Heard { probe, by, to, is_tagged: frame.len() == WITH_TAG as usize })
}

/// Returns the filter by which the kernel passes frames on: of all that the link receives only these, without
/// a tag or with that of the VLAN.
pub(super) fn filter(vlan: Option<u16>) -> Vec<SockFilter> {
    // Instructions (Linux, Documentation/networking/filter.rst), and what the kernel knows beside the frame.
    const LOAD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const JUMP_IF: u16 = 0x15;
    const AND: u16 = 0x54;
    const RETURN: u16 = 0x06;
    const PACKET_TYPE: u32 = 0xffff_f004;
    const TAG: u32 = 0xffff_f02c;
    const HAS_TAG: u32 = 0xffff_f030;
    const OUTGOING: u32 = 4;
    const TYPE_OFFSET: u32 = 12;
    let step = |code, operand| SockFilter::new(code, 0, 0, operand);
    // Jumps count the steps that they leave out.
    let jump = |operand, then, otherwise| SockFilter::new(JUMP_IF, then, otherwise, operand);
    vec![
        step(LOAD, PACKET_TYPE),
        // Those of pods on this link that go out.
        jump(OUTGOING, 10, 0),
        step(LOAD_HALF, TYPE_OFFSET),
        jump(EXPERIMENTAL.0.into(), 0, 8),
        step(LOAD, HAS_TAG),
        jump(0, 4, 0),
        step(LOAD, TAG),
        step(AND, 0xfff),
        // A tag that has a priority only.
        jump(0, 1, 0),
        jump(vlan.unwrap_or_default().into(), 1, 2),
        step(RETURN, WITHOUT_TAG),
        step(RETURN, WITH_TAG),
        step(RETURN, 0),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BY: Mac = [2, 0, 0, 0, 0, 1];
    const PROBE: Probe = Probe { kind: Kind::Long, from: 3, length: 1500, run: 0x0102_0304_0506_0708 };

    #[test]
    fn a_frame_says_who_has_sent_it_and_how_long_it_was() {
        let frame = frame(PROBE, BY, [0xff; 6], None).unwrap();
        assert_eq!(frame.len(), 14 + 1500);
        let heard = Heard { probe: PROBE, by: BY, to: [0xff; 6], is_tagged: false };
        assert_eq!(read(&frame), Some(heard));
        assert_eq!(read(&frame[..WITHOUT_TAG as usize]), Some(heard));
        assert_eq!(read(&frame[..WITH_TAG as usize]), Some(Heard { is_tagged: true, ..heard }));
    }

    #[test]
    fn a_frame_of_a_vlan_has_its_tag_and_is_longer_by_it() {
        let tagged = frame(PROBE, BY, [0xff; 6], Some(100)).unwrap();
        assert_eq!(tagged[12..18], [0x81, 0, 0, 100, 0x88, 0xb5]);
        assert_eq!(tagged.len(), 14 + 4 + 1500);
        assert_eq!(read(&tagged), None, "the kernel takes the tag off");
        assert_eq!(frame(PROBE, BY, [0xff; 6], Some(4096)), None);
    }

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        for kind in Kind::ALL {
            let probe = Probe { kind, length: SHORT, ..PROBE };
            assert_eq!(read(&frame(probe, BY, BY, None).unwrap()).unwrap().probe, probe);
        }
    }

    proptest! {
        #[test]
        fn no_frame_is_too_strange_to_read(frame in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = read(&frame);
        }

        #[test]
        fn a_frame_that_is_cut_or_changed_can_be_read(cut in 0_usize..142, at in 0_usize..142, byte: u8) {
            let mut frame = frame(PROBE, BY, BY, None).unwrap();
            frame[at] = byte;
            frame.truncate(cut);
            let _ = read(&frame);
        }
    }
}
