//! DRANET: a DRA driver that moves links of the node into pods.

use std::cell::{Cell, RefCell};
use std::path::Path;

use anyhow::{Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{PluggedMany, Test, eventually, names};
use serde_json::{Value, json};

use crate::contestants::{Contestant, claim_from_template};
use crate::daemon::{Account, Daemon, Programs};

const DRIVER: &str = "dra.net";
const CLASS: &str = "dranet";
/// Only the links that [`PluggedMany`] adds: by default DRANET leaves veths out, and these are.
const FILTER: &str =
    r#""dra.net/ifName" in attributes && attributes["dra.net/ifName"].StringValue.startsWith("eth10")"#;

/// DRANET on the node, with a link for each pod.
pub struct Dranet<'a> {
    test: &'a Test<'a>,
    user: String,
    daemon: RefCell<Daemon>,
    /// The links that it has, on the node or in pods.
    count: Cell<usize>,
    _account: Account<'a>,
    _links: PluggedMany<'a>,
}

impl<'a> Dranet<'a> {
    /// Installs and starts it; `links` are on the node besides its own.
    pub fn new(test: &'a Test<'a>, programs: &Programs, links: usize, logs: &Path) -> Result<Self> {
        let status = ["patch", "update"];
        let rules = json!([
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "update"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"],
             "verbs": ["list", "watch", "create", "update", "delete"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims", "deviceclasses"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": status},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"], "resourceNames": [DRIVER],
             "verbs": ["associated-node:patch", "associated-node:update"]},
        ]);
        let account = Account::new(test, "dranet", &rules)?;
        create_class(test)?;
        let plugged = PluggedMany::new(test, links)?;
        let args = ["--v=1", "--hostname-override=node0", "--cloud-provider-hint=NONE", "--filter", FILTER];
        let daemon = Daemon::start(test, &programs.path("dranet"), &[], &args, logs)?;
        let dranet = Self {
            test,
            user: account.user(),
            daemon: RefCell::new(daemon),
            count: Cell::new(links),
            _account: account,
            _links: plugged,
        };
        eventually(60, "DRANET has published the links", || {
            let slices = test.cluster.get(&["resourceslices", "--field-selector", "spec.driver=dra.net"])?;
            let devices: usize =
                list(&slices["items"]).map(|slice| list(&slice["spec"]["devices"]).count()).sum();
            ensure!(devices == links, "{devices} of {links} devices are published");
            Ok(())
        })?;
        Ok(dranet)
    }
}

fn create_class(test: &Test<'_>) -> Result<()> {
    let interface = json!({"interface": {"name": "net1"}});
    let config = json!([{"opaque": {"driver": DRIVER, "parameters": interface}}]);
    let request = json!({"name": "net", "exactly": {"deviceClassName": CLASS}});
    let selector = json!({"cel": {"expression": format!("device.driver == {DRIVER:?}")}});
    test.create([
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
               "spec": {"selectors": [selector]}}),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": CLASS},
               "spec": {"spec": {"devices": {"requests": [request], "config": config}}}}),
    ])
}

impl Contestant for Dranet<'_> {
    fn name(&self) -> &'static str {
        "dranet"
    }

    fn dress(&self, pod: &mut Value) {
        claim_from_template(pod, CLASS);
    }

    fn daemon(&self) -> Option<&RefCell<Daemon>> {
        Some(&self.daemon)
    }

    fn user(&self) -> Option<&str> {
        Some(&self.user)
    }

    fn left(&self) -> Result<usize> {
        let links: Vec<Value> = serde_json::from_str(&self.test.cluster.on_node(&["ip", "-j", "link"])?)?;
        let there = links.iter().filter(|link| text(&link["ifname"]).starts_with("eth10")).count();
        Ok(self.count.get().saturating_sub(there))
    }

    /// A link that is lost does not come back.
    fn forget(&self) -> Result<()> {
        self.count.set(self.count.get() - self.left()?);
        Ok(())
    }
}

impl Drop for Dranet<'_> {
    fn drop(&mut self) {
        self.daemon.borrow_mut().kill();
        let cluster = self.test.cluster;
        let _ = self.test.kubectl(&["delete", "--ignore-not-found", "resourceclaimtemplate", CLASS]);
        for kind in ["deviceclass", "resourceslices"] {
            let which: &[&str] =
                if kind == "deviceclass" { &[CLASS] } else { &["--field-selector", "spec.driver=dra.net"] };
            let _ = cluster.kubectl(&[&["delete", "--ignore-not-found", kind], which].concat());
        }
        let node = cluster.node();
        for dir in ["/run/dranet", "/var/lib/kubelet/plugins/dra.net"] {
            let _ = std::fs::remove_dir_all(node.path(dir));
        }
        // The kubelet would try the socket of a driver that is gone again and again.
        let registry = "/var/lib/kubelet/plugins_registry";
        for name in names(&node.path(registry)).unwrap_or_default() {
            if name.contains(DRIVER) {
                let _ = std::fs::remove_file(node.path(registry).join(name));
            }
        }
    }
}
