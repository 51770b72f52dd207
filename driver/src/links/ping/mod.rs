//! Finds out what the network between two links passes, before a pod needs it: all who take part send
//! [frames](frames) for a while, and note which they hear of each other.
//!
//! No clock is compared and no frame is answered. Each sends all of its frames in every [`ROUND`], so that
//! two who have listened together for a round have heard each other, if anything passes.
//!
//! What is heard is hostile input: whoever is on the network can read the number of a run, and send such
//! frames. They are counted, and nothing is kept of them but counts of at most [`MOST`] senders.

mod frames;

use std::io;
use std::time::{Duration, Instant};

use super::error::Error;
use super::netlink::Socket;
use super::packets::{Mac, Packets, written};
use frames::{Kind, Probe, SHORT, filter, frame, read};

/// Time in which everything is sent once.
const ROUND: Duration = Duration::from_millis(500);
/// Those who can take part in one run.
const MOST: u8 = 16;
const EVERYBODY: Mac = [0xff; 6];
/// The lengths of frames that are tried, in bytes of payload, below that of the MTU: MTUs of usual networks
/// and tunnels. None is 4 bytes above another: links let frames pass that are longer by a tag.
const LENGTHS: [u16; 14] =
    [576, 1280, 1400, 1450, 1480, 1492, 1500, 1550, 2000, 4000, 8000, 8900, 8950, 9000];

/// A run, for one of those who take part in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ping {
    /// Tells the frames of the run from those of others.
    pub run: u64,
    /// The place of this one in the run, from 0.
    pub place: u8,
    /// How many take part.
    pub many: u8,
    /// The VLAN id with which frames are sent.
    pub vlan: Option<u16>,
    /// The longest payload that is tried, in bytes.
    pub mtu: u32,
    /// Whether frames come from a second MAC address as well, and those to it are heard.
    pub has_second_mac: bool,
}

/// What was found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pinged {
    /// Hardware address of the link, from which frames came.
    pub mac: String,
    /// The second one, if any came from there.
    pub second_mac: Option<String>,
    /// The longest payload that was sent, in bytes.
    pub mtu: u32,
    /// What was heard of each who took part, by its place.
    pub heard: Vec<Heard>,
}

/// How many frames were heard of one who took part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heard {
    /// Frames without a tag, where the network has a VLAN.
    pub untagged: u32,
    /// Frames to all.
    pub broadcast: u32,
    /// Frames from a second MAC address.
    pub second_mac: u32,
    /// Frames to this link alone.
    pub unicast: u32,
    /// Frames to the second MAC address of this link.
    pub to_second_mac: u32,
    /// The longest payload, in bytes.
    pub longest: u16,
    /// Frames that were sent with the VLAN's tag, and came without it.
    pub lost_tag: u32,
}

impl Ping {
    /// How long each sends and listens.
    pub const WINDOW: Duration = Duration::from_secs(4);
}

/// Takes part in a run by a link of the calling thread's network namespace. Blocks for [`Ping::WINDOW`].
pub(super) fn ping(name: &str, ping: Ping) -> Result<Pinged, Error> {
    let failed = |source| Error::Ping { link: name.to_owned(), source };
    let gone = || failed(io::Error::new(io::ErrorKind::NotFound, "the link is gone"));
    let link = Socket::open()?.links()?.into_iter().find(|link| link.name == name).ok_or_else(gone)?;
    let unusable = || failed(io::Error::other("the link is not of Ethernet, or without ARP"));
    let packets = Packets::open(name).map_err(failed)?.ok_or_else(unusable)?;
    packets.filter(&filter(ping.vlan)).map_err(failed)?;
    if ping.vlan.is_some() || ping.has_second_mac {
        packets.hear_all().map_err(failed)?;
    }
    let mut run = Run::new(Ping { mtu: ping.mtu.min(link.mtu), ..ping }, packets.own);
    let (start, mut end_of_round) = (Instant::now(), Duration::ZERO);
    while end_of_round < Ping::WINDOW {
        let frames = run.frames();
        // Not all at once: a receive buffer has room for some 15 long frames.
        let pause = ROUND / u32::try_from(frames.len().max(1)).unwrap_or(u32::MAX);
        for (index, frame) in (1..).zip(frames) {
            packets.send(&frame).map_err(failed)?;
            let until = start + end_of_round + index * pause;
            while let Some(frame) = packets.receive(until).map_err(failed)? {
                run.hear(&frame);
            }
        }
        end_of_round += ROUND;
    }
    Ok(run.into_pinged())
}

