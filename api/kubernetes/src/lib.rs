//! Small things that Kubernetes defines and that each program for it needs, without a Kubernetes client:
//!
//! ```text
//!   "1.5Gi"     ──> quantity ──> billionths of one, to compare and to add
//!   "web-0.net" ──> names    ──> whether an object, a node or a device can have this name
//!   "rack=a"    ──> labels   ──> whether it can be a label, and what a requirement selects
//! ```
//!
//! * [`quantity`] reads amounts as `resource.ParseQuantity` does.
//! * [`names`] has the syntax of names (RFC 1123).
//! * [`labels`] has the syntax of labels, and what a requirement of a node selector means.
//!
//! Invariants:
//! * Nothing here does IO, and no text makes a function panic.
//! * A function agrees with apimachinery. Where it does not, its description says so.
//! * Nothing here knows netclaim.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod labels;
pub mod names;
pub mod quantity;
