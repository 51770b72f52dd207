//! ClaimNetworks that are set up on the node before their first pod, and taken down after the last one
//! (`spec.node`).
//!
//! ```text
//!   plans of pods ──┐                                                            ┌──> states: ADDs of pods wait,
//!   inventory ──────┼──> keeper ──> decisions (pure) ──> Attacher, in the node's ┤    devices get a taint
//!   time ───────────┘                                    network namespace       └──> links: no uplinks of pods
//! ```
//!
//! It is an attachment like one of a pod's, by the same machine: its owner is the ClaimNetwork, its sandbox
//! the node, and it has a journal of its own.
//!
//! | module | what it does |
//! |---|---|
//! | `owner` | for whom it is made, and the node as a sandbox |
//! | `decisions` | what to set up and what to take down now; pure |
//! | `states` | what has become of each: the attacher's observer |
//! | `keeper` | carries the decisions out |
//! | `sweep` | CHECK and GC |
//! | `metrics` | shows the states |
//!
//! Invariants:
//! * The ADD of a pod begins only while its ClaimNetwork is set up ([`Readiness`]).
//! * It is taken down only when no plan of a pod is left that needs it, in whatever phase; or to be made
//!   anew, while there are only plans, and interfaces that have broken and are repaired after it. A plan is
//!   journalled before its pod's ADD asks.
//! * Nobody else's link is removed: an ADD does not begin where a link of its name is there.

mod decisions;
mod keeper;
pub(crate) mod metrics;
mod owner;
mod states;
mod sweep;

use std::sync::Arc;

use netclaim_driver::attach::{Attacher, CniPlugins};
use netclaim_driver::links::Links;
use tokio::sync::watch;

pub(crate) use self::keeper::Keeper;
pub(crate) use self::owner::{NodeJournal, NodeSandbox};
use self::states::NodeObserver;
pub(crate) use self::states::{MadeLinks, Readiness};
pub(crate) use self::sweep::Sweep;

/// What is set up on the node.
pub(crate) struct NodeNetworks {
    attacher: Arc<Attacher<CniPlugins, NodeObserver>>,
    observer: Arc<NodeObserver>,
    links: Links,
}

impl NodeNetworks {
    /// Continues with what an earlier agent has set up.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub(crate) fn take_over(
        plugins: CniPlugins,
        journal: NodeJournal,
        boot_id: &str,
    ) -> Result<Self, netclaim_driver::attach::journal::Error> {
        let loaded = journal.load()?;
        for file in &loaded.unreadable {
            let (path, reason) = (file.path.display(), &file.reason);
            tracing::error!(%path, reason, "keeping a journal file that cannot be read: a DEL may be owed");
        }
        let observer = Arc::<NodeObserver>::default();
        let attacher = Attacher::start(Arc::new(plugins), Arc::clone(&observer), journal, loaded, boot_id);
        Ok(Self { attacher, observer, links: Links::new("/sys") })
    }

    /// What ADDs of pods wait for.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness(self.observer.states())
    }

    /// The names of links that were made here: pods are attached to them by their ClaimNetworks alone.
    pub(crate) fn links(&self) -> watch::Receiver<MadeLinks> {
        self.observer.links()
    }

    /// Starts no new work, and returns when running operations have ended and everything is on disk.
    pub(crate) async fn drain(&self) {
        self.attacher.drain().await;
    }
}
