//! Attachments: from a plan to an interface in a pod and back, through crashes, reboots and failures.
//!
//! ```text
//!   prepare ──> journal ──┐                                                ┌──> Observer: gate, status
//!   sandbox up / gone ────┼──> one task per pod ──> desired ─> machine ────┤
//!   release ──────────────┘        (pod.rs)       (pure)      (pure)       └──> Attach: CNI ADD, DEL
//! ```
//!
//! | module | what is in it | IO |
//! |---|---|---|
//! | [`plan`], [`record`] | what to attach for whom, and how far that has come | none |
//! | [`machine`] | the state machine of one attachment | none |
//! | [`desired`], [`retry`] | the desired state of a pod, its next step, and when a step is repeated or given up | none |
//! | [`repair`] | which broken attachment is made again now, and what it asks for then | none |
//! | [`Cause`] | what kind of failure it is, for programs | none |
//! | [`state`](PodState) | the state of a pod, and whether its containers may start | none |
//! | [`journal`] | one file per attachment, on disk when an ADD is due, in memory for the rest | files |
//! | `pod` | the task of one pod: runs the steps, one at a time | through the traits here |
//! | `attacher`, `counters`, `usage` | all pods of the node | tasks |
//! | `plugins` | [`Attach`] by CNI plugins | processes, netlink |
//! | [`sweep`] | schedules for what no event reports | none |
//!
//! Invariants:
//! * The journal is the truth. Events of the runtime and calls of the orchestrator only change what is
//!   desired.
//! * The journal notes every operation before it starts.
//! * A release succeeds only after every owed DEL. A DEL is given up only where the namespace is proven gone,
//!   after a bounded number of attempts and with an error in the log.
//! * A finalizer is made when all attachments of its pod are, and undone before the first of them. Hot ones,
//!   which came to the running pod, it neither sees nor waits for, unless it is of their group.
//! * A primary network is made only in a sandbox for which the runtime asks for it, or that has no such
//!   interface when the runtime has made it. Its group comes before the pod's others. The runtime keeps its
//!   result, so that it is never made again in the same sandbox.
//! * What comes to a running pod closes no gate of the sandbox in which it came.
//! * An address is free only when every plugin's DEL has succeeded, or when the DEL is given up.

mod attacher;
mod cause;
mod counters;
pub mod desired;
pub mod journal;
pub mod machine;
pub mod plan;
mod plugins;
mod pod;
pub mod record;
pub mod repair;
pub mod retry;
mod state;
pub mod sweep;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use netclaim_cni::{CniResult, ContainerId, IfName, ListName, Retry, Stopped};

pub use attacher::{Attacher, LiveSandbox};
pub use cause::Cause;
pub use plan::{Hot, Owner, PRIMARY_INTERFACE, Plan, Spec, Wire};
pub use plugins::{CniPlugins, Interface, Status};
pub use record::{Finding, Phase, Record, Sandbox};
use retry::Attempt;
pub use retry::Operation;
pub use state::{Gate, PodState};

use crate::links::{HostLink, InUse, Netns};

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For people: the whole chain of causes in one line.
    pub message: String,
    /// Its kind.
    pub cause: Cause,
    /// Whether the same operation fails until the configuration, the arguments or the plugin change.
    pub is_permanent: bool,
    /// The addresses that other hosts have, by [`Cause::AddressInUse`].
    pub in_use: Vec<InUse>,
}

impl Failure {
    /// Longest message that is kept, in bytes. It may be a plugin's own, and is journalled, logged and
    /// reported.
    pub const MAX_MESSAGE: usize = 16 << 10;

    /// A failure with this message. A long one is cut at its end.
    pub fn new(message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(Self::MAX_MESSAGE));
        Self { message, cause: Cause::Other, is_permanent: false, in_use: Vec::new() }
    }

    /// A failure because of this error, with all its causes.
    pub fn of(error: &dyn std::error::Error) -> Self {
        Self::new(netclaim_cni::error_chain(error))
    }

    /// A failure because of this error of a plugin, with all its causes.
    pub fn of_plugin(error: &netclaim_cni::Error) -> Self {
        Self { cause: Cause::of(error), is_permanent: error.retry() == Retry::No, ..Self::of(error) }
    }
}

