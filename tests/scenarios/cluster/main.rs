//! netclaim on a real node: the API server, scheduler, kubelet and container runtime are real, and the agent
//! is installed from `deploy/` with its own service account.
//!
//! `make test` runs all. To run one, on a cluster that keeps running:
//! `NETCLAIM_TEST_CLUSTER=/var/tmp/my-cluster cargo test -p netclaim-tests --test cluster -- two_pods`.

use std::process::ExitCode;

use netclaim_tests::{scenarios, suite};

mod attaching;
mod authorizer;
mod autoscalers;
mod availability;
mod bandwidth;
mod capture;
mod churn;
mod classes;
mod collector;
mod columns;
mod command_line;
mod crun;
mod default_route;
mod defaults;
mod dry_run;
mod endpoints;
mod facts;
mod faults;
mod finalize;
mod hot_attach;
mod hot_attach_controller;
mod karpenter;
mod links;
mod many_devices;
mod metadata;
mod moved_links;
mod networks;
mod node_networks;
mod offers;
mod older;
mod on_the_wire;
mod policies;
mod primary;
mod publishing;
mod refusals;
mod repair;
mod rights;
mod scheduling;
mod sweep;
mod traces;
mod updates;
mod waking;
mod who;

use attaching::*;
use autoscalers::*;
use availability::*;
use bandwidth::*;
use capture::*;
use churn::*;
use classes::*;
use columns::*;
use command_line::*;
use crun::*;
use default_route::*;
use defaults::*;
use dry_run::*;
use endpoints::*;
use facts::*;
use faults::{
    agent::*, controller::*, failpoints::*, node::*, plugins::*, reboot::*, runtime_connection::*,
    state_directory::*,
};
use finalize::*;
use hot_attach::*;
use hot_attach_controller::*;
use karpenter::*;
use links::*;
use many_devices::*;
use metadata::*;
use moved_links::*;
use networks::*;
use node_networks::*;
use offers::*;
use older::*;
use on_the_wire::*;
use policies::*;
use primary::*;
use publishing::*;
use refusals::*;
use repair::*;
use rights::*;
use scheduling::*;
use sweep::*;
use traces::*;
use updates::*;
use waking::*;
use who::*;

