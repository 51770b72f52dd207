//! netclaimctl, as the cluster's admin runs it.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::test::Test;

impl Test<'_> {
    /// Runs `netclaimctl migrate` for the scenario's namespace; returns what it prints as JSON.
    pub fn migrate(&self) -> Result<Value> {
        let mut command = Command::new(self.cluster.image_program("netclaimctl")?);
        command.args(["migrate", "--output=json", "--namespace", self.namespace(), "--kubeconfig"]);
        let output = command.arg(self.cluster.dir().join("kubeconfig")).output()?;
        let error = || String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{} {}", error(), String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&output.stdout).with_context(error)
    }
}
