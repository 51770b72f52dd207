//! `netclaimctl migrate --apply --watch`: translates and applies again when what is translated has changed.
//!
//! ```text
//!   watches ──> cache ──> changed? ── gather, pause ──┐
//!                                                     ├──> round: list what was made, translate, apply what is new
//!   time ───── retry, or a full round ────────────────┘
//! ```
//!
//! Workloads and definitions are watched and kept without what a translation does not read, so that a round lists nothing but the few
//! Networks and DeviceClasses, also on 5,000 nodes; pods, ReplicaSets and Jobs, of which there are many, are not read at all. What
//! others delete or change of the objects that were made is found by a full round every 10 minutes, which applies all of them.
//!
//! Invariants:
//! * A round begins 1 s after a change, so that changes which come together are one, and at least 10 s after the round before.
//! * It prints what has changed since the round before: objects, report, errors. An object gets an event for each finding that is new.
//! * It deletes nothing. Objects whose NetworkAttachmentDefinition is gone are named once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use futures::StreamExt as _;
use kube::Client;
use kube::runtime::watcher;
use netclaim_cni::error_chain;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::apply::{Change, apply};
use super::cache::{self, Cache, WATCHED};
use super::choice::Choice;
use super::events::Unreported;
use super::input::Input;
use super::read;
use super::report::Migration;
use super::translate::migrate;
use super::whereabouts::HandedOver;
use crate::cluster::ReadError;
use crate::print::failed;
use crate::printable::{escaped, printable};

/// How long changes are gathered.
const GATHER: Duration = Duration::from_secs(1);
/// The least time between two rounds.
const PAUSE: Duration = Duration::from_secs(10);
/// The most time until what has failed is tried again.
const MAX_RETRY: Duration = Duration::from_secs(60);
/// The time between two rounds that apply everything.
const FULL: Duration = Duration::from_secs(600);

/// Translates and applies what is chosen, until the program is ended.
pub(super) async fn run(
    client: &Client,
    choice: &Choice,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> ExitCode {
    let mut events = cache::watch(client);
    let (mut cache, mut watches) = (Cache::default(), BTreeMap::new());
    let mut importer = Importer { client, choice, done: Done::default(), retry: PAUSE, full: Instant::now() };
    // When the next round is due, and when it is allowed.
    let (mut due, mut allowed) = (Instant::now() + FULL, Instant::now());
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some((kind, Ok(event))) => {
                    // What begins a list does not say that it succeeds.
                    if !matches!(event, watcher::Event::Init) {
                        watches.remove(&kind);
                    }
                    if cache.take(kind, event) {
                        due = due.min(allowed.max(Instant::now() + GATHER));
                    }
                }
                Some((kind, Err(error))) => {
                    let what = WATCHED.get(kind).map_or("objects", |kind| kind.plural);
                    let error = printable(&format!("cannot watch {what}: {}", cache::reason(error)));
                    if watches.insert(kind, error.clone()).as_ref() != Some(&error) {
                        failed(err, error);
                    }
                }
                None => return failed(err, "the watches of the API server have ended"),
            },
            () = sleep_until(due), if cache.is_complete() => {
                due = importer.round(&cache, out, err).await;
                allowed = Instant::now() + PAUSE;
            }
        }
    }
}

/// What makes the rounds.
struct Importer<'a> {
    client: &'a Client,
    choice: &'a Choice,
    done: Done,
    /// How long to wait after the next failure.
    retry: Duration,
    /// When everything is applied again.
    full: Instant,
}

/// What earlier rounds have done and said.
#[derive(Default)]
struct Done {
    /// The objects as they were applied.
    applied: BTreeSet<String>,
    said: Migration,
    unreported: Unreported,
    errors: BTreeSet<String>,
    /// Objects whose definition is gone.
    gone: BTreeSet<String>,
}

