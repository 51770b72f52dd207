//! The scale test of DRA that Kubernetes itself runs, with netclaim's devices: Jobs fill nine tenths of what
//! the nodes have, and then short Jobs come and go in the rest. The numbers are those of
//! <https://github.com/kubernetes/perf-tests/tree/master/clusterloader2/testing/dra>: eight pods fit on a
//! node, 20 Jobs a second while the nodes are filled and 5 after that, each of which has ten pods of 30 s one
//! after another.
//!
//! API server, scheduler, controller manager and netclaim's controller are real; kubelets and agents are
//! [requests](crate::kubelets). There, a GPU's driver runs on real nodes, and each 100 nodes have a
//! namespace.
//!
//! | variable | meaning |
//! |---|---|
//! | `NETCLAIM_SCALE_JOBS` | short Jobs at most; without it, as many as fit into the rest |
//! | `NETCLAIM_SCALE_FILLED` | `1`: claims are allocated to others instead of to the pods of Jobs, which would take half an hour with 5,000 nodes |

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::PostParams;
use kube::{Api, Client};
use netclaim_tests::{Cluster, Usage, objects, setting};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::cluster::{Controller, admin, client, on_cluster};
use crate::control_plane::{ControlPlane, Rates};
use crate::fleet::{self, EXCLUSIVE, LINKS, Uses};
use crate::kubelets::{KIND, Kubelets, Life, SECONDS};
use crate::networks::{ClaimNetworks, class};
use crate::report::{Report, mib};
use crate::scheduling::{Others, Profile, Scheduling};
use crate::users::published;

/// Percent of what the nodes have that is filled first.
const FILLED: usize = 90;
/// Jobs created each second, while the nodes are filled and after that.
const FILL_RATE: u32 = 20;
const CHURN_RATE: u32 = 5;
/// Pods of a short Job, one after another, and how many seconds each takes.
const COMPLETIONS: usize = 10;
const TAKES: usize = 30;
/// How long all pods of a kind may take.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Eight addresses of a ClaimNetwork on each node: a shared device.
pub fn jobs_fill_the_nodes_and_churn() -> Result<()> {
    on_cluster("jobs", async |cluster, count| {
        let client = client(&admin(cluster)).await?;
        ClaimNetworks::create(cluster, &client, Uses::Eight)?;
        let network = fleet::network(LINKS[0], 0);
        let others = Others::on_network(&network, json!({"addresses": "1"}));
        Jobs { cluster, client, report: Report::new("jobs")? }
            .measure(count, Uses::Eight, &class(&network), others)
            .await
    })
}

/// Eight exclusive devices on each node, as GPUs are.
pub fn jobs_of_exclusive_devices_fill_the_nodes_and_churn() -> Result<()> {
    on_cluster("exclusive-jobs", async |cluster, count| {
        let client = client(&admin(cluster)).await?;
        let class = fleet::create_class_of_nics(cluster)?;
        let others = Others::of_devices(class);
        Jobs { cluster, client, report: Report::new("exclusive-jobs")? }
            .measure(count, Uses::Exclusive, class, others)
            .await
    })
}

struct Jobs<'a> {
    cluster: &'a Cluster,
    client: Client,
    report: Report,
}

