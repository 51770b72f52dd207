//! What a long-running program needs: arguments, programs, metrics, memory.

pub(crate) mod args;
pub(crate) mod files;
pub(crate) mod http;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod mounts;
pub(crate) mod parts;
pub(crate) mod programs;
