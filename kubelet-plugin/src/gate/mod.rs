//! The gate: no container that names a claim starts before its pod's networks are attached, with the agent
//! alive or dead. Other containers of the pod are held while the parent is connected to the runtime.
//!
//! ```text
//!   Prepare            returns the CDI device DRIVER/claim=UID, which has no spec: the runtime refuses
//!   sandbox is up      when attaching takes long, cdi.rs writes a spec: with a createRuntime hook that waits, if the pod's
//!                      containers may be started again, else one that the runtime refuses, with a reason
//!   all attached       markers.rs marks the sandbox; the spec has the hook, which returns at once, also when the agent
//!                      is dead
//!   sandbox gone       the agent removes spec and marker
//! ```
//!
//! A waiting hook asks the agent over socket.rs. keeper.rs keeps the files in step with the attachments.

pub(crate) mod cdi;
pub(crate) mod keeper;
pub(crate) mod markers;
pub(crate) mod metadata;
pub(crate) mod metadata_files;
pub(crate) mod metrics;
pub(crate) mod socket;
