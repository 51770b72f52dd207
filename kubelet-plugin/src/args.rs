//! The command line: each flag has an environment variable and a default that fits a stock node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use ipnet::IpNet;
use netclaim_cni::PluginType;
use netclaim_cnitool::DEFAULT_SOCKETS;
use netclaim_process::log::LogArgs;

use crate::dra::Registration;
use crate::questions::SOCKET;

/// The netclaim node agent: a DRA driver that attaches pods to CNI networks.
#[derive(Debug, Clone, Parser)]
#[command(
    version,
    after_help = "`netclaim-kubelet-plugin cni` does what `netclaimctl cni` does, and `netclaim-kubelet-plugin ask` asks the agent for \
                                        `netclaimctl explain network`; `netclaim-kubelet-plugin capture` is what `netclaimctl capture` runs"
)]
#[allow(missing_docs, reason = "each field's comment is its help text")]
pub struct Args {
    /// Kubeconfig to reach the API server with; by default $KUBECONFIG, ~/.kube/config or the pod's service
    /// account
    #[arg(long, env = "NETCLAIM_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// Name of the Node object of this machine
    #[arg(long, env = "NETCLAIM_NODE_NAME")]
    pub node_name: String,

    /// Name of the DRA driver, as DeviceClasses and ResourceSlices spell it. For tests: the rights and
    /// policies of the manifests, and the webhook's conditions, know netclaim.dev only
    #[arg(long, env = "NETCLAIM_DRIVER_NAME", default_value = netclaim_api::DRIVER_NAME)]
    pub driver_name: String,

    /// The kubelet's --root-dir
    #[arg(long, env = "NETCLAIM_KUBELET_DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,

    /// Where the kubelet looks for plugins' registration sockets [default: KUBELET_DIR/plugins_registry]
    #[arg(long, env = "NETCLAIM_REGISTRY_DIR")]
    pub registry_dir: Option<PathBuf>,

    /// Where the container runtime listens for NRI plugins
    #[arg(long, env = "NETCLAIM_NRI_SOCKET", default_value = netclaim_nri::DEFAULT_SOCKET)]
    pub nri_socket: PathBuf,

    /// Where the container runtime reads CDI specs that change at run time
    #[arg(long, env = "NETCLAIM_CDI_DIR", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,

    /// Directory of CNI plugins; may be given several times, the first match is run. The agent's own plugins
    /// come last
    #[arg(long, env = "NETCLAIM_CNI_BIN_DIR", default_value = "/opt/cni/bin", value_delimiter = ':')]
    pub cni_bin_dir: Vec<PathBuf>,

    /// Types of CNI plugins that are daemons: they are called by their sockets and never run
    #[arg(long, env = "NETCLAIM_CNI_DAEMONS", value_name = "TYPES", value_delimiter = ',')]
    pub cni_daemons: Vec<PluginType>,

    /// Directory of the sockets of CNI plugins that are daemons, TYPE.sock. Only root may write it
    #[arg(long, env = "NETCLAIM_CNI_SOCKETS", default_value = DEFAULT_SOCKETS)]
    pub cni_sockets: PathBuf,

    /// Mount namespace in which the agent finds and runs CNI plugins. Use /proc/1/ns/mnt, the host's, for
    /// plugins that need programs or files of the host; a container needs hostPID, SYS_CHROOT and SYS_PTRACE
    /// for it [default: the agent's]
    #[arg(long, env = "NETCLAIM_CNI_MOUNT_NAMESPACE")]
    pub cni_mount_namespace: Option<PathBuf>,

    /// Environment of CNI plugins besides PATH, HOME and the proxies' variables, as NAME=VALUE; may be given
    /// several times. The default saves processor time when many pods start at once: most plugins are Go
    /// programs, which otherwise set themselves up for all processors
    #[arg(long, env = "NETCLAIM_CNI_ENV", default_value = "GOMAXPROCS=1", value_delimiter = ',', value_parser = variable)]
    pub cni_env: Vec<(String, String)>,

    /// Prefixes of the cluster's pods, as 10.244.0.0/16, and of what else is reached by eth0 only, such as
    /// the node-local DNS; may be given several times. Pods with defaultRoute keep them, Services and their
    /// node by eth0. Without any, claims with defaultRoute are refused
    #[arg(long, env = "NETCLAIM_CLUSTER_CIDRS", value_delimiter = ',')]
    pub cluster_cidrs: Vec<IpNet>,

    /// How long the CNI plugins of one network may take for one operation, in seconds
    #[arg(long, env = "NETCLAIM_CNI_TIMEOUT", default_value = "40", value_parser = timeout)]
    pub cni_timeout: Duration,

