//! What a node needs of one ClaimNetwork's addresses of one family, and which blocks it can give back. Pure:
//! time is an argument.
//!
//! Each write is a request to the API server, and there are thousands of nodes: a node asks before it runs
//! out, for as much as it used in the last minute, and says that it needs less only after some minutes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// How long the number of attachments must stay the same before it is reported, if it differs much from the
/// last report.
const SETTLED: Duration = Duration::from_secs(3600);
/// The same for a block without a report.
const FIRST: Duration = Duration::from_secs(60);
/// The same for every difference, while addresses are scarce: an empty block goes to a node that needs it.
const SCARCE: Duration = Duration::from_secs(10);
/// Differences from the last report that are otherwise never reported: totals are for people.
const SMALL: u64 = 4;
/// How long a block must be empty, or `wanted` too high, before that is acted upon, by default.
pub const IDLE: Duration = Duration::from_secs(300);
/// The same at most while addresses are scarce. Pods may wait for nodes that have none while the scheduler
/// puts none on this one, of which the controller knows nothing.
const SCARCE_IDLE: Duration = Duration::from_secs(60);
/// The time whose attachments say how many are to come: a block takes some seconds at worst.
const RATE_WINDOW: Duration = Duration::from_secs(60);

/// One block, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockNow {
    /// Name of the AddressBlock.
    pub name: String,
    /// Addresses that attachments can have.
    pub usable: u64,
    /// Addresses that attachments have or are about to get.
    pub used: u64,
    /// The number of these in the object's status.
    pub reported_used: Option<i64>,
    /// The number that the node wants, in the object's status.
    pub reported_wanted: Option<i64>,
}

/// The writes that are due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// The status of blocks, by name.
    pub reports: BTreeMap<String, Report>,
    /// The block to give back.
    pub give_back: Option<String>,
    /// When to look again, if nothing changes.
    pub next: Option<Instant>,
}

/// The status of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Addresses that attachments have.
    pub used: u64,
    /// Addresses that the node wants to have in all of its blocks.
    pub wanted: Option<u64>,
}

/// The history of one family of a ClaimNetwork: how its addresses were used.
#[derive(Debug, Clone, Hash)]
pub struct UseHistory {
    /// How long a block must be empty, or `wanted` too high, before that is acted upon.
    idle_after: Duration,
    /// Number of attachments at the last look, and since when.
    used: Option<(u64, Instant)>,
    /// When attachments came, with their number.
    arrivals: VecDeque<(Instant, u64)>,
    /// Since when each block is empty.
    empty: BTreeMap<String, Instant>,
    /// Since when less is needed than the node wants.
    too_much: Option<Instant>,
}

impl Default for UseHistory {
    fn default() -> Self {
        Self::new(IDLE)
    }
}

impl UseHistory {
    /// Remembers nothing yet. Blocks are given back after they have been empty for so long.
    pub fn new(idle_after: Duration) -> Self {
        Self { idle_after, used: None, arrivals: VecDeque::new(), empty: BTreeMap::new(), too_much: None }
    }

