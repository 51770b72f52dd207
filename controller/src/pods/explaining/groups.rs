//! The pods that wait for a node, in groups that are judged once, and when to judge and to report on them.
//! Pure.
//!
//! Pods of one namespace with the same claim templates, node selectors and tolerations are a group, such as
//! those of a Deployment. What is said of one of them holds for all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodSpec;
use kube::ResourceExt as _;
use kube::runtime::watcher;
use tokio::time::Instant;

use super::super::waiting::{PodObject, Unschedulable};
use super::queue::Queue;
use crate::metrics::Outcome;

/// How long a pod must wait before it is judged. Others get a node, a block of addresses or a new node
/// before.
const JUDGE_DELAY: Duration = Duration::from_secs(5);

/// Time between the first two judgements of a group. Each further one takes twice as long, up to [`LATEST`].
const SOONEST: Duration = Duration::from_secs(60);

/// Time between two judgements of a group, at most.
const LATEST: Duration = Duration::from_secs(300);

/// Time between two looks at a group that asks for devices of other drivers: its class may change.
const FOREIGN: Duration = Duration::from_secs(1800);

/// Time between two reports of the same cause on a pod. API servers forget events after an hour.
const REPEAT: Duration = Duration::from_secs(3000);

/// The most pods of a group that get an event after one judgement. All wait for the same, and a Deployment
/// may have thousands.
const EVENTS: usize = 20;

/// The properties that the pods of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodGroup {
    pub(super) namespace: String,
    /// The part of their spec that says what they ask for, as JSON.
    pub(super) spec: Arc<str>,
}

impl PodGroup {
    /// Returns the part of its pods' spec that is known.
    pub(super) fn pod(&self) -> PodSpec {
        // It was written from what the API server sent.
        serde_json::from_str(&self.spec).unwrap_or_default()
    }
}

/// The state of a group.
#[derive(Debug)]
struct Members {
    /// By UID.
    pods: BTreeMap<String, Member>,
    judged: Option<Instant>,
    /// Time from that judgement to the next one.
    interval: Duration,
    /// Why the pods wait.
    note: Option<Arc<str>>,
}

#[derive(Debug)]
struct Member {
    name: String,
    /// The names of its claims, by the names that it has for them.
    claims: BTreeMap<String, String>,
    since: Instant,
    is_judged: bool,
    /// Whether it is in [`Pods::to_report`].
    is_queued: bool,
    /// What was reported last, and when.
    reported: Option<(Arc<str>, Instant)>,
}

/// The pods that the watch has shown.
#[derive(Debug, Default)]
pub(super) struct Pods {
    groups: BTreeMap<PodGroup, Members>,
    /// The group of each pod, by its UID.
    by_uid: HashMap<String, PodGroup>,
    /// The list in progress.
    listing: HashMap<String, Unschedulable>,
    /// The pods that may need a report, each once.
    to_report: Queue,
}

/// The result of a judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// Why the pods wait.
    Cause(String),
    /// Nothing to report.
    Other(Outcome),
}

/// An event to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) note: Arc<str>,
}

