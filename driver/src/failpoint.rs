//! Places at which tests end the process, to see what the next one makes of what is left.
//!
//! They exist in builds with the feature `failpoints` only. A file in `$NETCLAIM_FAILPOINTS` that is called
//! like a place arms it, once: who reaches the place removes the file and is gone by SIGKILL.

/// A place between two things that a crash must not part. In the order of an attachment's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failpoint {
    /// The agent has taken over what an earlier one left, and has done nothing yet.
    TakenOver,
    /// NodePrepareResources was called.
    PrepareAsked,
    /// The plan is in the temporary file of the journal, and not under its name.
    PlanHalfWritten,
    /// Every plan of the claim is in the journal, and the kubelet has no answer.
    Planned,
    /// The runtime has reported the sandbox.
    SandboxSeen,
    /// The journal says that an ADD may have started; it has not.
    AddDue,
    /// The ADD has succeeded, and the journal does not say so.
    Added,
    /// The journal says that the ADD has succeeded; nothing has been reported.
    AddNoted,
    /// The marker is there, and no CDI spec lets a container in yet.
    MarkerSet,
    /// The runtime asks about a container.
    ContainerSeen,
    /// The claim's status is to be written.
    StatusDue,
    /// The runtime stops the sandbox.
    SandboxStopped,
    /// The journal says that a DEL may have started; it has not.
    DelDue,
    /// The DEL has succeeded, and the journal does not say so.
    Deleted,
    /// NodeUnprepareResources was called.
    UnprepareAsked,
    /// The journal has forgotten the attachment, and the kubelet has no answer.
    Forgotten,
}

impl Failpoint {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::TakenOver,
        Self::PrepareAsked,
        Self::PlanHalfWritten,
        Self::Planned,
        Self::SandboxSeen,
        Self::AddDue,
        Self::Added,
        Self::AddNoted,
        Self::MarkerSet,
        Self::ContainerSeen,
        Self::StatusDue,
        Self::SandboxStopped,
        Self::DelDue,
        Self::Deleted,
        Self::UnprepareAsked,
        Self::Forgotten,
    ];

    /// The name of the file that arms it.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Ends the process if the place is armed.
    #[cfg(feature = "failpoints")]
    pub fn reach(self) {
        let Some(dir) = std::env::var_os("NETCLAIM_FAILPOINTS") else { return };
        if std::fs::remove_file(std::path::Path::new(&dir).join(self.name())).is_ok() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
        }
    }

    /// Nothing: this build has no fail points.
    #[cfg(not(feature = "failpoints"))]
    pub fn reach(self) {}
}