    /// How often the agent collects leftovers of each network (CNI GC), in seconds; 0: never
    #[arg(long, env = "NETCLAIM_GC_PERIOD", default_value = "600", value_parser = interval)]
    pub gc_period: Duration,

    /// How often the agent checks each attachment (CNI CHECK), in seconds; 0: never
    #[arg(long, env = "NETCLAIM_CHECK_PERIOD", default_value = "300", value_parser = interval)]
    pub check_period: Duration,

    /// After what time the agent asks the plugins of each network again whether they can serve a pod (CNI
    /// STATUS), in seconds; up to 20 times as long while they say yes; 0: never
    #[arg(long, env = "NETCLAIM_STATUS_PERIOD", default_value = "30", value_parser = interval)]
    pub status_period: Duration,

    /// How long a pod must be gone, its object and its sandbox, before its claims are released without the
    /// kubelet, in seconds; 0: never
    #[arg(long, env = "NETCLAIM_ORPHAN_AFTER", default_value = "600", value_parser = interval)]
    pub orphan_after: Duration,

    /// How long a Node object must be gone before other nodes may get its blocks of addresses, in seconds; as
    /// the controller has it. An agent that has not heard of its blocks for half of that time gives out no
    /// addresses
    #[arg(long, env = "NETCLAIM_NODE_GONE_AFTER", default_value = "600", value_parser = delay)]
    pub node_gone_after: Duration,

    /// How long a block of addresses must be empty, or the node have asked for too many, before the agent
    /// gives back what it does not need, in seconds; at most 60 while the ClaimNetwork has no free block
    #[arg(long, env = "NETCLAIM_BLOCK_IDLE_AFTER", default_value = "300", value_parser = delay)]
    pub block_idle_after: Duration,

    /// Whether the agent wakes pods that wait until the kubelet retries, after 10 to 90 s, by an annotation
    /// of theirs
    #[arg(long, env = "NETCLAIM_WAKE_PODS", default_value = "true", action = clap::ArgAction::Set)]
    pub wake_pods: bool,

    /// Whether pods get their networks into the annotation k8s.v1.cni.cncf.io/network-status, for programs
    /// made for Multus
    #[arg(long, env = "NETCLAIM_ANNOTATE_PODS", default_value = "false", action = clap::ArgAction::Set)]
    pub annotate_pods: bool,

    /// Whether `netclaimctl capture` may copy what passes through attachments of this node
    #[arg(long, env = "NETCLAIM_ALLOW_CAPTURE", default_value = "false", action = clap::ArgAction::Set)]
    pub allow_capture: bool,

    /// Whether pods get and lose networks while they run, by NetworkAttachments; as the controller has it,
    /// and the chart's hotAttach.enabled
    #[arg(long, env = "NETCLAIM_HOT_ATTACH", default_value = "false", action = clap::ArgAction::Set)]
    pub hot_attach: bool,

    /// Whether attachments may be pods' primary networks, for which the container runtime asks by the plugin
    /// netclaim-primary; as the chart's primary.enabled
    #[arg(long, env = "NETCLAIM_PRIMARY", default_value = "false", action = clap::ArgAction::Set)]
    pub primary: bool,

    /// Directory of what must survive a reboot: DELs that are owed, the programs that the runtime executes,
    /// and the agent's own CNI plugins. It has the same path inside and outside of the agent's container
    #[arg(long, env = "NETCLAIM_STATE_DIR", default_value = "/var/lib/netclaim")]
    pub state_dir: PathBuf,

    /// Directory of what must not survive a reboot: the gate's socket, its markers, the journal of this boot,
    /// and the files that containers read about their devices. It has the same path inside and outside of the
    /// agent's container
    #[arg(long, env = "NETCLAIM_RUN_DIR", default_value = "/run/netclaim")]
    pub run_dir: PathBuf,

    /// The hook's executable, which the agent installs into STATE_DIR/bin [default: netclaim-hook beside this
    /// program]
    #[arg(long, env = "NETCLAIM_HOOK")]
    pub hook: Option<PathBuf>,

    /// Where to serve /metrics, and /readyz for netclaimctl status
    #[arg(long, env = "NETCLAIM_METRICS_ADDRESS", default_value = "127.0.0.1:9177")]
    pub metrics_address: SocketAddr,

    /// Where to serve /healthz and /readyz; only the node's own kubelet needs to reach it
    #[arg(long, env = "NETCLAIM_HEALTH_ADDRESS", default_value = "127.0.0.1:9179")]
    pub health_address: SocketAddr,