impl Pods {
    /// Takes in an event of the watch. Returns whether other pods wait now.
    pub(super) fn apply(&mut self, event: &watcher::Event<PodObject>, now: Instant) -> bool {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                false
            }
            watcher::Event::InitApply(pod) => {
                self.listing.extend(Unschedulable::of(pod).map(|pod| (pod.uid.clone(), pod)));
                false
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                let gone = self.by_uid.keys().filter(|uid| !listed.contains_key(*uid));
                for uid in gone.cloned().collect::<Vec<_>>() {
                    self.take(&uid);
                }
                for pod in listed.into_values() {
                    self.add(pod, now);
                }
                true
            }
            watcher::Event::Apply(pod) => match Unschedulable::of(pod) {
                Some(pod) => self.add(pod, now),
                None => pod.uid().is_some_and(|uid| self.take(&uid).is_some()),
            },
            watcher::Event::Delete(pod) => pod.uid().is_some_and(|uid| self.take(&uid).is_some()),
        }
    }

    /// Adds a pod. Returns whether it is new in its group.
    fn add(&mut self, pod: Unschedulable, now: Instant) -> bool {
        let Unschedulable { uid, namespace, name, claims, spec } = pod;
        let is_same = |group: &PodGroup| group.namespace == namespace && *group.spec == *spec;
        if self.by_uid.get(&uid).is_some_and(is_same) {
            return false;
        }
        let before = self.take(&uid);
        let group = PodGroup { namespace, spec: spec.into() };
        self.by_uid.insert(uid.clone(), group.clone());
        let (since, is_queued, reported) =
            before.map_or((now, false, None), |before| (before.since, before.is_queued, before.reported));
        let member = Member { name, claims, since, is_judged: false, is_queued, reported };
        self.groups.entry(group).or_default().pods.insert(uid, member);
        true
    }

    fn take(&mut self, uid: &str) -> Option<Member> {
        let group = self.by_uid.remove(uid)?;
        let members = self.groups.get_mut(&group)?;
        let pod = members.pods.remove(uid);
        if members.pods.is_empty() {
            self.groups.remove(&group);
        }
        pod
    }

    /// Returns when the next group is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.groups.values().filter_map(Members::due).min()
    }

    /// Returns the groups that are to be judged, at most so many, each with the claims of one of its pods.
    /// Namespaces take turns, so that many groups of one do not delay those of others: each pod of a
    /// DaemonSet is a group.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        most: usize,
    ) -> Vec<(PodGroup, BTreeMap<String, String>)> {
        let due =
            self.groups.iter_mut().filter_map(|(group, members)| Some((members.due()?, group, members)));
        let mut due: Vec<_> = due.filter(|(at, ..)| *at <= now).collect();
        due.sort_by_key(|(at, _, members)| (members.judged.is_some(), *at));
        let mut turns: HashMap<&str, usize> = HashMap::new();
        let mut in_turn = Vec::new();
        for (at, group, members) in due {
            let turn = turns.entry(&group.namespace).or_default();
            *turn += 1;
            in_turn.push(((*turn, members.judged.is_some(), at), group, members));
        }
        in_turn.sort_by_key(|(key, ..)| *key);
        let judged = in_turn.into_iter().take(most).filter_map(|(_, group, members)| {
            members.interval =
                if members.judged.is_some() { LATEST.min(members.interval * 2) } else { SOONEST };
            members.judged = Some(now);
            let first = members.pods.values().min_by_key(|pod| pod.since)?;
            Some((group.clone(), first.claims.clone()))
        });
        judged.collect()
    }

    /// Takes in why the pods of a group wait. Returns for how many of them no event is to be written, and
    /// what is counted for them.
    pub(super) fn answer(&mut self, group: &PodGroup, finding: &Finding, now: Instant) -> (usize, Outcome) {
        let (note, outcome) = match finding {
            Finding::Cause(note) => (Some(note.as_str().into()), Outcome::Known),
            Finding::Other(outcome) => (None, *outcome),
        };
        // All of its pods are gone.
        let Some(members) = self.groups.get_mut(group) else { return (0, outcome) };
        if outcome == Outcome::Foreign {
            members.interval = FOREIGN;
        }
        members.note = note;
        let mut pods = 0;
        let mut unreported = Vec::new();
        for (uid, pod) in members.pods.iter_mut().filter(|(_, pod)| pod.since + JUDGE_DELAY <= now) {
            pod.is_judged = true;
            pods += 1;
            if members.note.as_ref().is_some_and(|note| !pod.has_report(note, now)) {
                unreported.push((uid, pod));
            }
        }
        // Those of earlier judgements that are still queued count, too. After them, pods without any report
        // go first.
        unreported.sort_by_key(|(_, pod)| (!pod.is_queued, pod.reported.is_some(), pod.since));
        unreported.truncate(EVENTS);
        pods -= unreported.len();
        for (uid, pod) in unreported {
            if !std::mem::replace(&mut pod.is_queued, true) {
                self.to_report.push(&group.namespace, uid.clone());
            }
        }
        (pods, outcome)
    }

    /// Returns how many pods of a group wait.
    pub(super) fn count(&self, group: &PodGroup) -> usize {
        self.groups.get(group).map_or(0, |members| members.pods.len())
    }

    /// Whether there may be an event to write.
    pub(super) fn has_reports(&self) -> bool {
        !self.to_report.is_empty()
    }

    /// Returns the next event to write.
    pub(super) fn next_report(&mut self, now: Instant) -> Option<Report> {
        while let Some(uid) = self.to_report.pop() {
            let Some(group) = self.by_uid.get(&uid) else { continue };
            let Some(members) = self.groups.get_mut(group) else { continue };
            let Some(pod) = members.pods.get_mut(&uid) else { continue };
            pod.is_queued = false;
            let Some(note) = &members.note else { continue };
            if pod.is_judged && !pod.has_report(note, now) {
                pod.reported = Some((note.clone(), now));
                let (namespace, name) = (group.namespace.clone(), pod.name.clone());
                return Some(Report { uid, namespace, name, note: note.clone() });
            }
        }
        None
    }

    /// Notes that an event could not be written. It is written after the next judgement.
    pub(super) fn not_reported(&mut self, uid: &str) {
        let members = self.by_uid.get(uid).and_then(|group| self.groups.get_mut(group));
        if let Some(pod) = members.and_then(|members| members.pods.get_mut(uid)) {
            pod.reported = None;
        }
    }
}

