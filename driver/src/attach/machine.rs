//! The state machine of one attachment: decides the next step from the journalled phase and from what is
//! desired. No IO.
//!
//! ```text
//!              desired: Attached(s)           ADD succeeded
//!   Planned ───────────────────> Adding(s) ─────────────────> Attached(s)
//!     ^ ^ │                       │  │                             │
//!     │ └─┼───────────────────────┘  │ ADD failed, was cut short,  │ the sandbox is gone or another,
//!     │   │   ADD made nothing       │ or its sandbox is gone      │ or the claim is released
//!     │   │ desired: Forgotten       │                             │
//!     │   v                          v                             │
//!     │ (file removed)               │                             │
//!     └────────────────────────── Deleting(s) <────────────────────┘
//!              DEL succeeded       │      ^
//!                                  └──────┘ DEL failed: again, later
//! ```
//!
//! | journalled | what a crash leaves | what follows |
//! |---|---|---|
//! | `Planned` | nothing in any sandbox | ADD when a sandbox comes, forgotten when the claim goes |
//! | `Adding` | nothing, or parts of an ADD, or all of it without a result | DEL, then `Planned` |
//! | `Attached` | the interface with its result | nothing while its sandbox lives |
//! | `Deleting` | parts of a DEL, or all of it | DEL again, then `Planned` |
//!
//! Only `Adding` waits for the disk. After a reboot without an orderly end of the agent, whatever followed it
//! reads as `Adding`, and a `Planned` that had no ADD is gone. See [`journal`](super::journal).
//!
//! Some networks want a proof before the pod uses what an ADD has made: that no other host has its addresses,
//! that the gateway answers. Until then it is `Adding`, with the result in memory alone: what a crash leaves
//! is undone. All attachments of the pod that can be made are made first, and then proven together.
//!
//! An ADD made nothing if no plugin ran, for example because one is missing, or if the first one reports so.
//!
//! The journal notes a host link that an ADD moves into the pod together with `Adding`. Giving it back is
//! part of the DEL, and is repeated with it.
//!
//! Invariants, which the tests below check with random histories: a DEL follows every ADD that may have made
//! something. No second ADD comes before that DEL. A record is forgotten only when no DEL is owed. The gate
//! is open only for the sandbox in which the ADD has succeeded and no DEL has begun.

use netclaim_cni::CniResult;

use super::record::{Phase, Record, Sandbox};

/// The desired state of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Desired {
    /// Unknown: the agent has just started, and the runtime has not listed its sandboxes. Only owed DELs run.
    Unknown,
    /// Attached to this sandbox.
    Attached(Sandbox),
    /// Not attached; the claim is still prepared.
    Detached,
    /// Not attached, and then forgotten: the claim is released.
    Forgotten,
}

/// The next step of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write [`Phase::Adding`], run the ADD.
    Add(Sandbox),
    /// Write [`Phase::Deleting`], run the DEL.
    Del(Sandbox),
    /// See whether what the ADD [has made](Record::made) can be used.
    Prove,
    /// Remove the record.
    Forget,
    /// Nothing.
    Rest,
}

/// Returns the next step of `record` towards `want`. `boot_id` is that of the running boot; sandboxes of
/// other boots are gone.
pub fn next<O>(record: &Record<O>, desired: &Desired, boot_id: &str) -> Step {
    match (&record.phase, desired) {
        (Phase::Planned, Desired::Attached(sandbox)) => Step::Add(sandbox.clone()),
        (Phase::Planned, Desired::Forgotten) => Step::Forget,
        (Phase::Planned, Desired::Unknown | Desired::Detached) => Step::Rest,
        (Phase::Deleting { sandbox, .. }, _) => Step::Del(sandbox.clone()),
        (Phase::Adding { sandbox } | Phase::Attached { sandbox, .. }, _) if sandbox.boot_id != boot_id => {
            Step::Del(sandbox.clone())
        }
        (Phase::Adding { sandbox }, Desired::Attached(desired))
            if record.made.is_some() && sandbox.id == desired.id =>
        {
            Step::Prove
        }
        // This ADD does not run any more, or `next` would not be called. What it left is unknown.
        (Phase::Adding { sandbox }, Desired::Attached(_) | Desired::Detached | Desired::Forgotten) => {
            Step::Del(sandbox.clone())
        }
        (Phase::Attached { sandbox, .. }, Desired::Attached(desired)) if sandbox.id == desired.id => {
            Step::Rest
        }
        (Phase::Attached { sandbox, .. }, Desired::Attached(_) | Desired::Detached | Desired::Forgotten) => {
            Step::Del(sandbox.clone())
        }
        (Phase::Adding { .. } | Phase::Attached { .. }, Desired::Unknown) => Step::Rest,
    }
}

