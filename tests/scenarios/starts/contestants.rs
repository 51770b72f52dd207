//! Which driver gives pods their networks, if any.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim_template, list};
use netclaim_tests::{AGENT_USER, SYSTEM, Test, eventually, project};
use serde_json::{Value, json};

use crate::daemon::Daemon;

/// The claim template of netclaim's pods.
const TEMPLATE: &str = "a";

/// A program that takes part in a measurement, and runs while this value lives.
pub trait Contestant {
    /// The name in tables.
    fn name(&self) -> &'static str;
    /// Makes a pod use the contestant's network, as `net1`.
    fn dress(&self, pod: &mut Value);
    /// Whether pods get `net1`.
    fn attaches(&self) -> bool {
        true
    }
    /// Its program on the node, if it is not a pod's.
    fn daemon(&self) -> Option<&RefCell<Daemon>> {
        None
    }
    /// Its processes on the node.
    fn daemons(&self) -> Result<Vec<i32>> {
        self.daemon().map(|daemon| daemon.borrow().pid()).into_iter().collect()
    }
    /// Its user at the API server.
    fn user(&self) -> Option<&str> {
        None
    }
    /// Kills its processes on the node with SIGKILL, and keeps them away.
    fn kill(&self) -> Result<()> {
        if let Some(daemon) = self.daemon() {
            daemon.borrow_mut().kill();
        }
        Ok(())
    }
    /// Starts them again.
    fn restart(&self) -> Result<()> {
        self.daemon().map_or(Ok(()), |daemon| daemon.borrow_mut().restart())
    }
    /// Makes it as new after a fault.
    fn recover(&self) -> Result<()> {
        Ok(())
    }
    /// Counts what pods that are gone have used and is not free.
    fn left(&self) -> Result<usize> {
        Ok(0)
    }
    /// Makes what is left free, so that the next fault begins with nothing.
    fn forget(&self) -> Result<()> {
        Ok(())
    }
}

/// The files of a network's addresses that no sandbox has.
pub fn addresses_left(test: &Test<'_>, network: &str) -> Result<Vec<PathBuf>> {
    let node = test.cluster.node();
    let sandboxes: BTreeSet<String> = node.tasks()?.into_iter().map(|task| task.sandbox).collect();
    let is_left = |(lease, sandbox): &(String, String)| {
        lease.split('/').next() == Some(network) && !sandboxes.contains(sandbox)
    };
    let left = node.leases()?.into_iter().filter(is_left);
    Ok(left.map(|(lease, _)| node.path("/var/lib/cni/networks").join(lease)).collect())
}

/// Pods with the runtime's own network only, under the name that says what else the node has.
pub struct Plain(pub &'static str);

impl Contestant for Plain {
    fn name(&self) -> &'static str {
        self.0
    }

    fn dress(&self, _pod: &mut Value) {}

    fn attaches(&self) -> bool {
        false
    }
}

/// netclaim's agent and its parent, with a macvlan ClaimNetwork.
pub struct Netclaim<'a> {
    test: &'a Test<'a>,
    name: &'static str,
}

impl<'a> Netclaim<'a> {
    /// Creates the ClaimNetwork, its class and the template of claims, unless they exist.
    pub fn new(test: &'a Test<'a>) -> Result<Self> {
        Self::named(test, "netclaim")
    }

    /// As [`Self::new`], with another name in tables.
    pub fn named(test: &'a Test<'a>, name: &'static str) -> Result<Self> {
        let class = test.name(TEMPLATE);
        if test.get("resourceclaimtemplate", TEMPLATE).is_err() {
            test.create([claim_template(TEMPLATE, &test.macvlan(TEMPLATE)?)])?;
        }
        test.is_published(&format!("net-{class}"), |device| device["taints"].is_null())?;
        Ok(Self { test, name })
    }
}

/// What of netclaim slows requests of others at the API server.
const POLICIES: [&str; 2] = ["deploy/manifests/policies.yaml", "deploy/manifests/namespaces-policy.yaml"];

/// Has netclaim run, or nothing of it but its definitions, objects and slices: no agent, so that no NRI
/// plugin is connected to the runtime, no controller and no admission policy.
pub fn netclaim_runs(test: &Test<'_>, yes: bool) -> Result<()> {
    let cluster = test.cluster;
    let policies = POLICIES.map(|file| project(file).to_string_lossy().into_owned());
    let [slices, namespaces] = &policies;
    if yes {
        cluster.kubectl(&["apply", "-f", slices, "-f", namespaces])?;
        cluster.scale_controller(1)?;
        cluster.agent_back()?;
        cluster.controller_ready()
    } else {
        if cluster.agent_pid().is_ok() {
            cluster.agent_away()?;
        }
        cluster.scale_controller(0)?;
        cluster.kubectl(&["delete", "--ignore-not-found", "-f", slices, "-f", namespaces])?;
        eventually(60, "no controller runs", || {
            let pods = cluster.get(&["pods", "-n", SYSTEM])?;
            ensure!(list(&pods["items"]).next().is_none(), "a pod of netclaim is there");
            Ok(())
        })
    }
}

impl Contestant for Netclaim<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn dress(&self, pod: &mut Value) {
        claim_from_template(pod, TEMPLATE);
    }

    fn daemons(&self) -> Result<Vec<i32>> {
        Ok(vec![self.test.cluster.agent_pid()?, self.test.cluster.parent_pid()?])
    }

    fn user(&self) -> Option<&str> {
        Some(AGENT_USER)
    }

    fn kill(&self) -> Result<()> {
        self.test.cluster.agent_away()
    }

    fn restart(&self) -> Result<()> {
        self.test.cluster.agent_back()
    }

    /// The kubelet waits longer and longer before it starts a container again, and the harness counts that.
    fn recover(&self) -> Result<()> {
        self.test.cluster.delete_agent_pod()?;
        self.test.cluster.agent_ready()
    }

    fn left(&self) -> Result<usize> {
        Ok(addresses_left(self.test, &format!("netclaim-{}", self.test.name(TEMPLATE)))?.len())
    }
}

/// Gives a pod a claim of its own, made from a template.
pub fn claim_from_template(pod: &mut Value, template: &str) {
    pod["spec"]["resourceClaims"] = json!([{"name": "net", "resourceClaimTemplateName": template}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "net"}]});
}
