//! The gate: no container starts before its pod's networks are there, with the agent alive or dead.
//!
//! ```text
//!   Prepare            returns the CDI device DRIVER/claim=UID, of which no spec exists: the runtime refuses
//!   sandbox in hand    cdi.rs writes a spec that the runtime refuses, with words; when it is known that the pod's
//!                      containers may be started again, and it takes long: a createRuntime hook that waits
//!   all attached       markers.rs notes the sandbox, and the spec has the hook, which leaves at once, also when the
//!                      agent is dead
//!   sandbox gone       spec and marker are withdrawn
//! ```
//!
//! The hook asks here (socket.rs) while it waits.

pub mod cdi;
pub mod keeper;
pub mod markers;
pub mod metadata;
pub mod metadata_files;
pub mod socket;
