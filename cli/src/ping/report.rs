//! The verdicts for people and programs. Pure.

use std::fmt::Write as _;

use netclaim_api::ping::{Endpoint, Heard};
use serde::Serialize;

use super::read::{Facts, shown};
use super::verdict::{Cause, Listened, Took, Verdict, judge};
use crate::colour::{Colours, Mark};
use crate::printable::printable;
use crate::table::{Cell, table};

/// What the network passes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    network: String,
    /// Whether all that was to be found out is known, and passes.
    pub(super) passes: bool,
    took_part: Vec<Part>,
    /// What passes from each to each other.
    pairs: Vec<Pair>,
    /// Addresses that are used twice, in sentences.
    used_twice: Vec<String>,
    /// Who did not take part and why, in sentences.
    pub(super) notes: Vec<String>,
}

/// One that took part.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    name: String,
    node: String,
    link: String,
    mac: String,
    vlan: Option<u16>,
    mtu: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pair {
    from: String,
    to: String,
    /// `None` if that is not known.
    passes: Option<bool>,
    verdict: String,
    /// What to do.
    advice: Vec<String>,
    /// How many frames were heard.
    heard: Heard,
    #[serde(skip)]
    ends: [usize; 2],
    #[serde(skip)]
    is_of_pods: bool,
    #[serde(skip)]
    judged: Verdict,
}

impl Report {
    /// Derives the verdicts.
    pub(super) fn of(facts: Facts) -> Self {
        let Facts { network, all, are_named, mut notes } = facts;
        let (mut parts, mut is_complete) = (Vec::new(), true);
        for (endpoint, took) in &all {
            match took {
                Took::Part(listened) => parts.push((endpoint, listened.as_ref())),
                Took::NoPart { why, is_not_offered } => {
                    // The nodes of two pods say why something does not pass, if they can.
                    let is_extra = are_named && endpoint.pod.is_none() && all.len() > 2;
                    is_complete &= is_extra || (*is_not_offered && !are_named);
                    notes.push(format!("{} takes no part: {why}", shown(endpoint)));
                }
            }
        }
        let pairs = pairs(&parts, all.len() == 2);
        let used_twice = used_twice(&parts);
        let passes = |pair: &Pair| pair.passes == Some(true);
        let passes = is_complete && used_twice.is_empty() && !pairs.is_empty() && pairs.iter().all(passes);
        let took_part = parts.into_iter().map(|(endpoint, listened)| Part {
            name: shown(endpoint),
            node: endpoint.node.clone(),
            link: listened.probed.link.clone(),
            mac: listened.probed.mac.clone(),
            vlan: listened.probed.vlan,
            mtu: listened.probed.mtu,
        });
        Self { network, passes, took_part: took_part.collect(), pairs, used_twice, notes }
    }

    /// Whether a verdict on each pair is known.
    pub(super) fn is_known(&self) -> bool {
        self.pairs.iter().all(|pair| pair.passes.is_some())
    }

    /// The report for people: pairs of one verdict are a line for each of a few of them.
    pub(super) fn text(&self, colours: Colours) -> String {
        let lines = lines(&self.pairs);
        let mut text = match lines.as_slice() {
            [] => format!("Nothing could be probed on ClaimNetwork {}\n", self.network),
            lines => table(&["FROM", "TO", "VERDICT"], lines.iter().map(Line::cells), colours),
        };
        for twice in &self.used_twice {
            let _ = writeln!(text, "{}", colours.paint(Mark::Bad, &printable(twice)));
        }
        let mut advice: Vec<&str> =
            self.pairs.iter().flat_map(|pair| &pair.advice).map(String::as_str).collect();
        advice.sort_unstable();
        advice.dedup();
        for advice in advice {
            let _ = writeln!(text, "To do: {}", printable(advice));
        }
        text
    }
}

/// Judges all pairs of two nodes or two pods, and that of a node and a pod if they `are_all`.
fn pairs(parts: &[(&Endpoint, &Listened)], are_all: bool) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (one, (from, sender)) in parts.iter().enumerate() {
        for (other, (to, receiver)) in parts.iter().enumerate() {
            if one == other || (from.pod.is_some() != to.pod.is_some() && !are_all) {
                continue;
            }
            let judged = judge(sender, receiver, from.node != to.node);
            let is_of_pods = from.pod.is_some() || to.pod.is_some();
            let (from, to) = (shown(from), shown(to));
            pairs.push(Pair {
                passes: match &judged {
                    Verdict::Passes { .. } => Some(true),
                    Verdict::Fails(_) => Some(false),
                    Verdict::Apart => None,
                },
                verdict: words(&judged, &from, &[&to], Way::There, is_of_pods),
                advice: match &judged {
                    Verdict::Fails(causes) => causes.iter().map(|cause| advice(cause, is_of_pods)).collect(),
                    _ => Vec::new(),
                },
                heard: receiver.probed.heard.get(sender.probed.place).copied().unwrap_or_default(),
                ends: [one, other],
                is_of_pods,
                judged,
                from,
                to,
            });
        }
    }
    pairs
}

