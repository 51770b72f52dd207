//! IPAM plugins: the addresses that they can hand out and have handed out.

pub mod host_local;
