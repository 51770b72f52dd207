//! Many nodes and many devices: the cost and the latency of publishing, and the rate at which pods with claims are scheduled.
//!
//! Tables go to standard error, raw numbers to `target/scale/TIME-*/*.csv`; docs/benchmarks.md has the results.
//!
//! | module | what it measures | run by |
//! |---|---|---|
//! | [`latency`] | one real node with an agent: change of a link -> slice, deleted slices, memory | `make bench` |
//! | [`simulated`] | thousands of nodes that are only objects, published by the agents' code | `make test-scale` |
//! | [`fleet`] | what such a node publishes | |
//! | [`cluster`] | the API server and the controller that these nodes share | |

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use netclaim_tests::{scenarios, suite};

mod cluster;
mod fleet;
mod latency;
mod report;
mod simulated;

use latency::*;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let name = "simulated::nodes_are_published_counted_and_scheduled";
    let body = || {
        simulated::nodes_are_published_counted_and_scheduled().map_err(|error| format!("{error:#}").into())
    };
    let simulated = Trial::test(name, body);
    // A filter selects one of the two.
    let only_simulated = args.filter.is_some() && !args.is_filtered_out(&simulated);
    let simulated = libtest_mimic::run(&args, vec![simulated]);
    if only_simulated {
        return simulated.exit_code();
    }
    let latency = suite::run(scenarios![
        alone:
            a_change_of_a_link_is_soon_in_its_slice,
            deleted_slices_are_soon_back,
            a_block_is_soon_in_the_capacity_of_its_device,
            hundreds_of_links_cost_the_agent_little_memory;
    ]);
    if simulated.has_failed() { simulated.exit_code() } else { latency }
}