    /// Distinguishes the sockets of this agent from those of another agent on the node during a rolling
    /// update; use the pod's UID
    #[arg(long, env = "NETCLAIM_INSTANCE")]
    pub instance: Option<String>,

    /// Only report by the exit status whether the agent of this instance has registered with the kubelet
    #[arg(long)]
    pub is_started: bool,

    #[command(flatten)]
    pub log: LogArgs,
}

/// How to correct a value. clap names the flag and the value.
#[derive(Debug, Clone, Copy, thiserror::Error)]
enum InvalidValue {
    #[error("use a name that does not begin with CNI_, which is the runtime's own")]
    VariableName,
    #[error("write it as NAME=VALUE")]
    Variable,
    #[error("use whole seconds from 1 to 600")]
    Timeout,
    #[error("use whole seconds up to 86400, a day; 0 switches it off")]
    Interval,
    #[error("use whole seconds from 10 to 86400, a day")]
    Delay,
}

fn variable(text: &str) -> Result<(String, String), InvalidValue> {
    match text.split_once('=') {
        Some((name, _)) if name.is_empty() || name.starts_with("CNI_") => Err(InvalidValue::VariableName),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(InvalidValue::Variable),
    }
}

fn timeout(text: &str) -> Result<Duration, InvalidValue> {
    match text.parse() {
        Ok(seconds @ 1..=600) => Ok(Duration::from_secs(seconds)),
        _ => Err(InvalidValue::Timeout),
    }
}

