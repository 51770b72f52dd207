//! The host of the tests with real plugins, and an agent on it.

#![allow(dead_code, unused_imports)] // Not every test program uses all of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use netclaim_cni::{Cache, Runtime};
use netclaim_driver::attach::journal::Journal;
use netclaim_driver::attach::testing::Claimant;
use netclaim_driver::attach::{self, Attacher, CniPlugins, Failure, Observer};
use netclaim_driver::links::Links;

#[path = "../../../cni/tests/plugin_host/mod.rs"]
mod host;

pub use host::*;

pub type Plan = attach::Plan<Claimant>;
pub type PodState = attach::PodState<Claimant>;

/// Says nothing, and accepts no DEL that is given up.
pub struct Silent;

impl Observer for Silent {
    type Owner = Claimant;

    async fn observe(&self, _: &str, _: &PodState) -> Result<(), Failure> {
        Ok(())
    }

    fn given_up(&self, plan: &Plan, why: &str) {
        panic!("{}: {why}", plan.owner.claim.name);
    }
}

impl Host {
    /// An agent that has these folders of plugins and goes on from what the one before it left on the host.
    /// `deadline` is for an operation of a chain.
    pub fn agent<O: Observer>(
        &self,
        folders: Vec<PathBuf>,
        deadline: Duration,
        told: &Arc<O>,
    ) -> Arc<Attacher<CniPlugins, O>> {
        let cache = Cache::new(self.data.path().join("cache"));
        let plugins = CniPlugins::new(Runtime::new(folders).unwrap(), cache, Links::new("/sys"), deadline);
        let journal = Journal::open(self.data.path().join("journal"), self.data.path().join("run")).unwrap();
        let loaded = journal.load().unwrap();
        Attacher::start(Arc::new(plugins), Arc::clone(told), journal, loaded, "b")
    }
}
