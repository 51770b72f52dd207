//! Tests of netclaim on a real cluster: the library that the scenarios in `tests/scenarios` share.
//!
//! ```text
//! suite: one Cluster ──> for each scenario a Test (its own namespace) ──> afterwards the nodes must be clean
//! ```
//!
//! * Nothing here trusts what netclaim reports: interfaces are read in the pods' network namespaces, and
//!   leftovers are looked for on the node.
//! * A scenario also fails if a netclaim program died or logged a bug that the scenario did not cause.
//! * Every wait has a deadline and a sentence that says what it waits for.
//! * An error fails the scenario. What a function promises and does not find is an error, with what it found
//!   instead.

mod agent;
mod api;
mod audit;
mod cluster;
mod command;
mod deaths;
mod earlier;
pub mod helm;
mod http;
mod install;
mod leftovers;
mod netclaimctl;
mod node;
pub mod objects;
mod optional;
mod plugged;
mod pods;
mod pools;
mod process;
pub mod programs;
mod quiet;
mod raw;
mod release;
mod runtime;
mod services;
pub mod suite;
mod test;
mod usage;
mod wait;
mod watch;

pub use netclaim_driver::failpoint::Failpoint;

pub use agent::{AGENT, AGENT_PODS, AGENT_USER, CONTROLLER};
pub use audit::{Access, AuditLog, time_of_day};
pub use cluster::{Cluster, SYSTEM, project};
pub use command::{output, output_of};
pub use earlier::Earlier;
pub use install::{FOR_IPV6, as_released};
pub use node::{Interface, Node, Task, names};
pub use plugged::{Plugged, PluggedMany, Switch};
pub use process::{Process, Running, is_alive, processes, signal};
pub use raw::{RawNumbers, percentile, setting};
pub use release::Release;
pub use runtime::Runtime;
pub use test::Test;
pub use usage::{CpuGroup, Usage};
pub use wait::{eventually, holds, long};
pub use watch::{PodWatch, SliceEvent, SliceWatch};
