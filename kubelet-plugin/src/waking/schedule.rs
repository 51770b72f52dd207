//! Decides which pods to wake and when. It does no IO and has no clock of its own.
//!
//! ```text
//!   the kubelet's pods ──> known ──┐ waits, and no Prepare came        ┌──> due: pod, number, cause
//!   Prepare, Unprepare, registered ┼─────────────────────────> reason ─┤
//!   attached at last ──────────────┘                                   └──  3 for a pod, further and further apart
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;
use super::metrics::WakeCause;
use crate::pods::SeenPod;
use crate::pods::owner::ObjectRef;

/// How long no Prepare comes for a pod without volumes whose claims the kubelet cannot read: most come within
/// 50 ms.
const SILENCE: Duration = Duration::from_millis(500);
/// The same for a pod whose volumes are mounted first. Even on a busy node a token takes less.
const SILENCE_WITH_VOLUMES: Duration = Duration::from_secs(3);
/// Time between the wakes of a pod; there is one more wake than there are entries.
const SPACING: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// How often a pod is woken at most.
const MOST: usize = SPACING.len() + 1;
/// How long the kubelet takes to forget a claim after the answer to its Unprepare.
const FORGOTTEN: Duration = Duration::from_millis(300);
/// How long a Prepare speaks for a registration: the kubelet that has just asked knows the driver.
const RECENT: Duration = Duration::from_secs(5);
/// How long it is remembered for which claims a Prepare came, and how often a pod that waits no longer was
/// woken.
const MEMORY: Duration = Duration::from_secs(600);

/// Namespace and name of a claim.
pub(super) type ClaimName = (String, String);

/// A pod to be woken now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wake {
    pub(super) pod: ObjectRef,
    /// The names of its claims; none if it is known that one is of this driver.
    pub(super) claims: BTreeSet<String>,
    pub(super) cause: WakeCause,
    /// What to write: another number than the pod has. `None` when that is not known.
    pub(super) number: Option<u16>,
}

struct SleepingPod {
    seen: SeenPod,
    /// Attachments of it, or of an earlier pod with its claims, are journalled: it needs no Prepare, or gets
    /// none before they are released.
    is_held: bool,
    since: Instant,
}

#[derive(Default)]
struct Tries {
    count: usize,
    last: Option<Instant>,
    is_over: bool,
}

impl Tries {
    /// When the next wake may be; `None` when there are to be no more.
    fn next(&self, wanted: Instant) -> Option<Instant> {
        if self.is_over {
            return None;
        }
        let Some(last) = self.last else { return Some(wanted) };
        let spacing = SPACING.get(self.count.checked_sub(1)?)?;
        Some(wanted.max(last + *spacing))
    }
}

