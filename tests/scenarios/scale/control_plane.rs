//! The scheduler and the controller manager of simulated nodes, and the CPU time that they and others take.

use anyhow::Result;
use netclaim_tests::{Cluster, Usage};

use crate::cluster::Controller;

/// How many requests the scheduler and each controller of the controller manager may send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rates {
    /// As Kubernetes has it by default: 50 a second, and 20.
    Default,
    /// As the cluster of these measurements has it: 1,000 a second, and 200.
    Raised,
}

/// Their services, stopped or started.
pub struct ControlPlane<'a> {
    cluster: &'a Cluster,
    /// What they run, with their rates as the cluster has it.
    services: Vec<(&'static str, String)>,
}

impl<'a> ControlPlane<'a> {
    /// Neither must run.
    pub fn new(cluster: &'a Cluster) -> Result<Self> {
        let read = |service: &'static str| -> Result<(&'static str, String)> {
            let command = std::fs::read_to_string(cluster.dir().join("cmd").join(service))?;
            Ok((service, command.trim_end().to_owned()))
        };
        Ok(Self { cluster, services: vec![read("scheduler")?, read("kcm")?] })
    }

    /// Starts both, but for the controllers that would take these nodes for lost: no kubelet renews their
    /// leases.
    pub fn start(&self, rates: Rates) -> Result<()> {
        for (service, command) in &self.services {
            let mut command = command.clone();
            if *service == "kcm" {
                command += " --controllers '*,-node-lifecycle-controller,-taint-eviction-controller'";
            }
            // The last one counts.
            command += match (rates, *service) {
                (Rates::Raised, _) => "",
                (Rates::Default, "kcm") => " --kube-api-qps 20 --kube-api-burst 30",
                (Rates::Default, _) => " --kube-api-qps 50 --kube-api-burst 100",
            };
            std::fs::write(self.cluster.dir().join("cmd").join(service), command + "\n")?;
            self.cluster.service("start", service)?;
        }
        Ok(())
    }

    /// Stops both.
    pub fn stop(&self) -> Result<()> {
        for (service, _) in &self.services {
            self.cluster.service("stop", service)?;
        }
        Ok(())
    }

    /// The CPU time of each process so far, in milliseconds, the controller's only with one.
    pub fn costs(&self, controller: Option<&Controller>) -> Result<Vec<(&'static str, u64)>> {
        let of = |name: &'static str, service: &str| -> Result<(&'static str, u64)> {
            Ok((name, Usage::of(self.cluster.service_pid(service)?)?.cpu))
        };
        let mut all = vec![
            of("the scheduler", "scheduler")?,
            of("the API server", "apiserver")?,
            of("the controller manager", "kcm")?,
            ("these kubelets", Usage::own()?.cpu),
        ];
        if let Some(controller) = controller {
            all.push(("netclaim's controller", controller.usage()?.cpu));
        }
        Ok(all)
    }
}
