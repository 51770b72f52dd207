//! Attachments: from a plan to an interface in a pod and back, whatever happens in between.
//!
//! ```text
//!   prepare ──> journal ──┐                                                ┌──> Observer: gate, status
//!   sandbox up / gone ────┼──> one task per pod ──> wanted ──> machine ────┤
//!   release ──────────────┘        (pod.rs)       (pure)      (pure)       └──> Attach: CNI ADD, DEL
//! ```
//!
//! | module | what is in it | IO |
//! |---|---|---|
//! | [`plan`], [`record`] | what to attach for whom, and how far that has come | none |
//! | [`machine`] | the moves of one attachment | none |
//! | [`wanted`], [`retry`] | what is wanted of a pod, which step is next, when one is repeated or given up | none |
//! | [`state`](PodState) | what is known of a pod, and whether its containers may start | none |
//! | [`journal`] | one file per attachment | files |
//! | `pod` | carries the steps out, one at a time | by the traits here |
//! | `attacher` | all pods of the node | tasks |
//! | `plugins` | [`Attach`] by CNI plugins | processes, netlink |
//! | [`sweep`] | when to look after what no event reports | none |
//!
//! Invariants:
//! * The journal is the truth; what the runtime or the orchestrator tells are hints about what is wanted.
//! * Nothing is executed before the journal says that it may have been.
//! * A release is answered when every DEL that is owed has succeeded, and not before. Only where the namespace is
//!   proven gone is a DEL given up, after a bounded number of tries and with an error in the log.

mod attacher;
pub mod journal;
#[cfg(test)]
mod journal_formats;
pub mod machine;
pub mod plan;
mod plugins;
mod pod;
pub mod record;
pub mod retry;
mod state;
pub mod sweep;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod wanted;

use std::future::Future;
use std::path::Path;

use netclaim_cni::{CniResult, ContainerId, IfName};

pub use attacher::{Attacher, LiveSandbox};
pub use plan::{Owner, Plan, Spec};
pub use plugins::{CniPlugins, Interface, Status};
pub use record::{Phase, Record, Sandbox};
use retry::Attempt;
pub use state::{Gate, PodState};

use crate::links::HostLink;

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For people: the whole chain of causes in one line.
    pub message: String,
}

impl Failure {
    /// Longest message that is kept, in bytes. It may be a plugin's own, and is journalled, logged and reported.
    pub const MAX_MESSAGE: usize = 16 << 10;

    /// A failure with this message. Of a longer one the beginning is kept.
    pub fn new(message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(Self::MAX_MESSAGE));
        Self { message }
    }

    /// A failure because of this error, with all its causes.
    pub fn of(error: &dyn std::error::Error) -> Self {
        Self::new(netclaim_cni::error_chain(error))
    }
}

/// Why an ADD failed.
#[derive(Debug, Clone, PartialEq)]
pub struct AddFailure {
    /// What went wrong.
    pub failure: Failure,
    /// How far a chain of plugins came before: the `prevResult` of the DEL that is owed.
    pub last_good: Option<CniResult>,
}

impl From<Failure> for AddFailure {
    fn from(failure: Failure) -> Self {
        Self { failure, last_good: None }
    }
}

/// A DEL: of which sandbox, and what is known of its ADD.
#[derive(Debug, Clone, Copy)]
pub struct Del<'a> {
    /// The CNI container id.
    pub sandbox_id: &'a str,
    /// The network namespace; `None` when it is gone. Only then can a DEL be given up.
    pub netns: Option<&'a Path>,
    /// The result of the ADD, as far as it came.
    pub result: Option<&'a CniResult>,
    /// The link of the host that the ADD has moved, as it was before.
    pub moved_link: Option<&'a HostLink>,
    /// How often the DEL has failed.
    pub attempt: Attempt,
}

/// How a DEL ended that need not be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelOutcome {
    /// Nothing is left.
    Clean,
    /// Something may be left, for this reason; trying again would not help.
    GivenUp(String),
    /// Nothing is left but a link that was moved: it is not back on the host, or not as it was, for this reason.
    Stray(String),
}

/// The outside world in which interfaces are made and removed.
pub trait Attach: Send + Sync + 'static {
    /// The link of the host that [`add`](Self::add) will move into the pod, as it is now; `None` when it moves none, or
    /// there is none to move.
    fn link_to_move(&self, spec: &Spec) -> impl Future<Output = Result<Option<HostLink>, Failure>> + Send;

    /// The index that the link that an [`add`](Self::add) has moved got in the pod; `None` where it cannot be told.
    fn index_in_pod(&self, spec: &Spec, sandbox: &Sandbox) -> impl Future<Output = Option<u32>> + Send;

    /// Makes the attachment and returns the CNI result. Dropping the future ends what it started; a DEL follows.
    fn add(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
    ) -> impl Future<Output = Result<CniResult, AddFailure>> + Send;

    /// Undoes an ADD that succeeded, failed or was cut short. The link that was moved is then on the host as it was,
    /// unless it is gone or a [stray](DelOutcome::Stray).
    fn del(&self, spec: &Spec, del: Del<'_>) -> impl Future<Output = Result<DelOutcome, Failure>> + Send;

    /// Makes a stray link what it was.
    fn give_back(
        &self,
        spec: &Spec,
        link: &HostLink,
    ) -> impl Future<Output = Result<DelOutcome, Failure>> + Send;

    /// Looks whether an attachment is what its ADD made. Dropping the future ends what it started.
    fn check(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        result: &CniResult,
    ) -> impl Future<Output = Checked> + Send;

    /// Removes what is left in the network of `spec` of attachments that are not `valid`: ids of sandboxes with
    /// interface names. `valid` is called when nobody works on the network. Returns how many were found.
    fn collect(
        &self,
        spec: &Spec,
        valid: impl Fn() -> Vec<(ContainerId, IfName)> + Send,
    ) -> impl Future<Output = Result<usize, Failure>> + Send;
}

/// What came of a CHECK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// The attachment is as it should be.
    Fine,
    /// It is not; what a plugin says of it.
    Failed(String),
    /// Nothing can be said, and why: its CNI version has no CHECK, it is switched off, or a plugin could not be run.
    Unknown(String),
}

/// The outside world that wants to know. Called after every change, before it is visible elsewhere; what it does
/// delays the pod, so it must not wait for anything slow.
pub trait Observer: Send + Sync + 'static {
    /// For whom attachments are made.
    type Owner: Owner;

    /// `pod_uid` is now in `state`.
    ///
    /// # Errors
    /// Why containers of the pod must not start, whatever is attached. It is told again in a moment.
    fn observe(
        &self,
        pod_uid: &str,
        state: &PodState<Self::Owner>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Something that was made for `plan` may be left, and why. Nobody will hear of it again.
    fn given_up(&self, plan: &Plan<Self::Owner>, why: &str);
}

/// The id of the running boot, which every sandbox of another boot is known by.
///
/// # Errors
/// When `/proc` is not there.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