/// Why an ADD failed.
#[derive(Debug, Clone, PartialEq)]
pub struct AddFailure {
    /// What went wrong.
    pub failure: Failure,
    /// The last result of the plugins before the failed one: the `prevResult` of the owed DEL.
    pub last_good: Option<CniResult>,
    /// Where the chain stopped, if that is known.
    pub stopped: Option<Stopped>,
}

impl AddFailure {
    /// An ADD that ran no plugin.
    pub fn not_begun(failure: Failure) -> Self {
        Self { failure, last_good: None, stopped: Some(Stopped::AT_ONCE) }
    }

    /// Whether a DEL is owed.
    pub fn owes_del(&self) -> bool {
        self.stopped.is_none_or(Stopped::needs_del)
    }
}

impl From<Failure> for AddFailure {
    fn from(failure: Failure) -> Self {
        Self { failure, last_good: None, stopped: None }
    }
}

/// The parameters of a DEL.
#[derive(Debug, Clone, Copy, Default)]
pub struct Del<'a> {
    /// The CNI container id.
    pub sandbox_id: &'a str,
    /// The network namespace; `None` when it is gone. Only then can a DEL be given up.
    pub netns: Option<&'a Path>,
    /// The result of the ADD, or of a part of its chain.
    pub result: Option<&'a CniResult>,
    /// Where the ADD failed, if that is known.
    pub stopped: Option<Stopped>,
    /// Whether the host was rebooted since the ADD. What plugins had made outside of files is gone with the
    /// earlier boot.
    pub after_reboot: bool,
    /// The link of the host that the ADD has moved, as it was before.
    pub moved_link: Option<&'a HostLink>,
    /// How often the DEL has failed.
    pub attempt: Attempt,
}

/// The outcome of a DEL that is not retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelOutcome {
    /// Nothing is left.
    Clean,
    /// Something may be left, for this reason. A retry would not help.
    GivenUp(String),
    /// Only a moved link is left: it is not back on the host, or not as it was, for this reason.
    Stray(String),
}

impl DelOutcome {
    /// This outcome for a moved link, with what the plugins may have left.
    fn beside(self, of_plugins: Self) -> Self {
        match (self, of_plugins) {
            (Self::GivenUp(link), Self::GivenUp(plugins)) => Self::GivenUp(format!("{link}; {plugins}")),
            (Self::Stray(link), Self::GivenUp(plugins)) => Self::Stray(format!("{link}; {plugins}")),
            (of_link, _) => of_link,
        }
    }
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It succeeded.
    Succeeded,
    /// It failed, and is retried.
    Failed,
    /// An ADD was ended because it is no longer wanted.
    CutShort,
    /// A DEL is [not retried](DelOutcome::GivenUp).
    GivenUp,
    /// A DEL has left a [stray](DelOutcome::Stray) link.
    Stray,
}

impl End {
    /// All ends.
    pub const ALL: [Self; 5] = [Self::Succeeded, Self::Failed, Self::CutShort, Self::GivenUp, Self::Stray];

    /// Returns its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Ok",
            Self::Failed => "Failed",
            Self::CutShort => "CutShort",
            Self::GivenUp => "GivenUp",
            Self::Stray => "Stray",
        }
    }
}

impl From<&Result<DelOutcome, Failure>> for End {
    fn from(result: &Result<DelOutcome, Failure>) -> Self {
        match result {
            Ok(DelOutcome::Clean) => Self::Succeeded,
            Ok(DelOutcome::GivenUp(_)) => Self::GivenUp,
            Ok(DelOutcome::Stray(_)) => Self::Stray,
            Err(_) => Self::Failed,
        }
    }
}

