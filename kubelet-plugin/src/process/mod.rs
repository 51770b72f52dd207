//! What any long-running program needs: arguments, metrics, sockets, signals, memory.

pub mod args;
pub mod files;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod mounts;
pub mod parts;
pub mod programs;
pub mod readiness;
pub mod sockets;
pub mod turn;
