//! The desired state of the attachments of a pod, and the next step towards it. Pure.
//!
//! ```text
//!   the runtime                 the orchestrator
//!   sandbox up, unfit, gone     prepare, release
//!            └───────────┬───────────┘
//!                     PodDesired ── of(record) ──> Desired ── machine ──> Step
//!                                                                    │
//!   Retries ── what has to wait ─────────────────────────────── next_step ──> the one step to take now
//! ```
//!
//! * DELs come first, in reverse; within a group none before those of later attachments, which may be made of
//!   it: a bond of two links, a VLAN on the bond.
//! * A finalizer works on what all attachments of the pod have made. It is desired only while each of them
//!   is as it should be and no group of the pod is being released. So it is made after all of them, and its
//!   DEL comes before theirs.
//! * Hot groups come after all that the pod has from its start, and say nothing about the pod when they are
//!   released. None waits for another one that fails, and only their own finalizers see them.
//! * What is repaired is not desired until its DEL has begun. So finalizers and later attachments go first,
//!   and come back last, as always.
//! * While a DEL is owed, no ADD: what waits to be deleted may hold what the ADD needs, a device, an address,
//!   a name.
//! * A release ends when nothing is left of its group but stray links.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::machine::{self, Desired, Step};
use super::plan::{Owner, Plan};
use super::record::{Phase, Record, Sandbox};
use super::retry::{Operation, Retries};

/// Whether the pod has a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SandboxKnowledge {
    /// The runtime has not said yet.
    Unknown,
    None,
    Sandbox(Sandbox),
}

/// The state of one pod that the runtime and the orchestrator desire.
#[derive(Debug)]
pub struct PodDesired {
    sandbox: SandboxKnowledge,
    /// The sandbox that waits for the pod's [primary](Plan::is_primary) network.
    asking: Option<String>,
    released: BTreeSet<String>,
    /// A group was released; until the next Prepare the pod is on its way out.
    closing: bool,
}

impl PodDesired {
    /// For a pod that an agent starts with. Records from the journal may have a sandbox that the runtime has
    /// not reported yet.
    pub fn at_start<O>(records: &[Record<O>]) -> Self {
        let sandbox = if records.is_empty() { SandboxKnowledge::None } else { SandboxKnowledge::Unknown };
        Self { sandbox, asking: None, released: BTreeSet::new(), closing: false }
    }

    /// The pod has this sandbox. Returns whether that is new.
    pub fn sandbox_up(&mut self, sandbox: Sandbox) -> bool {
        let is_new = !self.is_current(&sandbox.id);
        self.sandbox = SandboxKnowledge::Sandbox(sandbox);
        is_new
    }

    /// The runtime makes this sandbox, and waits for the pod's primary network. Returns whether the sandbox
    /// is new.
    pub fn sandbox_asks(&mut self, sandbox: Sandbox) -> bool {
        self.asking = Some(sandbox.id.clone());
        self.sandbox_up(sandbox)
    }

    /// An attachment is about to be undone. The runtime keeps what it was told of the primary
    /// network, so that it is not made again there.
    pub fn undone(&mut self, record: &Record<impl Owner>) {
        if let Phase::Attached { sandbox, .. } = &record.phase
            && record.plan.is_primary()
            && self.asking.as_ref() == Some(&sandbox.id)
        {
            self.asking = None;
        }
    }

    /// Whether the interface of this primary network is another one's in the pod's sandbox, or was undone
    /// there: the runtime does not ask for it.
    pub fn has_other_eth0<O: Owner>(&self, record: &Record<O>) -> bool {
        let is_made = |id: &str| matches!(&record.phase, Phase::Attached { sandbox, .. } if sandbox.id == id);
        record.plan.is_primary()
            && self.sandbox().is_some_and(|s| self.asking.as_ref() != Some(&s.id) && !is_made(&s.id))
    }

    /// The pod has a sandbox that nothing can be attached to.
    pub fn sandbox_unfit(&mut self) {
        self.sandbox = SandboxKnowledge::None;
    }

    /// The sandbox `id`, or with `None` whatever sandbox there was, is gone. Returns whether that is the
    /// pod's. `lives`: whether a known sandbox of the pod is still there.
    pub fn sandbox_gone<O>(
        &mut self,
        id: Option<&str>,
        records: &[Record<O>],
        lives: impl FnOnce() -> bool,
    ) -> bool {
        let is_current = match (&self.sandbox, id) {
            (SandboxKnowledge::Sandbox(sandbox), Some(id)) => sandbox.id == id,
            (_, None) => !lives(),
            // Until the runtime has reported the pod, any sandbox may be the one in the journal.
            (SandboxKnowledge::Unknown, Some(id)) => {
                records.iter().any(|record| record.phase.sandbox().is_some_and(|sandbox| sandbox.id == id))
            }
            (SandboxKnowledge::None, Some(_)) => false,
        };
        if is_current {
            self.sandbox = SandboxKnowledge::None;
        }
        is_current
    }