/// Addresses of pods that other hosts have as well.
fn used_twice(parts: &[(&Endpoint, &Listened)]) -> Vec<String> {
    let of = |(endpoint, listened): &(&Endpoint, &Listened)| {
        let pod = shown(endpoint);
        let sentence = move |used: &netclaim_api::ping::UsedTwice| {
            let by = used
                .mac
                .as_ref()
                .map_or_else(|| "one of which nothing is known".to_owned(), |mac| format!("MAC {mac}"));
            format!("address used twice: another host than {pod} has {}: {by}", used.ip)
        };
        listened.probed.used_twice.iter().map(sentence).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of).collect()
}

/// Which ways a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Both,
}

/// A line of the table.
#[derive(Debug)]
struct Line<'a> {
    from: &'a str,
    to: Vec<&'a str>,
    verdict: String,
    mark: Mark,
}

impl Line<'_> {
    fn cells(&self) -> Vec<Cell> {
        let to = if self.to.len() > 1 {
            format!("{}: {}", self.to.len(), self.to.join(", "))
        } else {
            self.to.concat()
        };
        vec![
            Cell::from(printable(self.from)),
            Cell::from(printable(&to)),
            Cell::marked(printable(&self.verdict), self.mark),
        ]
    }
}

/// Puts pairs together that have one verdict: first both ways of a pair, then all that one has with others.
fn lines(pairs: &[Pair]) -> Vec<Line<'_>> {
    let back = |pair: &Pair| pairs.iter().find(|other| other.ends == [pair.ends[1], pair.ends[0]]);
    let is_both = |pair: &Pair| back(pair).is_some_and(|back| back.judged == pair.judged);
    let way = |pair: &Pair| if is_both(pair) { Way::Both } else { Way::There };
    let mut left: Vec<(&Pair, Way)> = pairs.iter().map(|pair| (pair, way(pair))).collect();
    left.retain(|(pair, way)| *way == Way::There || pair.ends[0] < pair.ends[1]);
    let mut lines = Vec::new();
    while let Some((first, way)) = left.first().copied() {
        let is_alike = |(pair, other): &(&Pair, Way)| {
            *other == way && pair.judged == first.judged && pair.is_of_pods == first.is_of_pods
        };
        // Both ways: whoever of the two is in more such pairs is the one to look at.
        let many = |end: usize| left.iter().filter(|pair| is_alike(pair) && at(pair, end).is_some()).count();
        let end = match way {
            Way::Both if many(first.ends[1]) > many(first.ends[0]) => first.ends[1],
            _ => first.ends[0],
        };
        let (of_line, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|pair| is_alike(pair) && at(pair, end).is_some());
        let to: Vec<&str> = of_line.iter().filter_map(|pair| at(pair, end)).collect();
        let from = if first.ends[0] == end { &first.from } else { &first.to };
        let verdict = words(&first.judged, from, &to, way, first.is_of_pods);
        let mark = match &first.judged {
            Verdict::Passes { .. } => Mark::Plain,
            Verdict::Fails(_) => Mark::Bad,
            Verdict::Apart => Mark::Warning,
        };
        lines.push(Line { from, to, verdict, mark });
        left = others;
    }
    lines
}

/// The other end of a pair, if this is one: of one way, its sender.
fn at<'a>((pair, way): &(&'a Pair, Way), end: usize) -> Option<&'a str> {
    match (pair.ends, way) {
        ([from, _], _) if from == end => Some(&pair.to),
        ([_, to], Way::Both) if to == end => Some(&pair.from),
        _ => None,
    }
}

/// Says a verdict in a sentence.
fn words(verdict: &Verdict, from: &str, to: &[&str], way: Way, is_of_pods: bool) -> String {
    match verdict {
        Verdict::Passes { vlan: Some(vlan), mtu } => format!("VLAN {vlan} passes with MTU {mtu}"),
        Verdict::Passes { vlan: None, mtu } => format!("passes with MTU {mtu}"),
        Verdict::Apart => {
            "not known: the agents have not listened together for long enough, ask again".to_owned()
        }
        Verdict::Fails(causes) => {
            let causes: Vec<String> =
                causes.iter().map(|cause| sentence(cause, from, to, way, is_of_pods)).collect();
            causes.join("; ")
        }
    }
}