fn interval(text: &str) -> Result<Duration, InvalidValue> {
    match text.parse() {
        Ok(seconds @ 0..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err(InvalidValue::Interval),
    }
}

fn delay(text: &str) -> Result<Duration, InvalidValue> {
    match text.parse() {
        Ok(seconds @ 10..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err(InvalidValue::Delay),
    }
}

impl Args {
    /// The directory of files in which programs on the node describe links.
    pub fn links_dir(&self) -> PathBuf {
        self.run_dir.join("links.d")
    }

    /// The directory of files in which programs on the node describe ClaimNetworks.
    pub fn networks_dir(&self) -> PathBuf {
        self.run_dir.join("networks.d")
    }

    /// The directory in which the kubelet looks for registration sockets.
    pub fn registry_dir(&self) -> PathBuf {
        self.registry_dir.clone().unwrap_or_else(|| self.kubelet_dir.join("plugins_registry"))
    }

    /// The socket of the kubelet's calls.
    pub fn calls_socket(&self) -> PathBuf {
        let instance = self.instance.iter().map(|instance| format!("-{instance}"));
        self.plugin_dir().join(format!("dra{}.sock", instance.collect::<String>()))
    }

    /// Whether `name` is that of the [`calls_socket`](Self::calls_socket) of any instance.
    pub fn is_calls_socket(name: &str) -> bool {
        name.starts_with("dra") && name.ends_with(".sock")
    }

    /// The socket by which the kubelet finds the driver.
    pub fn registration_socket(&self) -> PathBuf {
        let instance = self.instance.as_deref().unwrap_or_default();
        self.registry_dir().join(Registration::socket_name(&self.driver_name, instance))
    }

    /// The file that exists when this instance has registered with the kubelet.
    pub fn started_note(&self) -> PathBuf {
        self.run_dir.join("started").join(self.instance.as_deref().unwrap_or("agent"))
    }

    /// The socket by which parents reach the agent that has the journal.
    pub fn agent_socket(&self) -> PathBuf {
        self.run_dir.join("agent.sock")
    }

    /// The socket by which the kubelet reports its pods.
    pub fn pods_socket(&self) -> PathBuf {
        self.kubelet_dir.join("pods-api/pods-api.sock")
    }

    /// The socket by which the parent of this instance passes the runtime's events on to its agent.
    pub fn runtime_socket(&self) -> PathBuf {
        self.run_dir.join(format!("runtime-{}.sock", self.instance.as_deref().unwrap_or("agent")))
    }

    /// Whether `name` is that of the [`runtime_socket`](Self::runtime_socket) of any instance.
    pub fn is_runtime_socket(name: &str) -> bool {
        name.starts_with("runtime-") && name.ends_with(".sock")
    }

    /// The driver's private directory under the kubelet's.
    pub fn plugin_dir(&self) -> PathBuf {
        self.kubelet_dir.join("plugins").join(&self.driver_name)
    }

    /// The journal's durable directory.
    pub fn journal_dir(&self) -> PathBuf {
        self.state_dir.join("journal")
    }

    /// The journal's directory of a boot. Its name keeps other boots from reading it, also where RUN_DIR is
    /// on a disk.
    pub fn boot_journal_dir(&self, boot_id: &str) -> PathBuf {
        self.run_dir.join("journal").join(boot_id)
    }

    /// The journal of what is set up on the node for ClaimNetworks, and its directory of a boot.
    pub fn node_journal_dirs(&self, boot_id: &str) -> (PathBuf, PathBuf) {
        (self.state_dir.join("node-journal"), self.run_dir.join("node-journal").join(boot_id))
    }

    /// The directory in which tools find the attachments, in libcni's format.
    pub fn cni_cache_dir(&self) -> PathBuf {
        self.state_dir.join("cni")
    }

    /// The path of the installed hook.
    pub fn installed_hook(&self) -> PathBuf {
        self.state_dir.join("bin/netclaim-hook")
    }

    /// The path of the plugin by which the runtime asks for primary networks.
    pub fn installed_primary(&self) -> PathBuf {
        self.state_dir.join("bin/netclaim-primary")
    }

    /// The CNI configuration that the runtime has for pods with a primary network. The runtime's own
    /// configuration names the directory.
    pub fn primary_conflist(&self) -> PathBuf {
        self.state_dir.join("primary/10-netclaim.conflist")
    }

    /// The socket by which the runtime asks for primary networks.
    pub fn primary_socket(&self) -> PathBuf {
        self.run_dir.join("primary.sock")
    }

    /// The directory of the agent's own CNI plugins, which has the same path in the host's mount namespace.
    pub fn installed_plugins(&self) -> PathBuf {
        self.state_dir.join("plugins")
    }

    /// The socket of people's questions.
    pub fn questions_socket(&self) -> PathBuf {
        self.run_dir.join(SOCKET)
    }

    /// The socket of waiting hooks.
    pub fn gate_socket(&self) -> PathBuf {
        self.run_dir.join("gate.sock")
    }

    /// The directory of the files that containers read about their devices.
    pub fn metadata_dir(&self) -> PathBuf {
        self.run_dir.join("metadata")
    }

    /// The directory of markers.
    pub fn marker_dir(&self) -> PathBuf {
        self.run_dir.join("ready")
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::addresses::wanted::IDLE;

    #[test]
    fn every_flag_has_an_environment_variable_named_like_it() {
        Args::command().debug_assert();
        for arg in Args::command()
            .get_arguments()
            .filter(|arg| arg.get_long().is_some_and(|l| !["help", "version", "is-started"].contains(&l)))
        {
            let long = arg.get_long().unwrap_or_default();
            let wanted = format!("NETCLAIM_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(wanted.as_str()), "--{long}");
        }
    }

    #[test]
    fn the_defaults_fit_a_stock_node() {
        let args = Args::parse_from(["netclaim-kubelet-plugin", "--node-name", "n"]);
        assert_eq!(args.registry_dir(), PathBuf::from("/var/lib/kubelet/plugins_registry"));
        assert_eq!(args.calls_socket(), PathBuf::from("/var/lib/kubelet/plugins/netclaim.dev/dra.sock"));
        assert_eq!(args.cni_bin_dir, [PathBuf::from("/opt/cni/bin")]);
        assert_eq!(args.cni_env, [("GOMAXPROCS".to_owned(), "1".to_owned())]);
        assert_eq!(args.block_idle_after, IDLE);
    }

    #[test]
    fn two_instances_have_no_socket_in_common() {
        let of = |instance: &str| {
            let args = ["netclaim-kubelet-plugin", "--node-name", "n", "--instance", instance];
            let args = Args::parse_from(args);
            [args.calls_socket(), args.registration_socket(), args.started_note(), args.runtime_socket()]
        };
        assert!(of("a").iter().all(|path| !of("b").contains(path)));
        let [calls, registration, _, runtime] =
            of("a").map(|path| path.file_name().map(|name| name.to_owned()));
        assert!(runtime.is_some_and(|name| Args::is_runtime_socket(&name.to_string_lossy())));
        assert!(calls.is_some_and(|name| Args::is_calls_socket(&name.to_string_lossy())));
        assert!(
            registration.is_some_and(|name| Registration::is_of("netclaim.dev", &name.to_string_lossy()))
        );
    }

    #[test]
    fn the_environment_of_plugins_is_a_list_of_variables() {
        let with = |env: &str| {
            Args::try_parse_from(["netclaim-kubelet-plugin", "--node-name", "n", "--cni-env", env])
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(with("A=1,B=x=y").expect("two").cni_env, [pair("A", "1"), pair("B", "x=y")]);
        for bad in ["A", "=1", "CNI_PATH=/x"] {
            assert!(with(bad).is_err(), "{bad}");
        }
    }
}
