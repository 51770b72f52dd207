//! What any long-running program needs: arguments, metrics, sockets, memory.

pub mod args;
pub mod files;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod mounts;
pub mod sockets;
