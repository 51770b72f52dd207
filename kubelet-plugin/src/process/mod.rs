//! What a long-running program needs: arguments, programs, metrics, memory.

pub mod args;
pub mod files;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod mounts;
pub mod parts;
pub mod programs;
