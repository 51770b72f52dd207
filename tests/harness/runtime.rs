//! The container runtimes that a node can have, and how they differ on the node.
//!
//! Running containers are found in the files that a runtime keeps for its own restart, and in the kernel:
//! that works while the runtime is down, too.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::node::{Task, names};
use crate::objects::list;
use crate::process::is_alive;

/// Which runtime a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// containerd: each sandbox has a process, `pause`.
    Containerd,
    /// CRI-O: a sandbox is a set of pinned namespaces, without a process.
    CriO,
}

impl Runtime {
    /// Parses a name of `tests/node/runtime.sh`.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        match name {
            "crio" => Ok(Self::CriO),
            name if name.starts_with("containerd") => Ok(Self::Containerd),
            name => bail!("unknown container runtime {name:?}"),
        }
    }

    /// The folder with a folder for each container and sandbox.
    fn bundles(self) -> &'static str {
        match self {
            Self::Containerd => "run/containerd/io.containerd.runtime.v2.task/k8s.io",
            Self::CriO => "run/containers/storage/overlay-containers",
        }
    }

    /// The containers and sandboxes that run on the node whose files are in `root`.
    pub(crate) fn tasks(self, root: &Path) -> Result<Vec<Task>> {
        let bundles = root.join(self.bundles());
        // A container that starts or ends lacks some of its files.
        Ok(names(&bundles)?.into_iter().filter_map(|id| self.task(root, &bundles.join(&id), id)).collect())
    }

    fn task(self, root: &Path, bundle: &Path, id: String) -> Option<Task> {
        let (pid_file, config) = match self {
            Self::Containerd => ("init.pid", "config.json"),
            Self::CriO => ("userdata/pidfile", "userdata/config.json"),
        };
        let config: Value = serde_json::from_slice(&fs::read(bundle.join(config)).ok()?).ok()?;
        let annotation = |name: &str| config["annotations"][name].as_str().map(str::to_owned);
        let of = |containerd: &str, crio: &str| match self {
            Self::Containerd => annotation(&format!("io.kubernetes.cri.{containerd}")),
            Self::CriO => annotation(crio),
        };
        let is_sandbox = of("container-type", "io.kubernetes.cri-o.ContainerType")? == "sandbox";
        let pid = match (self, is_sandbox) {
            (Self::CriO, true) => None,
            _ => Some(
                fs::read_to_string(bundle.join(pid_file))
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
                    .filter(|pid| is_alive(*pid))?,
            ),
        };
        let netns = match pid {
            Some(pid) => format!("/proc/{pid}/ns/net").into(),
            None => pinned(root, &config)?,
        };
        Some(Task {
            id,
            pid,
            netns,
            sandbox: of("sandbox-id", "io.kubernetes.cri-o.SandboxID")?,
            namespace: of("sandbox-namespace", "io.kubernetes.pod.namespace")?,
            pod: of("sandbox-name", "io.kubernetes.pod.name")?,
            container: of("container-name", "io.kubernetes.container.name").filter(|_| !is_sandbox),
        })
    }
}

/// The network namespace that CRI-O has pinned for a sandbox, if it is still mounted.
fn pinned(root: &Path, config: &Value) -> Option<PathBuf> {
    let path = list(&config["linux"]["namespaces"]).find(|namespace| namespace["type"] == "network")?["path"]
        .as_str()?;
    let path = root.join("run").join(path.strip_prefix("/var/run/").or_else(|| path.strip_prefix("/run/"))?);
    let (file, dir) = (fs::metadata(&path).ok()?, fs::metadata(path.parent()?).ok()?);
    // Without the mount, the name is a plain file.
    (file.dev() != dir.dev()).then_some(path)
}