    /// A group is to be detached and forgotten. With what a pod with these `records` has from its start, the
    /// pod ends.
    pub fn release<O: Owner>(&mut self, group: &str, records: &[Record<O>]) {
        self.released.insert(group.to_owned());
        self.closing |= self.loses_own(records);
    }

    /// Groups were prepared, which the pod with these `records` has from its start.
    pub fn prepared<O: Owner>(&mut self, records: &[Record<O>]) {
        self.closing = self.loses_own(records);
    }

    fn loses_own<O: Owner>(&self, records: &[Record<O>]) -> bool {
        let is_lost = |plan: &Plan<O>| !plan.is_hot() && self.is_released(plan.owner.group());
        records.iter().any(|record| is_lost(&record.plan))
    }

    /// Forgets the releases that have no record any more.
    pub fn forget_released<O: Owner>(&mut self, records: &[Record<O>]) {
        self.released.retain(|group| records.iter().any(|record| record.plan.owner.group() == group));
    }

    /// Whether a group is being released.
    pub fn is_released(&self, group: &str) -> bool {
        self.released.contains(group)
    }

    /// Whether what is left says nothing about the pod any more.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// The hot groups that are being released, of a pod with these `records`.
    pub fn leaving<O: Owner>(&self, records: &[Record<O>]) -> BTreeSet<String> {
        let hot = records.iter().filter(|record| record.plan.is_hot());
        let groups = hot.map(|record| record.plan.owner.group());
        groups.filter(|group| self.is_released(group)).map(str::to_owned).collect()
    }