impl Importer<'_> {
    /// Translates what the cache has, and applies what is not applied yet. Returns when the next round is due, if nothing changes.
    async fn round(
        &mut self,
        cache: &Cache,
        out: &mut (dyn Write + Send),
        err: &mut (dyn Write + Send),
    ) -> Instant {
        if Instant::now() >= self.full {
            self.done.applied.clear();
            self.full = Instant::now() + FULL;
        }
        let mut errors = BTreeSet::new();
        if let Err(error) = self.translate(cache, &mut errors, out, err).await {
            errors.insert(printable(&error_chain(&error).to_string()));
        }
        for error in self.done.unreported.write(self.client, cache).await {
            errors.insert(printable(&error_chain(&error).to_string()));
        }
        for error in errors.difference(&self.done.errors) {
            failed(err, error);
        }
        let has_failed = !errors.is_empty();
        self.done.errors = errors;
        if !has_failed {
            self.retry = PAUSE;
            return if self.done.unreported.is_empty() { self.full } else { Instant::now() + PAUSE };
        }
        let retry = self.retry;
        self.retry = MAX_RETRY.min(retry * 2);
        self.full.min(Instant::now() + retry)
    }

    /// Prints what is new. `errors` gets what could not be applied.
    async fn translate(
        &mut self,
        cache: &Cache,
        errors: &mut BTreeSet<String>,
        out: &mut (dyn Write + Send),
        err: &mut (dyn Write + Send),
    ) -> Result<(), ReadError> {
        let objects = read::made(self.client).await?.into_iter().chain(cache.objects().cloned());
        let input = Input::of(objects.collect(), "default", true);
        let migration = migrate(&input, self.choice, &HandedOver::Parts(Vec::new()));
        let left: Vec<&Value> = migration
            .objects
            .iter()
            .filter(|object| !self.done.applied.contains(&object.to_string()))
            .collect();
        for applied in apply(self.client, &left).await {
            let line = printable(&applied.to_string());
            match applied.result {
                Ok(change) => {
                    self.done.applied.insert(applied.object.to_string());
                    if change != Change::Unchanged {
                        let _ = writeln!(out, "{line}");
                    }
                }
                Err(_) => drop(errors.insert(line)),
            }
        }
        // What is not translated any more may come back as it was.
        let made: BTreeSet<String> = migration.objects.iter().map(Value::to_string).collect();
        self.done.applied.retain(|object| made.contains(object));
        let news = migration.news(&self.done.said);
        let _ = write!(err, "{news}");
        self.done.unreported.update(&news.refused, &migration.refused);
        self.done.said = migration;
        let gone = gone(&input, self.choice);
        for line in gone.difference(&self.done.gone) {
            let _ = writeln!(err, "{line}");
        }
        self.done.gone = gone;
        Ok(())
    }
}

