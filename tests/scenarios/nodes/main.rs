//! netclaim on a real cluster of several nodes: what one node cannot show.
//!
//! Three nodes (`$NETCLAIM_NODES`: 3 to 8) are on one network segment by `eth1`; `node0` and `node1` are on
//! another by `eth2`. `$NETCLAIM_TEST_NODES_CLUSTER` is the folder of a cluster that keeps running.

use std::process::ExitCode;

use netclaim_tests::suite::Lane;
use netclaim_tests::{scenarios, suite};

mod addresses;
mod claims;
mod controller;
mod disasters;
mod documented;
mod explaining;
mod load;
mod lost_nodes;
mod page;
mod pinging;
mod placement;
mod segments;
mod views;
mod whereabouts;

use addresses::*;
use claims::*;
use controller::*;
use disasters::*;
use documented::*;
use explaining::*;
use load::*;
use lost_nodes::*;
use pinging::*;
use placement::*;
use segments::*;
use views::*;
use whereabouts::*;

fn main() -> ExitCode {
    let nodes = std::env::var("NETCLAIM_NODES").ok().and_then(|nodes| nodes.parse().ok()).unwrap_or(3);
    let lane = Lane { name: "nodes", nodes, cluster: "NETCLAIM_TEST_NODES_CLUSTER" };
    suite::run_on(
        &lane,
        scenarios![
            beside:
                pods_run_only_on_nodes_with_the_networks_uplink,
                pods_of_a_cluster_wide_network_run_only_on_nodes_that_serve_it,
                networks_and_policies_apply_to_the_nodes_that_their_selectors_select,
                a_node_selector_that_is_empty_or_misspelt_is_refused,
                the_last_free_interface_goes_to_one_pod,
                a_pod_goes_to_a_node_with_enough_bandwidth,
                pods_with_claims_are_spread_over_the_nodes,
                pods_with_claims_avoid_each_other,
                a_pod_that_no_node_can_serve_is_told_once_why,
                a_pod_whose_selector_has_no_value_is_told_why,
                devices_that_an_admin_takes_out_of_service_are_said_to_be_so,
                a_claim_of_another_node_is_refused,
                a_named_claim_moves_to_another_node_with_its_pod,
                a_cluster_wide_network_counts_its_interfaces_over_all_nodes,
                pods_on_different_nodes_reach_each_other,
                a_bridge_that_nodes_make_connects_their_pods_and_goes_after_the_last,
                a_vlan_and_a_bridge_that_nodes_make_connect_their_pods_and_go_after_the_last,
                macvlan_across_nodes_works_as_its_page_shows,
                workloads_get_networks_as_their_page_shows,
                pods_keep_their_addresses_as_the_page_about_them_shows,
                addresses_for_the_whole_cluster_work_as_their_page_shows,
                bandwidth_is_granted_and_kept_as_its_page_shows,
                claims_set_parameters_as_their_page_shows,
                a_pod_starts_soon_that_needs_more_addresses_than_its_node_has_left,
                a_pod_that_needs_more_addresses_than_there_are_is_told_so,
                a_pod_waits_until_an_address_is_free_on_any_node,
                an_idle_block_goes_to_the_node_of_a_pod_that_waits,
                idle_blocks_go_to_the_one_node_on_which_pods_wait,
                two_networks_draw_from_one_pool,
                a_claim_keeps_the_address_that_it_asked_for_on_every_node,
                a_pod_with_a_reserved_address_starts_and_starts_again_in_a_full_range,
                a_network_whose_addresses_are_all_reserved_serves_claims_that_ask,
                no_pod_gets_an_address_that_another_one_has_from_an_ipam_of_before,
                an_address_that_another_claim_has_is_refused_with_its_name,
                a_lease_that_an_admin_deletes_stays_until_its_pod_has_ended,
                a_stolen_token_of_an_agent_takes_no_address_from_other_nodes,
                a_mac_address_that_another_claim_has_is_refused_with_its_name,
                replicas_of_a_stateful_set_keep_their_addresses,
                a_range_that_pods_use_is_given_up_when_they_have_ended,
                a_range_that_moves_to_another_network_is_in_no_two_pods,
                a_block_that_an_admin_deletes_goes_when_its_last_pod_has_ended,
                a_changed_name_of_the_cni_network_gives_no_address_twice,
                a_pod_keeps_its_address_in_a_new_sandbox_unless_that_is_excluded,
                a_network_with_the_same_range_on_each_node_gets_a_warning,
                pods_of_whereabouts_keep_their_addresses_when_its_pool_is_taken_over,
                what_a_switch_does_not_pass_is_found_before_the_first_pod,
                what_a_network_does_not_pass_between_pods_is_found;
            alone:
                pods_get_a_network_without_asking_as_the_page_about_it_shows,
                a_claimed_network_is_the_pods_eth0_as_its_page_shows,
                questions_are_answered_as_their_page_says,
                links_are_described_and_given_away_whole_as_their_pages_show,
                pods_that_start_at_once_on_three_nodes_have_different_addresses_and_reach_each_other,
                an_empty_block_is_given_back_after_the_idle_time_and_another_node_gets_it,
                pods_start_without_the_controller_while_blocks_last,
                a_controller_that_dies_while_it_leases_hands_out_nothing_twice,
                a_leader_with_an_old_view_gives_no_address_twice,
                changes_without_a_controller_give_no_address_twice,
                agents_and_a_controller_that_die_between_two_writes_leave_nothing,
                a_node_that_offers_nothing_has_no_slice,
                a_range_is_used_up_to_its_last_address_and_no_pod_waits_on_a_node,
                as_many_pods_as_addresses_are_created_restarted_and_deleted,
                addresses_stay_unique_while_the_api_server_is_away,
                addresses_of_a_deleted_node_return_after_the_safety_time,
                pods_of_a_drained_node_start_on_other_nodes,
                slices_return_after_a_node_has_registered_again,
                claims_of_a_lost_node_serve_pods_on_other_nodes,
                the_next_controller_reports_the_status_of_networks,
                a_controller_makes_its_lease_again_when_it_was_deleted,
                a_second_controller_takes_over_from_a_leader_that_hangs,
                labels_of_a_cluster_wide_network_go_soon_after_the_agent,
                pods_start_on_all_nodes_during_an_update,
                pods_on_all_nodes_outlive_the_api_server,
                a_restored_etcd_gives_no_address_to_two_pods,
                an_etcd_restored_with_bumped_revisions_gives_no_address_to_two_pods,
                addresses_of_pods_stay_taken_when_the_state_directory_is_lost,
                a_pod_of_a_damaged_journal_file_keeps_its_address_until_it_is_gone,
                nodes_that_are_set_up_again_and_a_cloned_cluster_give_no_address_twice,
                a_node_object_that_was_deleted_by_mistake_costs_no_address,
                a_node_that_is_cut_off_and_deleted_hands_out_no_address,
                a_renamed_node_gives_no_address_to_two_pods;
        ],
    )
}
