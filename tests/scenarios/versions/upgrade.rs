//! Kubernetes is upgraded in place by one minor version, and goes back, under netclaim and pods with
//! networks.
//!
//! ```text
//! API server   controller manager, scheduler   kubelets
//!   1.36                  1.36                   1.36
//!   1.37                  1.36                   1.36
//!   1.37                  1.37                   1.36
//!   1.37                  1.37                   1.37     and back, in the opposite order
//! ```
//!
//! No node is drained and netclaim is not restarted.

use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use netclaim_slices::KubernetesVersion;
use netclaim_tests::objects::{claim_template, list, pod_of_template, text};
use netclaim_tests::{Interface, SYSTEM, Test, eventually};
use serde_json::{Value, json};

use super::{counts, of_pool, slices, version};

/// The version that the cluster is started with; [`NEW`] is the next one.
const OLD: &str = "1.36";
const NEW: &str = "newest";

/// Seconds until the slices are those for another API server.
const PUBLISHED: u64 = 60;

pub fn kubernetes_is_upgraded_and_goes_back_under_running_pods(test: &Test<'_>) -> Result<()> {
    if test.cluster.kubernetes()? != OLD {
        return test.skip(&format!("it upgrades a cluster of Kubernetes {OLD}: NETCLAIM_KUBERNETES={OLD}"));
    }
    upgraded_and_back(test).or_else(|error| {
        // The next scenarios have the version that they were started for. A controller manager ends if it
        // finds no API server.
        let restored = test.cluster.replace_kubernetes(OLD, &["apiserver", "kcm", "scheduler", "kubelet"]);
        restored.with_context(|| format!("{error:#}"))?;
        Err(error)
    })
}

fn upgraded_and_back(test: &Test<'_>) -> Result<()> {
    let run = Run::begin(test)?;
    let mut pods = vec![run.keep("local")?, run.keep("leased")?, run.keep("wide")?];
    let nic = run.keep("nic")?;

    run.step(NEW, &["apiserver"], &[&pods[..], &[nic]].concat())?;
    // The link is in its pod.
    run.link_has(&["nic-eth2"])?;
    test.delete_pod("nic")?;
    run.link_has(&["macvlan-eth2", "nic-eth2"])?;
    run.step(NEW, &["kcm", "scheduler"], &pods)?;
    // The new scheduler counts what the new API server stores.
    test.start_pod("macvlan", &run.macvlan)?;
    test.pod("nic", &run.nic)?;
    test.is_unschedulable("nic")?;
    test.delete_pod("nic")?;
    pods.push(run.keep("macvlan")?);
    run.step(NEW, &["kubelet"], &pods)?;

    run.step(OLD, &["kubelet"], &pods)?;
    run.step(OLD, &["scheduler", "kcm"], &pods)?;
    run.step(OLD, &["apiserver"], &pods)?;
    run.link_has(&["macvlan-eth2"])?;
    test.delete_pod("macvlan")?;
    run.link_has(&["nic-eth2"])?;

    for pod in ["local", "leased", "wide"] {
        test.delete_pod(pod)?;
    }
    test.nodes_are_clean()?;
    test.node_has_leases(0)
}

struct Run<'a> {
    test: &'a Test<'a>,
    /// A ClaimNetwork with a claim template of the same name.
    local: String,
    /// Devices of ClaimNetworks: one whose addresses are counted, one that counts nothing, and one of scope
    /// `Cluster`.
    counted: String,
    uncounted: String,
    wide: String,
    /// Classes of eth2, whole and by macvlan.
    nic: String,
    macvlan: String,
    /// The processes of the agent and its parent.
    agent: [i32; 2],
    /// The controller's pod and the id of its container.
    controller: (String, String),
}

/// What a running pod must keep.
#[derive(Debug, Clone, PartialEq)]
struct Kept {
    pod: String,
    /// Ids and processes of its sandbox and container.
    tasks: Vec<(String, Option<i32>)>,
    restarts: Vec<Value>,
    interface: Interface,
    claim: Value,
}

/// The controller's pod and the id of its container.
fn controller(test: &Test<'_>) -> Result<(String, String)> {
    eventually(60, "one controller runs", || {
        let found = test.cluster.controllers()?;
        let [one] = found.as_slice() else { bail!("{} run", found.len()) };
        Ok((one.pod.clone(), one.id.clone()))
    })
}

impl<'a> Run<'a> {
    /// Creates networks and starts a pod on each.
    fn begin(test: &'a Test<'a>) -> Result<Self> {
        let local = test.macvlan("a")?;
        let leased = test.network("b", |network| {
            network["spec"]["addresses"] = json!({"ranges": [{"subnet": test.subnet(2)}]});
            network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
        })?;
        let uncounted =
            test.network("c", |network| network["spec"]["cni"]["plugins"][0]["ipam"] = json!({}))?;
        let wide = test.cluster_network_named("d", 4)?;
        test.modes(&["eth2"], &["nic", "macvlan"])?;
        let [nic, macvlan] = ["nic", "macvlan"].map(|mode| test.class_of_links(mode, &["eth2"]));
        let (nic, macvlan) = (nic?, macvlan?);
        test.create([claim_template(&local, &local)])?;
        for (pod, class) in [("local", &local), ("leased", &leased), ("wide", &wide), ("nic", &nic)] {
            test.start_pod(pod, class)?;
            test.claim_is_ready(pod)?;
        }
        let run = Self {
            test,
            counted: format!("net-{local}"),
            uncounted: format!("net-{uncounted}"),
            wide: format!("net-{wide}"),
            local,
            nic,
            macvlan,
            agent: [test.cluster.agent_pid()?, test.cluster.parent_pid()?],
            controller: controller(test)?,
        };
        run.is_published()?;
        run.link_has(&["nic-eth2"])?;
        Ok(run)
    }