/// An event of an attachment.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// An ADD is about to start in this sandbox.
    AddDue(Sandbox),
    /// The ADD has succeeded with this result.
    Added(CniResult),
    /// The ADD has failed, after this result of a part of the chain.
    AddFailed(Option<CniResult>),
    /// The ADD has failed and made nothing.
    AddMadeNothing,
    /// A DEL is about to start, perhaps not for the first time.
    DelDue,
    /// The DEL has succeeded.
    Deleted,
}

/// An event that cannot happen in this phase. It is a bug; nothing is done and nothing forgotten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{event} cannot happen to an attachment that is {phase}")]
pub struct Illegal {
    event: &'static str,
    phase: &'static str,
}

/// Returns the phase of an attachment after an event. The picture above shows every transition.
///
/// # Errors
/// When there is no such transition.
pub fn after(phase: Phase, event: Event) -> Result<Phase, Illegal> {
    let illegal = Illegal { event: event.name(), phase: phase.name() };
    match (phase, event) {
        (Phase::Planned, Event::AddDue(sandbox)) => Ok(Phase::Adding { sandbox }),
        (Phase::Adding { sandbox }, Event::Added(result)) => Ok(Phase::Attached { sandbox, result }),
        (Phase::Adding { sandbox }, Event::AddFailed(result)) => Ok(Phase::Deleting { sandbox, result }),
        (Phase::Adding { .. }, Event::AddMadeNothing) => Ok(Phase::Planned),
        (Phase::Adding { sandbox }, Event::DelDue) => Ok(Phase::Deleting { sandbox, result: None }),
        // The DEL needs the result.
        (Phase::Attached { sandbox, result }, Event::DelDue) => {
            Ok(Phase::Deleting { sandbox, result: Some(result) })
        }
        (deleting @ Phase::Deleting { .. }, Event::DelDue) => Ok(deleting),
        (Phase::Deleting { .. }, Event::Deleted) => Ok(Phase::Planned),
        _ => Err(illegal),
    }
}

impl Event {
    fn name(&self) -> &'static str {
        match self {
            Self::AddDue(_) => "the start of an ADD",
            Self::Added(_) => "the success of an ADD",
            Self::AddFailed(_) => "the failure of an ADD",
            Self::AddMadeNothing => "the failure of an ADD that made nothing",
            Self::DelDue => "the start of a DEL",
            Self::Deleted => "the success of a DEL",
        }
    }
}

