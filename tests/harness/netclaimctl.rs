//! netclaimctl, as the cluster's admin runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::command::output;
use crate::objects::list;
use crate::test::Test;

/// The image that has it. Its tag and its registry are those of the archive.
const IMAGE: &str = "netclaim-controller:";
/// Where it is in the image.
const PROGRAM: &str = "usr/bin/netclaimctl";

impl Cluster {
    /// The program, as the image of the controller has it. It is static, and so it runs on this machine too.
    pub fn netclaimctl(&self) -> PathBuf {
        self.dir().join(PROGRAM)
    }

    /// Takes the program out of an image archive.
    pub(crate) fn unpack_netclaimctl(&self, archive: &Path) -> Result<()> {
        let read = |file: &str| -> Result<Value> {
            let text = output(Command::new("tar").arg("-xOf").arg(archive).arg(file))?;
            Ok(serde_json::from_str(&text)?)
        };
        let blob = |descriptor: &Value| -> Result<String> {
            let digest = descriptor["digest"].as_str().context("no digest")?;
            Ok(format!("blobs/{}", digest.replace(':', "/")))
        };
        let index = read("index.json")?;
        let is_controllers = |image: &&Value| {
            image["annotations"]["io.containerd.image.name"].as_str().is_some_and(|name| name.contains(IMAGE))
        };
        let image = list(&index["manifests"]).find(is_controllers);
        let image = image.with_context(|| format!("{} has no image {IMAGE}", archive.display()))?;
        let layer = blob(&read(&blob(image)?)?["layers"][0])?;
        let unpack = "set -o pipefail; tar -xOf \"$0\" \"$1\" | tar -xzC \"$2\" \"$3\"";
        let mut shell = Command::new("bash");
        shell.args(["-c", unpack]).arg(archive).arg(layer).arg(self.dir()).arg(PROGRAM);
        output(&mut shell).map(drop)
    }
}

impl Test<'_> {
    /// Runs `netclaimctl migrate` for the scenario's namespace; returns what it prints as JSON.
    pub fn migrate(&self, args: &[&str]) -> Result<Value> {
        self.netclaimctl(&[&["migrate", "--output=json", "--namespace", self.namespace()], args].concat())
    }

    /// Applies what a translation says of a Deployment.
    pub fn move_deployment(&self, migration: &Value, name: &str) -> Result<()> {
        let mut changes = list(&migration["workloads"]);
        let change = changes.find(|change| change["object"]["name"] == name);
        let patch = change.with_context(|| format!("{name} is not translated"))?["patch"].to_string();
        self.kubectl(&["patch", "deployment", name, "--type", "strategic", "--patch", &patch]).map(drop)
    }

    /// Runs netclaimctl as the cluster's admin; returns what it prints as JSON.
    pub fn netclaimctl(&self, args: &[&str]) -> Result<Value> {
        let output = self.run_netclaimctl(args)?;
        let error = || String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{} {}", error(), String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&output.stdout).with_context(error)
    }

    /// Runs netclaimctl as the cluster's admin. It may fail: `status` does if something is wrong.
    pub fn run_netclaimctl(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.cluster.netclaimctl());
        command.args(args).arg("--kubeconfig").arg(self.cluster.dir().join("kubeconfig"));
        Ok(command.output()?)
    }
}
