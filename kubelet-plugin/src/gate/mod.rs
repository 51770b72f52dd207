//! The gate: no container starts before its pod's networks are there, with the agent alive or dead.
//!
//! ```text
//!   Prepare            returns the CDI device DRIVER/claim=UID, of which no spec exists: the runtime refuses
//!   sandbox in hand    cdi.rs writes the spec: a createRuntime hook that waits
//!   all attached       markers.rs notes the sandbox: the hook leaves at once, also when the agent is dead
//!   sandbox gone       spec and marker are withdrawn
//! ```
//!
//! The hook asks here (server.rs) while it waits.

pub mod cdi;
pub mod keeper;
pub mod markers;
pub mod server;
