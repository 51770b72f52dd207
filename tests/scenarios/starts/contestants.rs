//! Who gives pods their networks: nobody, or one of several drivers.

use std::cell::RefCell;

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

/// netclaim's agent and its parent, with a macvlan Network.
pub struct Netclaim<'a>(&'a Test<'a>);

impl<'a> Netclaim<'a> {
    /// Creates the Network, its class and the template of claims, unless they exist.
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
}

/// Gives a pod a claim of its own, made from a template.
pub fn claim_from_template(pod: &mut Value, template: &str) {
    pod["spec"]["resourceClaims"] = json!([{"name": "net", "resourceClaimTemplateName": template}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "net"}]});
}