/// What to wake.
pub(super) struct Schedule {
    known: HashMap<String, SleepingPod>,
    reasons: HashMap<String, (ObjectRef, WakeCause, Instant)>,
    tries: HashMap<String, Tries>,
    asked: HashMap<ClaimName, Instant>,
    releasing: HashSet<ClaimName>,
    /// Pods whose Prepare was refused because of another claim, by their UIDs.
    blocked: HashMap<String, (ObjectRef, ClaimName)>,
    bucket: Bucket,
    /// The kubelet reports each change, so that it means something if no Prepare comes.
    follows: bool,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            reasons: HashMap::new(),
            tries: HashMap::new(),
            asked: HashMap::new(),
            releasing: HashSet::new(),
            blocked: HashMap::new(),
            bucket: Bucket::new(20, 50),
            follows: false,
        }
    }

    /// Sets whether every change of the node's pods will be passed on.
    pub(super) fn follow(&mut self, follows: bool) {
        self.follows = follows;
    }

    /// Replaces all pods.
    pub(super) fn replace(&mut self, pods: Vec<(SeenPod, bool)>, now: Instant) {
        let uids: HashSet<String> = pods.iter().map(|(seen, _)| seen.pod.uid.clone()).collect();
        self.known.retain(|uid, _| uids.contains(uid));
        for (seen, is_held) in pods {
            self.seen(seen, is_held, now);
        }
    }

    /// Notes a pod that is new or has changed.
    pub(super) fn seen(&mut self, mut seen: SeenPod, is_held: bool, now: Instant) {
        let uid = seen.pod.uid.clone();
        let mut since = now;
        if let Some(earlier) = self.known.remove(&uid) {
            if self.tries.contains_key(&uid) {
                // The kubelet reports a pod when its status changes, with the annotations of an earlier time.
                seen.retry = earlier.seen.retry;
            }
            if earlier.seen.waits == seen.waits {
                since = earlier.since;
            }
            // A pod's claims do not change, and the kubelet does not always know their names.
            seen.claims.extend(earlier.seen.claims);
        }
        self.known.insert(uid, SleepingPod { seen, is_held, since });
    }

    /// Forgets a pod that has ended.
    pub(super) fn gone(&mut self, uid: &str) {
        self.known.remove(uid);
        self.reasons.remove(uid);
        self.blocked.remove(uid);
    }

    /// Notes that a pod waits until this claim of another pod is released.
    pub(super) fn blocked(&mut self, pod: ObjectRef, by: ClaimName) {
        self.blocked.insert(pod.uid.clone(), (pod, by));
    }

    /// Notes that the kubelet has asked for claims: it has got past everything that a wake repeats.
    pub(super) fn asked(&mut self, claims: impl IntoIterator<Item = ClaimName>, now: Instant) {
        self.asked.retain(|_, asked| *asked + MEMORY > now);
        for claim in claims {
            let pods = self.known.values().filter(|known| known.has(&claim));
            for known in pods {
                let uid = &known.seen.pod.uid;
                if self.reasons.get(uid).is_some_and(|(_, cause, _)| *cause != WakeCause::Attached) {
                    self.reasons.remove(uid);
                }
            }
            self.releasing.remove(&claim);
            self.asked.insert(claim, now);
        }
    }

    /// Notes that the kubelet knows the driver (again).
    pub(super) fn registered(&mut self, now: Instant) {
        let is_recent = |claim: &ClaimName| self.asked.get(claim).is_some_and(|asked| *asked + RECENT > now);
        let waits = |known: &&SleepingPod| known.seen.waits && !known.seen.claims.is_empty();
        let waiting = self.known.values().filter(waits);
        for known in waiting.filter(|known| !known.claims().any(|claim| is_recent(&claim))) {
            let uid = known.seen.pod.uid.clone();
            self.reasons.insert(uid, (known.seen.pod.clone(), WakeCause::Registered, now));
        }
    }

    /// Notes that an Unprepare of a claim is under way. Until it succeeds, the kubelet gives the claim to no
    /// other pod.
    pub(super) fn releasing(&mut self, claim: ClaimName) {
        self.releasing.insert(claim);
    }

    /// Notes that an Unprepare of a claim has succeeded.
    pub(super) fn released(&mut self, claim: &ClaimName, now: Instant) {
        self.releasing.remove(claim);
        self.asked.remove(claim);
        for (uid, (pod, _)) in self.blocked.extract_if(|_, (_, by)| by == claim) {
            if self.known.get(&uid).is_none_or(|known| known.seen.waits) {
                self.reasons.insert(uid, (pod, WakeCause::Released, now));
            }
        }
        for known in self.known.values_mut().filter(|known| known.has(claim) && known.seen.waits) {
            (known.is_held, known.since) = (false, now);
            let pod = known.seen.pod.clone();
            self.reasons.insert(pod.uid.clone(), (pod, WakeCause::Released, now + FORGOTTEN));
        }
    }

    /// Notes that a claim that has been released is that of a pod that is not reported.
    pub(super) fn next_of_claim(&mut self, pod: ObjectRef, now: Instant) {
        self.reasons.insert(pod.uid.clone(), (pod, WakeCause::Released, now + FORGOTTEN));
    }

    /// Notes that the networks of a pod are there whose container the runtime has refused before.
    pub(super) fn attached(&mut self, pod: ObjectRef, now: Instant) {
        self.reasons.insert(pod.uid.clone(), (pod, WakeCause::Attached, now));
    }

    /// Notes that another Prepare of the pod would succeed now, for this reason.
    pub(super) fn can_be_prepared(&mut self, pod: ObjectRef, cause: WakeCause, now: Instant) {
        if self.known.get(&pod.uid).is_some_and(|known| !known.seen.waits) {
            return;
        }
        self.reasons.insert(pod.uid.clone(), (pod, cause, now));
    }

    /// Notes that waking a pod again is of no use, or not allowed.
    pub(super) fn over(&mut self, uid: &str) {
        self.tries.entry(uid.to_owned()).or_default().is_over = true;
        self.reasons.remove(uid);
    }

    /// Returns the pods to be woken now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Wake> {
        self.forget(now);
        let due = self.wanted().filter(|(at, _, _)| *at <= now);
        let mut due: Vec<(Instant, String, WakeCause)> =
            due.map(|(at, uid, cause)| (at, uid.to_owned(), cause)).collect();
        due.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let mut wakes: Vec<Wake> = Vec::new();
        for (_, uid, cause) in due {
            if wakes.iter().any(|wake| wake.pod.uid == uid) {
                continue;
            }
            if !self.bucket.take(now) {
                break;
            }
            wakes.extend(self.wake(&uid, cause, now));
        }
        wakes
    }

    /// Returns when [`Self::due`] has something, if nothing happens until then.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let at = self.wanted().map(|(at, _, _)| at).min()?;
        Some(if at <= now { self.bucket.next(now) } else { at })
    }

    fn wake(&mut self, uid: &str, cause: WakeCause, now: Instant) -> Option<Wake> {
        let reason = self.reasons.remove(uid);
        let known = self.known.get_mut(uid);
        let pod =
            reason.map(|(pod, _, _)| pod).or_else(|| known.as_ref().map(|known| known.seen.pod.clone()))?;
        let tries = self.tries.entry(uid.to_owned()).or_default();
        tries.count += 1;
        tries.last = Some(now);
        let mut claims = BTreeSet::new();
        let number = known.map(|known| {
            if cause != WakeCause::Attached {
                claims.clone_from(&known.seen.claims);
            }
            // At most four digits. The kubelet reports the change a little later.
            known.seen.retry = known.seen.retry % 9999 + 1;
            known.seen.retry
        });
        Some(Wake { pod, claims, cause, number })
    }

    /// Every pod to be woken, now or later.
    fn wanted(&self) -> impl Iterator<Item = (Instant, &str, WakeCause)> {
        let reasons = self.reasons.iter().map(|(uid, (_, cause, at))| (*at, uid.as_str(), *cause));
        let silent = self.known.iter().filter(|(_, known)| self.follows && self.is_silent(known));
        let silent = silent.map(|(uid, known)| {
            let silence = if known.seen.has_volumes { SILENCE_WITH_VOLUMES } else { SILENCE };
            (known.since + silence, uid.as_str(), WakeCause::NotPrepared)
        });
        reasons.chain(silent).filter_map(|(at, uid, cause)| match self.tries.get(uid) {
            None => Some((at, uid, cause)),
            Some(tries) => Some((tries.next(at)?, uid, cause)),
        })
    }

    /// Whether a pod waits without a Prepare, for no reason that is known.
    fn is_silent(&self, known: &SleepingPod) -> bool {
        let has_reason =
            |claim: ClaimName| self.asked.contains_key(&claim) || self.releasing.contains(&claim);
        let is_named = !known.seen.claims.is_empty();
        known.seen.waits && is_named && !known.is_held && !known.claims().any(has_reason)
    }

    /// Forgets how often pods were woken that do not wait any more.
    fn forget(&mut self, now: Instant) {
        let waits = |uid: &String| self.known.get(uid).is_some_and(|known| known.seen.waits);
        let is_old = |tries: &Tries| tries.last.is_none_or(|last| last + MEMORY < now);
        self.tries.retain(|uid, tries| waits(uid) || !is_old(tries));
        let tries = &self.tries;
        self.reasons.retain(|uid, _| tries.get(uid).is_none_or(|tries| !tries.is_over && tries.count < MOST));
    }
}

