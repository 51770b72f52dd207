//! What the webhook and the policies cost a write: its time, and the CPU of API server and controller.
//!
//! Another replica leads, so that the measured controller does nothing but answer. Rounds with and without
//! alternate, because the machine and the store change over time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use netclaim_tests::helm::{Helm, chart};
use netclaim_tests::{Cluster, SYSTEM, Usage, eventually, objects};
use serde_json::Value;
use tokio::time::sleep;

use crate::cluster::{Controller, admin, client, create_account, create_crds, on_cluster};
use crate::report::Report;
use crate::{webhook, writes};

/// Rounds with, and as many without.
const ROUNDS: usize = 10;
/// Writes of a kind in a round, one after another.
const SINGLE: usize = 30;
/// Writes of a kind in a round, [`AT_ONCE`] at once.
const CROWD: usize = 96;
const AT_ONCE: usize = 16;
/// After a change the API server compiles expressions and connects, which is no part of a write.
const SETTLING: Duration = Duration::from_secs(5);

/// Measures it, on its own cluster.
pub fn the_webhook_costs_a_write_little() -> Result<()> {
    on_cluster("admission", async |cluster, _| measure(cluster).await)
}

async fn measure(cluster: &Cluster) -> Result<()> {
    let mut report = Report::new("admission")?;
    create_crds(cluster)?;
    create_account(cluster)?;
    cluster.kubectl(&["create", "namespace", SYSTEM])?;
    let client = client(&admin(cluster)).await?;
    let (controller, switch) = webhook::start(cluster, &client).await?;
    let mut writes = writes::that_the_webhook_knows(&client)?;
    alternate(cluster, &controller, &switch, &mut writes).await?;
    writes.iter().try_for_each(|write| write.report("the webhook", &mut report))?;

    switch.set(cluster, false)?;
    let policies = Helm::new(cluster)?.template(&chart(), &["--show-only", "templates/policies.yaml"])?;
    let probe = objects::network("probe", "macvlan", "eth0", "10.9.0.0/24");
    let switch = Switch { manifest: policies, probe, words: "host-local counts on each node for itself" };
    let mut writes = writes::that_policies_match(cluster, &client).await?;
    alternate(cluster, &controller, &switch, &mut writes).await?;
    writes.iter().try_for_each(|write| write.report("the policies", &mut report))
}

/// Objects that exist in half of the rounds.
pub struct Switch {
    pub manifest: String,
    /// An object that gets an error or a warning with these words while they are in force.
    pub probe: Value,
    pub words: &'static str,
}

impl Switch {
    /// Creates or deletes them, and waits until the API server knows.
    pub fn set(&self, cluster: &Cluster, on: bool) -> Result<()> {
        let verb: &[&str] = if on { &["apply"] } else { &["delete", "--ignore-not-found"] };
        cluster.kubectl_with(&[verb, &["-f", "-"]].concat(), &self.manifest)?;
        let ask = ["create", "--dry-run=server", "--warnings-as-errors", "-f", "-"];
        eventually(60, "the API server knows the change", || {
            let error = cluster.kubectl_with(&ask, &self.probe.to_string()).err();
            let error = error.map(|error| format!("{error:#}"));
            let is_right = error.as_ref().map_or(!on, |error| on && error.contains(self.words));
            ensure!(is_right, "wanted in force: {on}, found {error:?}");
            Ok(())
        })
    }
}

/// Sends the write with this number.
pub type Send = Box<dyn Fn(usize) -> BoxFuture<'static, kube::Result<()>>>;

/// A kind of write.
pub struct Write {
    title: &'static str,
    /// Whether the API server asks the webhook about it.
    is_asked: bool,
    send: Send,
    sent: usize,
    without: Numbers,
    with: Numbers,
}

#[derive(Default)]
struct Numbers {
    single: Vec<Duration>,
    crowd: Vec<Duration>,
    crowd_took: Duration,
    /// CPU in milliseconds.
    controller: u64,
    api_server: u64,
}

async fn alternate(
    cluster: &Cluster,
    controller: &Controller,
    switch: &Switch,
    writes: &mut [Write],
) -> Result<()> {
    for round in 0..ROUNDS {
        for (place, on) in [round % 2 == 0, round % 2 != 0].into_iter().enumerate() {
            // The first half is like the last one of the round before.
            if place > 0 || round == 0 {
                switch.set(cluster, on)?;
                sleep(SETTLING).await;
            }
            // What the API server still does about the change is not always in the way of the same kind.
            for n in 0..writes.len() {
                let write = (n + round) % writes.len();
                writes[write].measure(cluster, controller, on).await?;
            }
        }
    }
    Ok(())
}

impl Write {
    /// Creates a kind that was not measured yet.
    pub fn new(title: &'static str, is_asked: bool, send: Send) -> Self {
        Self { title, is_asked, send, sent: 0, without: Numbers::default(), with: Numbers::default() }
    }

    async fn measure(&mut self, cluster: &Cluster, controller: &Controller, on: bool) -> Result<()> {
        let api_server = cluster.service_pid("apiserver")?;
        let asked = webhook::requests(cluster)?;
        let before = (controller.usage()?.cpu, Usage::of(api_server)?.cpu);
        let first = self.sent;
        self.sent += SINGLE + CROWD;
        let timed = async |n: usize| {
            let begin = Instant::now();
            (self.send)(n).await.with_context(|| format!("cannot write {}", self.title))?;
            anyhow::Ok(begin.elapsed())
        };
        let numbers = if on { &mut self.with } else { &mut self.without };
        for n in first..first + SINGLE {
            numbers.single.push(timed(n).await?);
        }
        let begin = Instant::now();
        let crowd = stream::iter(first + SINGLE..self.sent).map(timed).buffer_unordered(AT_ONCE);
        numbers.crowd.extend(crowd.try_collect::<Vec<Duration>>().await?);
        numbers.crowd_took += begin.elapsed();
        numbers.controller += controller.usage()?.cpu - before.0;
        numbers.api_server += Usage::of(api_server)?.cpu - before.1;
        let asked = webhook::requests(cluster)? - asked;
        let wanted = if on && self.is_asked { SINGLE + CROWD } else { 0 };
        ensure!(asked == wanted, "{}: {asked} requests to the webhook, not {wanted}", self.title);
        Ok(())
    }

    fn report(&self, what: &str, report: &mut Report) -> Result<()> {
        for (with, numbers) in [("without", &self.without), ("with", &self.with)] {
            let title = format!("{}, {with} {what}", self.title);
            let file = title.replace(", ", "-").replace(' ', "-");
            report.times(&title, &format!("{file}.csv"), &numbers.single)?;
            let at_once = format!("{title}, {AT_ONCE} at once");
            report.times(&at_once, &format!("{file}-at-once.csv"), &numbers.crowd)?;
            let rate = numbers.crowd.len() as f64 / numbers.crowd_took.as_secs_f64();
            report.row(at_once, rate, "1/s")?;
            let each = |cpu: u64| cpu as f64 * 1000.0 / (ROUNDS * (SINGLE + CROWD)) as f64;
            report.row(format!("{title}: CPU of the API server"), each(numbers.api_server), "µs")?;
            report.row(format!("{title}: CPU of the controller"), each(numbers.controller), "µs")?;
        }
        Ok(())
    }
}