    /// The pod's sandbox, as the runtime reported it.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        match &self.sandbox {
            SandboxKnowledge::Sandbox(sandbox) => Some(sandbox),
            SandboxKnowledge::Unknown | SandboxKnowledge::None => None,
        }
    }

    /// The sandbox that the pod probably has: until the runtime reports one, that to which everything is
    /// attached.
    pub fn believed_sandbox<O: Owner>(&self, records: &[Record<O>], boot_id: &str) -> Option<Sandbox> {
        if self.sandbox != SandboxKnowledge::Unknown {
            return self.sandbox().cloned();
        }
        let attached = |record: &Record<O>| match &record.phase {
            Phase::Attached { sandbox, .. } if sandbox.boot_id == boot_id => Some(sandbox.clone()),
            _ => None,
        };
        let first = records.iter().find_map(attached)?;
        let mut holding = records.iter().filter(|record| record.holds(&first.id));
        holding.all(|record| attached(record).is_some_and(|s| s.id == first.id)).then_some(first)
    }

    /// Whether the pod has this sandbox now.
    pub fn is_current(&self, sandbox_id: &str) -> bool {
        self.sandbox().is_some_and(|sandbox| sandbox.id == sandbox_id)
    }

    /// Returns the desired state of an attachment of a pod with these `records`.
    pub fn of<O: Owner>(&self, record: &Record<O>, records: &[Record<O>], boot_id: &str) -> Desired {
        let desired = self.of_attachment(record);
        if !record.plan.is_finalizer() || desired == Desired::Forgotten {
            return desired;
        }
        let mut attachments = records.iter().filter(|other| record.plan.works_on(&other.plan));
        let rests = |other| {
            !self.has_other_eth0(other)
                && machine::next(other, &self.of_attachment(other), boot_id) == Step::Rest
        };
        if !self.closing && attachments.all(rests) { desired } else { Desired::Detached }
    }

    fn of_attachment<O: Owner>(&self, record: &Record<O>) -> Desired {
        if self.is_released(record.plan.owner.group()) {
            return Desired::Forgotten;
        }
        match &self.sandbox {
            SandboxKnowledge::Unknown => Desired::Unknown,
            SandboxKnowledge::None => Desired::Detached,
            SandboxKnowledge::Sandbox(_) if record.is_redone || self.has_other_eth0(record) => {
                Desired::Detached
            }
            SandboxKnowledge::Sandbox(sandbox) => Desired::Attached(sandbox.clone()),
        }
    }

    /// Whether an ADD that runs for `record` leads to the desired state.
    pub fn still_wants<O: Owner>(&self, record: &Record<O>, records: &[Record<O>], boot_id: &str) -> bool {
        match (self.of(record, records, boot_id), record.phase.sandbox()) {
            (Desired::Attached(desired), Some(sandbox)) => desired.id == sandbox.id,
            (Desired::Unknown, Some(_)) => true,
            _ => false,
        }
    }

    /// Whether there is nothing to do, now or later, but to try again what came to the running pod.
    pub fn is_reached<O: Owner>(&self, records: &[Record<O>], boot_id: &str) -> bool {
        let desired = |record| self.of(record, records, boot_id);
        let fails_hot = |record: &Record<O>| {
            record.plan.is_hot() && record.phase == Phase::Planned && record.error.is_some()
        };
        let rests = |record| machine::next(record, &desired(record), boot_id) == Step::Rest;
        records.iter().all(|record| rests(record) || fails_hot(record))
    }

    /// The step to take now, with the index of its record: debts first, in reverse; then, while nothing is
    /// owed, the first ADD that is missing; and while that waits, or none is missing, the proof of what is
    /// made. `records` are in the order in which attachments are made.
    pub fn next_step<O: Owner>(
        &self,
        records: &[Record<O>],
        retries: &Retries,
        boot_id: &str,
        now: Instant,
    ) -> Option<(usize, Step)> {
        let steps = records
            .iter()
            .enumerate()
            .map(|(index, record)| {
                (index, record, machine::next(record, &self.of(record, records, boot_id), boot_id))
            })
            .filter(|(.., step)| *step != Step::Rest);
        let steps: Vec<(usize, &Record<O>, Step)> = steps.collect();
        let waits = |record: &Record<O>, step: &Step| {
            let is_add = matches!(step, Step::Add(_) | Step::Prove);
            let operation = if is_add { Operation::Add } else { Operation::Del };
            retries.waits(&record.key(), operation, now)
        };
        let is_debt = |step: &Step| matches!(step, Step::Del(_) | Step::Forget);
        let debt = steps.iter().rev().find(|(index, record, step)| {
            is_debt(step) && !waits(record, step) && !carries(*index, record, &steps, retries)
        });
        if let Some((index, _, step)) = debt {
            return Some((*index, step.clone()));
        }
        if steps.iter().any(|(.., step)| matches!(step, Step::Del(_))) {
            return None;
        }
        let adds = || steps.iter().filter(|(.., step)| *step != Step::Prove);
        let has_own = |own: &Record<O>| own.plan.is_hot() || matches!(own.phase, Phase::Attached { .. });
        let is_first = |index: usize, record: &Record<O>| {
            (!record.plan.is_hot() || records.iter().all(has_own))
                && adds().all(|(other, earlier, _)| *other >= index || are_apart(&earlier.plan, &record.plan))
        };
        let mut due = adds().filter(|(_, record, step)| !waits(record, step));
        let add = due.find(|(index, record, _)| is_first(*index, record));
        let proof =
            |(_, record, step): &&(usize, &Record<O>, Step)| *step == Step::Prove && !waits(record, step);
        // The runtime waits for the primary network alone.
        let awaited = steps.iter().find(|step| step.1.plan.is_primary()).filter(|step| proof(step));
        let (index, _, step) = awaited.or(add).or_else(|| steps.iter().find(proof))?;
        Some((*index, step.clone()))
    }
}

/// Sorts the records of a pod in the order in which attachments are made: the group of the primary network
/// first, finalizers last, and then one hot group after the other with its own.
pub fn sort<O: Owner>(records: &mut [Record<O>]) {
    let primary = records.iter().find(|record| record.plan.is_primary());
    let primary = primary.map(|record| record.plan.owner.group().to_owned());
    records.sort_by_cached_key(|record| {
        let plan = &record.plan;
        let is_later = primary.as_deref() != Some(plan.owner.group());
        let name = plan.owner.group_name().to_owned();
        let hot = plan.owner.hot().map(|hot| (hot.since.to_owned(), name.clone()));
        (hot, plan.is_finalizer(), is_later, name, plan.index)
    });
}

/// Whether neither attachment waits for the other: they came to the running pod one by one.
fn are_apart<O: Owner>(one: &Plan<O>, other: &Plan<O>) -> bool {
    one.is_hot() && other.is_hot() && one.owner.group() != other.owner.group()
}

/// Whether a later attachment of the same group, or a finalizer that works on this one, is still to be
/// deleted, and with it perhaps what was made of this one. Other groups do not wait, and neither does the
/// rest for a DEL that seems hopeless or a stray link.
fn carries<O: Owner>(
    index: usize,
    record: &Record<O>,
    steps: &[(usize, &Record<O>, Step)],
    retries: &Retries,
) -> bool {
    steps.iter().any(|(later, other, step)| {
        *later > index
            && matches!(step, Step::Del(_))
            && (other.plan.owner.group() == record.plan.owner.group() || other.plan.works_on(&record.plan))
            && !retries.del_attempt(&other.key()).is_hopeless()
            && other.stray.is_none()
    })
}

