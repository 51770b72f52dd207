//! Multus, thick: a daemon on the node, and a shim that the runtime calls instead of the primary plugin.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

use crate::contestants::{Contestant, addresses_left};
use crate::daemon::{Account, Daemon, Programs};

/// The name of its network, and of its configuration.
pub const NETWORK: &str = "multus-a";
const CRD: &str = "network-attachment-definitions.k8s.cni.cncf.io";
/// Below the node's root.
const SHIM: &str = "/opt/cni/bin/multus-shim";
/// The default path: the daemon empties its folder of sockets when it starts.
const CONFIG: &str = "/etc/cni/net.d/multus.d/daemon-config.json";
const CONFLIST: &str = "/etc/cni/net.d/00-multus.conf";
const CACHE: &str = "/var/lib/cni/multus";

/// Multus' daemon on the node, with a macvlan network.
pub struct Multus<'a> {
    test: &'a Test<'a>,
    user: String,
    daemon: RefCell<Daemon>,
    _account: Account<'a>,
}

impl<'a> Multus<'a> {
    /// Installs and starts it, with a network as netclaim's in the same benchmark.
    pub fn new(test: &'a Test<'a>, programs: &Programs, logs: &Path) -> Result<Self> {
        let rules = json!([
            {"apiGroups": ["k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list", "update", "watch"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        ]);
        let account = Account::new(test, "multus", &rules)?;
        create_network(test)?;
        let node = test.cluster.node();
        for dir in ["/run/multus", CACHE, "/etc/cni/net.d/multus.d"] {
            fs::create_dir_all(node.path(dir))?;
        }
        fs::copy(programs.path("multus-shim"), node.path(SHIM))?;
        // The settings of its manifest, but for the paths of a container and fewer lines in the log.
        let config = json!({
            "cniVersion": "0.3.1", "logLevel": "error", "logToStderr": true, "socketDir": "/run/multus/",
            "cniConfigDir": "/etc/cni/net.d", "multusAutoconfigDir": "/etc/cni/net.d", "multusConfigFile": "auto",
            "binDir": "/opt/cni/bin", "cniDir": CACHE,
        });
        fs::write(node.path(CONFIG), config.to_string())?;
        let daemon = Daemon::start(
            test,
            &programs.path("multus-daemon"),
            &["MULTUS_NODE_NAME=node0"],
            &["-config", CONFIG],
            logs,
        )?;
        let multus = Self { test, user: account.user(), daemon: RefCell::new(daemon), _account: account };
        eventually(20, "Multus has written its configuration", || {
            ensure!(node.path(CONFLIST).exists(), "there is no {CONFLIST}");
            Ok(())
        })?;
        settle();
        Ok(multus)
    }
}

/// containerd reads changed configurations by inotify.
fn settle() {
    std::thread::sleep(Duration::from_secs(2));
}

fn create_network(test: &Test<'_>) -> Result<()> {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": CRD},
        "spec": {
            "group": "k8s.cni.cncf.io", "scope": "Namespaced",
            "names": {
                "plural": "network-attachment-definitions", "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition", "shortNames": ["net-attach-def"],
            },
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": {"config": {"type": "string"}}}},
            }}}],
        },
    });
    test.cluster.kubectl_with(&["apply", "-f", "-"], &crd.to_string())?;
    test.cluster.kubectl(&["wait", "crd", CRD, "--for=condition=Established", "--timeout=30s"])?;
    let config = json!({
        "cniVersion": "1.0.0", "name": NETWORK, "type": "macvlan", "master": "eth1", "mode": "bridge",
        "ipam": {"type": "host-local", "ranges": [[{"subnet": test.subnet(2)}]]},
    });
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": NETWORK},
        "spec": {"config": config.to_string()},
    });
    eventually(20, "the network is created", || test.create([network.clone()]))
}

impl Contestant for Multus<'_> {
    fn name(&self) -> &'static str {
        "multus"
    }

    fn dress(&self, pod: &mut Value) {
        pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": NETWORK});
    }

    fn daemon(&self) -> Option<&RefCell<Daemon>> {
        Some(&self.daemon)
    }

    fn user(&self) -> Option<&str> {
        Some(&self.user)
    }

    fn left(&self) -> Result<usize> {
        Ok(addresses_left(self.test, NETWORK)?.len())
    }

    fn forget(&self) -> Result<()> {
        addresses_left(self.test, NETWORK)?.iter().try_for_each(|file| Ok(fs::remove_file(file)?))
    }
}

impl Drop for Multus<'_> {
    fn drop(&mut self) {
        self.daemon.borrow_mut().kill();
        let node = self.test.cluster.node();
        for file in [CONFLIST, SHIM] {
            let _ = fs::remove_file(node.path(file));
        }
        for dir in ["/run/multus", CACHE, "/etc/cni/net.d/multus.d"] {
            let _ = fs::remove_dir_all(node.path(dir));
        }
        let _ = fs::remove_dir_all(node.path(&format!("/var/lib/cni/networks/{NETWORK}")));
        let _ = self.test.cluster.kubectl(&["delete", "--ignore-not-found", "--timeout=30s", "crd", CRD]);
        settle();
    }
}