    fn keep(&self, pod: &str) -> Result<Kept> {
        let status = &self.test.get("pod", pod)?["status"];
        let mut tasks: Vec<_> = self.test.tasks(pod)?.into_iter().map(|task| (task.id, task.pid)).collect();
        tasks.sort();
        Ok(Kept {
            pod: pod.to_owned(),
            tasks,
            restarts: list(&status["containerStatuses"])
                .map(|container| container["restartCount"].clone())
                .collect(),
            interface: self.test.interface(pod, "net1")?,
            claim: self.test.get("resourceclaim", pod)?["status"].clone(),
        })
    }

    /// Replaces services, and makes sure that netclaim goes on: for running pods, a new one and one that
    /// ends.
    fn step(&self, version: &str, services: &[&str], pods: &[Kept]) -> Result<()> {
        let what = format!("{} of {version}", services.join(", "));
        self.replaced(version, services, pods).with_context(|| what.clone())
    }

    fn replaced(&self, version: &str, services: &[&str], pods: &[Kept]) -> Result<()> {
        let test = self.test;
        test.cluster.replace_kubernetes(version, services)?;
        let begin = Instant::now();
        self.is_published()?;
        eprintln!("  {services:?} of {version}: published {:.1} s later", begin.elapsed().as_secs_f64());
        test.create([pod_of_template("new", &self.local)])?;
        test.runs_with("new", &["net1"])?;
        test.claim_was_not_refused("new")?;
        test.ping("new", "local", "net1")?;
        let statuses = test.get("pod", "new")?["status"]["resourceClaimStatuses"].clone();
        let claim = list(&statuses).next().map(|status| text(&status["resourceClaimName"]));
        let claim = claim.context("the pod has no claim")?;
        test.claim_is_ready(&claim)?;
        test.delete_pod("new")?;
        eventually(30, "the claim of a pod that is gone is gone", || {
            ensure!(test.get("resourceclaim", &claim).is_err(), "it is there");
            Ok(())
        })?;
        eventually(20, "the journal has the pods that run", || {
            let journal = test.cluster.node().journal()?;
            ensure!(journal.len() == pods.len(), "{journal:?}");
            Ok(())
        })?;
        for before in pods {
            let now = self.keep(&before.pod)?;
            ensure!(now == *before, "it was {before:#?}, it is {now:#?}");
            test.runs(&before.pod)?;
        }
        self.netclaim_was_not_restarted()
    }

    /// A leader may end by itself while the API server is away, as the controller manager does: it cannot
    /// renew its lease.
    fn netclaim_was_not_restarted(&self) -> Result<()> {
        let cluster = self.test.cluster;
        let agent = [cluster.agent_pid()?, cluster.parent_pid()?];
        ensure!(agent == self.agent, "agent and parent {agent:?}, before {:?}", self.agent);
        let controller = controller(self.test)?;
        ensure!(controller.0 == self.controller.0, "controller {controller:?}, before {:?}", self.controller);
        if controller != self.controller {
            let log = cluster.kubectl(&["logs", "-n", SYSTEM, &controller.0, "--previous", "--tail=20"])?;
            ensure!(log.contains("the lease could not be renewed in time"), "the controller ended: {log}");
        }
        Ok(())
    }

    /// Waits until all pools are complete, and have what the API server and its scheduler can do.
    fn is_published(&self) -> Result<()> {
        let (test, version) = (self.test, version(self.test.cluster)?);
        let walks = (KubernetesVersion::FIRST_TO_COUNT..KubernetesVersion::FIRST_TO_LOOK_UP_SHARES)
            .contains(&version);
        let counts = counts(test.cluster)?;
        eventually(PUBLISHED, "the slices are as the API server has them", || {
            let all = test.cluster.slices()?;
            for slice in &all {
                of_pool(all.clone(), &text(&slice["spec"]["pool"]["name"]))?;
            }
            let device = |name: &str| {
                let mut devices = all.iter().flat_map(|slice| list(&slice["spec"]["devices"]));
                devices.find(|device| device["name"] == name).with_context(|| format!("no {name}: {all:?}"))
            };
            let (counted, uncounted) = (device(&self.counted)?, device(&self.uncounted)?);
            ensure!(counted["capacity"]["addresses"]["requestPolicy"].is_object(), "{counted}");
            for device in [counted, uncounted] {
                ensure!(device["allowMultipleAllocations"] == true, "{device}");
            }
            // A record of claims for the scheduler of 1.37.
            ensure!(uncounted["capacity"]["interfaces"].is_object() == walks, "{version}: {uncounted}");
            let wide = device(&self.wide)?;
            ensure!(wide["bindsToNode"] == true, "{wide}");
            let line = format!("netclaim_without_counters {}", u8::from(!counts));
            ensure!(test.cluster.ask_agent("/metrics")?.contains(&line), "no {line} in the agent's metrics");
            Ok(())
        })
    }

    /// Waits until eth2 is offered in these devices, with counters where there is more than one.
    fn link_has(&self, devices: &[&str]) -> Result<()> {
        eventually(PUBLISHED, &format!("eth2 is offered as {devices:?}"), || {
            let slices = slices(self.test)?;
            let found = super::devices(&slices);
            let found: Vec<_> = found.iter().filter(|name| name.ends_with("-eth2")).collect();
            ensure!(found == devices, "{found:?}");
            let has_counters = slices.iter().any(|slice| slice["spec"]["sharedCounters"].is_array());
            ensure!(has_counters == (devices.len() > 1), "{slices:?}");
            Ok(())
        })
    }
}