#[cfg(test)]
mod tests {
    //! Random histories of a node with one pod and the claims `a` (two attachments, one of them the primary
    //! network) and `b` (one), and the hot `c` and `d` (one), each with a finalizer: agents that come, end
    //! and are killed, sandboxes, releases, failing plugins.

    use std::collections::btree_map::Entry;
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::machine::{Event, after};
    use super::super::plan::PRIMARY_INTERFACE;
    use super::super::record::tests::{Claimant, plan, result, sandbox};
    use super::super::{Gate, PodState};
    use super::*;

    const BOOT: &str = "boot";
    /// The primary network: the second one of its claim.
    const PRIMARY: (&str, u32) = ("a", 1);
    /// The sandbox for which the runtime does not ask for the primary network.
    const NOT_ASKING: u8 = 0;

    #[derive(Debug, Clone)]
    enum Happening {
        /// Journal the claim; a hot one in the sandbox that the pod has.
        Prepare(&'static str),
        Release(&'static str),
        SandboxUp(u8),
        SandboxGone,
        /// The first attachment of a claim is to be made again.
        Redo(&'static str),
        /// The agent takes a step, as far as it lets it: it begins, or what runs ends well or badly.
        Begin,
        End(bool),
        /// What runs ends badly: an ADD has made nothing.
        EndInVain,
        /// The agent ends: its running operation ends, no other starts. Then the next agent, which stood by,
        /// continues.
        HandOver(bool),
        /// The agent and what it runs are killed, with or without an effect.
        Kill(bool),
        Wait,
    }

    /// The claims that the pod has from its start, and the hot ones in the order in which they come.
    const OWN: [&str; 2] = ["a", "b"];
    const HOT: [&str; 2] = ["d", "c"];

    fn claims() -> impl Strategy<Value = &'static str> {
        prop_oneof![prop::sample::select(&OWN[..]), prop::sample::select(&HOT[..])]
    }

    /// What can happen to a pod that runs on, with its own claims as they are.
    fn of_running_pod() -> impl Strategy<Value = Vec<Happening>> {
        let hot = || prop::sample::select(&HOT[..]);
        let one = prop_oneof![
            3 => hot().prop_map(Happening::Prepare),
            2 => hot().prop_map(Happening::Release),
            1 => hot().prop_map(Happening::Redo),
            6 => Just(Happening::Begin),
            6 => any::<bool>().prop_map(Happening::End),
            1 => Just(Happening::EndInVain),
            1 => any::<bool>().prop_map(Happening::HandOver),
            1 => any::<bool>().prop_map(Happening::Kill),
            2 => Just(Happening::Wait),
        ];
        prop::collection::vec(one, 0..60)
    }

    fn happenings() -> impl Strategy<Value = Vec<Happening>> {
        let claim = claims;
        let one = prop_oneof![
            2 => claim().prop_map(Happening::Prepare),
            1 => claim().prop_map(Happening::Release),
            3 => (0..3u8).prop_map(Happening::SandboxUp),
            1 => Just(Happening::SandboxGone),
            2 => claim().prop_map(Happening::Redo),
            6 => Just(Happening::Begin),
            6 => any::<bool>().prop_map(Happening::End),
            1 => Just(Happening::EndInVain),
            1 => any::<bool>().prop_map(Happening::HandOver),
            1 => any::<bool>().prop_map(Happening::Kill),
            2 => Just(Happening::Wait),
        ];
        prop::collection::vec(one, 0..120)
    }

    /// One agent's memory of the pod.
    struct Agent {
        records: Vec<Record<Claimant>>,
        desired: PodDesired,
        retries: Retries,
        /// The operation that runs, of the record with this key.
        running: Option<(String, Step)>,
    }

    impl Agent {
        fn start(journal: &BTreeMap<String, Record<Claimant>>) -> Self {
            let mut records: Vec<_> = journal.values().cloned().collect();
            sort(&mut records);
            let (desired, retries) = (PodDesired::at_start(&records), Retries::default());
            Self { records, desired, retries, running: None }
        }
    }

    struct World {
        agent: Agent,
        journal: BTreeMap<String, Record<Claimant>>,
        /// What the runtime reports to each agent that connects.
        sandbox: Option<Sandbox>,
        /// Sandboxes to which an ADD was begun without a finished DEL, by key.
        owed: BTreeMap<String, String>,
        /// Sandboxes in which an interface is whole, by key.
        made: BTreeMap<String, String>,
        /// What the kubelet has released since it last asked for it.
        released: BTreeSet<&'static str>,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let journal = BTreeMap::new();
            Self {
                agent: Agent::start(&journal),
                journal,
                sandbox: None,
                owed: BTreeMap::new(),
                made: BTreeMap::new(),
                released: BTreeSet::new(),
                now: Instant::now(),
            }
        }

        fn prepare(&mut self, claim: &'static str) {
            let of = if claim == "a" { 3 } else { 2 };
            let finalizes = |index| (index + 1 == of).then_some(0);
            let since = HOT.iter().position(|hot| *hot == claim);
            let hot = match (&self.sandbox, since) {
                // It waits until the pod has a sandbox.
                (None, Some(_)) => return,
                (Some(sandbox), Some(since)) => {
                    Some(json!({"sandbox": sandbox.id, "since": since.to_string()}))
                }
                (_, None) => None,
            };
            let is_own = hot.is_none();
            let plans = (0..of).map(|index| {
                let mut plan = Plan { of, finalizes: finalizes(index), ..plan(claim, index) };
                plan.owner.rest.extend(hot.clone().map(|hot| ("hot".to_owned(), hot)));
                if (claim, index) == PRIMARY {
                    plan.spec.if_name = PRIMARY_INTERFACE.parse().expect("a name");
                }
                plan
            });
            if !self.agent.desired.is_released(&format!("{claim}-uid")) {
                for record in plans.map(Record::new) {
                    if let Entry::Vacant(free) = self.journal.entry(record.key()) {
                        self.agent.records.push(free.insert(record).clone());
                    }
                }
                sort(&mut self.agent.records);
                self.released.remove(claim);
            }
            if is_own {
                self.agent.desired.prepared(&self.agent.records);
            }
        }

        fn release(&mut self, claim: &'static str) {
            self.released.insert(claim);
            self.agent.desired.release(&format!("{claim}-uid"), &self.agent.records);
            self.agent.retries.retry_now(self.now);
            self.agent.desired.forget_released(&self.agent.records);
            self.cut_short();
        }

        fn sandbox_up(&mut self, id: u8) {
            let up = Sandbox { boot_id: BOOT.into(), ..sandbox(&format!("s{id}")) };
            self.sandbox = Some(up.clone());
            let desired = &mut self.agent.desired;
            if if id == NOT_ASKING { desired.sandbox_up(up) } else { desired.sandbox_asks(up) } {
                self.agent.retries.retry_now(self.now);
            }
            self.cut_short();
        }

        fn sandbox_gone(&mut self) {
            let Some(gone) = self.sandbox.take() else { return };
            if self.agent.desired.sandbox_gone(Some(&gone.id), &self.agent.records, || false) {
                self.agent.retries.retry_now(self.now);
            }
            self.cut_short();
        }

        /// Only what is attached and has nothing to do is made again, and no primary network.
        fn redo(&mut self, claim: &str) {
            let Agent { records, desired, .. } = &self.agent;
            let is_of_claim = |record: &&Record<Claimant>| {
                record.plan.owner.group() == format!("{claim}-uid") && !record.plan.is_finalizer()
            };
            let all: Vec<_> = records.iter().filter(is_of_claim).cloned().collect();
            let is_attached = |record: &Record<Claimant>| {
                matches!(record.phase, Phase::Attached { .. }) && !record.plan.is_primary()
            };
            if desired.is_reached(records, BOOT) && all.iter().all(is_attached) {
                all.into_iter().for_each(|record| self.store(Record { is_redone: true, ..record }));
            }
        }

        /// An ADD that leads nowhere is ended in the midst; what it has made is not known.
        fn cut_short(&mut self) {
            let Agent { records, desired, running, .. } = &mut self.agent;
            let Some((key, Step::Add(_) | Step::Prove)) = running else { return };
            let record = records.iter().find(|record| record.key() == *key);
            if !record.is_some_and(|record| desired.still_wants(record, records, BOOT)) {
                self.made.remove(key);
                *running = None;
            }
        }

        fn store(&mut self, record: Record<Claimant>) {
            self.journal.insert(record.key(), record.clone());
            if let Some(known) = self.agent.records.iter_mut().find(|known| known.key() == record.key()) {
                *known = record;
            }
        }

        /// Begins the next step; whether there was one.
        fn begin(&mut self) -> Result<bool, TestCaseError> {
            if self.agent.running.is_some() {
                return Ok(false);
            }
            let Agent { records, desired, retries, .. } = &self.agent;
            let Some((index, step)) = desired.next_step(records, retries, BOOT, self.now) else {
                return Ok(false);
            };
            let mut record = records[index].clone();
            let key = record.key();
            let moved = |event| {
                after(record.phase.clone(), event).map_err(|illegal| TestCaseError::fail(illegal.to_string()))
            };
            match &step {
                Step::Add(sandbox) => {
                    prop_assert!(self.due().is_empty(), "ADD for {key} while DELs are due: {:?}", self.due());
                    prop_assert!(!desired.is_released(record.plan.owner.group()));
                    prop_assert!(!record.plan.is_primary() || sandbox.id != "s0", "it has another eth0");
                    for other in records {
                        let is_under = record.plan.works_on(&other.plan);
                        let is_own = record.plan.is_hot() && !other.plan.is_hot();
                        prop_assert!(!is_under || other.made.is_none(), "not proven");
                        let is_before = (is_under || is_own) && !self.is_kept(other, &sandbox.id);
                        prop_assert!(!is_before, "{key} is made before {}", other.key());
                    }
                    record.phase = moved(Event::AddDue(sandbox.clone()))?;
                    self.owed.insert(key.clone(), sandbox.id.clone());
                    self.store(record);
                }
                Step::Del(sandbox) => {
                    prop_assert_eq!(self.owed.get(&key), Some(&sandbox.id), "DEL for what was never added");
                    let later = |other: &Record<Claimant>| {
                        let is_same_group = other.plan.owner.group() == record.plan.owner.group();
                        other.plan.works_on(&record.plan)
                            || (is_same_group && other.plan.index > record.plan.index)
                    };
                    let waits_for =
                        records.iter().filter(|other| later(other)).map(Record::key).find(|other| {
                            // Only debts: a later attachment that runs on is not taken away for this one.
                            self.owed.contains_key(other) && !retries.del_attempt(other).is_hopeless()
                        });
                    prop_assert!(waits_for.is_none(), "{key} is deleted before {waits_for:?}");
                    record.phase = moved(Event::DelDue)?;
                    (record.is_redone, record.made) = (false, None);
                    self.made.remove(&key);
                    self.store(record);
                }
                Step::Forget => {
                    prop_assert!(!self.owed.contains_key(&key), "forgotten with a DEL owed");
                    self.journal.remove(&key);
                    self.agent.records.remove(index);
                    self.agent.desired.forget_released(&self.agent.records);
                    return Ok(true);
                }
                Step::Prove => {
                    prop_assert!(!desired.is_released(record.plan.owner.group()));
                    prop_assert_eq!(self.owed.get(&key), record.phase.sandbox().map(|sandbox| &sandbox.id));
                }
                Step::Rest => return Ok(false),
            }
            self.agent.running = Some((key, step));
            Ok(true)
        }

        /// Whether a record is whole in this sandbox, which is the pod's, and not released.
        fn is_kept(&self, record: &Record<Claimant>, sandbox: &String) -> bool {
            let desired = &self.agent.desired;
            let is_made = self.made.get(&record.key()) == Some(sandbox);
            (is_made || record.made.is_some())
                && desired.is_current(sandbox)
                && !record.is_redone
                && !desired.is_released(record.plan.owner.group())
        }

        /// The records whose DEL is due: those that are not kept, and finalizers as soon as one attachment
        /// that they work on is not.
        fn due(&self) -> Vec<&String> {
            let is_kept = |key: &String, sandbox: &String| {
                let records = &self.agent.records;
                let record = records.iter().find(|record| record.key() == *key);
                let stands = |record: &Record<Claimant>| {
                    let mut under = records.iter().filter(|other| record.plan.works_on(&other.plan));
                    under.all(|other| self.is_kept(other, sandbox))
                };
                record.is_some_and(|record| self.is_kept(record, sandbox) && stands(record))
            };
            self.owed.iter().filter(|(key, sandbox)| !is_kept(key, sandbox)).map(|(key, _)| key).collect()
        }

        fn end_in_vain(&mut self) -> Result<(), TestCaseError> {
            let Some((key, Step::Add(_))) = &self.agent.running else { return self.end(false) };
            let key = key.clone();
            self.agent.running = None;
            let Some(mut record) = self.journal.get(&key).cloned() else { return Ok(()) };
            record.phase = after(record.phase, Event::AddMadeNothing)
                .map_err(|illegal| TestCaseError::fail(illegal.to_string()))?;
            record.error = Some("nothing".to_owned());
            self.owed.remove(&key);
            self.agent.retries.failed(&key, Operation::Add, false, self.now);
            self.store(record);
            Ok(())
        }

        /// The attachments of one claim are to be proven.
        fn needs_proof(record: &Record<Claimant>) -> bool {
            record.plan.owner.group() == "b-uid" && !record.plan.is_finalizer()
        }

        fn end_proof(&mut self, key: &str, succeeds: bool) -> Result<(), TestCaseError> {
            let illegal = |illegal: machine::Illegal| TestCaseError::fail(illegal.to_string());
            let Some(record) = self.agent.records.iter().find(|record| record.key() == key) else {
                return Ok(());
            };
            let (record, all) = (record.clone(), self.agent.records.clone());
            if succeeds {
                let Some(made) = record.made.clone() else { return Ok(()) };
                self.made.extend(record.phase.sandbox().map(|sandbox| (key.to_owned(), sandbox.id.clone())));
                let phase = after(record.phase.clone(), Event::Added(made)).map_err(illegal)?;
                self.agent.retries.succeeded(key);
                self.store(Record { phase, made: None, ..record });
                return Ok(());
            }
            for other in all.into_iter().filter(|other| record.is_redone_with(other)) {
                let event = match other.phase {
                    Phase::Adding { .. } => Event::AddFailed(None),
                    Phase::Attached { .. } => Event::DelDue,
                    Phase::Planned | Phase::Deleting { .. } => continue,
                };
                self.made.remove(&other.key());
                let phase = after(other.phase.clone(), event).map_err(illegal)?;
                self.store(Record { phase, made: None, ..other });
            }
            self.agent.retries.failed(key, Operation::Add, false, self.now);
            Ok(())
        }

        fn end(&mut self, succeeds: bool) -> Result<(), TestCaseError> {
            let Some((key, step)) = self.agent.running.take() else { return Ok(()) };
            let Some(mut record) = self.journal.get(&key).cloned() else { return Ok(()) };
            match &step {
                Step::Prove => return self.end_proof(&key, succeeds),
                Step::Add(_) if succeeds && Self::needs_proof(&record) => {
                    let mut known = self.agent.records.iter_mut();
                    if let Some(known) = known.find(|known| known.key() == key) {
                        known.made = Some(result(r#"{"cniVersion":"1.1.0"}"#));
                    }
                    return Ok(());
                }
                _ => {}
            }
            let (event, operation) = match (&step, succeeds) {
                (Step::Add(_), true) => {
                    (Some(Event::Added(result(r#"{"cniVersion":"1.1.0"}"#))), Operation::Add)
                }
                (Step::Add(_), false) => (Some(Event::AddFailed(None)), Operation::Add),
                (_, true) => (Some(Event::Deleted), Operation::Del),
                (_, false) => (None, Operation::Del),
            };
            if let Some(event) = event {
                record.phase =
                    after(record.phase, event).map_err(|illegal| TestCaseError::fail(illegal.to_string()))?;
            }
            if matches!(step, Step::Add(_)) {
                record.error = (!succeeds).then(|| "no".to_owned());
            }
            match (&step, succeeds) {
                (Step::Add(sandbox), true) => {
                    self.made.insert(key.clone(), sandbox.id.clone());
                    self.agent.retries.succeeded(&key);
                }
                (_, true) => {
                    self.owed.remove(&key);
                    self.agent.retries.succeeded(&key);
                }
                (_, false) => self.agent.retries.failed(&key, operation, false, self.now),
            }
            self.store(record);
            Ok(())
        }

        /// The next agent takes the journal over and hears from the runtime and, for what it releases, the
        /// kubelet.
        fn take_over(&mut self) {
            self.agent = Agent::start(&self.journal);
            match self.sandbox.clone() {
                Some(sandbox) => drop(self.agent.desired.sandbox_up(sandbox)),
                None => drop(self.agent.desired.sandbox_gone(None, &self.agent.records, || false)),
            }
            for claim in self.released.clone() {
                self.agent.desired.release(&format!("{claim}-uid"), &self.agent.records);
            }
            self.agent.desired.forget_released(&self.agent.records);
        }

        fn step(&mut self, happening: &Happening) -> Result<(), TestCaseError> {
            match happening {
                Happening::Prepare(claim) => self.prepare(claim),
                Happening::Release(claim) => self.release(claim),
                Happening::SandboxUp(id) => self.sandbox_up(*id),
                Happening::SandboxGone => self.sandbox_gone(),
                Happening::Redo(claim) => self.redo(claim),
                Happening::Begin => drop(self.begin()?),
                Happening::End(succeeds) => self.end(*succeeds)?,
                Happening::EndInVain => self.end_in_vain()?,
                Happening::HandOver(succeeds) => {
                    self.end(*succeeds)?;
                    self.take_over();
                }
                Happening::Kill(has_effect) => {
                    if let Some((key, Step::Add(sandbox))) = self.agent.running.take()
                        && *has_effect
                    {
                        // Made, but not known: it must not count.
                        self.made.remove(&key);
                        drop(sandbox);
                    }
                    self.take_over();
                }
                Happening::Wait => self.now += Duration::from_secs(3),
            }
            self.gate_is_honest()
        }

        fn gate(&self, id: &str) -> Gate {
            let Agent { records, desired, .. } = &self.agent;
            let (closing, leaving) = (desired.is_closing(), desired.leaving(records));
            PodState { records: records.clone(), closing, leaving, ..PodState::default() }.gate(id)
        }

        /// The gate is open for no sandbox but the one in which every interface of the pod is whole, but what
        /// came when its containers ran.
        fn gate_is_honest(&self) -> Result<(), TestCaseError> {
            for id in ["s0", "s1", "s2", "s9"] {
                if self.gate(id) == Gate::Open {
                    let leaving = self.agent.desired.leaving(&self.agent.records);
                    let holds = |record: &&Record<Claimant>| {
                        record.holds(id) && !leaving.contains(record.plan.owner.group())
                    };
                    for record in self.agent.records.iter().filter(holds) {
                        prop_assert_eq!(self.made.get(&record.key()).map(String::as_str), Some(id));
                    }
                }
            }
            Ok(())
        }

        /// Lets everything succeed until nothing is left to do.
        fn settle(&mut self) -> Result<(), TestCaseError> {
            for _ in 0..60 {
                self.now += Duration::from_secs(3600);
                self.begin()?;
                self.end(true)?;
                self.gate_is_honest()?;
            }
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn a_pod_ends_with_nothing_whatever_its_agents_went_through(history in happenings()) {
            let mut world = World::new();
            for happening in &history {
                world.step(happening)?;
            }
            world.end(true)?;
            OWN.into_iter().chain(HOT).for_each(|claim| world.release(claim));
            world.settle()?;
            prop_assert!(world.journal.is_empty() && world.owed.is_empty() && world.made.is_empty());
            prop_assert!(!world.agent.desired.is_released("a-uid"));
        }

        #[test]
        fn a_pod_gets_its_networks_whatever_its_agents_went_through(history in happenings()) {
            let mut world = World::new();
            for happening in &history {
                world.step(happening)?;
            }
            world.end(true)?;
            world.sandbox_up(9);
            world.settle()?;
            OWN.into_iter().chain(HOT).for_each(|claim| world.prepare(claim));
            world.settle()?;
            let made: BTreeSet<&str> = world.made.values().map(String::as_str).collect();
            prop_assert_eq!((world.made.len(), made), (9, BTreeSet::from(["s9"])));
            prop_assert_eq!(world.gate("s9"), Gate::Open);
        }

        #[test]
        fn what_comes_to_a_running_pod_neither_holds_it_nor_takes_anything_from_it(
            history in of_running_pod()
        ) {
            let mut world = World::new();
            world.sandbox_up(1);
            OWN.into_iter().for_each(|claim| world.prepare(claim));
            world.settle()?;
            let own: BTreeSet<String> = world.made.keys().cloned().collect();
            for happening in &history {
                world.step(happening)?;
                prop_assert_eq!(world.gate("s1"), Gate::Open, "by {:?}", happening);
                let is_whole = |key| world.made.contains_key(key);
                prop_assert!(own.iter().all(is_whole), "{:?} by {:?}", world.made, happening);
            }
            world.end(true)?;
            world.sandbox_up(2);
            let prepared = world.journal.len();
            prop_assert!(world.gate("s2") != Gate::Open);
            world.settle()?;
            prop_assert!(world.made.values().all(|sandbox| sandbox == "s2"));
            prop_assert!(world.made.len() + 2 * world.released.len() >= prepared);
            prop_assert_eq!(world.gate("s2"), Gate::Open);
            HOT.into_iter().for_each(|claim| world.release(claim));
            while !world.journal.values().all(|record| !record.plan.is_hot()) {
                prop_assert_eq!(world.gate("s2"), Gate::Open);
                world.step(&Happening::Begin)?;
                prop_assert_eq!(world.gate("s2"), Gate::Open);
                world.step(&Happening::End(true))?;
            }
            prop_assert_eq!((world.made.len(), world.gate("s2")), (5, Gate::Open));
        }
    }
}
