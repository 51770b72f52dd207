//! Options and environment of the command, the same as those of cnitool.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use netclaim_cni::{
    Attachment, Attachments, BinDirError, Cache, CapabilityArgs, ContainerId, IfName, NameError, PluginType,
    Runtime, TraceContext,
};
use sha2::{Digest as _, Sha512};

/// Includes the plugins that the agent installs.
const DEFAULT_CNI_PATH: &str = "/opt/cni/bin:/var/lib/netclaim/plugins";
/// The directory in which the agent looks for the sockets of plugins that are daemons.
pub const DEFAULT_SOCKETS: &str = "/run/netclaim/cni";
const DEFAULT_NETCONF_DIR: &str = "/etc/cni/net.d";

/// Settings of all operations. An empty value is the same as none, except for `CNI_IFNAME`.
#[derive(Debug, clap::Args)]
pub struct Settings {
    /// Directories of CNI plugins, separated by colons [default: /opt/cni/bin, and the agent's
    /// own in /var/lib/netclaim/plugins]
    #[arg(long, env = "CNI_PATH", value_name = "DIRS", global = true, hide_env_values = true)]
    pub cni_path: Option<OsString>,
    /// Types of plugins that are daemons, as the agent's --cni-daemons
    #[arg(
        long,
        env = "NETCLAIM_CNI_DAEMONS",
        value_name = "TYPES",
        value_delimiter = ',',
        global = true,
        hide_env_values = true
    )]
    pub cni_daemons: Vec<String>,
    /// Directory of the sockets of plugins that are daemons, as the agent's --cni-sockets [default:
    /// /run/netclaim/cni]
    #[arg(long, env = "NETCLAIM_CNI_SOCKETS", value_name = "DIR", global = true, hide_env_values = true)]
    pub cni_sockets: Option<PathBuf>,
    /// Directory of network configurations [default: /etc/cni/net.d]
    #[arg(long, env = "NETCONFPATH", value_name = "DIR", global = true, hide_env_values = true)]
    pub netconf_path: Option<OsString>,
    /// Capability arguments as a JSON object, such as {"mac": "02:00:00:00:00:01"}
    #[arg(long, env = "CAP_ARGS", value_name = "JSON", global = true, hide_env_values = true)]
    pub cap_args: Option<String>,
    /// Arguments for all plugins, such as K1=V1;K2=V2
    #[arg(long, env = "CNI_ARGS", value_name = "ARGS", global = true, hide_env_values = true)]
    pub cni_args: Option<String>,
    /// Name of the interface in the namespace
    #[arg(
        long,
        env = "CNI_IFNAME",
        value_name = "NAME",
        global = true,
        hide_env_values = true,
        default_value = "eth0"
    )]
    pub ifname: String,
    /// Directory in which attachments are remembered; cnitool's is /var/lib/cni
    #[arg(
        long,
        env = "NETCLAIM_CNI_CACHE",
        value_name = "DIR",
        global = true,
        hide_env_values = true,
        default_value = "/var/lib/netclaim/cni"
    )]
    pub cache_dir: PathBuf,
    /// Seconds that the plugins of a network may take together
    #[arg(long, value_name = "SECONDS", global = true, default_value_t = 120)]
    pub timeout: u64,
}

