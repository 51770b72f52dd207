//! Helm, and netclaim's chart.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cluster::{Cluster, SYSTEM, project};
use crate::command::output;
use crate::programs;
use crate::release::Release;

/// The name of the chart's release.
const RELEASE: &str = "netclaim";

/// Helm as the admin of a cluster.
pub struct Helm<'a> {
    cluster: &'a Cluster,
    program: PathBuf,
}

impl<'a> Helm<'a> {
    /// Builds Helm where it is missing.
    pub fn new(cluster: &'a Cluster) -> Result<Self> {
        Ok(Self { cluster, program: program()? })
    }

    /// Installs or upgrades the chart with more arguments and the images of the tests, or the chart of the
    /// release under test, and waits until all pods are ready.
    pub fn release(&self, verb: &str, args: &[&str]) -> Result<String> {
        let args = [&["--wait", "--timeout=120s"], args].concat();
        match Release::given()? {
            Some(release) => {
                let chart = release.chart();
                let all = [verb, RELEASE, &chart.to_string_lossy()];
                self.run(&[all.as_slice(), &args].concat())
            }
            None => self.release_of(&chart(), "dev", verb, &args),
        }
    }

    /// The same with another chart and the images of this tag, without waiting for pods.
    pub fn release_of(&self, chart: &Path, tag: &str, verb: &str, args: &[&str]) -> Result<String> {
        let place = if has_one_image(chart)? {
            "image.repository=localhost/netclaim"
        } else {
            "image.registry=localhost"
        };
        let images = format!("{place},image.tag={tag}");
        let all = [verb, RELEASE, &chart.to_string_lossy(), "--set", &images];
        self.run(&[all.as_slice(), args].concat())
    }

    /// Renders a chart with the images of the tests, and more arguments.
    pub fn template(&self, chart: &Path, args: &[&str]) -> Result<String> {
        let all = ["template", RELEASE, &chart.to_string_lossy(), "--set", "image.registry=localhost"];
        self.run(&[all.as_slice(), args].concat())
    }

    /// Runs Helm in netclaim's namespace.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.env("KUBECONFIG", self.cluster.dir().join("kubeconfig"));
        // It keeps what it downloads in these.
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(folder, self.cluster.dir().join("helm"));
        }
        output(command.args(["--namespace", SYSTEM]).args(args))
    }
}

/// Whether a chart is of a revision whose agents and controllers had the same image.
pub(crate) fn has_one_image(chart: &Path) -> Result<bool> {
    Ok(std::fs::read_to_string(chart.join("values.yaml"))?.contains("\n  repository: \"\"\n"))
}

/// Helm's program, which is built where it is missing.
pub fn program() -> Result<PathBuf> {
    programs::built("helm")?.context("the Go proxy does not serve Helm's modules")
}

/// The folder of the chart.
pub fn chart() -> PathBuf {
    project("deploy/helm/netclaim")
}
