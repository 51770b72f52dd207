//! Tests of netclaim on a real cluster: everything that the scenarios in `tests/scenarios` share.
//!
//! ```text
//! suite: one Cluster ──> for each scenario a Test (a namespace of its own) ──> afterwards the node must be clean
//! ```
//!
//! * Nothing here asks netclaim what it did: interfaces are looked at inside of the pods' network namespaces, and
//!   what is left behind is looked for on the node.
//! * A scenario also fails when anything of netclaim died or had a bug meanwhile that the scenario did not ask for.
//! * Whatever is waited for has a deadline and a sentence that says what it was.

mod cluster;
mod command;
mod deaths;
mod node;
pub mod objects;
mod plugged;
mod process;
mod raw;
mod requests;
mod runtime;
pub mod suite;
mod test;
mod usage;
mod wait;
mod watch;

pub use netclaim_driver::failpoint::Failpoint;

pub use cluster::{AGENT, AGENT_PODS, Cluster, SYSTEM};
pub use node::{Interface, Node, Task};
pub use plugged::{Plugged, PluggedMany};
pub use process::{Process, processes};
pub use raw::{RawNumbers, percentile};
pub use requests::Requests;
pub use runtime::Runtime;
pub use test::Test;
pub use usage::Usage;
pub use wait::{eventually, holds, long};
pub use watch::{PodWatch, SliceEvent, SliceWatch};