impl Jobs<'_> {
    async fn measure(mut self, nodes: usize, uses: Uses, class: &str, others: Others) -> Result<()> {
        let controller = match uses {
            Uses::Exclusive => None,
            _ => Some(Controller::start(self.cluster, &admin(self.cluster))?),
        };
        let nodes = published(&self.client, nodes, uses, &mut self.report).await?;
        let scheduling = Scheduling::new(self.cluster, &self.client, Profile::Default)?;
        let places = nodes.len() * EXCLUSIVE;
        let filled = places * FILLED / 100;
        let is_filled = std::env::var("NETCLAIM_SCALE_FILLED").is_ok_and(|value| value == "1");
        if is_filled {
            scheduling.allocate(&nodes, &others, 0..filled, &mut self.report).await?;
        }
        let control_plane = ControlPlane::new(self.cluster)?;
        control_plane.start(Rates::Raised)?;
        let templates: Api<ResourceClaimTemplate> = Api::default_namespaced(self.client.clone());
        for kind in ["first", "fill", "churn"] {
            let mut template = objects::claim_template(kind, class);
            template["spec"]["metadata"] = json!({"labels": {KIND: kind}});
            templates.create(&PostParams::default(), &serde_json::from_value(template)?).await?;
        }
        let kubelets = Kubelets::start(&self.client, None);
        let costs = || control_plane.costs(controller.as_ref());
        // The scheduler reads all claims before it binds a pod.
        self.run("first", FILL_RATE, 1, 1, &kubelets, &costs).await?;
        if !is_filled {
            self.run("fill", FILL_RATE, filled, 1, &kubelets, &costs).await?;
        }
        // The first pod stays, too.
        let left = places - filled - 1;
        let jobs = setting("NETCLAIM_SCALE_JOBS", left)?.min(left);
        self.run("churn", CHURN_RATE, jobs, COMPLETIONS, &kubelets, &costs).await?;
        let scheduler = Usage::of(self.cluster.service_pid("scheduler")?)?;
        self.report.row("scheduler: most memory", mib(scheduler.peak), "MiB")?;
        if let Some(mut controller) = controller {
            self.report.row("controller: most memory", mib(controller.usage()?.peak), "MiB")?;
            controller.stop()?;
        }
        control_plane.stop()
    }

    /// Creates Jobs at this rate, and waits until their pods run, or have succeeded if they end.
    async fn run(
        &mut self,
        kind: &str,
        rate: u32,
        jobs: usize,
        completions: usize,
        kubelets: &Kubelets,
        costs: impl Fn() -> Result<Vec<(&'static str, u64)>>,
    ) -> Result<()> {
        let (before, begin) = (costs()?, Instant::now());
        let api: Api<Job> = Api::default_namespaced(self.client.clone());
        let mut turns = interval(Duration::from_secs(1) / rate);
        turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for n in 0..jobs {
            turns.tick().await;
            api.create(&PostParams::default(), &job(kind, n, completions)?).await?;
        }
        let ends = completions > 1;
        let all = jobs * completions;
        let is_done = |life: &Life| if ends { life.succeeded } else { life.running.is_some() };
        let pods = loop {
            let pods = kubelets.pods(kind)?;
            let done = pods.iter().filter(|life| is_done(life)).count();
            if done >= all {
                break pods;
            }
            ensure!(begin.elapsed() < TIMEOUT, "{done} of the {all} pods {kind} are done");
            sleep(Duration::from_millis(200)).await;
        };
        let took = begin.elapsed();
        self.report.row(format!("{kind}: pods"), pods.len() as f64, "")?;
        self.report.seconds(format!("{kind}: until all are done"), took)?;
        let claims = kubelets.claims(kind);
        let times = |lives: &[Life], time: fn(&Life) -> Option<Duration>| -> Vec<Duration> {
            lives.iter().filter_map(time).collect()
        };
        let decided = |life: &Life| Some(life.decided? - life.created);
        for (what, file, times) in [
            ("claim created to allocated", "allocated", times(&claims, decided)),
            ("pod created to bound", "bound", times(&pods, decided)),
            ("bound to Running", "ran", times(&pods, |life| Some(life.running? - life.decided?))),
            ("created to Running", "running", times(&pods, |life| Some(life.running? - life.created))),
        ] {
            self.report.times(&format!("{kind}: {what}"), &format!("{kind}-{file}.csv"), &times)?;
        }
        for ((name, before), (_, after)) in before.iter().zip(costs()?) {
            let each = (after - before) as f64 / all as f64;
            self.report.row(format!("{kind}: CPU of {name} for a pod"), each, "ms")?;
        }
        Ok(())
    }
}

/// The Job with this number, whose pods have a claim each, one after another.
fn job(kind: &str, n: usize, completions: usize) -> Result<Job> {
    let mut pod = objects::pod_of_template("", kind);
    pod["metadata"] = json!({"labels": {KIND: kind}});
    if completions > 1 {
        pod["metadata"]["annotations"] = json!({SECONDS: TAKES.to_string()});
    }
    pod["spec"]["restartPolicy"] = json!("Never");
    fleet::tolerate(&mut pod);
    let template = json!({"metadata": pod["metadata"], "spec": pod["spec"]});
    Ok(serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": format!("{kind}-{n}")},
        "spec": {"parallelism": 1, "completions": completions, "completionMode": "Indexed",
            "ttlSecondsAfterFinished": 300, "template": template},
    }))?)
}