impl Default for Members {
    fn default() -> Self {
        Self { pods: BTreeMap::new(), judged: None, interval: SOONEST, note: None }
    }
}

impl Members {
    /// Returns when the group is to be judged; `None` without pods.
    fn due(&self) -> Option<Instant> {
        let ripe = self.pods.values().map(|pod| pod.since + JUDGE_DELAY).min()?;
        let Some(judged) = self.judged else { return Some(ripe) };
        let new = self.pods.values().filter(|pod| !pod.is_judged);
        let new = new.map(|pod| (pod.since + JUDGE_DELAY).max(judged + SOONEST)).min();
        let again = judged + self.interval;
        Some(new.map_or(again, |new| new.min(again)).max(ripe))
    }
}

impl Member {
    /// Whether this was reported, not long ago.
    fn has_report(&self, note: &Arc<str>, now: Instant) -> bool {
        self.reported.as_ref().is_some_and(|(reported, at)| reported == note && now < *at + REPEAT)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MOST: usize = 10;

    /// A pod of a template.
    fn pod(uid: &str, change: impl FnOnce(&mut Value)) -> PodObject {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": uid, "uid": uid, "namespace": "shop"},
            "spec": {"resourceClaims": [{"name": "net", "resourceClaimTemplateName": "storage"}]},
            "status": {
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
                "resourceClaimStatuses": [{"name": "net", "resourceClaimName": format!("{uid}-net")}]},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn waits(uid: &str) -> watcher::Event<PodObject> {
        watcher::Event::Apply(pod(uid, |_| {}))
    }

    fn cause(text: &str) -> Finding {
        Finding::Cause(text.to_owned())
    }

    /// Judges what is due, and returns the events as `POD: NOTE`.
    fn judge(pods: &mut Pods, finding: &Finding, now: Instant) -> Vec<String> {
        for (group, _) in pods.take_due(now, MOST) {
            pods.answer(&group, finding, now);
        }
        let reports = std::iter::from_fn(|| pods.next_report(now));
        reports.map(|report| format!("{}: {}", report.name, report.note)).collect()
    }

    #[test]
    fn a_pod_gets_a_report_after_it_has_waited_for_a_while() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        assert_eq!(pods.next(), None);
        assert!(pods.apply(&waits("a"), start));
        assert!(!pods.apply(&waits("a"), start + SECOND), "it waits already");
        assert_eq!(pods.next(), Some(start + JUDGE_DELAY));
        assert_eq!(judge(&mut pods, &cause("full"), start + JUDGE_DELAY - SECOND), [""; 0]);
        assert_eq!(judge(&mut pods, &cause("full"), start + JUDGE_DELAY), ["a: full"]);
    }

    #[test]
    fn a_pod_that_gets_a_node_or_ends_gets_no_report() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        pods.apply(&waits("b"), start);
        let bound = pod("a", |pod| pod["spec"]["nodeName"] = json!("n"));
        assert!(pods.apply(&watcher::Event::Apply(bound), start));
        assert!(pods.apply(&watcher::Event::Delete(pod("b", |_| {})), start));
        assert!(!pods.apply(&watcher::Event::Delete(pod("b", |_| {})), start));
        assert_eq!(pods.next(), None);
        assert!(pods.by_uid.is_empty() && pods.groups.is_empty());
    }

    #[test]
    fn a_list_replaces_the_pods_and_those_that_stay_keep_their_time() {
        use watcher::Event::{Init, InitApply, InitDone};
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        pods.apply(&waits("b"), start);
        for event in [Init, InitApply(pod("a", |_| {})), InitDone] {
            pods.apply(&event, start + SECOND);
        }
        assert_eq!(pods.by_uid.len(), 1);
        assert_eq!(pods.next(), Some(start + JUDGE_DELAY));
    }