    /// Decides what to do about these blocks of one family. `is_scarce`: some node needs addresses, and no
    /// block is free.
    pub fn look(&mut self, blocks: &[BlockNow], is_scarce: bool, now: Instant) -> Decision {
        let mut decision = Decision::default();
        // What the node wants stays on the block that has it: the controller takes the largest number of all
        // blocks. Without any, it is written to the first one, which `max_by_key` finds from behind.
        let Some(bearer) = blocks.iter().rev().max_by_key(|block| block.reported_wanted) else {
            *self = Self::new(self.idle_after);
            return decision;
        };
        let idle_after = if is_scarce { self.idle_after.min(SCARCE_IDLE) } else { self.idle_after };
        let (usable, used) =
            blocks.iter().fold((0, 0), |sum, block| (sum.0 + block.usable, sum.1 + block.used));
        let settled_since = self.note(used, now);
        let rate: u64 = self.arrivals.iter().map(|(_, count)| count).sum();
        let largest = blocks.iter().map(|block| block.usable).max().unwrap_or_default();
        let reserve = (largest / 4).max(rate).max(1);
        let wanted = bearer.reported_wanted.and_then(|wanted| u64::try_from(wanted).ok()).unwrap_or_default();

        let mut next_wanted = None;
        if usable < used + reserve {
            // While more was asked for than there is, the controller knows.
            if wanted <= usable {
                next_wanted = Some(used + reserve);
            }
            self.too_much = None;
        } else if wanted > used + 2 * reserve + largest {
            let since = *self.too_much.get_or_insert(now);
            if now >= since + idle_after {
                next_wanted = Some(used + reserve);
                self.too_much = None;
            } else {
                soonest(&mut decision.next, since + idle_after);
            }
        } else {
            self.too_much = None;
        }
        if let Some(wanted) = next_wanted {
            let report = Report { used: bearer.used, wanted: Some(wanted) };
            decision.reports.insert(bearer.name.clone(), report);
            let others = blocks.iter().filter(|block| block.name != bearer.name);
            for other in others.filter(|block| block.reported_wanted.is_some()) {
                decision.reports.insert(other.name.clone(), Report { used: other.used, wanted: None });
            }
        }
        let is_exhausted = used >= usable;
        self.report_used(blocks, (settled_since, is_exhausted, is_scarce), now, &mut decision);
        let needed = (used + reserve).max(next_wanted.unwrap_or(wanted));
        self.give_back(blocks, (usable, needed), idle_after, now, &mut decision);
        if let Some((at, _)) = self.arrivals.front() {
            soonest(&mut decision.next, *at + RATE_WINDOW);
        }
        decision
    }

    /// Notes the number of attachments; returns since when it is the same.
    fn note(&mut self, used: u64, now: Instant) -> Instant {
        while self.arrivals.front().is_some_and(|(at, _)| *at + RATE_WINDOW <= now) {
            self.arrivals.pop_front();
        }
        match self.used {
            Some((before, since)) if before == used => return since,
            Some((before, _)) if before < used => self.arrivals.push_back((now, used - before)),
            // Those of the first look came long ago.
            _ => {}
        }
        self.used = Some((used, now));
        now
    }

    /// Reports the numbers of blocks that have not changed for long. An exhausted node reports them at once,
    /// so that the controller does not take it for one with free addresses.
    fn report_used(
        &self,
        blocks: &[BlockNow],
        (since, is_exhausted, is_scarce): (Instant, bool, bool),
        now: Instant,
        decision: &mut Decision,
    ) {
        for block in blocks {
            // Other components treat a block without a report as empty.
            let reported = u64::try_from(block.reported_used.unwrap_or_default()).unwrap_or_default();
            let off = reported.abs_diff(block.used);
            let settled = match block.reported_used {
                _ if off == 0 => continue,
                _ if is_scarce => SCARCE,
                None => FIRST,
                Some(_) if is_exhausted || off >= SMALL.max(block.usable / 4) => SETTLED,
                Some(_) => continue,
            };
            if !is_exhausted && now < since + settled {
                soonest(&mut decision.next, since + settled);
                continue;
            }
            let wanted = block.reported_wanted.and_then(|wanted| u64::try_from(wanted).ok());
            decision.reports.entry(block.name.clone()).or_insert(Report { used: block.used, wanted });
        }
    }

    /// Gives back one block that has been empty for so long, unless it is the last one.
    fn give_back(
        &mut self,
        blocks: &[BlockNow],
        (usable, needed): (u64, u64),
        idle_after: Duration,
        now: Instant,
        decision: &mut Decision,
    ) {
        self.empty.retain(|name, _| blocks.iter().any(|block| block.name == *name && block.used == 0));
        for block in blocks.iter().filter(|block| block.used == 0) {
            let since = *self.empty.entry(block.name.clone()).or_insert(now);
            let can_go = blocks.len() > 1 && usable - block.usable >= needed;
            if !can_go || decision.give_back.is_some() {
                continue;
            }
            if now >= since + idle_after {
                decision.give_back = Some(block.name.clone());
            } else {
                soonest(&mut decision.next, since + idle_after);
            }
        }
    }
}

