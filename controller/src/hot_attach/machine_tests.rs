//! The cluster of these tests is a fake: an API server, a scheduler, the claim controller and an agent, as
//! far as they matter here.

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn at() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}

/// What the API server stores of one NetworkAttachment, and who acts on it.
#[derive(Debug, Clone)]
struct World {
    object: Option<NetworkAttachment>,
    pod: Option<Target>,
    claim: Option<ClaimNow>,
    probe: Option<ProbeNow>,
    /// How many claims there were.
    claims: u32,
    /// How many allocations there were.
    allocations: u32,
    /// Whether the claim has the finalizer that keeps it.
    is_kept: bool,
    /// Claims by which an agent has a pod attached, with the node.
    attached: Vec<(String, String)>,
    is_full: bool,
    is_node_gone: bool,
    /// Whether the namespace of the object may not have the network.
    is_forbidden: bool,
    memory: Memory,
    now: Instant,
}

fn running(uid: &str) -> Target {
    Target {
        uid: uid.to_owned(),
        node: Some("n1".to_owned()),
        phase: "Running".to_owned(),
        ..Target::default()
    }
}

impl World {
    fn new() -> Self {
        let object = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
            "metadata": {"name": "a", "namespace": "shop", "uid": "u", "generation": 1},
            "spec": {"podName": "web-0", "resourceClaimTemplateName": "backup"},
        });
        Self {
            object: serde_json::from_value(object).unwrap(),
            pod: Some(running("p1")),
            claim: None,
            probe: None,
            claims: 0,
            allocations: 0,
            is_kept: true,
            attached: Vec::new(),
            is_full: false,
            is_node_gone: false,
            is_forbidden: false,
            memory: Memory::default(),
            now: Instant::now(),
        }
    }

    fn seen(&self) -> Seen<'_> {
        Seen {
            object: self.object.as_ref(),
            pod: self.pod.as_ref(),
            claim: self.claim.as_ref(),
            probe: self.probe.as_ref(),
            is_node_gone: self.is_node_gone,
            ..Seen::default()
        }
    }

    fn status(&self) -> NetworkAttachmentStatus {
        self.object.as_ref().and_then(|object| object.status.clone()).unwrap_or_default()
    }

    fn reason(&self) -> String {
        let conditions = self.status().conditions;
        find(&conditions, AllocatedReason::TYPE).map(|one| one.reason.clone()).unwrap_or_default()
    }

    fn is_same_object(&self, view: &Self) -> bool {
        json!(self.object) == json!(view.object)
    }

    /// Does a step that was decided on an earlier `view`. The API server refuses what does not fit.
    fn take(&mut self, step: Step, view: &Self) {
        // What names the version of the claim says nothing of the object, and the other way round.
        let is_same_claim = self.claim == view.claim;
        match step {
            Step::Wait(_) => {}
            Step::Finalize | Step::LetGo if !self.is_same_object(view) => {}
            Step::Finalize => {
                if let Some(object) = &mut self.object {
                    object.metadata.finalizers = Some(vec![DETACH_FINALIZER.to_owned()]);
                }
            }
            Step::LetGo => {
                if let Some(object) = &mut self.object {
                    assert!(self.claim.is_none() && self.attached.is_empty(), "{:?}", self.claim);
                    object.metadata.finalizers = None;
                }
            }
            Step::CreateClaim if self.claim.is_none() => {
                self.claims += 1;
                self.is_kept = true;
                let place = json!({"namespace": "netclaim-system", "name": "attachment-u", "uid": format!("c{}", self.claims)});
                let place = serde_json::from_value(place).unwrap();
                self.claim = Some(ClaimNow { is_deleted: false, place, allocation: None });
            }
            Step::CreateProbe(pod) if self.probe.is_none() => {
                self.probe = Some(ProbeNow { node: pod.node.unwrap(), ..ProbeNow::default() });
            }
            Step::CreateClaim | Step::CreateProbe(_) => {}
            Step::Judge => {
                let Some(claim) = view.claim.as_ref() else { return };
                match self.is_forbidden {
                    true => self.memory.refuse(claim, "no".to_owned(), self.now),
                    false => self.memory.permit(claim),
                }
            }
            Step::Reserve if is_same_claim => {
                let allocation = self.claim.as_mut().and_then(|claim| claim.allocation.as_mut());
                allocation.into_iter().for_each(|allocation| allocation.is_ours = true);
            }
            Step::DeleteProbe => self.probe = None,
            // An object that exists is asked for its version first.
            Step::Deallocate if is_same_claim && (view.object.is_none() || self.is_same_object(view)) => {
                self.assert_not_in_use();
                self.claim.iter_mut().for_each(|claim| claim.allocation = None);
            }
            Step::DeleteClaim
                if self.claim.as_ref().map(|c| &c.place) == view.claim.as_ref().map(|c| &c.place) =>
            {
                self.claim.iter_mut().for_each(|claim| claim.is_deleted = true);
            }
            Step::Write(change) if self.is_same_object(view) => {
                let is_allocated = matches!(change, Change::Allocated { .. });
                if let Some(object) = &mut self.object {
                    object.status = Some(change.status(object, &at()));
                }
                if is_allocated && is_same_claim {
                    let claim = self.claim.as_ref().and_then(|claim| claim.allocation.as_ref()).unwrap();
                    assert!(claim.is_ours && !claim.is_others, "{claim:?}");
                }
            }
            Step::Reserve | Step::Deallocate | Step::DeleteClaim | Step::Write(_) => {}
        }
    }

    /// Nobody may get what a pod has.
    fn assert_not_in_use(&self) {
        let uid = self.claim.as_ref().map(|claim| claim.place.uid.as_str());
        let of_claim = self.attached.iter().find(|(claim, _)| Some(claim.as_str()) == uid);
        assert!(self.is_node_gone || of_claim.is_none(), "{of_claim:?}");
    }

    /// Scheduler: allocates for the probe, is refused the binding and takes its reservation back.
    fn schedule(&mut self) {
        let (Some(claim), Some(probe)) = (&mut self.claim, &mut self.probe) else { return };
        match &mut claim.allocation {
            None if self.is_full => probe.message = "cannot allocate all claims".to_owned(),
            None if claim.is_deleted => {}
            None => {
                self.allocations += 1;
                let (node, devices) = (Some(probe.node.clone()), self.allocations.to_string());
                claim.allocation = Some(Allocation { node, devices, is_ours: false, is_others: true });
            }
            Some(allocation) => allocation.is_others = false,
        }
    }

    /// Claim controller: removes reservations of pods that are gone, and deallocates with the last one. A
    /// claim that is deleted and not reserved goes.
    fn control_claims(&mut self) {
        let is_probed = self.probe.is_some();
        let Some(claim) = &mut self.claim else { return };
        if let Some(allocation) = &mut claim.allocation
            && allocation.is_others
            && !is_probed
        {
            allocation.is_others = false;
            if !allocation.is_ours {
                claim.allocation = None;
            }
        }
        let is_reserved = claim.allocation.as_ref().is_some_and(|one| one.is_ours || one.is_others);
        if claim.is_deleted && !is_reserved {
            self.assert_not_in_use();
            self.claim = None;
        }
    }

    /// Agent of the node in the status: attaches what it may, and detaches everything else.
    fn act_as_agent(&mut self) {
        let Some(object) = &mut self.object else { return self.attached.clear() };
        let Some(status) = object.status.clone().filter(|status| status.node.is_some()) else { return };
        let is_wanted =
            is(object, AllocatedReason::TYPE, "True") && object.metadata.deletion_timestamp.is_none();
        let claim = status.claim.clone().unwrap().uid;
        let reason = if is_wanted {
            if !self.attached.iter().any(|(of, _)| *of == claim) {
                self.attached.push((claim, "n1".to_owned()));
            }
            AttachedReason::Attached
        } else {
            self.attached.clear();
            AttachedReason::Detached
        };
        let condition = Finding::new(reason, "").condition(&status.conditions, Some(1), &at());
        set(&mut object.status.get_or_insert_default().conditions, condition);
    }

    fn delete_object(&mut self) {
        if let Some(object) = &mut self.object {
            object.metadata.deletion_timestamp.get_or_insert_with(at);
        }
    }

    /// The API server removes what is deleted and has no finalizer.
    fn collect(&mut self) {
        let is_over = |object: &NetworkAttachment| {
            object.metadata.deletion_timestamp.is_some() && !has_finalizer(object)
        };
        if self.object.as_ref().is_some_and(is_over) {
            self.object = None;
        }
    }

    /// Lets everybody act until nothing changes.
    fn settle(&mut self) {
        for _ in 0..60 {
            self.collect();
            let view = self.clone();
            let mut memory = self.memory.clone();
            let step = next(&view.seen(), &mut memory, self.now);
            self.memory = memory;
            if let Step::Wait(Some(until)) = step {
                self.now = self.now.max(until);
            }
            self.take(step, &view);
            self.schedule();
            self.control_claims();
            self.act_as_agent();
        }
    }
}