    #[test]
    fn pods_that_ask_for_the_same_are_judged_once_and_all_get_a_report() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        for uid in ["a", "b"] {
            pods.apply(&waits(uid), start);
        }
        let elsewhere = pod("c", |pod| pod["spec"]["nodeSelector"] = json!({"rack": "7"}));
        pods.apply(&watcher::Event::Apply(elsewhere), start);
        let due = pods.take_due(start + JUDGE_DELAY, MOST);
        assert_eq!(due.len(), 2);
        assert!(due.iter().any(|(_, claims)| claims["net"] == "c-net"), "{due:?}");
        for (group, _) in &due {
            let served = pods.answer(group, &Finding::Other(Outcome::Served), start + JUDGE_DELAY);
            let members = if group.spec.contains("rack") { 1 } else { 2 };
            assert_eq!(served, (members, Outcome::Served));
            let caused = pods.answer(group, &cause("full"), start + JUDGE_DELAY);
            assert_eq!(caused, (0, Outcome::Known), "they have no report yet");
        }
        let reported: Vec<String> =
            std::iter::from_fn(|| pods.next_report(start + JUDGE_DELAY)).map(|report| report.name).collect();
        assert_eq!(reported.len(), 3, "{reported:?}");
        assert!(!pods.has_reports());
    }

    #[test]
    fn a_round_has_a_limit_and_the_next_one_has_the_others() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        for n in 0..5 {
            let other =
                pod(&format!("p{n}"), |pod| pod["spec"]["nodeSelector"] = json!({"n": n.to_string()}));
            pods.apply(&watcher::Event::Apply(other), start);
        }
        let counts = [3, 3, 3].map(|most| pods.take_due(start + JUDGE_DELAY, most).len());
        assert_eq!(counts, [3, 2, 0]);
    }

    #[test]
    fn many_groups_of_a_namespace_do_not_delay_those_of_others() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        for n in 0..100 {
            let daemon =
                pod(&format!("p{n}"), |pod| pod["spec"]["nodeSelector"] = json!({"n": n.to_string()}));
            pods.apply(&watcher::Event::Apply(daemon), start);
        }
        let other = pod("other", |pod| pod["metadata"]["namespace"] = json!("bank"));
        pods.apply(&watcher::Event::Apply(other), start + SECOND);
        let due = |pods: &mut Pods, now: Instant| -> Vec<String> {
            pods.take_due(now, MOST).into_iter().map(|(group, _)| group.namespace).collect()
        };
        let first = due(&mut pods, start + JUDGE_DELAY + SECOND);
        assert_eq!(first.iter().filter(|namespace| *namespace == "bank").count(), 1, "{first:?}");
        assert_eq!(first.len(), MOST);
        // Later, too, where groups that were never judged go first within their namespace.
        let again = due(&mut pods, start + JUDGE_DELAY + SECOND + SOONEST);
        assert!(again.contains(&"bank".to_owned()), "{again:?}");
        let judged = pods.groups.values().filter(|members| members.judged.is_some()).count();
        assert_eq!(judged, 2 * MOST - 1);
    }

    #[test]
    fn many_pods_of_a_namespace_do_not_delay_the_events_of_others() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        // Two Deployments of a namespace, and afterwards a pod of another one.
        for n in 0..2000 {
            let rack = json!({"rack": (n % 2).to_string()});
            let web = pod(&format!("web-{n}"), |pod| pod["spec"]["nodeSelector"] = rack);
            pods.apply(&watcher::Event::Apply(web), start);
        }
        let other = pod("other", |pod| pod["metadata"]["namespace"] = json!("zoo"));
        pods.apply(&watcher::Event::Apply(other), start + SECOND);
        let reported = judge(&mut pods, &cause("full"), start + JUDGE_DELAY + SECOND);
        assert_eq!(reported.iter().position(|report| report == "other: full"), Some(1));
        assert_eq!(reported.len(), 2 * EVENTS + 1);
    }

    #[test]
    fn a_judgement_of_many_pods_makes_few_events_of_those_that_wait_longest_without_one() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        for n in (0..50).rev() {
            pods.apply(&waits(&format!("web-{n}")), start + n * SECOND / 50);
        }
        let now = start + JUDGE_DELAY + SECOND;
        let (group, _) = pods.take_due(now, MOST).remove(0);
        assert_eq!(pods.answer(&group, &cause("full"), now), (30, Outcome::Known));
        assert_eq!(pods.answer(&group, &cause("full"), now), (30, Outcome::Known), "they are queued");
        assert_eq!(pods.to_report.len(), 20);
        let reported = |pods: &mut Pods, now: Instant| -> Vec<String> {
            std::iter::from_fn(|| pods.next_report(now)).map(|report| report.name).collect()
        };
        let named =
            |numbers: std::ops::Range<u32>| -> Vec<String> { numbers.map(|n| format!("web-{n}")).collect() };
        assert_eq!(reported(&mut pods, now), named(0..20));
        assert_eq!(pods.next(), Some(now + SOONEST), "the others are judged, too");
        pods.answer(&group, &cause("down"), now + SOONEST);
        assert_eq!(reported(&mut pods, now + SOONEST), named(20..40), "the cause is another one");
    }

    #[test]
    fn a_pod_is_queued_once_however_often_it_is_judged() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        for round in 0..10 {
            let now = start + JUDGE_DELAY + round * LATEST;
            for (group, _) in pods.take_due(now, MOST) {
                pods.answer(&group, &cause(&format!("full {round}")), now);
            }
        }
        assert_eq!(pods.to_report.len(), 1);
        assert_eq!(judge(&mut pods, &cause("full"), start + 10 * LATEST), ["a: full 9"]);
        assert_eq!(judge(&mut pods, &cause("down"), start + 11 * LATEST), ["a: down"], "it is queued again");
    }

    #[test]
    fn a_group_is_judged_less_and_less_often() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        let mut times = Vec::new();
        for second in 0..1000 {
            let now = start + second * SECOND;
            for (group, _) in pods.take_due(now, MOST) {
                pods.answer(&group, &Finding::Other(Outcome::Served), now);
                times.push(second);
            }
        }
        assert_eq!(times, [5, 65, 185, 425, 725]);
    }

    #[test]
    fn a_pod_that_joins_gets_a_report_soon_but_its_group_is_not_judged_all_the_time() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        for second in [10, 70, 190] {
            judge(&mut pods, &cause("full"), start + second * SECOND);
        }
        pods.apply(&waits("b"), start + 200 * SECOND);
        assert_eq!(pods.next(), Some(start + 250 * SECOND), "a minute after the last time");
        assert_eq!(judge(&mut pods, &cause("full"), start + 250 * SECOND), ["b: full"]);
    }

    #[test]
    fn a_pod_gets_another_report_only_if_the_cause_has_changed_or_the_event_is_forgotten() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        let is_reported = |pods: &mut Pods, second: u32, text: &str| {
            !judge(pods, &cause(text), start + second * SECOND).is_empty()
        };
        assert!(is_reported(&mut pods, 10, "full"));
        assert!(!is_reported(&mut pods, 70, "full"));
        assert!(is_reported(&mut pods, 190, "down"));
        for second in (200..3190).step_by(10) {
            assert!(!is_reported(&mut pods, second, "down"), "after {second} s");
        }
        assert!(is_reported(&mut pods, 3490, "down"), "an hour later it would not be seen");
    }

    #[test]
    fn an_event_that_could_not_be_written_is_written_after_the_next_judgement() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        assert_eq!(judge(&mut pods, &cause("full"), start + JUDGE_DELAY).len(), 1);
        pods.not_reported("a");
        assert_eq!(judge(&mut pods, &cause("full"), start + JUDGE_DELAY + SOONEST), ["a: full"]);
    }

    #[test]
    fn pods_for_other_drivers_are_looked_at_rarely() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        let foreign = Finding::Other(Outcome::Foreign);
        assert_eq!(judge(&mut pods, &foreign, start + JUDGE_DELAY), [""; 0]);
        assert_eq!(pods.next(), Some(start + JUDGE_DELAY + FOREIGN));
    }

    #[test]
    fn a_pod_whose_tolerations_change_is_judged_again() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.apply(&waits("a"), start);
        judge(&mut pods, &cause("full"), start + JUDGE_DELAY);
        let changed = pod("a", |pod| pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]));
        let later = start + JUDGE_DELAY + SECOND;
        assert!(pods.apply(&watcher::Event::Apply(changed), later));
        assert_eq!(pods.groups.len(), 1);
        assert_eq!(judge(&mut pods, &cause("full"), later), [""; 0], "it has that report");
        assert_eq!(pods.next(), Some(later + SOONEST));
    }
}
