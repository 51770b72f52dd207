//! What the runtime needs to know of IPAM plugins beyond calling them.

pub mod host_local;
