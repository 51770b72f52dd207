//! `netclaimctl cni` beside cnitool, and its loader beside libcni's: the same networks, environment and
//! command lines. The differences are rows of the table that the runtime's own comparison has.
//!
//! Needs Go, or `NETCLAIM_LIBCNI`, the directory of the built programs; cnitool needs root, and the reference
//! plugins `NETCLAIM_CNI_BIN`.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cnitool;
#[path = "../../../driver/tests/libcni_conformance/compare.rs"]
mod compare;
#[path = "../../../driver/tests/libcni_conformance/differences.rs"]
#[allow(dead_code)]
mod differences;
#[path = "../../../driver/tests/libcni_conformance/hosts.rs"]
#[allow(dead_code)]
mod hosts;
mod loading;
#[path = "../../../driver/tests/libcni_conformance/tools.rs"]
mod tools;
