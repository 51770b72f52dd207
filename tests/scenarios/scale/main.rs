//! Many nodes and many devices: the cost and the latency of publishing, and the rate at which pods with
//! claims are scheduled.
//!
//! Tables go to standard error, raw numbers to `target/scale/TIME-*/*.csv`; docs/benchmarks.md has the
//! results.
//!
//! | module | what it measures | run by |
//! |---|---|---|
//! | [`latency`] | one real node with an agent: change of a link -> slice, deleted slices, memory | `make bench` |
//! | [`simulated`] | thousands of nodes that are only objects, published by the agents' code | `make test-scale` |
//! | [`flapping`] | a link of one of them that flaps: writes of status, events, the controller's CPU | `make test-scale` |
//! | [`explaining`] | pods that no node can serve: events with the cause, the controller's CPU and memory | `make test-scale` |
//! | [`admission`] | writes with and without the webhook and the policies: time, CPU | `make test-scale` |
//! | [`users`] | the scheduler on nodes as users have them | `make test-scale` |
//! | [`addresses`] | blocks of addresses on such nodes, and whereabouts' way of working beside it | `make test-scale` |
//! | [`blocks`] | blocks of 50 ClaimNetworks on such nodes, each with a watch of its own | `make test-scale` |
//! | [`jobs`], [`kubelets`] | the scale test of DRA that Kubernetes itself runs: Jobs fill the nodes, and come and go | `make test-scale` |
//! | [`load`] | pods of Deployments with exactly as many addresses, created, restarted and deleted | `make test-scale` |
//! | [`leased`] | what an agent does about blocks | |
//! | [`agents`], [`workload`] | agents and their pods in simulated time | |
//! | [`live_agents`] | agents in real time, for the pods of kubelets | |
//! | [`whereabouts`] | a model of whereabouts' requests | |
//! | [`fleet`], [`networks`] | what such a node publishes, and the ClaimNetworks of it | |
//! | [`scheduling`] | pods, claims and the scheduler | |
//! | [`writes`], [`webhook`] | what `admission` writes, and the webhook that its API server asks | |
//! | [`cluster`], [`control_plane`] | the API server and the controller that these nodes share; scheduler and controller manager | |

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use netclaim_tests::{scenarios, suite};

mod addresses;
mod admission;
mod agents;
mod blocks;
mod cluster;
mod control_plane;
mod explaining;
mod flapping;
mod fleet;
mod jobs;
mod kubelets;
mod latency;
mod leased;
mod live_agents;
mod load;
mod networks;
mod report;
mod scheduling;
mod simulated;
mod users;
mod webhook;
mod whereabouts;
mod workload;
mod writes;

use latency::*;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    let trial = |name: &str, body: fn() -> anyhow::Result<()>| {
        Trial::test(name, move || body().map_err(|error| format!("{error:#}").into()))
    };
    let simulated = vec![
        trial(
            "simulated::nodes_are_published_counted_and_scheduled",
            simulated::nodes_are_published_counted_and_scheduled,
        ),
        trial("simulated::a_flapping_link_is_written_rarely", flapping::a_flapping_link_is_written_rarely),
        trial(
            "simulated::networks_are_scheduled_beside_many_claims",
            users::networks_are_scheduled_beside_many_claims,
        ),
        trial(
            "simulated::a_cluster_wide_network_is_scheduled_beside_its_claims",
            users::a_cluster_wide_network_is_scheduled_beside_its_claims,
        ),
        trial("simulated::pods_that_wait_get_their_cause", explaining::pods_that_wait_get_their_cause),
        trial("simulated::the_webhook_costs_a_write_little", admission::the_webhook_costs_a_write_little),
        trial("simulated::exclusive_devices_are_scheduled", users::exclusive_devices_are_scheduled),
        trial("simulated::jobs_fill_the_nodes_and_churn", jobs::jobs_fill_the_nodes_and_churn),
        trial(
            "simulated::jobs_of_exclusive_devices_fill_the_nodes_and_churn",
            jobs::jobs_of_exclusive_devices_fill_the_nodes_and_churn,
        ),
        trial("addresses::blocks_are_leased_ahead_of_pods", addresses::blocks_are_leased_ahead_of_pods),
        trial(
            "addresses::many_networks_have_blocks_on_each_node",
            blocks::many_networks_have_blocks_on_each_node,
        ),
        trial(
            "addresses::as_many_pods_as_addresses_are_created_restarted_and_deleted",
            load::as_many_pods_as_addresses_are_created_restarted_and_deleted,
        ),
    ];
    // A filter selects some of all.
    let only_simulated = args.filter.is_some() && simulated.iter().any(|trial| !args.is_filtered_out(trial));
    // Each is alone on the machine.
    args.test_threads = Some(1);
    let simulated = libtest_mimic::run(&args, simulated);
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