impl SleepingPod {
    fn claims(&self) -> impl Iterator<Item = ClaimName> {
        self.seen.claims.iter().map(|name| (self.seen.pod.namespace.clone(), name.clone()))
    }

    fn has(&self, (namespace, name): &ClaimName) -> bool {
        self.seen.pod.namespace == *namespace && self.seen.claims.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(uid: &str) -> SeenPod {
        SeenPod {
            pod: ObjectRef { namespace: "ns".into(), name: format!("pod-{uid}"), uid: uid.into() },
            claims: [format!("claim-{uid}")].into(),
            may_wait_in_hook: true,
            has_volumes: false,
            waits: true,
            retry: 0,
            has_gate: false,
        }
    }

    fn claim(uid: &str) -> ClaimName {
        ("ns".to_owned(), format!("claim-{uid}"))
    }

    fn following() -> (Schedule, Instant) {
        let mut schedule = Schedule::new();
        schedule.follow(true);
        (schedule, Instant::now() + Duration::from_secs(60))
    }

    /// Lets time pass until nothing is to be done within an hour; returns when each wake was, and why.
    fn run(schedule: &mut Schedule, start: Instant) -> Vec<(u64, WakeCause, Option<u16>)> {
        let (mut wakes, mut now) = (Vec::new(), start);
        for _ in 0..1000 {
            for wake in schedule.due(now) {
                let after = u64::try_from((now - start).as_millis()).expect("less than an hour");
                wakes.push((after, wake.cause, wake.number));
            }
            match schedule.next(now) {
                Some(next) if next < start + Duration::from_secs(3600) => now = next,
                _ => return wakes,
            }
        }
        panic!("it does not end: {wakes:?}")
    }

    #[test]
    fn a_pod_without_a_prepare_is_woken_three_times_and_no_more() {
        let (mut schedule, now) = following();
        schedule.seen(seen("a"), false, now);
        let cause = WakeCause::NotPrepared;
        assert_eq!(
            run(&mut schedule, now),
            [(500, cause, Some(1)), (1500, cause, Some(2)), (5500, cause, Some(3))]
        );
        schedule.seen(SeenPod { retry: 3, ..seen("a") }, false, now + Duration::from_secs(3000));
        schedule.registered(now + Duration::from_secs(3000));
        assert_eq!(run(&mut schedule, now + Duration::from_secs(3000)), [], "it has waited all the time");
    }

    #[test]
    fn a_pod_keeps_the_claims_whose_names_the_kubelet_does_not_repeat() {
        let (mut schedule, now) = following();
        let unnamed = || SeenPod { claims: BTreeSet::new(), ..seen("a") };
        schedule.seen(unnamed(), false, now);
        schedule.registered(now);
        assert_eq!(run(&mut schedule, now), [], "it is unknown whose claims they are");
        schedule.seen(seen("a"), false, now);
        schedule.seen(unnamed(), false, now);
        assert_eq!(schedule.due(now + SILENCE)[0].claims, seen("a").claims);
        schedule.seen(SeenPod { waits: false, ..unnamed() }, false, now + SILENCE);
        assert_eq!(run(&mut schedule, now + SILENCE), [], "it has started");
    }

    #[test]
    fn a_pod_with_volumes_is_given_the_time_to_mount_them() {
        let (mut schedule, now) = following();
        schedule.seen(SeenPod { has_volumes: true, retry: 9999, ..seen("a") }, false, now);
        let first = run(&mut schedule, now)[0];
        assert_eq!(first, (3000, WakeCause::NotPrepared, Some(1)));
    }

    #[test]
    fn a_pod_is_left_alone_once_a_prepare_has_come() {
        let (mut schedule, now) = following();
        schedule.seen(seen("a"), false, now);
        schedule.asked([claim("a")], now);
        schedule.asked([claim("b")], now);
        schedule.seen(seen("b"), false, now + Duration::from_millis(10));
        schedule.seen(seen("c"), true, now);
        schedule.seen(SeenPod { waits: false, ..seen("d") }, false, now);
        assert_eq!(run(&mut schedule, now), []);
    }

    #[test]
    fn a_pod_whose_prepare_was_answered_too_late_is_woken() {
        let (mut schedule, now) = following();
        schedule.asked([claim("a")], now);
        schedule.seen(seen("a"), true, now);
        let later = now + Duration::from_secs(50);
        schedule.can_be_prepared(seen("a").pod, WakeCause::Late, later);
        assert_eq!(run(&mut schedule, later), [(0, WakeCause::Late, Some(1))]);
        schedule.seen(SeenPod { waits: false, ..seen("a") }, true, later);
        schedule.can_be_prepared(seen("a").pod, WakeCause::Late, later);
        assert_eq!(run(&mut schedule, later), [], "it has started");
    }

    #[test]
    fn a_pod_whose_claim_is_being_released_is_woken_when_it_is() {
        let (mut schedule, now) = following();
        schedule.releasing(claim("a"));
        schedule.seen(seen("a"), false, now);
        assert_eq!(run(&mut schedule, now), []);
        let later = now + Duration::from_secs(20);
        schedule.released(&claim("a"), later);
        assert_eq!(schedule.due(later), []);
        let wakes = schedule.due(later + FORGOTTEN);
        assert_eq!((wakes.len(), wakes[0].cause), (1, WakeCause::Released));
        schedule.asked([claim("a")], later + FORGOTTEN);
        assert_eq!(run(&mut schedule, later + FORGOTTEN), []);
    }

    #[test]
    fn a_pod_whose_claim_an_earlier_pod_has_is_woken_when_that_has_ended() {
        let (mut schedule, now) = following();
        schedule.seen(seen("a"), true, now);
        assert_eq!(run(&mut schedule, now), []);
        let later = now + Duration::from_secs(30);
        schedule.releasing(claim("a"));
        schedule.released(&claim("a"), later);
        let wakes: Vec<_> =
            run(&mut schedule, later).into_iter().map(|(after, cause, _)| (after, cause)).collect();
        let silent = WakeCause::NotPrepared;
        assert_eq!(wakes, [(300, WakeCause::Released), (1300, silent), (5300, silent)]);
    }

    #[test]
    fn a_pod_that_another_one_blocks_is_woken_when_that_has_ended() {
        let (mut schedule, now) = following();
        schedule.seen(seen("a"), false, now);
        schedule.asked([claim("a")], now);
        schedule.blocked(seen("a").pod, claim("b"));
        schedule.released(&claim("c"), now);
        assert_eq!(run(&mut schedule, now), []);
        schedule.released(&claim("b"), now);
        assert_eq!(run(&mut schedule, now), [(0, WakeCause::Released, Some(1))]);
        schedule.released(&claim("b"), now + MEMORY);
        assert_eq!(run(&mut schedule, now + MEMORY), [], "once");
        schedule.blocked(seen("a").pod, claim("b"));
        schedule.seen(SeenPod { waits: false, ..seen("a") }, false, now + MEMORY);
        schedule.released(&claim("b"), now + MEMORY);
        assert_eq!(run(&mut schedule, now + MEMORY), [], "it has started");
    }

    #[test]
    fn a_registration_wakes_all_pods_that_wait_without_a_recent_prepare() {
        let mut schedule = Schedule::new();
        let now = Instant::now() + Duration::from_secs(60);
        // As after a reboot: the journal has it, and the kubelet starts it again.
        schedule.seen(seen("prepared"), true, now);
        schedule.seen(SeenPod { waits: false, ..seen("running") }, true, now);
        schedule.seen(seen("asked"), false, now);
        schedule.asked([claim("asked")], now);
        assert_eq!(run(&mut schedule, now), [], "without the kubelet's changes silence means nothing");
        schedule.registered(now);
        assert_eq!(run(&mut schedule, now), [(0, WakeCause::Registered, Some(1))]);
    }

    #[test]
    fn a_pod_that_must_not_be_woken_is_not() {
        let (mut schedule, now) = following();
        schedule.seen(seen("a"), false, now);
        assert_eq!(schedule.due(now + SILENCE).len(), 1);
        schedule.over("a");
        schedule.registered(now + SILENCE);
        assert_eq!(run(&mut schedule, now + SILENCE), []);
    }

    #[test]
    fn an_attached_pod_is_woken_at_once_even_if_the_kubelet_does_not_report_it() {
        let mut schedule = Schedule::new();
        let now = Instant::now() + Duration::from_secs(60);
        schedule.attached(seen("a").pod, now);
        assert_eq!(
            schedule.due(now),
            [Wake { pod: seen("a").pod, claims: BTreeSet::new(), cause: WakeCause::Attached, number: None }]
        );
        // Each new sandbox may have refused a container. A new reason waits for its turn.
        schedule.attached(seen("a").pod, now);
        assert_eq!(run(&mut schedule, now), [(1000, WakeCause::Attached, None)]);
    }

    #[test]
    fn a_node_full_of_pods_is_woken_at_a_bounded_rate() {
        let (mut schedule, now) = following();
        let pods: Vec<String> = (0..250).map(|n| n.to_string()).collect();
        schedule.replace(pods.iter().map(|uid| (seen(uid), false)).collect(), now);
        let later = now + SILENCE;
        assert_eq!(schedule.due(later).len(), 50);
        assert_eq!(schedule.due(later), []);
        let next = schedule.next(later).expect("more");
        assert_eq!(next, later + Duration::from_millis(50));
        assert_eq!(schedule.due(next).len(), 1);
        schedule.replace(Vec::new(), next);
        assert_eq!(run(&mut schedule, next), []);
    }
}
