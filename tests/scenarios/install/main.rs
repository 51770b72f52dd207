//! netclaim is installed, looked at, upgraded and uninstalled as admins do it: by Helm, kustomize and
//! netclaimctl, on three nodes.
//!
//! `$NETCLAIM_TEST_INSTALL_CLUSTER` is the folder of a cluster that keeps running; `$NETCLAIM_UPGRADE_FROM`
//! the revision of the repository that is upgraded, without which that scenario is skipped.

use std::process::ExitCode;

use netclaim_tests::suite::Lane;
use netclaim_tests::{scenarios, suite};

mod cert_manager;
mod chart;
mod daemons;
mod explain;
mod folders;
mod helm;
mod images;
mod kubeconform;
mod left;
mod migrate;
mod plugins;
mod primary;
mod quick_start;
mod released;
mod sealed;
mod status;
mod tenants;
mod upgrade;
mod values;
mod webhook;

use chart::*;
use daemons::*;
use explain::*;
use folders::*;
use helm::*;
use images::*;
use kubeconform::*;
use migrate::*;
use plugins::*;
use primary::*;
use quick_start::*;
use released::*;
use sealed::*;
use status::*;
use tenants::*;
use upgrade::*;
use webhook::*;

fn main() -> ExitCode {
    suite::run_on(
        &Lane { name: "install", nodes: 3, cluster: "NETCLAIM_TEST_INSTALL_CLUSTER" },
        scenarios![
            beside:
                the_chart_has_no_mistakes,
                the_manifests_are_those_of_the_chart,
                a_misspelt_value_is_refused_by_name,
                plugins_of_an_image_are_mounted_or_copied,
                each_value_reaches_the_objects,
                kubeconform_finds_no_mistakes,
                a_user_who_may_view_the_cluster_sees_networks_and_changes_none;
            alone:
                agents_and_controllers_have_images_with_only_their_own_programs,
                netclaimctl_shows_what_is_used_and_what_is_wrong,
                netclaimctl_says_which_plugin_a_node_lacks,
                netclaimctl_says_that_a_node_has_nri_and_cdi_off,
                a_deployment_of_multus_gets_its_network_from_netclaim,
                netclaimctl_says_why_a_pod_waits_and_who_has_what_it_wants,
                helm_takes_over_upgrades_rolls_back_and_uninstalls,
                the_quick_start_works_as_it_is_written,
                the_files_of_a_release_install_netclaim,
                plugins_come_from_an_image,
                an_agent_whose_state_directory_is_not_executable_says_which_value_to_set,
                nodes_with_a_read_only_root_and_without_a_shell_give_pods_networks,
                primary_networks_go_with_the_installation_in_either_order,
                plugins_that_call_iptables_are_served_by_a_daemon_set,
                an_earlier_version_is_upgraded_and_rolled_back_under_running_pods,
                the_webhook_refuses_what_netclaim_could_not_serve,
                the_webhook_has_a_certificate_of_cert_manager,
                claims_can_be_written_while_controllers_come_and_go;
        ],
    )
}