impl Phase {
    fn name(&self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Adding { .. } => "being added",
            Self::Attached { .. } => "attached",
            Self::Deleting { .. } => "being deleted",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::tests::{Claimant, plan, result, sandbox};
    use super::super::{Gate, PodState};
    use super::*;

    fn made() -> CniResult {
        result(r#"{"cniVersion":"1.1.0"}"#)
    }

    /// What happens to a node.
    #[derive(Debug, Clone, Copy)]
    enum Happening {
        SandboxUp(u8),
        SandboxGone,
        Released,
        /// The agent starts again: what it had in memory is lost, the record is not.
        Crash,
        Reboot,
        /// Take the next step; `true`: it succeeds, `false`: the plugin fails.
        Step(bool),
        /// Take the next step; an ADD does not begin, a DEL fails.
        StepInVain,
        /// Take the next step and crash before its outcome is written.
        StepCutShort,
    }

    fn events() -> impl Strategy<Value = Vec<Happening>> {
        let event = prop_oneof![
            (0..3u8).prop_map(Happening::SandboxUp),
            Just(Happening::SandboxGone),
            Just(Happening::Released),
            Just(Happening::Crash),
            Just(Happening::Reboot),
            any::<bool>().prop_map(Happening::Step),
            any::<bool>().prop_map(Happening::Step),
            Just(Happening::StepInVain),
            Just(Happening::StepCutShort),
        ];
        prop::collection::vec(event, 0..60)
    }

    /// How a step ends.
    #[derive(Clone, Copy, PartialEq)]
    enum Outcome {
        Succeeds,
        Fails,
        /// An ADD makes nothing; a DEL fails.
        MakesNothing,
        CutShort,
    }

    /// A node with one record: `owed` is the sandbox in which an ADD may have made something without a
    /// finished DEL, `made` the one in which the interface is whole.
    struct World {
        record: Option<Record<Claimant>>,
        desired: Desired,
        boot: u32,
        owed: Option<String>,
        made: Option<String>,
        released: bool,
    }

    fn moved(record: &Record<Claimant>, event: Event) -> Result<Phase, TestCaseError> {
        after(record.phase.clone(), event).map_err(|illegal| TestCaseError::fail(illegal.to_string()))
    }

    impl World {
        fn step(&mut self, outcome: Outcome) -> Result<Step, TestCaseError> {
            let Some(record) = self.record.as_mut() else { return Ok(Step::Rest) };
            let step = next(record, &self.desired, &self.boot.to_string());
            match &step {
                Step::Add(sandbox) => {
                    prop_assert_eq!(&self.owed, &None, "ADD while a DEL is owed");
                    prop_assert!(!self.released, "ADD for a released claim");
                    record.phase = moved(record, Event::AddDue(sandbox.clone()))?;
                    self.owed = Some(sandbox.id.clone()).filter(|_| outcome != Outcome::MakesNothing);
                    let is_made = matches!(outcome, Outcome::Succeeds | Outcome::CutShort);
                    self.made = Some(sandbox.id.clone()).filter(|_| is_made);
                    let event = match outcome {
                        Outcome::Succeeds => Some(Event::Added(made())),
                        Outcome::Fails => Some(Event::AddFailed(None)),
                        Outcome::MakesNothing => Some(Event::AddMadeNothing),
                        Outcome::CutShort => None,
                    };
                    if let Some(event) = event {
                        record.phase = moved(record, event)?;
                    }
                }
                Step::Del(sandbox) => {
                    prop_assert_eq!(self.owed.as_ref(), Some(&sandbox.id), "DEL for what was never added");
                    record.phase = moved(record, Event::DelDue)?;
                    self.made = None;
                    if outcome == Outcome::Succeeds {
                        record.phase = moved(record, Event::Deleted)?;
                        self.owed = None;
                    }
                }
                Step::Forget => {
                    prop_assert_eq!(&self.owed, &None, "forgotten with a DEL owed");
                    self.record = None;
                }
                Step::Prove | Step::Rest => {}
            }
            Ok(step)
        }

        /// The gate is open for no sandbox but the one in which the interface is whole.
        fn gate_is_honest(&self, sandboxes: u8) -> Result<(), TestCaseError> {
            let records = self.record.iter().cloned().collect();
            let state = PodState { records, closing: self.released, ..PodState::default() };
            for boot in 0..=self.boot {
                for id in (0..sandboxes).map(|id| format!("{boot}-{id}")) {
                    if state.gate(&id) == Gate::Open {
                        prop_assert_eq!(
                            self.made.as_ref(),
                            Some(&id),
                            "open for a sandbox without its network"
                        );
                    }
                }
            }
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn every_started_add_gets_its_del_and_no_second_add_comes_before(events in events()) {
            let mut world = World { record: Some(Record::new(plan("c", 0))), desired: Desired::Unknown, boot: 0, owed: None, made: None, released: false };
            let restarted = |world: &mut World| world.desired = if world.released { Desired::Forgotten } else { Desired::Unknown };
            for event in events {
                match event {
                    Happening::SandboxUp(id) if !world.released => {
                        let boot_id = world.boot.to_string();
                        world.desired = Desired::Attached(Sandbox { boot_id, ..sandbox(&format!("{}-{id}", world.boot)) });
                    }
                    Happening::SandboxUp(_) => {}
                    Happening::SandboxGone => if !world.released { world.desired = Desired::Detached },
                    Happening::Released => { world.released = true; world.desired = Desired::Forgotten; }
                    Happening::Crash => restarted(&mut world),
                    Happening::Reboot => { world.boot += 1; restarted(&mut world); }
                    Happening::Step(succeeds) => { world.step(if succeeds { Outcome::Succeeds } else { Outcome::Fails })?; }
                    Happening::StepInVain => { world.step(Outcome::MakesNothing)?; }
                    Happening::StepCutShort => { world.step(Outcome::CutShort)?; restarted(&mut world); }
                }
                world.gate_is_honest(3)?;
            }
            // However it went: release, and three good steps later nothing is left.
            world.released = true;
            world.desired = Desired::Forgotten;
            for _ in 0..3 {
                world.step(Outcome::Succeeds)?;
            }
            prop_assert!(world.record.is_none() && world.owed.is_none());
        }

        #[test]
        fn a_wanted_attachment_is_reached_from_anywhere(events in events()) {
            let mut world = World { record: Some(Record::new(plan("c", 0))), desired: Desired::Detached, boot: 0, owed: None, made: None, released: false };
            for event in events {
                match event {
                    Happening::SandboxUp(id) => world.desired = Desired::Attached(Sandbox { boot_id: "0".into(), ..sandbox(&id.to_string()) }),
                    Happening::SandboxGone => world.desired = Desired::Detached,
                    Happening::Step(succeeds) => { world.step(if succeeds { Outcome::Succeeds } else { Outcome::Fails })?; }
                    Happening::StepInVain => { world.step(Outcome::MakesNothing)?; }
                    Happening::StepCutShort => { world.step(Outcome::CutShort)?; }
                    Happening::Released | Happening::Crash | Happening::Reboot => {}
                }
            }
            let desired = Sandbox { boot_id: "0".into(), ..sandbox("last") };
            world.desired = Desired::Attached(desired.clone());
            while world.step(Outcome::Succeeds)? != Step::Rest {}
            let phase = world.record.map(|record| record.phase);
            prop_assert_eq!(phase, Some(Phase::Attached { sandbox: desired, result: made() }));
        }
    }

    #[test]
    fn a_crash_alone_never_detaches_a_running_pod() {
        let attached = Phase::Attached { sandbox: sandbox("a"), result: made() };
        let record = Record { phase: attached, ..Record::new(plan("c", 0)) };
        assert_eq!(next(&record, &Desired::Unknown, "boot"), Step::Rest);
        assert_eq!(next(&record, &Desired::Attached(sandbox("a")), "boot"), Step::Rest);
    }

    #[test]
    fn every_other_move_is_refused_by_name() {
        let phases = [
            Phase::Planned,
            Phase::Adding { sandbox: sandbox("a") },
            Phase::Attached { sandbox: sandbox("a"), result: made() },
            Phase::Deleting { sandbox: sandbox("a"), result: None },
        ];
        let events = [
            Event::AddDue(sandbox("b")),
            Event::Added(made()),
            Event::AddFailed(None),
            Event::AddMadeNothing,
            Event::DelDue,
            Event::Deleted,
        ];
        let legal = |phase: &Phase| {
            events.iter().filter(|event| after(phase.clone(), (*event).clone()).is_ok()).count()
        };
        assert_eq!(phases.each_ref().map(legal), [1, 4, 1, 2]);
        let illegal = after(Phase::Planned, Event::Deleted).unwrap_err();
        assert_eq!(
            illegal.to_string(),
            "the success of a DEL cannot happen to an attachment that is planned"
        );
    }
}