/// Creates and removes interfaces.
pub trait Attach: Send + Sync + 'static {
    /// Checks whether an [`add`](Self::add) can begin. If not, it must not: nothing is owed then.
    fn can_begin(
        &self,
        _spec: &Spec,
        _sandbox: &Sandbox,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        std::future::ready(Ok(()))
    }

    /// Returns why no [`add`](Self::add) of this configuration should begin now, by what is known without a
    /// look.
    ///
    /// # Errors
    /// What its plugins have said.
    fn may_begin(&self, _spec: &Spec) -> Result<(), Failure> {
        Ok(())
    }

    /// Makes the sandbox ready for the [`add`](Self::add) that follows. If that fails, it must not, and
    /// nothing is owed.
    fn make_ready(
        &self,
        _spec: &Spec,
        _sandbox: &Sandbox,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether the sandbox has no link of this name for certain.
    fn lacks_link(&self, _sandbox: &Netns, _name: &str) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// Returns the host link that [`add`](Self::add) will move into the pod, as it is now; `None` when it
    /// moves none, or when the link does not exist.
    fn link_to_move(&self, spec: &Spec) -> impl Future<Output = Result<Option<HostLink>, Failure>> + Send;

    /// Returns the index of the host link that an [`add`](Self::add) makes its interface on, as it is now;
    /// `None` when there is none, or when it is unknown.
    fn host_link(&self, _spec: &Spec) -> Option<u32> {
        None
    }

    /// Returns the index in the pod of the link that an [`add`](Self::add) has moved; `None` if it is
    /// unknown.
    fn index_in_pod(&self, spec: &Spec, sandbox: &Sandbox) -> impl Future<Output = Option<u32>> + Send;

    /// Runs ADD and returns the CNI result. Dropping the future ends the plugins; a DEL follows.
    fn add(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
    ) -> impl Future<Output = Result<CniResult, AddFailure>> + Send;

    /// Finds out whether what an [`add`](Self::add) has made can be used on its network, if that
    /// [needs a proof](Wire::needs_proof). What has been made for the pod is proven together. Dropping the
    /// future ends that.
    ///
    /// # Errors
    /// Why it must not be used. It counts as a failed ADD: a DEL follows.
    fn prove(
        &self,
        _spec: &Spec,
        _sandbox: &Sandbox,
        _made: &CniResult,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        std::future::ready(Ok(()))
    }

    /// Checks whether a [`finalize`](Self::finalize) can begin. If not, it must not: nothing is owed then.
    fn can_finalize(&self, _spec: &Spec) -> impl Future<Output = Result<(), Failure>> + Send {
        std::future::ready(Ok(()))
    }

    /// Runs ADD of a [finalizer](Plan::finalizes). Its plugins get `prev`, which the attachments of the pod
    /// have made, as their `prevResult`.
    fn finalize(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        prev: &CniResult,
    ) -> impl Future<Output = Result<CniResult, AddFailure>> + Send;

    /// Runs DEL after an ADD that succeeded, failed or was ended. Afterwards the moved link is on the host as
    /// it was, unless it is gone or a [stray](DelOutcome::Stray).
    fn del(&self, spec: &Spec, del: Del<'_>) -> impl Future<Output = Result<DelOutcome, Failure>> + Send;

    /// Restores a stray link.
    fn give_back(
        &self,
        spec: &Spec,
        link: &HostLink,
    ) -> impl Future<Output = Result<DelOutcome, Failure>> + Send;

    /// Runs CHECK. Dropping the future ends the plugins.
    fn check(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        result: &CniResult,
    ) -> impl Future<Output = Checked> + Send;

    /// Whether all that CHECK would look at is as the ADD with `result` has made it, by a look that is
    /// cheaper than CHECK. False where it would look at more, or something is unknown.
    fn is_as_made(
        &self,
        _spec: &Spec,
        _sandbox: &Sandbox,
        _result: &CniResult,
    ) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// Returns the networks that have something on disk beside the journal, by name.
    fn networks_on_disk(&self) -> impl Future<Output = BTreeMap<ListName, Spec>> + Send {
        std::future::ready(BTreeMap::new())
    }

    /// Removes the leftovers of attachments that are not `valid` from the network of `spec`, and returns
    /// their number. `valid` returns sandbox ids with interface names; it is called while no other operation
    /// runs on the network.
    fn collect(
        &self,
        spec: &Spec,
        valid: impl Fn() -> Vec<(ContainerId, IfName)> + Send,
    ) -> impl Future<Output = Result<usize, Failure>> + Send;
}

/// The result of a CHECK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// The attachment is as it should be.
    Fine,
    /// It is not, as a plugin reported.
    Failed(Finding),
    /// Unknown, for this reason: the CNI version has no CHECK, CHECK is disabled, or a plugin could not be
    /// run.
    Unknown(String),
}