fn soonest(next: &mut Option<Instant>, at: Instant) {
    *next = Some(next.map_or(at, |next| next.min(at)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str, used: u64) -> BlockNow {
        BlockNow { name: name.to_owned(), usable: 16, used, reported_used: None, reported_wanted: None }
    }

    fn wanting(wanted: i64, block: BlockNow) -> BlockNow {
        BlockNow { reported_wanted: Some(wanted), reported_used: i64::try_from(block.used).ok(), ..block }
    }

    fn wanted(decision: &Decision) -> Option<u64> {
        decision.reports.values().find_map(|report| report.wanted)
    }

    #[test]
    fn another_block_is_asked_for_once_before_the_last_address_is_gone() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        assert_eq!(history.look(&[block("a", 3)], false, now).reports, BTreeMap::new());
        let later = now + 2 * RATE_WINDOW;
        let decision = history.look(&[block("a", 13)], false, later);
        assert_eq!(wanted(&decision), Some(13 + 10), "as many came within a minute");
        assert_eq!(history.look(&[wanting(23, block("a", 14))], false, later).reports, BTreeMap::new());
    }

    #[test]
    fn a_steady_number_of_pods_writes_nothing() {
        let (mut history, mut now) = (UseHistory::default(), Instant::now());
        history.look(&[wanting(12, block("a", 8))], false, now);
        for round in 0..1000u64 {
            now += Duration::from_secs(30);
            let decision = history.look(&[wanting(12, block("a", 8 + round % 2))], false, now);
            assert_eq!((decision.reports.len(), decision.give_back), (0, None), "round {round}");
        }
    }

    #[test]
    fn exact_numbers_are_reported_when_nothing_has_changed_for_long() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        let blocks = [wanting(12, block("a", 8)), block("b", 2)];
        let first = history.look(&blocks, false, now);
        assert_eq!((first.reports.len(), first.next), (0, Some(now + FIRST)));
        let decision = history.look(&blocks, false, now + FIRST);
        assert_eq!(decision.reports, BTreeMap::from([("b".to_owned(), Report { used: 2, wanted: None })]));
    }

    #[test]
    fn an_exhausted_node_reports_once_that_its_blocks_are_full() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        let reported = |number: i64, block: BlockNow| BlockNow { reported_used: Some(number), ..block };
        let blocks = |used: u64| [reported(13, wanting(60, block("a", used))), reported(16, block("b", 16))];
        assert_eq!(history.look(&blocks(15), false, now).reports, BTreeMap::new());
        let full = BTreeMap::from([("a".to_owned(), Report { used: 16, wanted: Some(60) })]);
        assert_eq!(history.look(&blocks(16), false, now).reports, full);
        for used in [16, 15, 16] {
            let blocks = [reported(16, wanting(60, block("a", used))), reported(16, block("b", 16))];
            assert_eq!(history.look(&blocks, false, now).reports, BTreeMap::new(), "{used} of 16");
        }
    }

    #[test]
    fn an_empty_block_is_given_back_after_a_while_but_not_the_last_one() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        let blocks = [wanting(6, block("a", 2)), block("b", 0), block("c", 0)];
        assert_eq!(history.look(&blocks, false, now).give_back, None);
        assert_eq!(history.look(&blocks, false, now + IDLE).give_back.as_deref(), Some("b"));
        let (mut history, alone) = (UseHistory::default(), [wanting(6, block("a", 0))]);
        history.look(&alone, false, now);
        assert_eq!(history.look(&alone, false, now + 10 * IDLE).give_back, None);
    }

    #[test]
    fn an_admin_chooses_when_an_empty_block_is_given_back() {
        let (mut history, now) = (UseHistory::new(IDLE / 10), Instant::now());
        let blocks = [wanting(6, block("a", 2)), block("b", 0)];
        let first = history.look(&blocks, false, now);
        assert_eq!((first.give_back, first.next), (None, Some(now + IDLE / 10)));
        assert_eq!(history.look(&blocks, false, now + IDLE / 10).give_back.as_deref(), Some("b"));
    }

    #[test]
    fn a_node_that_wanted_much_says_later_that_it_needs_less() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        let blocks = [wanting(60, block("a", 2)), wanting(0, block("b", 0)), wanting(0, block("c", 0))];
        assert_eq!(history.look(&blocks, false, now).reports, BTreeMap::new());
        assert_eq!(wanted(&history.look(&blocks, false, now + IDLE)), Some(2 + 4));
        let less = [wanting(6, block("a", 2)), block("b", 0), block("c", 0)];
        assert_eq!(history.look(&less, false, now + IDLE).give_back.as_deref(), Some("b"));
    }

    #[test]
    fn wanted_is_on_one_block_whatever_blocks_come() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        let later = now + IDLE;
        let of = |blocks: &[BlockNow], history: &mut UseHistory| {
            history.look(blocks, false, now);
            history.look(blocks, false, later).reports
        };
        // The block that was leased last comes first by name.
        let blocks = [block("a", 0), wanting(60, block("b", 2)), block("c", 0)];
        let less = BTreeMap::from([("b".to_owned(), Report { used: 2, wanted: Some(6) })]);
        assert_eq!(of(&blocks, &mut history), less);
        let twice = [wanting(6, block("a", 0)), wanting(60, block("b", 2)), block("c", 0)];
        let once = [("a".to_owned(), Report { used: 0, wanted: None })].into_iter().chain(less).collect();
        assert_eq!(of(&twice, &mut UseHistory::default()), once);
    }

    #[test]
    fn a_block_is_not_given_back_while_the_node_wants_its_addresses() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        let blocks = [wanting(20, block("a", 10)), block("b", 0)];
        history.look(&blocks, false, now);
        assert_eq!(history.look(&blocks, false, now + IDLE).give_back, None);
    }

    #[test]
    fn while_addresses_are_scarce_a_node_keeps_no_more_than_it_used_in_the_last_minute() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        // Of a burst, of which the scheduler puts the rest on other nodes.
        let blocks = [wanting(60, block("a", 16)), wanting(0, block("b", 0)), wanting(0, block("c", 0))];
        let first = history.look(&blocks, true, now);
        assert_eq!((wanted(&first), first.give_back), (None, None));
        let decision = history.look(&blocks, true, now + SCARCE_IDLE);
        assert_eq!((wanted(&decision), decision.give_back.as_deref()), (Some(16 + 4), Some("b")));
        let left = [wanting(20, block("a", 16)), wanting(0, block("c", 0))];
        assert_eq!(history.look(&left, true, now + 2 * SCARCE_IDLE).give_back, None, "it needs some more");
        let mut soon = UseHistory::new(SCARCE_IDLE / 6);
        soon.look(&blocks, true, now);
        let decision = soon.look(&blocks, true, now + SCARCE_IDLE / 6);
        assert_eq!(decision.give_back.as_deref(), Some("b"), "an admin may choose less");
    }

    #[test]
    fn while_addresses_are_scarce_an_emptied_block_is_reported_soon() {
        let (mut history, now) = (UseHistory::default(), Instant::now());
        let blocks = [BlockNow { reported_used: Some(3), ..block("a", 0) }];
        assert_eq!(history.look(&blocks, false, now).reports, BTreeMap::new());
        let plenty = history.look(&blocks, false, now + SCARCE);
        assert_eq!(plenty.reports, BTreeMap::new(), "it need not be known");
        let scarce = history.look(&blocks, true, now + SCARCE);
        assert_eq!(scarce.reports, BTreeMap::from([("a".to_owned(), Report { used: 0, wanted: None })]));
    }
}