#[test]
fn a_running_pod_gets_its_devices_and_gives_them_back() {
    let mut world = World::new();
    world.settle();
    let status = world.status();
    assert_eq!(
        (status.pod_uid.as_deref(), status.claim.map(|claim| claim.uid)),
        (Some("p1"), Some("c1".to_owned()))
    );
    assert_eq!((world.reason(), world.probe.is_none()), ("Allocated".to_owned(), true));
    world.delete_object();
    world.settle();
    assert!(world.object.is_none() && world.claim.is_none() && world.attached.is_empty());
}

#[test]
fn our_reservation_comes_before_the_end_of_the_probe() {
    let mut world = World::new();
    let mut steps = Vec::new();
    for _ in 0..20 {
        let view = world.clone();
        let mut memory = world.memory.clone();
        let step = next(&view.seen(), &mut memory, world.now);
        world.memory = memory;
        let name = format!("{step:?}").split(['(', ' ']).next().unwrap_or_default().to_owned();
        if name != "Wait" {
            steps.push(name);
        }
        world.take(step, &view);
        world.schedule();
    }
    let expected = ["Finalize", "CreateClaim", "CreateProbe", "Judge", "Reserve", "DeleteProbe", "Write"];
    assert_eq!(steps, expected);
}

#[test]
fn what_is_not_allocated_is_asked_for_again_ever_later() {
    let mut world = World::new();
    world.is_full = true;
    let begin = world.now;
    world.settle();
    assert_eq!(world.reason(), "NotAllocated");
    let message = world.status().conditions[0].message.clone();
    assert!(message.ends_with("cannot allocate all claims"), "{message}");
    assert!(world.now - begin > Duration::from_secs(100), "{:?}", world.now - begin);
    world.is_full = false;
    world.settle();
    assert_eq!(world.reason(), "Allocated");
}