/// The state of a run. Pure.
#[derive(Debug)]
pub(crate) struct Run {
    ping: Ping,
    own: Mac,
    heard: Vec<Heard>,
    /// The hardware address of each who took part, and the second one.
    macs: Vec<[Option<Mac>; 2]>,
}

impl Run {
    pub(crate) fn new(ping: Ping, own: Mac) -> Self {
        let many = usize::from(ping.many.min(MOST));
        Self { ping, own, heard: vec![Heard::default(); many], macs: vec![[None; 2]; many] }
    }

    /// A second MAC address. It is the same in each run: a switch that counts addresses counts one more. It
    /// is of no vendor (the bit of local administration).
    fn second_mac(&self) -> Mac {
        let [first, second, rest @ ..] = self.own;
        let [a, b, c, d] = rest;
        [first | 2, second ^ 0x5a, a, b, c, d]
    }

    /// Returns all frames of a round.
    fn frames(&self) -> Vec<Vec<u8>> {
        let Ping { run, place: from, vlan, mtu, .. } = self.ping;
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        let made = |kind, length, by, to, vlan| frame(Probe { kind, from, length, run }, by, to, vlan);
        let short = |kind, by, to, vlan| made(kind, SHORT, by, to, vlan);
        let untagged = vlan.and_then(|_| short(Kind::Untagged, self.own, EVERYBODY, None));
        let second = || short(Kind::SecondMac, self.second_mac(), EVERYBODY, vlan);
        let others = self.macs.iter().flat_map(|macs| macs.iter().zip([Kind::Unicast, Kind::ToSecondMac]));
        let others = others.filter_map(|(mac, kind)| short(kind, self.own, (*mac)?, vlan));
        let lengths = LENGTHS.into_iter().filter(|length| *length < mtu).chain([mtu]);
        untagged
            .into_iter()
            .chain(short(Kind::Broadcast, self.own, EVERYBODY, vlan))
            .chain(self.ping.has_second_mac.then(second).flatten())
            .chain(others)
            .chain(lengths.filter_map(|length| made(Kind::Long, length, self.own, EVERYBODY, vlan)))
            .collect()
    }

    /// Notes a frame of another who takes part.
    pub(crate) fn hear(&mut self, frame: &[u8]) {
        let Some(frames::Heard { probe, by, to, is_tagged }) = read(frame) else { return };
        let (index, own) = (usize::from(probe.from), [self.own, self.second_mac()]);
        let (Some(heard), Some([mac, second])) = (self.heard.get_mut(index), self.macs.get_mut(index)) else {
            return;
        };
        if probe.run != self.ping.run || probe.from == self.ping.place {
            return;
        }
        let count = match probe.kind {
            Kind::Untagged if !is_tagged => &mut heard.untagged,
            // What is sent without a tag and gets one on the way is of another network.
            Kind::Untagged => return,
            // A link that receives all frames receives those to others, too.
            Kind::Unicast if to != own[0] => return,
            Kind::ToSecondMac if to != own[1] => return,
            _ if is_tagged != self.ping.vlan.is_some() => &mut heard.lost_tag,
            Kind::Broadcast => &mut heard.broadcast,
            Kind::SecondMac => &mut heard.second_mac,
            Kind::Unicast => &mut heard.unicast,
            Kind::ToSecondMac => &mut heard.to_second_mac,
            Kind::Long => {
                heard.longest = heard.longest.max(probe.length);
                return;
            }
        };
        *count = count.saturating_add(1);
        // The first who says so is it: frames go to no more addresses than take part.
        match probe.kind {
            Kind::Broadcast if by[0] & 1 == 0 => drop(mac.get_or_insert(by)),
            Kind::SecondMac if by[0] & 1 == 0 => drop(second.get_or_insert(by)),
            _ => {}
        }
    }

    fn into_pinged(self) -> Pinged {
        let second_mac = self.ping.has_second_mac.then(|| written(self.second_mac()));
        Pinged { mac: written(self.own), second_mac, mtu: self.ping.mtu, heard: self.heard }
    }
}

