//! How fast pods start: netclaim's beside plain pods, and beside those of Multus and DRANET, on one real
//! node.
//!
//! Pods are created and watched by this program, and timed from the request that creates them to the phase
//! `Running`. The kubelet has its default sync period. Numbers go to `target/starts/TIME-*` and
//! `target/peers/TIME-*` as `samples.csv`, the tables of docs/benchmarks.md as `table.md`, the picture as
//! `starts.svg`.
//!
//! | module | what it has | run by |
//! |---|---|---|
//! | [`own`] | netclaim beside plain pods, with and without netclaim on the node; slow plugins, and an agent that is away | `make bench-starts` |
//! | [`peers`] | plain pods, Multus, DRANET and netclaim in turns | `make bench-peers` |
//! | [`contestants`], [`multus`], [`dranet`], [`daemon`] | who takes part | |
//! | [`measure`] | what is measured of each | |
//! | [`pods`], [`timeline`] | when a pod starts, and where the time goes | |
//! | [`faults`] | what becomes of pods when something dies, stops or restarts | `make bench-peers` |
//! | [`moving`], [`whereabouts`] | workloads move from Multus to netclaim, with both on one node | `make test-multus` |
//! | [`hook`] | the hook by itself | `make bench-node` |
//! | [`large`] | a node with many attachments, and an idle one | `make bench-node` |
//! | [`node_network`] | pods of a network that nodes set up | `make bench-node` |
//! | [`slow_disk`] | pods on a node whose disk takes 10 ms for each flush | `make bench-node` |
//! | [`versions`] | an earlier version and this one in turns | `make bench-ab` |
//! | [`samples`], [`interval`], [`goals`], [`picture`] | numbers, tables and the picture | |

use std::process::ExitCode;

use netclaim_tests::{scenarios, suite};

mod contestants;
mod daemon;
mod dranet;
mod faults;
mod goals;
mod hook;
mod interval;
mod large;
mod measure;
mod moving;
mod multus;
mod node_network;
mod nri;
mod own;
mod peers;
mod picture;
mod pods;
mod samples;
mod slow_disk;
mod timeline;
mod versions;
mod whereabouts;

use hook::*;
use large::*;
use moving::*;
use node_network::*;
use own::*;
use peers::*;
use slow_disk::*;
use versions::*;

fn main() -> ExitCode {
    suite::run(scenarios![
        alone:
            pods_with_a_claim_start_beside_plain_pods,
            plain_pods_start_beside_a_slow_add,
            pods_that_never_restart_wait_for_a_slow_add,
            pods_start_when_the_agent_is_back,
            the_hook_of_an_attached_pod_takes_little,
            a_pod_costs_as_much_on_a_full_node_as_on_an_empty_one,
            a_network_of_the_node_costs_its_pods_a_chain_once,
            pods_start_on_a_slow_disk,
            an_idle_node_uses_little_cpu,
            an_earlier_version_and_this_one_start_pods_in_turns,
            the_peers_start_pods_in_turns,
            the_peers_come_back_after_a_pod_was_created,
            the_peers_survive_faults,
            a_deployment_moves_from_multus_to_netclaim_and_back,
            deployments_with_addresses_of_whereabouts_move_from_multus_to_netclaim;
    ])
}