#[test]
fn a_network_that_is_not_for_the_namespace_is_given_back_unused() {
    let mut world = World::new();
    world.is_forbidden = true;
    world.settle();
    assert_eq!((world.reason(), world.status().node), ("Refused".to_owned(), None));
    assert!(world.attached.is_empty());
    world.is_forbidden = false;
    world.settle();
    assert_eq!(world.reason(), "Allocated");
}

#[test]
fn a_permission_is_for_what_was_judged_and_not_for_what_the_claim_has_later() {
    let mut world = World::new();
    world.settle();
    let (object, mut memory) = (World::new().object.unwrap(), world.memory.clone());
    let object = NetworkAttachment { metadata: world.object.clone().unwrap().metadata, ..object };
    let mut claim = world.claim.clone().unwrap();
    let mut step = |claim: &ClaimNow| {
        let seen = Seen { object: Some(&object), claim: Some(claim), ..world.seen() };
        next(&seen, &mut memory, world.now)
    };
    assert!(matches!(step(&claim), Step::Write(Change::Allocated { .. })));
    claim.allocation.as_mut().unwrap().devices = "others".to_owned();
    assert!(matches!(step(&claim), Step::Judge));
}

#[test]
fn an_object_that_is_there_again_is_not_gone() {
    let mut world = World::new();
    world.settle();
    let mut memory = world.memory.clone();
    let mut step = |object, seconds| {
        let seen = Seen { object, ..world.seen() };
        next(&seen, &mut memory, world.now + Duration::from_secs(seconds))
    };
    step(None, 0);
    step(world.object.as_ref(), 1);
    assert!(matches!(step(None, ORPHAN_TIME.as_secs()), Step::Wait(Some(_))));
}

#[test]
fn what_is_taken_away_is_not_asked_for_again_at_once() {
    let mut world = World::new();
    world.settle();
    world.claim.as_mut().unwrap().is_deleted = true;
    let begin = world.now;
    world.settle();
    assert_eq!(world.reason(), "Allocated");
    assert!(world.now - begin >= FIRST_RETRY, "{:?}", world.now - begin);
}

#[test]
fn pods_that_cannot_be_attached_are_named() {
    type Change = fn(&mut World);
    let cases: [(Change, &str); 6] = [
        (|world| world.pod = None, "PodNotFound"),
        (|world| world.object.as_mut().unwrap().spec.pod_uid = Some("p0".to_owned()), "PodNotFound"),
        (|world| world.pod.as_mut().unwrap().phase = "Pending".to_owned(), "PodNotRunning"),
        (|world| world.pod.as_mut().unwrap().is_ending = true, "PodNotRunning"),
        (|world| world.pod.as_mut().unwrap().has_host_network = true, "Refused"),
        (|world| world.pod.as_mut().unwrap().is_windows = true, "Refused"),
    ];
    for (change, reason) in cases {
        let mut world = World::new();
        change(&mut world);
        world.settle();
        assert_eq!((world.reason().as_str(), world.claim.is_none()), (reason, true));
    }
}

