//! What the network passes from one to another, by what they have sent and heard. Pure.

use std::time::Duration;

use netclaim_api::ping::{Heard, Probed};

/// How long two have to listen together before what they have not heard counts: three rounds of an agent's
/// frames. Frames to one address follow a round after the first.
const TOGETHER: Duration = Duration::from_millis(1500);
/// Or this many frames have to be heard, one way or the other, of a kind that is sent once in a round.
const ROUNDS: u32 = 3;

/// One that took part.
#[derive(Debug, Clone)]
pub(super) struct Listened {
    pub(super) probed: Probed,
    /// How long after the question to all the answer was there.
    pub(super) after: Duration,
}

/// What has become of one that was to take part.
#[derive(Debug, Clone)]
pub(super) enum Took {
    Part(Box<Listened>),
    NoPart { why: String, is_not_offered: bool },
}

/// What passes from one to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All does.
    Passes { vlan: Option<u16>, mtu: u32 },
    /// Something does not.
    Fails(Vec<Cause>),
    /// They may not have listened together.
    Apart,
}

/// What does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nothing does, nor without the tag of the VLAN.
    Nothing { vlan: Option<u16> },
    /// The VLAN does not, frames without a tag do.
    Vlan(u16),
    /// The VLAN comes without its tag.
    LostTag(u16),
    /// Frames to all do not, others do.
    ToAll,
    /// Both have this MAC address.
    SameMac(String),
    /// Frames from this second MAC address of the sender do not.
    SecondMac(String),
    /// Frames to this MAC address of the receiver do not.
    Unicast(String),
    /// Frames to this second MAC address of the receiver do not.
    ToSecondMac(String),
    /// Long frames do not, up to what; 0 if none of those that were tried does.
    Mtu { mtu: u32, passes: u16 },
}

impl Listened {
    fn heard(&self, place: usize) -> Heard {
        self.probed.heard.get(place).copied().unwrap_or_default()
    }

    /// How long both have listened at least together. Each has begun after the question to all, and ended
    /// before its answer was there.
    fn together(&self, other: &Self) -> Duration {
        let of = |one: &Self| Duration::from_millis(one.probed.listened);
        (of(self) + of(other)).saturating_sub(self.after.max(other.after))
    }
}

