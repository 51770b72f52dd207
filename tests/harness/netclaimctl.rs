//! netclaimctl, as the cluster's admin runs it.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::objects::list;
use crate::test::Test;

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
        let mut command = Command::new(self.cluster.image_program("netclaimctl")?);
        command.args(args).arg("--kubeconfig").arg(self.cluster.dir().join("kubeconfig"));
        let output = command.output()?;
        let error = || String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{} {}", error(), String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&output.stdout).with_context(error)
    }
}