/// Why a setting cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// An unusable directory of plugins.
    #[error("CNI_PATH cannot be used")]
    CniPath(#[source] BinDirError),
    /// A relative path without a current directory.
    #[error("path {} cannot be made absolute", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Malformed capability arguments.
    #[error("CAP_ARGS must be a JSON object, such as {{\"mac\": \"02:00:00:00:00:01\"}}")]
    CapArgs(#[source] serde_json::Error),
    /// Malformed arguments.
    #[error("CNI_ARGS has the part {0:?}; write it as K1=V1;K2=V2, without empty keys and values")]
    CniArgs(String),
    /// An unusable interface name.
    #[error("CNI_IFNAME cannot be used")]
    IfName(#[source] NameError),
    /// No container ID for the namespace.
    #[error("no container ID can be made")]
    ContainerId(#[source] NameError),
    /// A type of a plugin in `NETCLAIM_CNI_DAEMONS`.
    #[error("NETCLAIM_CNI_DAEMONS, or --cni-daemons")]
    CniDaemons(#[source] NameError),
}

impl Settings {
    /// Returns a runtime with the directories of plugins.
    ///
    /// # Errors
    /// [`SettingError::CniPath`], [`SettingError::Path`], [`SettingError::CniDaemons`].
    pub fn runtime(&self) -> Result<Runtime, SettingError> {
        let dirs = self.cni_path.as_deref().filter(|dirs| !dirs.is_empty());
        let dirs = env::split_paths(dirs.unwrap_or_else(|| DEFAULT_CNI_PATH.as_ref()))
            .filter(|dir| !dir.as_os_str().is_empty())
            .map(|dir| absolute(&dir))
            .collect::<Result<_, _>>()?;
        let runtime = Runtime::new(dirs).map_err(SettingError::CniPath)?;
        let daemons = self.cni_daemons.iter().filter(|plugin| !plugin.is_empty());
        let daemons = daemons.map(|plugin| plugin.parse()).collect::<Result<Vec<PluginType>, _>>();
        let sockets = self.cni_sockets.as_deref().filter(|dir| !dir.as_os_str().is_empty());
        let sockets = sockets.unwrap_or_else(|| Path::new(DEFAULT_SOCKETS));
        Ok(runtime.with_daemons(sockets, daemons.map_err(SettingError::CniDaemons)?))
    }

    /// Returns the directory of network configurations.
    pub fn netconf_dir(&self) -> &Path {
        let dir = self.netconf_path.as_deref().filter(|dir| !dir.is_empty());
        Path::new(dir.unwrap_or_else(|| DEFAULT_NETCONF_DIR.as_ref()))
    }

    /// Returns a runtime that caches attachments.
    ///
    /// # Errors
    /// As [`runtime`](Self::runtime).
    pub fn attachments(&self) -> Result<Attachments, SettingError> {
        Ok(Attachments::new(self.runtime()?, self.cache()))
    }

    /// Returns the cache of attachments.
    pub fn cache(&self) -> Cache {
        Cache::new(&self.cache_dir)
    }

    /// Returns the time limit of an operation.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Returns an attachment of the namespace at `netns`, which need not exist. Its container ID is the same
    /// as cnitool's.
    ///
    /// # Errors
    /// See [`SettingError`].
    pub fn attachment(&self, netns: &Path) -> Result<Attachment, SettingError> {
        let netns = absolute(netns)?;
        let if_name = self.ifname.parse::<IfName>().map_err(SettingError::IfName)?;
        let mut attachment = Attachment::new(container_id(&netns)?, Some(netns), if_name);
        attachment.args = cni_args(self.cni_args.as_deref().unwrap_or_default())?;
        attachment.capability_args = match self.cap_args.as_deref().filter(|json| !json.is_empty()) {
            Some(json) => {
                let args: Option<CapabilityArgs> =
                    serde_json::from_str(json).map_err(SettingError::CapArgs)?;
                args.unwrap_or_default()
            }
            None => CapabilityArgs::default(),
        };
        attachment.trace = TraceContext::from_env();
        Ok(attachment)
    }
}

/// Returns `cnitool-` and the first ten bytes of the path's SHA-512 in hexadecimal.
fn container_id(netns: &Path) -> Result<ContainerId, SettingError> {
    let hash = Sha512::digest(netns.as_os_str().as_encoded_bytes());
    let hex: String = hash.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    ContainerId::try_from(format!("cnitool-{hex}")).map_err(SettingError::ContainerId)
}

/// Makes a path absolute as Go's `filepath.Abs` does, which removes `..` lexically. The container ID depends
/// on it.
fn absolute(path: &Path) -> Result<PathBuf, SettingError> {
    let absolute =
        std::path::absolute(path).map_err(|source| SettingError::Path { path: path.to_owned(), source })?;
    let mut clean = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => {
                clean.pop();
            }
            component => clean.push(component),
        }
    }
    Ok(clean)
}

fn cni_args(text: &str) -> Result<Vec<(String, String)>, SettingError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let pair = |part: &str| match part.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err(SettingError::CniArgs(part.to_owned())),
    };
    text.split(';').map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_id_is_the_same_as_cnitools() {
        // printf /var/run/netns/test | sha512sum
        let id = container_id(&absolute(Path::new("/var//run/x/../netns/./test/")).unwrap()).unwrap();
        assert_eq!(id.as_str(), "cnitool-7b8a61d5d8e94d07cbe4");
    }

    #[test]
    fn arguments_are_pairs_without_empty_halves() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(cni_args("").unwrap(), []);
        assert_eq!(cni_args("A=1;B=2").unwrap(), [pair("A", "1"), pair("B", "2")]);
        for text in ["A", "A=", "=1", "A=1;", "A=1=2"] {
            assert!(cni_args(text).is_err(), "{text}");
        }
    }
}
