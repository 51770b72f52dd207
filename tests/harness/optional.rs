//! What the chart has off by default and the manifests do not have.

use anyhow::Result;

use crate::agent::CONTROLLER;
use crate::cluster::{Cluster, SYSTEM};
use crate::helm::{Helm, chart};

/// The templates of default networks and of the gate for all containers.
const DEFAULTS: &str = "templates/default-networks.yaml";
const GATE: &str = "templates/gate-policy.yaml";
/// The template of networks for running pods, and that of the policy which leaves their claims out.
const HOT_ATTACH: &str = "templates/hot-attach.yaml";
const RUNTIME_CLASS: &str = "templates/runtime-class.yaml";
const NAMESPACES: &str = "templates/namespaces-policy.yaml";

impl Cluster {
    /// Switches default networks and the gate for all containers (in labelled namespaces) on, runs a
    /// scenario, and switches default networks off again. The controller restarts. The policy stays: API
    /// servers (1.37.1) see no new ResourceClaimTemplates for one that was deleted and made again.
    pub fn with_default_networks(&self, scenario: impl FnOnce() -> Result<()>) -> Result<()> {
        let values = "defaultNetworks.enabled=true,gate.allContainers=Labelled";
        let helm = Helm::new(self)?;
        let of = |file| {
            helm.template(&chart(), &["--kube-version", "1.37.0", "--set", values, "--show-only", file])
        };
        let (policies, gate) = (of(DEFAULTS)?, of(GATE)?);
        for objects in [&policies, &gate] {
            self.kubectl_with(&["apply", "-f", "-"], objects)?;
        }
        let except =
            format!("NETCLAIM_DEFAULT_NETWORKS_EXCEPT=kube-system,kube-public,kube-node-lease,{SYSTEM}");
        let result =
            self.set_controller(&["NETCLAIM_DEFAULT_NETWORKS=true", &except]).and_then(|()| scenario());
        self.kubectl_with(&["delete", "-f", "-"], &policies)?;
        self.set_controller(&["NETCLAIM_DEFAULT_NETWORKS-", "NETCLAIM_DEFAULT_NETWORKS_EXCEPT-"])?;
        result
    }

    /// Switches networks for running pods on in the controller, runs a scenario, and switches them off again.
    /// The controller restarts.
    pub fn with_hot_attach(&self, scenario: impl FnOnce() -> Result<()>) -> Result<()> {
        let helm = Helm::new(self)?;
        let of = |values: &str, file| {
            helm.template(&chart(), &["--kube-version", "1.37.0", "--set", values, "--show-only", file])
        };
        let on = "hotAttach.enabled=true";
        let objects = of(on, HOT_ATTACH)?;
        for objects in [&objects, &of(on, NAMESPACES)?] {
            self.kubectl_with(&["apply", "-f", "-"], objects)?;
        }
        let result = self.set_controller(&["NETCLAIM_HOT_ATTACH=true"]).and_then(|()| scenario());
        self.kubectl(&["delete", "networkattachments.netclaim.dev", "-A", "--all", "--wait=false"])?;
        self.kubectl_with(&["delete", "-f", "-"], &objects)?;
        self.kubectl_with(&["apply", "-f", "-"], &of("hotAttach.enabled=false", NAMESPACES)?)?;
        self.set_controller(&["NETCLAIM_HOT_ATTACH-"])?;
        result
    }

    /// Switches pods' primary networks on in the agents, runs a scenario, and switches them off again. The
    /// agents restart. The runtime has the handler all the time.
    pub fn with_primary_networks(&self, scenario: impl FnOnce() -> Result<()>) -> Result<()> {
        let on = ["--set", "primary.enabled=true", "--show-only", RUNTIME_CLASS];
        let class = Helm::new(self)?.template(&chart(), &on)?;
        self.kubectl_with(&["apply", "-f", "-"], &class)?;
        let result = self.with_agent_env("NETCLAIM_PRIMARY", "true", scenario);
        self.kubectl_with(&["delete", "-f", "-"], &class)?;
        result
    }

    /// As [`Self::with_hot_attach`], with agents that attach, too.
    pub fn with_hot_attach_on_nodes(&self, scenario: impl FnOnce() -> Result<()>) -> Result<()> {
        self.with_hot_attach(|| self.with_agent_env("NETCLAIM_HOT_ATTACH", "true", scenario))
    }

    fn set_controller(&self, settings: &[&str]) -> Result<()> {
        self.kubectl(&[["set", "env", "-n", SYSTEM, CONTROLLER].as_slice(), settings].concat())?;
        self.controller_ready()
    }
}