#[cfg(feature = "fuzzing")]
impl Run {
    /// How many frames a round has, and how many senders are known.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.frames().len(), self.heard.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [0x52, 0x54, 0, 0, 0, 2];

    fn run(place: u8, own: Mac, vlan: Option<u16>) -> Run {
        Run::new(Ping { run: 7, place, many: 2, vlan, mtu: 9000, has_second_mac: true }, own)
    }

    /// What the filter passes on of a frame.
    fn passed_on(frame: &[u8]) -> Vec<u8> {
        match frame.strip_prefix(&frame[..12]) {
            Some([0x81, 0, _, _, rest @ ..]) => [&frame[..12], rest].concat()[..96].to_vec(),
            _ => frame[..64].to_vec(),
        }
    }

    fn round(from: &Run, to: &mut Run) {
        from.frames().iter().for_each(|frame| to.hear(&passed_on(frame)));
    }

    #[test]
    fn two_who_listen_together_for_a_round_hear_all_of_each_other() {
        for vlan in [None, Some(100)] {
            let (mut one, mut other) = (run(0, ONE, vlan), run(1, OTHER, vlan));
            round(&one, &mut other);
            let untagged = u32::from(vlan.is_some());
            let all = Heard { untagged, broadcast: 1, second_mac: 1, longest: 9000, ..Heard::default() };
            assert_eq!(other.heard, [all, Heard::default()]);
            round(&other, &mut one);
            assert_eq!(
                one.heard[1],
                Heard { unicast: 1, to_second_mac: 1, ..all },
                "its addresses are known by then"
            );
        }
    }

    #[test]
    fn frames_of_other_runs_and_its_own_count_for_nothing() {
        let mut other = run(1, OTHER, None);
        let of_another_run = Run { ping: Ping { run: 8, ..run(0, ONE, None).ping }, ..run(0, ONE, None) };
        round(&of_another_run, &mut other);
        round(&run(1, OTHER, None), &mut other);
        round(&run(2, ONE, None), &mut other);
        assert_eq!(other.heard, [Heard::default(); 2]);
    }

    #[test]
    fn frames_to_others_count_for_nothing() {
        let (mut one, mut other) = (run(0, ONE, None), run(1, OTHER, None));
        round(&other, &mut one);
        round(&one, &mut other);
        assert_eq!((other.heard[0].unicast, other.heard[0].to_second_mac), (1, 1));
        let mut third = Run::new(Ping { place: 2, many: 3, ..other.ping.clone() }, [2, 0, 0, 0, 0, 3]);
        round(&one, &mut third);
        assert_eq!(
            (third.heard[0].broadcast, third.heard[0].unicast, third.heard[0].to_second_mac),
            (1, 0, 0)
        );
    }

    #[test]
    fn a_tag_that_is_lost_on_the_way_is_noted() {
        let mut other = run(1, OTHER, Some(100));
        for frame in run(0, ONE, Some(100)).frames() {
            // As a port does that is of one VLAN only.
            let passed = passed_on(&frame);
            other.hear(&passed[..64]);
        }
        let Heard { untagged, broadcast, lost_tag, .. } = other.heard[0];
        assert!(untagged == 1 && broadcast == 0 && lost_tag > 2, "{:?}", other.heard);
    }

    #[test]
    fn a_flood_of_frames_makes_no_round_longer() {
        let mut other = run(1, OTHER, None);
        let before = other.frames().len();
        for last in 0..=u8::MAX {
            let flooding = run(0, [2, 0, 0, 0, 0, last], None);
            round(&flooding, &mut other);
        }
        assert_eq!(other.frames().len(), before + 2, "two addresses for each who takes part");
    }

    #[test]
    fn the_second_mac_address_stays_the_same_and_is_no_vendors() {
        let one = run(0, [0x52, 0x54, 0, 0, 0, 1], None);
        assert_eq!(written(one.second_mac()), "52:0e:00:00:00:01");
        assert_eq!(written(run(0, [0, 0x54, 0, 0, 0, 1], None).second_mac()), "02:0e:00:00:00:01");
    }

    #[test]
    fn a_round_is_short_enough_to_be_sent_evenly() {
        assert!(run(0, ONE, Some(1)).frames().len() < 32);
        assert!(Ping::WINDOW >= 8 * ROUND);
    }
}