#[test]
fn the_next_pod_of_the_name_gets_the_devices_after_the_last_one() {
    type Change = fn(&mut World);
    let changes: [Change; 3] = [
        |world| world.pod = Some(running("p2")),
        |world| {
            world.pod.as_mut().unwrap().phase = "Failed".to_owned();
            world.settle();
            assert_eq!((world.reason().as_str(), world.attached.len()), ("PodNotRunning", 0));
            world.pod = Some(running("p2"));
        },
        |world| {
            world.pod = None;
            world.settle();
            assert_eq!((world.reason().as_str(), world.claim.is_none()), ("PodNotFound", true));
            world.pod = Some(running("p2"));
        },
    ];
    for change in changes {
        let mut world = World::new();
        world.settle();
        change(&mut world);
        world.settle();
        let status = world.status();
        assert_eq!(
            (status.pod_uid.as_deref(), status.claim.map(|one| one.uid)),
            (Some("p2"), Some("c2".to_owned()))
        );
    }
}

#[test]
fn a_pod_that_ends_keeps_its_interfaces_to_the_end() {
    let mut world = World::new();
    world.settle();
    world.pod.as_mut().unwrap().is_ending = true;
    world.settle();
    assert_eq!((world.reason().as_str(), world.attached.len()), ("Allocated", 1));
}

#[test]
fn a_deleted_claim_and_an_eviction_are_a_detach_and_an_attach() {
    let mut world = World::new();
    world.settle();
    world.claim.as_mut().unwrap().is_deleted = true;
    world.settle();
    assert_eq!((world.reason().as_str(), world.claims), ("Allocated", 2));
    let seen = Seen { evicted: Some("device d has a taint"), ..world.seen() };
    let step = next(&seen, &mut world.memory.clone(), world.now);
    assert!(
        matches!(&step, Step::Write(Change::Revoked(why)) if why.reason == AllocatedReason::Evicted),
        "{step:?}"
    );
}

#[test]
fn nothing_is_released_before_the_agent_says_so_or_the_node_is_gone() {
    let mut world = World::new();
    world.settle();
    world.delete_object();
    let step = |world: &World, away: bool| {
        let seen = Seen { is_agent_away: away, ..world.seen() };
        next(&seen, &mut world.memory.clone(), world.now)
    };
    let view = world.clone();
    world.take(step(&world, false), &view);
    assert_eq!(world.reason(), "Deleted");
    assert!(matches!(step(&world, false), Step::Wait(None)), "the agent has not answered");
    let view = world.clone();
    world.take(step(&world, true), &view);
    let attached = world.object.as_ref().unwrap().condition::<AttachedReason>().unwrap().clone();
    assert_eq!((attached.status.as_str(), attached.reason.as_str()), ("Unknown", "AgentAway"));
    assert!(matches!(step(&world, true), Step::Wait(None)));
    world.is_node_gone = true;
    assert!(matches!(step(&world, true), Step::Deallocate));
}

#[test]
fn an_agent_that_writes_although_it_is_not_ready_is_not_answered_each_time() {
    let mut world = World::new();
    world.settle();
    let mut memory = world.memory.clone();
    let mut step = |seconds: u64| {
        let seen = Seen { is_agent_away: true, ..world.seen() };
        next(&seen, &mut memory, world.now + Duration::from_secs(seconds))
    };
    assert!(matches!(step(0), Step::Write(Change::AgentAway)));
    assert!(matches!(step(1), Step::Wait(Some(_))), "the agent says Attached again");
    assert!(matches!(step(60), Step::Write(Change::AgentAway)));
}

#[test]
fn an_older_word_of_the_agent_does_not_release_a_new_claim() {
    let mut world = World::new();
    world.settle();
    let object = world.object.as_mut().unwrap();
    let before = object.status.clone().unwrap().conditions;
    let late = Finding::new(AttachedReason::Detached, "").condition(&before, Some(1), &at());
    set(&mut object.status.as_mut().unwrap().conditions, late);
    world.delete_object();
    let view = world.clone();
    let step = next(&view.seen(), &mut world.memory.clone(), world.now);
    world.take(step, &view);
    assert!(world.object.as_ref().unwrap().condition::<AttachedReason>().is_none());
    assert!(matches!(next(&world.seen(), &mut world.memory.clone(), world.now), Step::Wait(None)));
}

