//! netclaim on a real node: API server, scheduler, kubelet and container runtime are the real ones, the agent is installed
//! from `deploy/` and runs under its own service account.
//!
//! All: `make test`. One, on a cluster that goes on running for the next one:
//! `NETCLAIM_TEST_CLUSTER=/var/tmp/my-cluster cargo test -p netclaim-tests -- two_pods`.

use std::process::ExitCode;

use netclaim_tests::{scenarios, suite};

mod agent_faults;
mod attaching;
mod availability;
mod bandwidth;
mod churn;
mod controller_faults;
mod crash_faults;
mod devices;
mod host_links;
mod metadata;
mod node_faults;
mod plugin_faults;
mod publishing;
mod reboot_faults;
mod refusals;
mod rights;
mod scheduling;
mod sweep;
mod updates;

use agent_faults::*;
use attaching::*;
use availability::*;
use bandwidth::*;
use churn::*;
use controller_faults::*;
use crash_faults::*;
use devices::*;
use host_links::*;
use metadata::*;
use node_faults::*;
use plugin_faults::*;
use publishing::*;
use reboot_faults::*;
use refusals::*;
use rights::*;
use scheduling::*;
use sweep::*;
use updates::*;

fn main() -> ExitCode {
    suite::run(scenarios![
        beside:
            two_pods_of_a_template_get_an_interface_each_and_reach_one_another,
            a_claim_tells_what_is_in_the_pod,
            a_claim_goes_to_the_pod_that_replaces_one_deleted_by_force,
            a_container_reads_at_once_what_it_was_given,
            a_container_that_waits_in_its_hook_reads_what_came_of_it,
            a_pod_with_two_claims_has_two_interfaces,
            a_claim_with_two_requests_gives_two_interfaces,
            two_pods_share_an_uplink_through_two_networks,
            a_chain_of_plugins_sets_sysctls_of_the_pod,
            a_container_begins_when_the_last_plugin_of_the_last_chain_has_ended,
            a_pod_with_users_of_its_own_gets_its_network,
            a_class_gives_defaults_that_a_claim_may_change,
            a_whole_nic_and_macvlan_on_it_wait_for_each_other,
            macvlan_and_ipvlan_on_one_uplink_wait_for_each_other,
            a_pod_waits_until_there_is_bandwidth_for_it,
            a_pod_has_the_bandwidth_that_it_was_granted_in_both_directions,
            an_uplink_without_a_network_is_limited_too,
            a_network_of_the_cluster_counts_its_interfaces,
            a_link_that_is_plugged_in_renamed_and_taken_away_is_followed,
            a_pod_waits_while_the_link_of_its_network_is_down,
            a_nic_in_a_pod_stays_published_and_goes_on_excluding_others,
            a_port_of_a_bridge_is_for_the_networks_of_that_bridge,
            a_pod_waits_until_there_is_an_address_for_it,
            segmentation_ids_are_handed_out_once_by_the_node,
            a_claim_gets_the_segmentation_id_that_it_chooses,
            vlans_of_one_id_on_one_uplink_wait_for_each_other,
            a_policy_says_which_links_are_uplinks_and_what_they_are,
            a_policy_that_cannot_work_says_why,
            a_policy_that_becomes_invalid_goes_on_withholding_what_it_withheld,
            a_link_of_the_nodes_is_for_networks_that_name_it_and_whole_if_a_policy_says_so,
            pods_share_the_only_link_of_a_node,
            a_link_that_another_program_uses_is_not_given_away_whole,
            what_a_provider_says_of_links_brings_two_of_them_together,
            a_network_is_for_the_namespaces_that_it_selects,
            networks_of_one_uplink_are_never_granted_more_than_it_has,
            a_pod_asks_for_a_network_as_an_extended_resource,
            a_claim_takes_the_first_of_its_alternatives_that_there_is,
            an_admin_who_looks_at_a_device_disturbs_nobody,
            a_device_is_chosen_beside_another_drivers,
            a_network_whose_plugin_is_not_ready_takes_no_pods_until_it_is,
            a_network_whose_plugin_is_removed_takes_no_pods_until_it_is_back,
            a_plugin_that_is_not_installed_is_named_in_the_log_and_pods_wait_for_it,
            each_request_of_a_claim_is_told_its_own_health,
            a_field_that_is_unknown_is_refused_by_name,
            an_address_that_is_none_is_refused_with_an_example,
            what_the_network_does_not_allow_is_refused,
            a_parameter_that_the_network_does_not_have_is_refused,
            a_value_that_is_not_what_its_schema_says_is_refused_with_its_place,
            a_network_that_cannot_work_says_why,
            a_network_is_told_all_faults_of_its_conflist_at_once,
            a_value_that_the_plugin_would_refuse_is_named_with_its_place,
            a_claim_of_two_pods_is_refused_with_the_way_out,
            a_claim_of_its_own_does_not_let_a_pod_use_anothers_too,
            a_claim_that_is_allocated_for_another_node_is_refused,
            a_device_that_a_policy_leaves_out_is_refused,
            a_pod_on_the_nodes_network_is_refused_with_the_reason,
            a_plugin_that_fails_is_quoted_and_the_pod_starts_when_it_is_mended,
            a_pod_that_is_never_restarted_survives_a_plugin_that_fails,
            a_pod_that_is_never_restarted_is_not_held_in_a_hook,
            a_plugin_that_prints_garbage_is_quoted_and_the_pod_starts_when_it_is_mended,
            a_plugin_that_hangs_is_stopped_and_the_pod_starts_when_it_is_mended,
            a_pod_of_whose_networks_one_fails_does_not_start,
            a_plugin_that_is_killed_is_run_again,
            a_plugin_whose_child_lives_on_holds_up_nobody,
            a_pod_that_is_never_restarted_survives_a_plugin_that_fails_many_times,
            containers_that_do_not_name_the_claim_wait_too,
            a_pod_that_is_deleted_while_its_plugin_hangs_leaves_nothing,
            a_pod_whose_plugin_cannot_delete_is_kept_until_it_can,
            metrics_are_served,
            tools_on_the_node_see_the_attachments,
            the_agent_has_the_rights_of_the_manual_and_no_more,
            the_agent_writes_slices_of_its_own_node_only,
            a_stolen_token_writes_nothing_of_another_node_under_whatever_name_the_agent_runs,
            a_stolen_token_reads_the_pods_of_its_node_only,
            who_is_only_called_like_the_agent_is_not_held_to_its_limits,
            connections_that_say_nothing_cost_the_agent_neither_descriptors_nor_its_probes;
        alone:
            no_pod_of_a_burst_is_refused_its_claim,
            a_thousand_flaps_of_a_link_are_few_writes,
            more_devices_than_one_slice_takes_are_published,
            a_node_where_nothing_changes_writes_no_slices,
            a_network_that_is_gone_after_scheduling_is_named,
            a_network_whose_uplink_is_down_takes_no_pods_until_it_is_up,
            the_next_agent_tells_the_health_of_devices_too,
            a_slow_plugin_holds_up_its_own_pod_only,
            a_plugin_can_use_the_programs_of_the_node,
            a_pod_waits_for_an_agent_that_was_killed_before_its_sandbox,
            a_pod_waits_for_an_agent_that_does_not_answer,
            an_agent_that_is_killed_in_the_middle_of_an_add_starts_over,
            a_plugin_of_an_agent_that_was_killed_does_not_work_against_the_next_ones,
            a_pod_that_waits_for_a_failing_network_survives_an_agent_that_is_told_to_stop,
            pods_that_start_at_once_get_an_address_each,
            without_an_agent_a_pod_waits_until_there_is_one,
            pods_that_are_deleted_leave_nothing,
            pods_that_are_deleted_by_force_without_an_agent_leave_nothing,
            pods_do_not_wait_for_the_kubelets_next_try_when_the_agent_dies,
            wherever_the_agent_dies_no_claim_is_refused_and_nothing_is_left,
            pods_that_start_during_an_update_of_the_agent_get_their_networks,
            pods_start_while_the_controller_is_away,
            pods_start_while_the_controller_dies,
            an_agent_that_is_told_to_stop_finishes_the_add_that_runs,
            interfaces_outlive_the_agent,
            a_container_restarts_in_place_without_the_agent,
            pods_and_slices_outlive_a_kubelet_restart,
            addresses_that_others_exhaust_freeze_nothing,
            slices_come_back_with_a_node_object_that_is_made_anew,
            a_pod_older_than_its_runtime_leaves_nothing,
            a_pod_whose_namespace_is_taken_away_leaves_nothing,
            a_pod_that_is_never_restarted_survives_an_agent_that_goes_away_in_an_attach,
            a_pod_whose_uplink_is_removed_starts_again_when_it_is_back,
            attaching_goes_on_while_the_api_server_is_away,
            without_nri_the_agent_is_not_ready_and_no_container_starts,
            a_state_directory_that_takes_nothing_holds_up_new_pods_only,
            a_full_state_directory_holds_up_new_pods_only,
            a_new_sandbox_gets_the_interface_again,
            a_new_sandbox_has_new_metadata,
            a_nic_is_given_back_as_it_was,
            an_address_of_a_sandbox_that_never_was_is_collected,
            an_interface_that_lost_its_address_is_told_until_it_has_it_again,
            a_pod_that_is_gone_is_released_without_the_kubelet,
            after_a_reboot_addresses_are_given_back_and_pods_come_up_with_their_networks,
            pods_come_and_go_while_agent_runtime_and_kubelet_die;
    ])
}
