//! Fuzz targets: everything that tenants, plugins, other programs' files, the container runtime's socket and
//! the network make a node parse.
//!
//! A target takes any bytes and panics when something does not hold that the parsed module promises: not only
//! that it survives, but that what it accepts reads back the same, and what it hands on is what it was given.
//! Targets are plain functions, pure but for their panic, so that the ordinary tests run each over its corpus
//! (`corpus/TARGET`, and seeded mutations of it), and the binary of this crate, which is not part of the
//! ordinary build, under libFuzzer: `make fuzz`.
//!
//! A find becomes a file of the corpus, under a name that tells what was wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a target speaks")]

mod cache;
mod config;
mod frames;
mod host_local;
mod journal;
mod nri;
mod opaque;
mod reply;
mod result;

/// What a target is called, and what it does with any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Every target; its corpus is the directory of its name.
pub const TARGETS: [Target; 9] = [
    ("cache", cache::cache),
    ("config", config::config),
    ("frames", frames::frames),
    ("host_local", host_local::host_local),
    ("journal", journal::journal),
    ("nri", nri::nri),
    ("opaque", opaque::opaque),
    ("reply", reply::reply),
    ("result", result::result),
];

/// The target of that name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.into_iter().find(|(known, _)| *known == name).map(|(_, target)| target)
}