fn main() -> ExitCode {
    suite::run(scenarios![
        beside:
            two_pods_of_a_claim_template_reach_each_other,
            a_claims_status_matches_the_pods_interface,
            a_claim_serves_the_pod_that_replaces_one_deleted_by_force,
            a_pod_with_a_claim_of_an_earlier_name_starts_when_the_earlier_pod_has_ended,
            a_container_reads_its_metadata_when_it_starts,
            a_container_that_waited_in_the_hook_reads_its_metadata,
            a_pod_with_two_claims_has_two_interfaces,
            a_claim_with_two_requests_gives_two_interfaces,
            a_request_for_two_devices_gives_two_interfaces_that_keep_their_names,
            two_requests_for_one_network_give_two_interfaces_of_it,
            a_request_for_all_devices_gives_an_interface_of_each,
            alternatives_of_two_networks_give_the_one_that_is_free_in_its_place,
            two_pods_share_an_uplink_through_two_networks,
            a_chain_of_plugins_sets_sysctls_of_the_pod,
            a_container_starts_after_the_last_plugin_of_all_chains,
            a_container_that_crun_runs_waits_for_its_network_and_is_refused_without,
            a_pod_with_a_user_namespace_gets_its_network,
            a_claim_overrides_the_defaults_of_its_class,
            a_nic_and_macvlan_on_it_exclude_each_other,
            macvlan_and_ipvlan_on_one_uplink_exclude_each_other,
            a_pod_waits_until_bandwidth_is_free,
            granted_bandwidth_limits_a_pod_without_a_network,
            traffic_is_in_the_metrics_where_a_network_asks_for_it,
            the_pool_of_a_cluster_wide_network_follows_its_spec,
            a_network_of_the_cluster_has_a_warning_while_there_is_an_autoscaler,
            a_link_with_a_network_is_offered_only_through_it,
            a_mode_that_is_offered_no_more_stays_while_a_pod_has_it,
            exclusive_uses_of_a_link_come_and_go_while_pods_have_it,
            devices_follow_a_link_that_is_added_changed_and_removed,
            a_pod_waits_while_the_link_of_its_network_is_down,
            a_pod_leaves_its_services_while_its_link_is_down,
            a_nic_in_a_pod_stays_published_and_exclusive,
            a_whole_link_of_a_network_is_in_use_while_a_pod_has_it,
            an_uplink_that_is_made_again_has_lost_its_pods,
            a_network_names_a_bridge_and_a_link_by_its_alternative_name,
            a_bridge_port_serves_only_networks_of_its_bridge,
            a_pod_waits_until_an_address_is_free,
            the_node_assigns_each_segmentation_id_once,
            a_claim_gets_the_segmentation_id_that_it_chooses,
            vlans_with_the_same_id_on_one_uplink_exclude_each_other,
            a_policy_selects_uplinks_and_sets_their_attributes,
            an_invalid_policy_reports_why,
            a_policy_that_becomes_invalid_keeps_excluding_its_links,
            a_link_with_the_nodes_traffic_is_shared_by_name_and_whole_by_policy,
            pods_share_the_only_link_of_a_node,
            a_claim_gets_two_links_with_the_same_provided_attribute,
            karpenter_gives_pods_with_claims_no_node_by_default,
            karpenter_counts_addresses_of_nodes_and_of_templates,
            karpenter_counts_bandwidth_of_nodes_and_of_templates,
            karpenter_keeps_exclusive_uses_of_a_link_apart,
            karpenter_skips_incomplete_pools_and_ignores_taints,
            karpenter_makes_nodes_for_a_cluster_wide_network_only_by_its_label,
            karpenter_takes_any_node_for_a_claim_that_is_allocated_on_one,
            karpenter_knows_neither_extended_resources_of_classes_nor_distinct_attributes,
            a_network_serves_only_the_namespaces_that_it_selects,
            networks_of_one_uplink_share_its_bandwidth,
            a_pod_gets_a_network_as_an_extended_resource,
            a_pod_asks_for_a_network_with_one_line,
            each_container_with_the_line_gets_its_pod_one_more_interface,
            a_pod_that_asks_by_limits_for_too_much_is_told_so,
            a_container_with_the_line_does_not_start_before_its_network,
            a_limit_in_a_namespace_that_the_network_is_not_for_is_refused,
            a_class_follows_its_network_and_no_other_class_is_touched,
            a_claim_gets_the_first_alternative_that_is_available,
            admin_access_to_a_device_disturbs_no_pod,
            a_link_is_allocated_near_another_drivers_device,
            a_network_gets_no_pods_while_its_plugin_is_not_ready,
            an_add_that_says_its_plugin_cannot_serve_keeps_other_pods_away_until_status_says_otherwise,
            a_network_gets_no_pods_while_its_plugin_is_missing,
            a_missing_plugin_is_named_in_the_log_and_pods_wait_for_it,
            each_request_of_a_claim_reports_its_own_health,
            a_file_has_attachments_checked_once_by_their_plugins,
            an_unknown_field_is_refused_by_name,
            an_invalid_address_is_refused_with_an_example,
            addresses_that_the_network_does_not_allow_are_refused,
            an_unknown_parameter_is_refused_with_the_known_ones,
            a_value_that_breaks_its_schema_is_refused_with_its_path,
            an_invalid_network_reports_why,
            a_network_with_addresses_of_whereabouts_is_not_accepted,
            a_network_is_refused_at_once_for_what_its_object_shows,
            a_network_reports_all_faults_of_its_conflist_at_once,
            a_value_that_the_plugin_would_refuse_is_refused_with_its_path,
            a_claim_of_two_pods_is_refused_with_the_fix,
            a_pod_with_its_own_claim_cannot_use_another_pods_claim,
            a_device_that_a_policy_excludes_is_refused,
            a_pod_on_the_host_network_is_refused_with_the_fix,
            a_failing_plugin_is_quoted_and_the_pod_starts_when_it_is_fixed,
            a_plugin_that_fails_in_two_ways_has_one_event_that_counts_both,
            a_pod_that_is_never_restarted_survives_a_plugin_that_fails,
            a_pod_that_is_never_restarted_is_not_held_in_a_hook,
            a_plugin_that_prints_garbage_is_quoted_and_the_pod_starts_when_it_is_fixed,
            a_hanging_plugin_is_stopped_and_the_pod_starts_when_it_is_fixed,
            a_pod_does_not_start_if_one_of_its_networks_fails,
            a_plugin_that_is_killed_is_run_again,
            a_finalizer_that_fails_keeps_the_container_waiting_until_it_succeeds,
            a_plugins_surviving_child_delays_no_pod,
            a_pod_that_is_never_restarted_survives_a_plugin_that_fails_many_times,
            containers_that_do_not_name_the_claim_wait_too,
            a_pod_that_is_deleted_while_its_plugin_hangs_leaves_nothing,
            a_pod_whose_plugin_cannot_delete_is_kept_until_it_can,
            a_plugin_that_made_nothing_and_cannot_delete_keeps_no_pod_from_its_networks,
            a_link_of_another_program_in_the_pod_is_left_alone,
            kubectl_shows_what_is_accepted_and_who_has_addresses,
            kubectl_explains_the_values_of_attributes,
            metrics_are_served,
            tools_on_the_node_see_the_attachments,
            netclaimctl_lists_what_pods_have,
            netclaimctl_is_a_plugin_of_kubectl_that_completes_its_commands,
            a_bug_report_has_what_is_netclaims_and_no_secret,
            a_bug_report_says_what_its_user_may_not_read,
            a_network_is_explained_before_its_first_pod_and_nothing_is_done,
            an_address_that_changes_hands_has_its_pods_one_after_another,
            a_network_is_explained_where_it_has_no_address_and_without_its_secrets,
            the_agent_has_only_the_documented_rights,
            the_agent_writes_only_slices_of_its_own_node,
            the_agent_changes_only_the_labels_of_networks_of_its_own_node,
            a_stolen_token_writes_only_objects_of_its_own_node,
            a_stolen_token_of_the_controller_writes_no_pod_claim_network_or_node,
            the_controller_writes_events_only_in_its_own_name,
            the_controller_only_removes_labels_of_networks_from_nodes,
            the_controller_writes_only_classes_of_networks,
            the_agent_changes_one_annotation_of_its_own_nodes_pods,
            a_stolen_token_reads_only_pods_of_its_own_node,
            an_account_with_the_agents_name_in_another_namespace_is_not_limited,
            idle_connections_exhaust_neither_the_agents_descriptors_nor_its_probes;
        alone:
            a_container_names_the_plugin_that_fails,
            pods_are_evicted_where_their_network_says_so_when_a_plugin_says_for_a_minute_that_they_are_cut_off,
            a_pod_with_an_older_configuration_of_its_network_is_counted_and_named_until_it_is_made_again,
            a_pod_that_runs_gets_networks_and_loses_them_again,
            attachments_and_a_burst_of_pods_do_not_stop_each_other,
            what_cannot_be_attached_to_a_running_pod_leaves_it_alone,
            what_came_to_a_running_pod_outlives_its_sandbox_and_the_agent,
            every_kind_of_pod_gets_the_defaults_of_its_namespace,
            a_pod_waits_for_what_its_default_lacks_and_says_so,
            every_container_waits_for_the_networks_of_its_pod_where_the_namespace_says_so,
            the_controller_writes_only_templates_of_defaults,
            a_running_pod_gets_devices_from_the_scheduler_and_gives_them_back,
            of_a_pod_and_a_network_attachment_one_gets_the_last_unit,
            the_controllers_token_makes_probes_and_nothing_else,
            a_link_whose_name_is_taken_is_not_lost_and_the_other_one_stays_as_it_is,
            a_link_that_another_program_uses_is_tainted_as_a_nic,
            a_burst_of_pods_has_no_claim_refused,
            a_thousand_flaps_of_a_link_cause_few_writes,
            more_devices_than_fit_into_one_slice_are_published,
            a_network_waits_for_the_link_that_a_pod_has_whole,
            a_node_where_nothing_changes_writes_no_slices,
            a_network_deleted_after_scheduling_is_named,
            a_network_gets_no_pods_while_its_uplink_is_down,
            the_next_agent_reports_the_health_of_devices,
            a_plugin_can_use_the_programs_of_the_node,
            a_pod_waits_for_an_agent_that_was_killed_before_its_sandbox,
            a_bridge_is_made_for_the_first_pod_and_goes_after_the_last,
            a_link_that_is_in_the_way_is_named_and_stays,
            two_networks_with_one_interface_are_refused_by_name,
            a_setup_is_made_again_when_its_link_is_gone_and_no_pod_is_on_it,
            an_agent_that_is_killed_sets_a_network_up_once_and_takes_it_down,
            a_node_has_an_address_of_its_own_by_which_pods_reach_it,
            the_parent_needs_little_memory,
            an_add_is_repeated_after_the_agent_is_killed,
            a_killed_agents_plugin_does_not_interfere_with_the_next_agents,
            a_pod_that_waits_in_a_hook_survives_an_agent_that_is_stopped,
            pods_that_start_at_once_get_an_address_each,
            pods_whose_claims_the_kubelet_may_not_read_yet_are_woken,
            a_pod_that_cannot_be_prepared_is_woken_three_times_and_no_more,
            without_the_right_to_wake_pods_they_start_by_the_kubelets_next_look,
            pods_that_are_deleted_leave_nothing,
            pods_that_are_deleted_by_force_without_an_agent_leave_nothing,
            an_address_stays_taken_until_every_plugin_has_deleted_what_it_made,
            pods_start_without_the_kubelets_retry_when_the_agent_dies,
            an_agent_that_dies_anywhere_refuses_no_claim_and_leaves_nothing,
            pods_start_while_the_controller_is_away,
            a_stopping_agent_finishes_the_running_add,
            interfaces_outlive_the_agent,
            a_container_restarts_in_place_without_the_agent,
            exhausted_addresses_do_not_stop_publishing,
            a_pod_older_than_its_runtime_leaves_nothing,
            a_pod_whose_namespace_is_taken_away_leaves_nothing,
            a_pod_that_is_never_restarted_survives_an_agent_that_goes_away_during_an_add,
            a_pod_whose_uplink_is_removed_starts_again_when_it_is_back,
            pods_are_attached_while_the_api_server_hangs,
            without_nri_the_agent_is_not_ready_and_no_container_starts,
            a_read_only_state_directory_delays_only_new_pods,
            a_full_state_directory_delays_only_new_pods,
            a_new_sandbox_gets_the_interface_again,
            a_new_sandbox_has_new_metadata,
            a_returned_nic_has_its_old_settings,
            a_trace_leads_from_prepare_over_the_plugins_to_the_claims_status_and_to_the_end,
            the_span_of_a_plugin_that_fails_says_why,
            the_agent_sends_traces_by_tls_only_to_a_collector_with_a_certificate_of_its_ca,
            what_passes_through_a_pod_is_captured_where_the_admin_allows_it,
            a_lease_of_an_unknown_sandbox_is_collected,
            a_lease_in_a_network_without_pods_is_collected,
            a_pod_that_has_lost_an_address_says_so_and_leaves_its_services_until_it_is_back,
            an_interface_that_is_lost_comes_back_with_its_addresses,
            an_agent_that_is_killed_in_a_repair_gives_the_pod_its_addresses_back,
            a_repair_that_does_not_help_costs_one_pod,
            a_pod_gets_another_address_than_a_machine_beside_the_cluster,
            a_pod_waits_while_another_host_has_the_address_that_its_claim_asks_for,
            a_pod_waits_for_the_gateway_that_its_network_requires,
            a_setup_of_the_node_is_made_again_before_its_pods,
            a_default_route_leads_by_the_claimed_network_and_the_cluster_stays_with_eth0,
            a_claimed_network_is_the_pods_own,
            primary_networks_have_both_families_and_other_plugins,
            no_container_runs_on_another_network_than_its_primary_one,
            a_pod_waits_for_its_primary_network_while_the_agent_is_away,
            a_reboot_gives_pods_their_primary_networks_again,
            many_pods_get_their_primary_networks_at_once,
            a_pod_without_any_network_of_the_runtime_gets_those_that_it_claims,
            finalizers_of_two_claims_run_after_both_attachments,
            a_deleted_pod_is_released_without_the_kubelet,
            a_reboot_releases_old_addresses_and_restarts_pods_with_their_networks,
            agent_and_controller_take_another_log_filter_without_a_restart,
            pods_come_and_go_while_agent_runtime_and_kubelet_die;
        quiet:
            a_device_follows_the_file_of_a_program_within_a_second,
            a_hostile_file_of_facts_changes_nothing_and_is_logged_once,
            granted_bandwidth_limits_a_pod_in_both_directions,
            of_two_senders_the_one_with_a_grant_gets_it_and_the_other_the_rest,
            a_pod_that_is_never_restarted_starts_as_soon_as_its_network_is_there,
            a_pod_starts_as_soon_as_its_agent_and_parent_are_back,
            the_runtime_is_answered_at_once_while_an_add_takes_long,
            an_agent_that_starts_again_beside_a_slow_stop_delays_no_pod,
            a_pod_waits_for_an_agent_that_does_not_answer,
            a_pod_whose_prepare_the_kubelet_gave_up_runs_soon_after_the_answer,
            a_pod_waits_for_an_agent_and_a_parent_that_do_not_answer,
            pods_and_slices_outlive_a_kubelet_restart,
            a_collector_that_is_away_or_hangs_delays_no_pod_and_is_logged_once;
    ])
}