fn sentence(cause: &Cause, from: &str, to: &[&str], way: Way, is_of_pods: bool) -> String {
    let port = if is_of_pods { "interface" } else { "port" };
    let ends = match (way, to) {
        (Way::There, [to]) => format!("from {from}'s to {to}'s {port}"),
        (Way::There, to) => format!("from {from}'s {port} to those of {} others", to.len()),
        (Way::Both, [to]) => format!("between {from}'s and {to}'s {port}s"),
        (Way::Both, to) => format!("between {from}'s {port} and those of {} others", to.len()),
    };
    match cause {
        Cause::Nothing { vlan: None } => format!("nothing passes {ends}"),
        Cause::Nothing { vlan: Some(vlan) } => {
            format!("nothing passes {ends}, in VLAN {vlan} or without a tag")
        }
        Cause::Vlan(vlan) => format!("VLAN {vlan} does not pass {ends}, frames without a tag do"),
        Cause::LostTag(vlan) => format!("VLAN {vlan} loses its tag {ends}"),
        Cause::ToAll => format!("frames to all do not pass {ends}, others do"),
        Cause::SameMac(mac) => format!("address used twice: MAC {mac} is that of both"),
        Cause::SecondMac(mac) => {
            format!("{from}'s {port} drops second MAC addresses: frames from {mac} do not pass")
        }
        Cause::ToSecondMac(mac) => format!("frames to a second MAC address, {mac}, do not pass {ends}"),
        Cause::Unicast(mac) => format!("frames to MAC {mac} alone do not pass {ends}, frames to all do"),
        Cause::Mtu { mtu, passes: 0 } => format!("MTU {mtu} does not pass {ends}, nor does any usual one"),
        Cause::Mtu { mtu, passes } => format!("MTU {mtu} passes only to {passes} {ends}"),
    }
}

