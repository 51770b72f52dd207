//! whereabouts: an IPAM plugin that keeps its addresses in objects of the cluster.

use std::fs;

use anyhow::Result;
use netclaim_tests::Test;
use netclaim_tests::objects::foreign_definition;
use serde_json::{Value, json};

use crate::daemon::Programs;

const GROUP: &str = "whereabouts.cni.cncf.io";
/// What the plugin reads and writes, and the plural of it.
const KINDS: [(&str, &str); 2] =
    [("IPPool", "ippools"), ("OverlappingRangeIPReservation", "overlappingrangeipreservations")];
/// Below the node's root.
const PLUGIN: &str = "/opt/cni/bin/whereabouts";
const FOLDER: &str = "/etc/cni/net.d/whereabouts.d";

/// The plugin on the node, and its definitions. Its reconciler does not run.
pub struct Whereabouts<'a>(&'a Test<'a>);

impl<'a> Whereabouts<'a> {
    /// Installs it. Its identity is the cluster's admin.
    pub fn new(test: &'a Test<'a>, programs: &Programs) -> Result<Self> {
        let whereabouts = Self(test);
        let items = KINDS.map(|(kind, plural)| foreign_definition(GROUP, "v1alpha1", kind, plural));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        test.cluster.kubectl_with(&["apply", "-f", "-"], &list)?;
        test.cluster.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"])?;
        let node = test.cluster.node();
        fs::copy(programs.path("whereabouts"), node.path(PLUGIN))?;
        fs::create_dir_all(node.path(FOLDER))?;
        let kubeconfig = format!("{FOLDER}/whereabouts.kubeconfig");
        fs::copy(test.cluster.dir().join("kubeconfig"), node.path(&kubeconfig))?;
        let config = json!({"datastore": "kubernetes", "kubernetes": {"kubeconfig": kubeconfig}});
        fs::write(node.path(&format!("{FOLDER}/whereabouts.conf")), config.to_string())?;
        Ok(whereabouts)
    }

    /// The IPAM of a network with the addresses of `range`.
    pub fn ipam(range: &str) -> Value {
        json!({"type": "whereabouts", "range": range})
    }
}

impl Drop for Whereabouts<'_> {
    fn drop(&mut self) {
        let node = self.0.cluster.node();
        let _ = fs::remove_file(node.path(PLUGIN));
        let _ = fs::remove_dir_all(node.path(FOLDER));
        for (_, plural) in KINDS {
            let name = format!("{plural}.{GROUP}");
            let _ = self.0.cluster.kubectl(&["delete", "--ignore-not-found", "--timeout=30s", "crd", &name]);
        }
    }
}
