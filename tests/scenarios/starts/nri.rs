//! A node without netclaim whose runtime asks an NRI plugin that does nothing: what NRI itself costs.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use netclaim_tests::{Test, eventually, project};
use serde_json::Value;

use crate::contestants::Contestant;
use crate::daemon::Daemon;

/// The example of `driver/nri`, which prints the events that netclaim acts on.
pub struct Nri(RefCell<Daemon>);

impl Nri {
    /// Builds it, and waits until the runtime knows it.
    pub fn new(test: &Test<'_>, logs: &Path) -> Result<Self> {
        let words =
            ["build", "--quiet", "--locked", "--release", "--package=netclaim-nri", "--example=watch"];
        let built = Command::new("cargo").args(words).current_dir(project("")).status()?;
        ensure!(built.success(), "the example of driver/nri cannot be built: see above");
        let log = logs.join("watch.log");
        // It may have run before.
        let connections = || fs::read_to_string(&log).unwrap_or_default().matches("connected to ").count();
        let before = connections();
        let daemon = Daemon::start(test, &project("target/release/examples/watch"), &[], &[], logs)?;
        eventually(20, "the runtime knows the plugin", || {
            ensure!(connections() > before, "it does not");
            Ok(())
        })?;
        Ok(Self(RefCell::new(daemon)))
    }
}

impl Contestant for Nri {
    fn name(&self) -> &'static str {
        "nri"
    }

    fn dress(&self, _pod: &mut Value) {}

    fn attaches(&self) -> bool {
        false
    }

    fn daemon(&self) -> Option<&RefCell<Daemon>> {
        Some(&self.0)
    }
}
