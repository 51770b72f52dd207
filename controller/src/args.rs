//! The command line: every flag with its environment variable and a default that fits the Deployment.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use kube::Config;
use netclaim_process::log::LogArgs;

/// The netclaim controller: accepts ClaimNetworks and publishes those of the whole cluster.
#[derive(Debug, Clone, Parser)]
#[command(version)]
#[allow(missing_docs, reason = "each field's comment is its help text")]
pub struct Args {
    /// Kubeconfig to reach the API server with; by default $KUBECONFIG, ~/.kube/config or the pod's service
    /// account
    #[arg(long, env = "NETCLAIM_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// Name of the DRA driver, as DeviceClasses and ResourceSlices spell it. For tests: the rights and
    /// policies of the manifests, and the webhook's conditions, know netclaim.dev only
    #[arg(long, env = "NETCLAIM_DRIVER_NAME", default_value = netclaim_api::DRIVER_NAME)]
    pub driver_name: String,

    /// Namespace of the lease and of the webhook [default: that of the service account, or of the
    /// kubeconfig's context]
    #[arg(long, env = "NETCLAIM_NAMESPACE")]
    pub namespace: Option<String>,

    /// Lease that decides which of several replicas is the active one
    #[arg(long, env = "NETCLAIM_LEASE_NAME", default_value = "netclaim-controller")]
    pub lease_name: String,

    /// Name of this replica in the lease, such as its pod's; no two may have the same [default: HOSTNAME-PID]
    #[arg(long, env = "NETCLAIM_IDENTITY")]
    pub identity: Option<String>,

    /// Seconds for which a Node object must be gone before the addresses of its blocks are free; agents hand
    /// out addresses for half of it after they last heard of their blocks, so it may not be less than theirs
    #[arg(long, env = "NETCLAIM_NODE_GONE_AFTER", default_value_t = crate::addresses::leasing::SAFETY.as_secs())]
    pub node_gone_after: u64,

    /// Whether to judge pods for which the scheduler finds no node: an event says what their claims cannot
    /// have where, and nodes lease the addresses that one of them needs at once
    #[arg(long, env = "NETCLAIM_EXPLAIN_PENDING_PODS", default_value = "true", action = clap::ArgAction::Set)]
    pub explain_pending_pods: bool,

    /// Whether pods get the ClaimNetworks with spec.default without asking: the controller keeps the
    /// templates of their claims. It needs the policy and the rights of the chart's defaultNetworks.enabled
    #[arg(long, env = "NETCLAIM_DEFAULT_NETWORKS", default_value = "false", action = clap::ArgAction::Set)]
    pub default_networks: bool,

    /// Namespaces whose pods get no network without asking, as the policy names them
    #[arg(long, env = "NETCLAIM_DEFAULT_NETWORKS_EXCEPT", value_delimiter = ',')]
    pub default_networks_except: Vec<String>,

    /// Whether pods get networks while they run (NetworkAttachments). It needs the policies and the rights of
    /// the chart's hotAttach.enabled
    #[arg(long, env = "NETCLAIM_HOT_ATTACH", default_value = "false", action = clap::ArgAction::Set)]
    pub hot_attach: bool,

    /// Namespace of the cluster autoscaler's ConfigMap cluster-autoscaler-status, beside which ClaimNetworks
    /// of scope Cluster get a warning
    #[arg(long, env = "NETCLAIM_AUTOSCALER_NAMESPACE", default_value = "kube-system")]
    pub autoscaler_namespace: String,

    /// How often the controller looks for a node autoscaler, in seconds; 0: never
    #[arg(long, env = "NETCLAIM_AUTOSCALER_PERIOD", default_value = "300")]
    pub autoscaler_period: u64,

    /// Where to serve /metrics, /healthz and /readyz
    #[arg(long, env = "NETCLAIM_METRICS_ADDRESS", default_value = "0.0.0.0:9178")]
    pub metrics_address: SocketAddr,

    /// Where to serve the validating admission webhook over HTTPS [default: nowhere]
    #[arg(long, env = "NETCLAIM_WEBHOOK_ADDRESS")]
    pub webhook_address: Option<SocketAddr>,

    /// Name of the webhook's Service, of the Secret with its certificate and of the
    /// ValidatingWebhookConfiguration, in which the controller keeps the webhook's path, which cannot
    /// be guessed, and its CA bundle
    #[arg(long, env = "NETCLAIM_WEBHOOK_NAME", default_value = "netclaim-webhook")]
    pub webhook_name: String,

    /// Directory with the webhook's tls.crt and tls.key, which are read again when they change [default: the
    /// controller makes a certificate]
    #[arg(long, env = "NETCLAIM_WEBHOOK_CERTIFICATE_DIR")]
    pub webhook_certificate_dir: Option<PathBuf>,

    #[command(flatten)]
    pub log: LogArgs,
}

impl Args {
    /// Returns the namespace of what the controller has for itself.
    pub(crate) fn namespace(&self, config: &Config) -> String {
        self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone())
    }

    /// Returns the name of this replica. The process id distinguishes two that run on one host.
    pub fn identity(&self) -> String {
        self.identity.clone().unwrap_or_else(|| {
            let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!("{}-{}", hostname.trim(), std::process::id())
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_has_an_environment_variable_named_like_it() {
        Args::command().debug_assert();
        for arg in Args::command().get_arguments() {
            let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) else {
                continue;
            };
            let wanted = format!("NETCLAIM_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(wanted.as_str()), "--{long}");
        }
    }

    #[test]
    fn replicas_on_one_host_have_different_names() {
        let args = Args::parse_from(["netclaim-controller"]);
        assert!(args.identity().ends_with(&format!("-{}", std::process::id())));
        let args = Args::parse_from(["netclaim-controller", "--identity", "pod-1"]);
        assert_eq!(args.identity(), "pod-1");
    }
}
