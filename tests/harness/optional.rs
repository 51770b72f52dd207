//! What the chart has off by default and the manifests do not have.

use anyhow::Result;

use crate::agent::CONTROLLER;
use crate::cluster::{Cluster, SYSTEM};
use crate::helm::{Helm, chart};

/// The templates of default networks and of the gate for all containers.
const DEFAULTS: &str = "templates/default-networks.yaml";
const GATE: &str = "templates/gate-policy.yaml";

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

    fn set_controller(&self, settings: &[&str]) -> Result<()> {
        self.kubectl(&[["set", "env", "-n", SYSTEM, CONTROLLER].as_slice(), settings].concat())?;
        self.controller_ready()
    }
}