/// A plan that takes the place of another one of the same key.
pub struct Revised<O> {
    /// The plan.
    pub plan: Plan<O>,
    /// Dropped when the plan is journalled and shown to others: what it was made from must not change before.
    pub turn: Box<dyn std::any::Any + Send>,
}

/// Observes pods. It is called after every change, before the change is visible elsewhere. It delays the pod,
/// so it must not wait for anything slow.
pub trait Observer: Send + Sync + 'static {
    /// For whom attachments are made.
    type Owner: Owner;

    /// Notes that `pod_uid` is now in `state`.
    ///
    /// # Errors
    /// Why containers of the pod must not start, whatever is attached. The call is repeated after a second.
    fn observe(
        &self,
        pod_uid: &str,
        state: &PodState<Self::Owner>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Returns the plan by which to attach, where that is another one than the record has. It is called
    /// before each ADD, when nothing is owed, and while the pod's task takes commands: it may wait, and is
    /// dropped when the ADD is no longer wanted.
    ///
    /// # Errors
    /// Why the plan cannot be carried out now. It counts as a failed ADD, and is retried.
    fn revise(
        &self,
        _record: &Record<Self::Owner>,
    ) -> impl Future<Output = Result<Option<Revised<Self::Owner>>, Failure>> + Send {
        std::future::ready(Ok(None))
    }

    /// Whether what breaks of the plan's network is made again. For such an attachment the journal notes that
    /// a CHECK has succeeded.
    fn is_repaired(&self, _plan: &Plan<Self::Owner>) -> bool {
        false
    }

    /// Notes that something of `plan` may be left on the node, for this reason. It is reported once.
    fn given_up(&self, plan: &Plan<Self::Owner>, why: &str);

    /// Returns the span in which an operation on `plan` begins, for traces. The log has spans of its own.
    fn trace(&self, _plan: &Plan<Self::Owner>, _operation: Operation, _sandbox_id: &str) -> Traced {
        Traced::default()
    }

    /// Notes that an operation on `plan` has ended after this time, and why it failed.
    fn ended(
        &self,
        _plan: &Plan<Self::Owner>,
        _operation: Operation,
        _end: End,
        _failure: Option<&Failure>,
        _took: Duration,
    ) {
    }
}

/// The span of an operation in a trace; by default none.
#[derive(Debug, Clone)]
pub struct Traced {
    /// The span. It needs the fields of [`netclaim_cni::spans::failed`].
    pub span: tracing::Span,
    /// The id of its trace, for the log.
    pub trace_id: Option<String>,
}

impl Default for Traced {
    fn default() -> Self {
        Self { span: tracing::Span::none(), trace_id: None }
    }
}

impl Traced {
    fn failed(&self, failure: &dyn std::fmt::Display) {
        netclaim_cni::spans::failed(&self.span, failure);
    }
}

/// Returns the id of the running boot. It tells sandboxes of earlier boots from those of this one.
///
/// # Errors
/// When `/proc` is not there.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