#[test]
fn the_claim_of_an_object_that_lost_its_finalizer_is_kept_while_an_agent_may_use_it() {
    let mut world = World::new();
    world.settle();
    world.object = None;
    let begin = world.now;
    world.settle();
    assert!(world.claim.is_none() && world.now - begin >= ORPHAN_TIME);
}

#[test]
fn a_status_keeps_what_the_agent_has_written() {
    let mut world = World::new();
    world.settle();
    let object = world.object.as_mut().unwrap();
    let interfaces = json!([{"name": "net1", "ips": ["10.0.0.1"]}]);
    object.status.as_mut().unwrap().interfaces = serde_json::from_value(interfaces.clone()).unwrap();
    let why = Finding::new(AllocatedReason::PodGone, "gone");
    let status = Change::Revoked(why).status(object, &at());
    assert_eq!((json!(status.interfaces), status.conditions.len()), (interfaces, 2));
    let cleared: Value = json!(Change::Cleared.status(object, &at()));
    assert_eq!(cleared.as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);
}

/// What happens beside the controller.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The controller decides and does a step.
    Step,
    /// Another replica, which remembers nothing, decides and does a step.
    NewReplica,
    /// A step is decided, and done only later, by a replica that is cut off.
    Late,
    Schedule,
    Claims,
    Agent,
    Fill(bool),
    Forbid(bool),
    PodGoes,
    PodComes,
    PodEnds,
    DeleteClaim,
    DeleteObject,
    Time(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => Just(Event::Step),
        2 => Just(Event::NewReplica),
        2 => Just(Event::Late),
        6 => Just(Event::Schedule),
        4 => Just(Event::Claims),
        6 => Just(Event::Agent),
        1 => any::<bool>().prop_map(Event::Fill),
        1 => any::<bool>().prop_map(Event::Forbid),
        1 => Just(Event::PodGoes),
        2 => Just(Event::PodComes),
        1 => Just(Event::PodEnds),
        1 => Just(Event::DeleteClaim),
        1 => Just(Event::DeleteObject),
        3 => (1..60_u64).prop_map(Event::Time),
    ]
}

impl World {
    fn happen(&mut self, event: Event, late: &mut Vec<(Step, Self)>, pods: &mut u32) {
        match event {
            Event::Step | Event::NewReplica => {
                if matches!(event, Event::NewReplica) {
                    self.memory = Memory::default();
                }
                let view = self.clone();
                let mut memory = self.memory.clone();
                let step = next(&view.seen(), &mut memory, self.now);
                self.memory = memory;
                self.take(step, &view);
                if let Some((step, view)) = late.pop() {
                    self.take(step, &view);
                }
            }
            Event::Late => {
                let step = next(&self.seen(), &mut Memory::default(), self.now);
                // The replica that is cut off has no say in what this one remembers.
                if !matches!(step, Step::Judge) {
                    late.push((step, self.clone()));
                }
            }
            Event::Schedule => self.schedule(),
            Event::Claims => self.control_claims(),
            Event::Agent => self.act_as_agent(),
            Event::Fill(full) => self.is_full = full,
            Event::Forbid(forbidden) => self.is_forbidden = forbidden,
            Event::PodGoes => self.pod = None,
            Event::PodComes if self.pod.is_none() => {
                *pods += 1;
                self.pod = Some(running(&format!("p{pods}")));
            }
            Event::PodComes => {}
            Event::PodEnds => self.pod.iter_mut().for_each(|pod| pod.phase = "Failed".to_owned()),
            Event::DeleteClaim => self.claim.iter_mut().for_each(|claim| claim.is_deleted = true),
            Event::DeleteObject => self.delete_object(),
            Event::Time(seconds) => self.now += Duration::from_secs(seconds),
        }
        self.collect();
    }
}

proptest! {
    /// The asserts are in [`World`]: what an agent has is not released, and nothing is left behind.
    #[test]
    fn no_history_releases_what_is_in_use_or_stops_halfway(events in prop::collection::vec(event(), 0..120)) {
        let (mut world, mut late, mut pods) = (World::new(), Vec::new(), 1);
        for event in events {
            world.happen(event, &mut late, &mut pods);
        }
        world.is_full = false;
        world.is_forbidden = false;
        world.memory = Memory::default();
        world.pod = Some(running("last"));
        for _ in 0..3 {
            world.settle();
        }
        if world.object.is_some() {
            prop_assert_eq!(world.reason(), "Allocated");
            prop_assert_eq!(world.status().pod_uid, Some("last".to_owned()));
            prop_assert!(world.probe.is_none() && world.attached.len() == 1);
            world.delete_object();
            world.settle();
        }
        prop_assert!(world.object.is_none() && world.claim.is_none() && world.probe.is_none(), "{:?}", world);
    }
}
