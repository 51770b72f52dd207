//! Who gives pods their networks: nobody, or one of several drivers.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use netclaim_tests::objects::claim_template;
use netclaim_tests::{AGENT_USER, Test};
use serde_json::{Value, json};

use crate::daemon::Daemon;

/// The claim template of netclaim's pods.
const TEMPLATE: &str = "a";

/// Somebody who takes part in a measurement, and runs while this value lives.
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

/// Pods with the runtime's own network only.
pub struct Plain;

impl Contestant for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn dress(&self, _pod: &mut Value) {}

    fn attaches(&self) -> bool {
        false
    }
}

/// netclaim's agent and its parent, with a macvlan ClaimNetwork.
pub struct Netclaim<'a>(&'a Test<'a>);

impl<'a> Netclaim<'a> {
    /// Creates the ClaimNetwork, its class and the template of claims, unless they exist.
    pub fn new(test: &'a Test<'a>) -> Result<Self> {
        let class = test.name(TEMPLATE);
        if test.get("resourceclaimtemplate", TEMPLATE).is_err() {
            test.create([claim_template(TEMPLATE, &test.macvlan(TEMPLATE)?)])?;
        }
        test.is_published(&format!("net-{class}"), |device| device["taints"].is_null())?;
        Ok(Self(test))
    }
}

impl Contestant for Netclaim<'_> {
    fn name(&self) -> &'static str {
        "netclaim"
    }

    fn dress(&self, pod: &mut Value) {
        claim_from_template(pod, TEMPLATE);
    }

    fn daemons(&self) -> Result<Vec<i32>> {
        Ok(vec![self.0.cluster.agent_pid()?, self.0.cluster.parent_pid()?])
    }

    fn user(&self) -> Option<&str> {
        Some(AGENT_USER)
    }

    fn kill(&self) -> Result<()> {
        self.0.cluster.agent_away()
    }

    fn restart(&self) -> Result<()> {
        self.0.cluster.agent_back()
    }

    /// The kubelet waits longer and longer before it starts a container again, and the harness counts that.
    fn recover(&self) -> Result<()> {
        self.0.cluster.delete_agent_pod()?;
        self.0.cluster.agent_ready()
    }

    fn left(&self) -> Result<usize> {
        Ok(addresses_left(self.0, &format!("netclaim-{}", self.0.name(TEMPLATE)))?.len())
    }
}

/// Gives a pod a claim of its own, made from a template.
pub fn claim_from_template(pod: &mut Value, template: &str) {
    pod["spec"]["resourceClaims"] = json!([{"name": "net", "resourceClaimTemplateName": template}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "net"}]});
}