/// What to do.
fn advice(cause: &Cause, is_of_pods: bool) -> String {
    match cause {
        Cause::Nothing { .. } => {
            "put both ports into one network, and look for filters between them and, on virtual machines, in the hypervisor"
                .to_owned()
        }
        Cause::Vlan(vlan) => format!("allow VLAN {vlan} on both ports of the switch and on the way between them"),
        Cause::LostTag(vlan) => {
            format!("make the ports trunks that carry VLAN {vlan} with its tag: they have it as their own")
        }
        Cause::ToAll => {
            "look for storm control and filters of broadcast on the switch and, on virtual machines, in the hypervisor".to_owned()
        }
        Cause::SameMac(_) => "give one of the two another MAC address".to_owned(),
        Cause::SecondMac(_) | Cause::ToSecondMac(_) => {
            "allow more MAC addresses on the port (port security of the switch; promiscuous mode and forged transmits of the \
             hypervisor), or use ipvlan, whose pods have the node's"
                .to_owned()
        }
        Cause::Unicast(mac) => format!("look for another host or a filter with MAC {mac}"),
        Cause::Mtu { passes: 0, .. } => "raise the MTU of all links and ports on the way".to_owned(),
        Cause::Mtu { passes, .. } => {
            let limit = "; a limit on the bandwidth of a pod looks the same";
            format!(
                "raise the MTU of all links and ports on the way, or write \"mtu\": {passes} into the plugin of the \
                 ClaimNetwork{}",
                if is_of_pods { limit } else { "" }
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::tests::{all, listened};
    use super::*;

    /// Nodes, and pods on them, of which each hears the others in the way that `heard` says.
    fn facts(ends: &[&str], heard: impl Fn(usize, usize) -> Heard) -> Facts {
        let of = |(place, end): (usize, &&str)| {
            let mut part = listened(place.min(1), Heard::default());
            part.probed.place = place;
            part.probed.mac = format!("02:00:00:00:00:0{place}");
            part.probed.heard = (0..ends.len()).map(|from| heard(from, place)).collect();
            (end.parse().unwrap(), Took::Part(Box::new(part)))
        };
        let all = ends.iter().enumerate().map(of).collect();
        Facts { network: "storage".to_owned(), all, are_named: false, notes: Vec::new() }
    }

    fn with_vlan(mut facts: Facts) -> Facts {
        for (_, took) in &mut facts.all {
            let Took::Part(part) = took else { continue };
            part.probed.vlan = Some(100);
        }
        facts
    }

    #[test]
    fn pairs_that_pass_take_a_line_for_each_node() {
        let report = Report::of(facts(&["a", "b", "c"], |_, _| all(1500)));
        assert!(report.passes);
        assert_eq!(
            report.text(Colours::Off),
            "FROM   TO        VERDICT\n\
             a      2: b, c   passes with MTU 1500\n\
             b      c         passes with MTU 1500\n"
        );
    }

    #[test]
    fn the_node_whose_port_lacks_the_vlan_is_the_one_that_is_named() {
        let untagged = Heard { untagged: 8, ..Heard::default() };
        let report = Report::of(with_vlan(facts(&["a", "b", "c"], |from, to| {
            if [from, to].contains(&2) { untagged } else { all(1500) }
        })));
        assert!(!report.passes);
        assert_eq!(
            report.text(Colours::Off),
            "FROM   TO        VERDICT\n\
             a      b         VLAN 100 passes with MTU 1500\n\
             c      2: a, b   VLAN 100 does not pass between c's port and those of 2 others, frames without a tag do\n\
             To do: allow VLAN 100 on both ports of the switch and on the way between them\n"
        );
        let two = Report::of(with_vlan(facts(&["a", "b"], |_, _| untagged))).text(Colours::Off);
        assert!(
            two.contains("VLAN 100 does not pass between a's and b's ports, frames without a tag do"),
            "{two}"
        );
    }

    #[test]
    fn a_port_that_drops_second_mac_addresses_is_that_of_the_sender() {
        let heard = |from, _| if from == 0 { Heard { second_mac: 0, ..all(1500) } } else { all(1500) };
        let text = Report::of(facts(&["a", "b"], heard)).text(Colours::Off);
        assert_eq!(
            text.lines().nth(1),
            Some(
                "a      b    a's port drops second MAC addresses: frames from 02:5a:00:00:00:00 do not pass"
            ),
            "{text}"
        );
        assert_eq!(text.lines().nth(2), Some("b      a    passes with MTU 1500"), "{text}");
    }

    #[test]
    fn programs_get_each_pair_with_what_was_heard() {
        let heard = |from, _| if from == 1 { Heard { longest: 1400, ..all(0) } } else { all(1500) };
        let report = serde_json::to_value(Report::of(facts(&["a", "b"], heard))).unwrap();
        let pair = &report["pairs"][1];
        assert_eq!((&pair["from"], &pair["passes"]), (&"b".into(), &false.into()));
        assert_eq!(pair["verdict"], "MTU 1500 passes only to 1400 from b's to a's port");
        assert_eq!(pair["heard"]["longest"], 1400);
        assert_eq!(report["tookPart"][0]["link"], "eth1");
    }

    #[test]
    fn the_nodes_of_pods_say_why_the_pods_do_not_reach_each_other() {
        let ends = ["a:shop/web", "b:shop/db", "a", "b"];
        let mut facts =
            facts(&ends, |from, _| Heard { untagged: u32::from(from > 1) * 8, ..Heard::default() });
        for (endpoint, took) in &mut facts.all {
            let Took::Part(part) = took else { continue };
            part.probed.vlan = endpoint.pod.is_none().then_some(100);
        }
        let text = Report::of(Facts { are_named: true, ..facts }).text(Colours::Off);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "shop/web   shop/db   nothing passes between shop/web's and shop/db's interfaces"
        );
        assert!(lines[2].starts_with("a          b         VLAN 100 does not pass between"), "{text}");
        assert_eq!(lines.len(), 5, "{text}");
    }

    #[test]
    fn an_address_that_another_host_has_is_named_with_its_mac() {
        let mut facts = facts(&["a:shop/web", "b:shop/db"], |_, _| all(1500));
        if let Took::Part(part) = &mut facts.all[0].1 {
            let mac = Some("02:00:00:00:00:99".to_owned());
            part.probed.used_twice = vec![netclaim_api::ping::UsedTwice { ip: [10, 9, 0, 7].into(), mac }];
        }
        let report = Report::of(facts);
        assert!(!report.passes);
        let line = "address used twice: another host than shop/web has 10.9.0.7: MAC 02:00:00:00:00:99\n";
        assert!(report.text(Colours::Off).ends_with(line), "{}", report.text(Colours::Off));
    }

    #[test]
    fn a_node_that_does_not_offer_the_network_fails_only_who_has_named_it() {
        let of = |are_named, is_not_offered| {
            let mut facts = facts(&["a", "b", "c"], |_, _| all(1500));
            facts.all[2].1 = Took::NoPart { why: "the node has no link".to_owned(), is_not_offered };
            Report::of(Facts { are_named, ..facts })
        };
        let report = of(false, true);
        assert!(report.passes);
        assert_eq!(report.notes, ["c takes no part: the node has no link"]);
        assert!(!of(false, false).passes, "its uplink is down");
        let mut named = facts(&["a", "b"], |_, _| all(1500));
        named.all[1].1 = Took::NoPart { why: String::new(), is_not_offered: true };
        let report = Report::of(Facts { are_named: true, ..named });
        assert!(!report.passes && report.text(Colours::Off).starts_with("Nothing could be probed"));
    }
}