/// Returns what to say of the objects whose NetworkAttachmentDefinition is gone.
fn gone(input: &Input, choice: &Choice) -> BTreeSet<String> {
    let known: BTreeSet<String> = input.nads.keys().map(ToString::to_string).collect();
    let is_chosen = |from: &str| {
        let namespace = from.split('/').next().unwrap_or_default();
        choice.has_namespace(namespace) && choice.takes_from(namespace)
    };
    let made =
        input.existing.made().into_iter().filter(|(_, from)| !known.contains(*from) && is_chosen(from));
    let line = |(name, from): (&str, &str)| {
        let text = format!(
            "Network and DeviceClass {name} stay, and NetworkAttachmentDefinition {from} is gone: when no pod needs them, kubectl \
             delete networks.netclaim.dev,deviceclasses --ignore-not-found {name}"
        );
        escaped(text)
    };
    made.map(line).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::migrate::fake::Fake;

    const NADS: &str = "network-attachment-definitions";

    fn nad(name: &str, link: &str) -> Value {
        let config = json!({"cniVersion": "1.0.0", "type": "macvlan", "master": link});
        json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"config": config.to_string()}})
    }

    fn deployment(networks: &str) -> Value {
        let template = json!({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": networks}},
            "spec": {"containers": [{"name": "app"}]}});
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"template": template}})
    }

    /// What a program prints.
    #[derive(Clone, Default)]
    struct Printed(Arc<Mutex<Vec<u8>>>);

    impl Write for Printed {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Printed {
        /// Returns what was printed since the last call.
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut self.0.lock().unwrap())).unwrap()
        }
    }

    /// A continuous migration of everything. Time passes when nothing is left to do.
    struct Running {
        fake: Fake,
        out: Printed,
        err: Printed,
        task: JoinHandle<ExitCode>,
    }

    impl Running {
        fn new(fake: Fake) -> Self {
            let (client, out, err) = (fake.client(), Printed::default(), Printed::default());
            let (mut to_out, mut to_err) = (out.clone(), err.clone());
            let task =
                tokio::spawn(async move { run(&client, &Choice::default(), &mut to_out, &mut to_err).await });
            Self { fake, out, err, task }
        }

        /// Lets time pass. Returns what is printed.
        async fn after(&self, seconds: u64) -> (String, String) {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            (self.out.take(), self.err.take())
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    fn link(fake: &Fake, network: &str) -> Value {
        fake.get("networks", "", network).unwrap()["spec"]["uplink"]["interfaces"][0].clone()
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_is_translated_and_applied_again() {
        let fake = Fake::new();
        fake.put(NADS, &nad("lan", "eth1"));
        fake.put("deployments", &deployment("lan"));
        let running = Running::new(fake.clone());
        let (out, err) = running.after(3).await;
        let created = "network.netclaim.dev/shop-lan created\ndeviceclass.resource.k8s.io/shop-lan created\n\
                       resourceclaimtemplate.resource.k8s.io/deployment-web created in namespace shop\n";
        assert_eq!(out, created);
        assert!(err.starts_with("CHANGES") && err.contains("patch deployment web"), "{err}");
        let written =
            |requests: Vec<String>| requests.into_iter().filter(|of| !of.starts_with("GET")).count();
        assert_eq!(written(fake.requests()), 3);

        fake.put(NADS, &nad("lan", "eth2"));
        assert_eq!(running.after(5).await, Default::default(), "rounds have a distance");
        let (out, err) = running.after(8).await;
        assert_eq!((out.as_str(), err.as_str()), ("network.netclaim.dev/shop-lan configured\n", ""));
        assert_eq!(link(&fake, "shop-lan"), "eth2");

        // Nothing is listed but what was made.
        let requests = fake.requests();
        let lists: Vec<&String> =
            requests.iter().filter(|of| of.starts_with("GET") && !of.contains(NADS)).collect();
        let expected =
            ["GET /apis/netclaim.dev/v1alpha1/networks", "GET /apis/resource.k8s.io/v1/deviceclasses"];
        assert_eq!(lists, expected);
        assert_eq!(written(requests), 1);

        // The workload has moved: its template stays, for its pods.
        fake.put(
            "deployments",
            &json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"template": {}}}),
        );
        assert_eq!(running.after(30).await, Default::default());
        assert!(fake.get("resourceclaimtemplates", "shop", "deployment-web").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_come_together_are_one_round() {
        let running = Running::new(Fake::new());
        running.after(60).await;
        running.fake.requests();
        for n in 0..20 {
            running.fake.put(NADS, &nad(&format!("net-{n}"), "eth1"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (out, _) = running.after(30).await;
        assert_eq!(out.lines().count(), 40, "{out}");
        let requests = running.fake.requests();
        assert_eq!(requests.iter().filter(|of| *of == "GET /apis/netclaim.dev/v1alpha1/networks").count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_round_restores_what_others_have_changed() {
        let fake = Fake::new();
        fake.put(NADS, &nad("lan", "eth1"));
        let running = Running::new(fake.clone());
        running.after(60).await;
        fake.delete("networks", "", "shop-lan");
        assert_eq!(running.after(60).await, Default::default());
        let (out, _) = running.after(FULL.as_secs()).await;
        assert_eq!(out, "network.netclaim.dev/shop-lan created\n");
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_said_once_and_tried_again() {
        const NETWORK: &str = "/apis/netclaim.dev/v1alpha1/networks/shop-lan";
        let fake = Fake::new();
        fake.put(NADS, &nad("lan", "eth1"));
        fake.put(NADS, &nad("wan", "eth2"));
        fake.refuse("PATCH", NETWORK, Some((409, "Conflict")));
        let running = Running::new(fake.clone());
        let (out, err) = running.after(300).await;
        assert_eq!(out.lines().count(), 3, "the others are applied: {out}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(
            err.starts_with("netclaimctl: network.netclaim.dev/shop-lan: somebody else has set"),
            "{err}"
        );
        let tries = fake.requests().iter().filter(|of| **of == format!("PATCH {NETWORK}")).count();
        assert!((5..=9).contains(&tries), "{tries}");

        fake.refuse("PATCH", NETWORK, None);
        let (out, err) = running.after(MAX_RETRY.as_secs()).await;
        assert_eq!((out.as_str(), err.as_str()), ("network.netclaim.dev/shop-lan created\n", ""));

        fake.refuse("GET", "/apis/netclaim.dev/v1alpha1/networks", Some((403, "Forbidden")));
        fake.put(NADS, &nad("more", "eth1"));
        let (out, err) = running.after(300).await;
        assert_eq!((out.as_str(), err.lines().count()), ("", 1), "{err}");
        assert!(err.contains("cannot list networks"), "{err}");
        fake.refuse("GET", "/apis/netclaim.dev/v1alpha1/networks", None);
        let (out, _) = running.after(MAX_RETRY.as_secs()).await;
        assert!(out.contains("network.netclaim.dev/shop-more created"), "{out}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_not_translated_gets_one_event_for_each_finding() {
        let fake = Fake::new();
        let mut refused = nad("lan", "eth1");
        refused["spec"]["config"] = json!(json!({"cniVersion": "1.0.0", "type": "sriov"}).to_string());
        refused["metadata"]["uid"] = json!("u-lan");
        fake.put(NADS, &refused);
        fake.put("deployments", &deployment("lan"));
        let running = Running::new(fake.clone());
        let (_, err) = running.after(2 * FULL.as_secs()).await;
        assert!(err.contains("* NetworkAttachmentDefinition shop/lan: spec.config.type: "), "{err}");
        let events = fake.written_events();
        let of = |kind: &str| -> Vec<&Value> {
            events.iter().filter(|event| event["regarding"]["kind"] == kind).collect()
        };
        let said = |object: &str| err.lines().filter(|line| line.contains(object)).count();
        let (definition, workload) = (of("NetworkAttachmentDefinition"), of("Deployment"));
        assert_eq!(definition.len(), said("* NetworkAttachmentDefinition shop/lan"), "{events:#?}");
        assert_eq!(workload.len(), said("* Deployment shop/web"), "{events:#?}");
        let event = definition[0];
        assert_eq!((&event["reason"], &event["type"]), (&json!("NotTranslated"), &json!("Warning")));
        assert_eq!(event["regarding"]["uid"], "u-lan");
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert!(event["note"].as_str().unwrap().starts_with("spec.config.type: "), "{event}");

        // It is corrected, and wrong again.
        fake.put(NADS, &nad("lan", "eth1"));
        running.after(60).await;
        fake.put(NADS, &refused);
        running.after(60).await;
        assert_eq!(fake.written_events().len(), 2 * events.len());
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_cannot_be_written_are_written_later_and_many_take_several_rounds() {
        const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
        let fake = Fake::new();
        for n in 0..60 {
            let mut refused = nad(&format!("lan-{n}"), "eth1");
            refused["spec"]["config"] = json!("{}");
            fake.put(NADS, &refused);
        }
        fake.put(NADS, &nad("wan", "eth2"));
        fake.refuse("POST", EVENTS, Some((403, "Forbidden")));
        let running = Running::new(fake.clone());
        let (out, err) = running.after(5).await;
        assert!(out.contains("network.netclaim.dev/shop-wan created"), "{out}");
        let of_lan =
            "netclaimctl: cannot write an event on NetworkAttachmentDefinition shop/lan-0: Forbidden is why";
        assert!(err.contains(of_lan), "{err}");
        let tries =
            |fake: &Fake| fake.requests().iter().filter(|request| request.ends_with("/events")).count();
        assert_eq!(tries(&fake), 50);

        fake.refuse("POST", EVENTS, None);
        let (_, err) = running.after(FULL.as_secs()).await;
        assert!(!err.contains("event"), "{err}");
        assert_eq!(tries(&fake), 60);
        assert_eq!(fake.written_events().len(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_translated_before_everything_is_known() {
        let fake = Fake::new();
        fake.put(NADS, &nad("lan", "eth1"));
        fake.refuse("GET", "/apis/apps/v1/daemonsets", Some((403, "Forbidden")));
        let running = Running::new(fake.clone());
        let (out, err) = running.after(300).await;
        assert_eq!((out.as_str(), err.lines().count()), ("", 1), "{err}");
        assert!(err.contains("cannot watch daemonsets") && err.contains("Forbidden is why"), "{err}");
        fake.refuse("GET", "/apis/apps/v1/daemonsets", None);
        let (out, _) = running.after(120).await;
        assert!(out.contains("network.netclaim.dev/shop-lan created"), "{out}");
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_a_definition_that_is_gone_are_named_once_and_stay() {
        let fake = Fake::new();
        fake.put(NADS, &nad("lan", "eth1"));
        let running = Running::new(fake.clone());
        running.after(60).await;
        fake.delete(NADS, "shop", "lan");
        let (out, err) = running.after(2 * FULL.as_secs()).await;
        assert_eq!((out.as_str(), err.lines().count()), ("", 1), "{err}");
        let command = "kubectl delete networks.netclaim.dev,deviceclasses --ignore-not-found shop-lan\n";
        assert!(err.contains("shop/lan is gone") && err.ends_with(command), "{err}");
        assert!(fake.get("networks", "", "shop-lan").is_some());
        assert!(fake.requests().iter().all(|request| !request.starts_with("DELETE")));

        fake.put(NADS, &nad("lan", "eth1"));
        running.after(60).await;
        fake.delete(NADS, "shop", "lan");
        assert!(running.after(60).await.1.contains("is gone"), "it was there again");
    }
}
