//! What a long-running program needs: arguments, programs, metrics, sockets, memory.

pub mod args;
pub mod files;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod mounts;
pub mod parts;
pub mod programs;
pub mod sockets;
