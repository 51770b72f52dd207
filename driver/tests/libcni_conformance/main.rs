//! The same networks on libcni and on this runtime, and the reference plugins as the [`agent`] runs them:
//! what the plugins get, what the caller gets, and what is left on the host must be equal. Where it is not,
//! [`differences`] has a row that says where and why; a difference without a row fails, and so does a row
//! that no case shows.
//!
//! libcni runs in a Go program, `tests/libcni`, at a pinned version. Plugins are its [`recorder`](sides),
//! which answers what a case says or runs the real plugin, and notes what it gets.
//!
//! Needs Go, or `NETCLAIM_LIBCNI`, the directory of the built programs; the reference plugins need root and
//! `NETCLAIM_CNI_BIN`, their directory too. What the kernel lacks is skipped, visibly:
//! `NETCLAIM_CNI_BIN=/opt/cni/bin cargo test -p netclaim-driver --test libcni_conformance -- --ignored`

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent;
mod cache;
mod compare;
mod differences;
mod documents;
mod faulty;
mod generated;
mod hosts;
mod random;
mod reference;
mod results;
mod sides;
mod table;
mod test_plugins;
mod tools;