/// Judges what passes from one to another. `are_apart` says that they are on different nodes.
pub(super) fn judge(from: &Listened, to: &Listened, are_apart: bool) -> Verdict {
    let (sent, heard, back) = (&from.probed, to.heard(from.probed.place), from.heard(to.probed.place));
    let mut causes = Vec::new();
    if are_apart && sent.mac == to.probed.mac {
        causes.push(Cause::SameMac(sent.mac.clone()));
    }
    let Heard { untagged, broadcast, second_mac, unicast, to_second_mac, longest, lost_tag } = heard;
    let to_all = broadcast > 0 || longest > 0;
    if !to_all && second_mac == 0 && unicast == 0 && to_second_mac == 0 {
        causes.push(match sent.vlan {
            Some(vlan) if lost_tag > 0 => Cause::LostTag(vlan),
            Some(vlan) if untagged > 0 => Cause::Vlan(vlan),
            vlan => Cause::Nothing { vlan },
        });
    } else if !to_all {
        // Long frames go to all, as do those from the second address.
        causes.push(Cause::ToAll);
    } else {
        if let (Some(mac), 0) = (&sent.second_mac, second_mac) {
            causes.push(Cause::SecondMac(mac.clone()));
        }
        // Who has not heard the other in time does not know its address.
        if to.probed.hears_unicast && unicast == 0 && back.broadcast >= ROUNDS {
            causes.push(Cause::Unicast(to.probed.mac.clone()));
        }
        if let (Some(mac), 0, ROUNDS..) = (&to.probed.second_mac, to_second_mac, back.second_mac) {
            causes.push(Cause::ToSecondMac(mac.clone()));
        }
        if u32::from(longest) < sent.mtu.min(u16::MAX.into()) {
            causes.push(Cause::Mtu { mtu: sent.mtu, passes: longest });
        }
    }
    if causes.is_empty() {
        return Verdict::Passes { vlan: sent.vlan, mtu: sent.mtu };
    }
    // Who was heard has listened meanwhile.
    let rounds = [broadcast, untagged, back.broadcast, back.untagged].into_iter().max();
    let is_certain = from.together(to) >= TOGETHER || rounds >= Some(ROUNDS);
    if is_certain { Verdict::Fails(causes) } else { Verdict::Apart }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What one has heard that hears everything.
    pub(in super::super) fn all(mtu: u16) -> Heard {
        Heard { broadcast: 8, second_mac: 8, unicast: 7, to_second_mac: 7, longest: mtu, ..Heard::default() }
    }

    /// One of two that hears the other in this way.
    pub(in super::super) fn listened(place: usize, heard: Heard) -> Listened {
        let mut of_all = vec![heard; 2];
        of_all[place] = Heard::default();
        let probed = Probed {
            place,
            link: "eth1".to_owned(),
            mac: format!("02:00:00:00:00:0{place}"),
            second_mac: Some(format!("02:5a:00:00:00:0{place}")),
            mtu: 1500,
            hears_unicast: true,
            listened: 4000,
            heard: of_all,
            ..Probed::default()
        };
        Listened { probed, after: Duration::from_millis(4500) }
    }

    /// The verdict on what the other has heard in this way.
    fn verdict(change: impl Fn(&mut Listened, &mut Listened)) -> Verdict {
        let (mut from, mut to) = (listened(0, all(1500)), listened(1, all(1500)));
        change(&mut from, &mut to);
        judge(&from, &to, true)
    }

    #[test]
    fn all_that_is_heard_passes() {
        assert_eq!(verdict(|_, _| ()), Verdict::Passes { vlan: None, mtu: 1500 });
        let with_vlan = |from: &mut Listened, _: &mut Listened| from.probed.vlan = Some(100);
        assert_eq!(verdict(with_vlan), Verdict::Passes { vlan: Some(100), mtu: 1500 });
    }

    #[test]
    fn a_vlan_does_not_pass_where_frames_without_a_tag_do() {
        let of = |heard: Heard| {
            verdict(|from, to| {
                from.probed.vlan = Some(100);
                to.probed.heard[0] = heard;
            })
        };
        let untagged = Heard { untagged: 8, ..Heard::default() };
        assert_eq!(of(untagged), Verdict::Fails(vec![Cause::Vlan(100)]));
        assert_eq!(of(Heard { lost_tag: 30, ..untagged }), Verdict::Fails(vec![Cause::LostTag(100)]));
        assert_eq!(of(Heard::default()), Verdict::Fails(vec![Cause::Nothing { vlan: Some(100) }]));
    }

    #[test]
    fn a_port_that_drops_second_mac_addresses_is_found_where_pods_have_some() {
        let heard = Heard { second_mac: 0, ..all(1500) };
        let of = |second_mac: Option<&str>| {
            verdict(|from, to| {
                from.probed.second_mac = second_mac.map(str::to_owned);
                to.probed.heard[0] = heard;
            })
        };
        assert_eq!(of(Some("02:5a::")), Verdict::Fails(vec![Cause::SecondMac("02:5a::".to_owned())]));
        assert_eq!(of(None), Verdict::Passes { vlan: None, mtu: 1500 });
    }

    #[test]
    fn a_port_to_which_no_frames_for_second_mac_addresses_pass_is_found() {
        let heard = Heard { to_second_mac: 0, ..all(1500) };
        let of = |is_known: bool| {
            verdict(|from, to| {
                to.probed.heard[0] = heard;
                from.probed.heard[1].second_mac *= u32::from(is_known);
            })
        };
        assert_eq!(of(true), Verdict::Fails(vec![Cause::ToSecondMac("02:5a:00:00:00:01".to_owned())]));
        assert_eq!(of(false), Verdict::Passes { vlan: None, mtu: 1500 });
    }

    #[test]
    fn an_mtu_that_passes_only_in_part_is_found() {
        let of = |longest| {
            verdict(|from, to| {
                from.probed.mtu = 9000;
                to.probed.heard[0].longest = longest;
            })
        };
        assert_eq!(of(1500), Verdict::Fails(vec![Cause::Mtu { mtu: 9000, passes: 1500 }]));
        assert_eq!(of(9000), Verdict::Passes { vlan: None, mtu: 9000 });
    }

    #[test]
    fn frames_to_all_that_do_not_pass_say_nothing_of_the_mtu() {
        let of = |heard: Heard| verdict(|_, to| to.probed.heard[0] = heard);
        let unicast = Heard { broadcast: 0, second_mac: 0, longest: 0, ..all(1500) };
        assert_eq!(of(unicast), Verdict::Fails(vec![Cause::ToAll]));
        let from_second = Heard { second_mac: 8, ..Heard::default() };
        assert_eq!(of(from_second), Verdict::Fails(vec![Cause::ToAll]));
        assert_eq!(of(Heard { broadcast: 0, ..all(1500) }), Verdict::Passes { vlan: None, mtu: 1500 });
    }

    #[test]
    fn frames_to_one_address_are_expected_where_it_is_known_and_can_be_heard() {
        let without = Heard { unicast: 0, ..all(1500) };
        let fails = Verdict::Fails(vec![Cause::Unicast("02:00:00:00:00:01".to_owned())]);
        let passes = Verdict::Passes { vlan: None, mtu: 1500 };
        assert_eq!(verdict(|_, to| to.probed.heard[0] = without), fails);
        let is_ipvlan = |_: &mut Listened, to: &mut Listened| {
            to.probed.heard[0] = without;
            to.probed.hears_unicast = false;
        };
        assert_eq!(verdict(is_ipvlan), passes);
        let one_way = |from: &mut Listened, to: &mut Listened| {
            to.probed.heard[0] = without;
            from.probed.heard[1] = Heard::default();
        };
        assert_eq!(verdict(one_way), passes);
    }

    #[test]
    fn two_nodes_with_one_mac_address_are_found() {
        let of = |are_apart| {
            let (from, mut to) = (listened(0, all(1500)), listened(1, all(1500)));
            to.probed.mac = from.probed.mac.clone();
            judge(&from, &to, are_apart)
        };
        assert_eq!(of(true), Verdict::Fails(vec![Cause::SameMac("02:00:00:00:00:00".to_owned())]));
        assert_eq!(of(false), Verdict::Passes { vlan: None, mtu: 1500 }, "two pods by ipvlan");
    }

    #[test]
    fn what_was_not_heard_counts_only_after_some_time_together() {
        let of = |after, heard: Heard, back: Heard| {
            verdict(|from, to| {
                to.after = Duration::from_millis(after);
                to.probed.heard[0] = heard;
                from.probed.heard[1] = back;
            })
        };
        let (none, nothing) = (Heard::default(), Verdict::Fails(vec![Cause::Nothing { vlan: None }]));
        assert_eq!(of(6500, none, none), nothing);
        assert_eq!(of(6501, none, none), Verdict::Apart, "the other may have begun when this one ended");
        let some = Heard { longest: 0, ..all(0) };
        assert!(matches!(of(20_000, some, none), Verdict::Fails(_)), "it was heard for rounds");
        assert_eq!(of(20_000, none, all(1500)), nothing, "the other was heard for rounds");
        let late = Heard { broadcast: 2, longest: 1500, ..none };
        assert_eq!(of(20_000, none, late), Verdict::Apart);
        assert_eq!(of(20_000, all(1500), none), Verdict::Passes { vlan: None, mtu: 1500 });
    }
}
