//! One scenario's part of the cluster: a namespace, and cluster-wide objects with its label.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::agent::AGENT_PODS;
use crate::cluster::{Cluster, SYSTEM};
use crate::objects::{self, list, text};
use crate::wait::eventually;
use crate::watch::PodWatch;

/// The label of every object of the tests.
pub(crate) const LABEL: &str = "netclaim.dev/test";
/// Seconds until a change must be published. The publisher has a budget, which other scenarios use too.
const PUBLISHED: u64 = 60;

/// Why a scenario cannot run on this machine.
#[derive(Debug)]
pub(crate) struct Skipped(pub String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SKIPPED: {}", self.0)
    }
}

impl std::error::Error for Skipped {}

/// What a scenario works with. Its pods are in `pods.rs`.
pub struct Test<'a> {
    /// The cluster, which other scenarios may use at the same time.
    pub cluster: &'a Cluster,
    namespace: String,
    number: usize,
}

impl<'a> Test<'a> {
    pub(crate) fn begin(cluster: &'a Cluster, number: usize) -> Result<Self> {
        let namespace = format!("t{number}");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {LABEL: namespace}}});
        let test = Self { cluster, namespace, number };
        test.create([object])?;
        cluster.remove_plugins(&test.name(""))?;
        Ok(test)
    }

    /// Deletes the scenario's objects, and waits until its pods are gone.
    pub(crate) fn end(&self) -> Result<()> {
        let (api, label) = (self.cluster.api(), format!("{LABEL}={}", self.namespace));
        api.delete_and_wait(&["-n", &self.namespace, "pods"]).context("the scenario's pods stay")?;
        let kinds = ["namespaces", "claimnetworks", "addresspools", "uplinkpolicies", "deviceclasses"];
        kinds.into_iter().try_for_each(|kind| api.delete(&[kind, "-l", &label]).map(drop))
    }

    /// Waits until no node has anything of pods that are gone. Nodes without power are left out.
    pub fn nodes_are_clean(&self) -> Result<()> {
        self.nodes_are_clean_within(20)
    }

    /// As [`Self::nodes_are_clean`], with another limit.
    pub(crate) fn nodes_are_clean_within(&self, seconds: u64) -> Result<()> {
        eventually(seconds, "the nodes are clean", || {
            let all = self.cluster.get(&["resourceclaims", "--all-namespaces"])?;
            let held = list(&all["items"]).filter(|claim| claim["status"]["reservedFor"].is_array());
            let claims: BTreeSet<String> = held.map(|claim| text(&claim["metadata"]["uid"])).collect();
            let networks = self.cluster.get(&["claimnetworks"])?;
            let networks = list(&networks["items"]).map(|one| text(&one["metadata"]["name"])).collect();
            self.cluster.nodes().iter().try_for_each(|node| {
                node.has_only_networks(&networks)?;
                node.is_clean(&claims)
            })
        })
    }

    /// Returns the error by which the harness counts the scenario as skipped.
    pub fn skip(&self, reason: &str) -> Result<()> {
        Err(Skipped(reason.to_owned()).into())
    }

    /// The scenario's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A name for a cluster-wide object.
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// A subnet that no other scenario uses; `n` from 0 to 3.
    pub fn subnet(&self, n: usize) -> String {
        format!("{}/24", self.address(n, 0))
    }

    /// An address of [`Self::subnet`].
    pub fn address(&self, n: usize, host: u8) -> String {
        format!("10.{}.{}.{host}", 100 + n, self.number)
    }

    /// An IPv6 subnet that no other scenario uses.
    pub fn subnet6(&self) -> String {
        format!("{}/64", self.address6(0))
    }

    /// An address of [`Self::subnet6`].
    pub fn address6(&self, host: u16) -> String {
        format!("fd00:0:0:{:x}::{host:x}", self.number)
    }

    /// Runs kubectl in the scenario's namespace.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.cluster.kubectl(&[&["-n", &self.namespace], args].concat())
    }

    /// Watches the scenario's pods from now on.
    pub fn watch_pods(&self) -> Result<PodWatch> {
        PodWatch::start(self.cluster.kubectl_command().args(["-n", &self.namespace]))
    }

    /// Reads an object of the scenario's namespace.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.cluster.get(&["-n", &self.namespace, kind, name])
    }

    /// Creates objects in the scenario's namespace, with its label.
    pub fn create(&self, objects: impl IntoIterator<Item = Value>) -> Result<()> {
        let mut objects: Vec<Value> = objects.into_iter().collect();
        for object in &mut objects {
            object["metadata"]["labels"][LABEL] = json!(self.namespace);
        }
        if let Some(created) = self.cluster.api().create(&self.namespace, &objects) {
            return created;
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.cluster.kubectl_with(&["-n", &self.namespace, "create", "-f", "-"], &list).map(drop)
    }

    /// Installs a CNI plugin on the nodes, a script for busybox's shell. Returns its type.
    pub fn plugin(&self, name: &str, script: &str) -> Result<String> {
        let full = self.name(name);
        self.cluster.plugin(&full, script)?;
        Ok(full)
    }

    /// Installs macvlan as the scenario's plugin, with `on_add` as the beginning of ADD. Returns its type.
    pub fn macvlan_after(&self, on_add: &str) -> Result<String> {
        self.plugin(
            "plugin",
            &format!("if [ \"$CNI_COMMAND\" = ADD ]; then\n{on_add}\nfi\nexec /opt/cni/bin/macvlan"),
        )
    }

    /// Creates a macvlan ClaimNetwork on eth1 and its class; returns the name of both.
    pub fn macvlan(&self, name: &str) -> Result<String> {
        self.network(name, |_| {})
    }

    /// As [`Self::macvlan`], with a change to the ClaimNetwork.
    pub fn network(&self, name: &str, change: impl FnOnce(&mut Value)) -> Result<String> {
        let full = self.name(name);
        // ClaimNetworks `a` to `d` have different subnets.
        let n = name.bytes().next().map_or(0, |letter| usize::from(letter % 4));
        let mut network = objects::network(&full, "macvlan", "eth1", &self.subnet(n));
        change(&mut network);
        self.create([network, objects::class_of_network(&full, &full)])?;
        Ok(full)
    }

    /// As [`Self::network`], on another uplink.
    pub fn network_on(&self, uplink: &str, name: &str, change: impl FnOnce(&mut Value)) -> Result<String> {
        self.network(name, |network| {
            network["spec"]["uplink"] = json!({"links": [uplink]});
            change(network);
        })
    }

    /// Creates a ClaimNetwork `a` that uses `plugin` as it would macvlan.
    pub fn network_by(&self, plugin: &str) -> Result<String> {
        self.network("a", |network| network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin))
    }

    /// Creates a ClaimNetwork `a` by the plugin of [`Self::macvlan_after`].
    pub fn network_after(&self, on_add: &str) -> Result<String> {
        self.network_by(&self.macvlan_after(on_add)?)
    }

    /// Creates a ClaimNetwork `a` of scope `Cluster` that has so many interfaces.
    pub fn cluster_network(&self, interfaces: usize) -> Result<String> {
        self.cluster_network_named("a", interfaces)
    }

    /// As [`Self::cluster_network`], with another name.
    pub fn cluster_network_named(&self, name: &str, interfaces: usize) -> Result<String> {
        self.network(name, |network| {
            network["spec"]["scope"] = json!("Cluster");
            network["spec"]["capacity"] = json!({"interfaces": interfaces});
        })
    }

    /// Creates a class of links in one mode, without a ClaimNetwork; returns its name.
    pub fn class_of_links(&self, mode: &str, links: &[&str]) -> Result<String> {
        let name = self.name(mode);
        let attribute = |name: &str| format!("device.attributes[\"netclaim.dev\"].{name}");
        let (of_mode, of_link, of_network) = (attribute("mode"), attribute("uplink"), attribute("network"));
        let expression = format!("{of_mode} == {mode:?} && {of_link} in {links:?} && {of_network} == \"\"");
        self.create([objects::class(&name, &expression)])?;
        Ok(name)
    }

    /// Creates an UplinkPolicy by which these links are offered in these modes, whatever ClaimNetworks are on
    /// them.
    pub fn modes(&self, links: &[&str], modes: &[&str]) -> Result<String> {
        let name = self.name("modes");
        self.create([objects::policy(&name, json!({"links": {"names": links}, "modes": modes}))])?;
        Ok(name)
    }

    /// Waits until the condition of an object of the cluster fits: it is of this type and of the newest
    /// generation.
    pub fn condition(
        &self,
        seconds: u64,
        [kind, name]: [&str; 2],
        of_type: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        eventually(seconds, &format!("{kind} {name} has the condition {of_type} as expected"), || {
            let object = self.cluster.get(&[kind, name])?;
            let mut conditions = list(&object["status"]["conditions"]);
            let condition = conditions.find(|condition| condition["type"] == of_type);
            let condition = condition.with_context(|| format!("it has none: {}", object["status"]))?;
            let current = condition["observedGeneration"] == object["metadata"]["generation"];
            ensure!(current && fits(condition), "it is {condition}");
            Ok(())
        })
    }

    /// Waits until the first node publishes a device that fits.
    pub fn is_published(&self, name: &str, fits: impl Fn(&Value) -> bool) -> Result<()> {
        self.is_published_on("node0", name, fits)
    }

    /// As [`Self::is_published`], on another node.
    pub fn is_published_on(&self, node: &str, name: &str, fits: impl Fn(&Value) -> bool) -> Result<()> {
        eventually(PUBLISHED, &format!("{name} is published on {node} as expected"), || {
            let device =
                self.cluster.device_of(node, name)?.with_context(|| format!("there is no {name}"))?;
            ensure!(fits(&device), "{device}");
            Ok(())
        })
    }

    /// Waits until the first node does not publish the device.
    pub fn is_not_published(&self, name: &str) -> Result<()> {
        self.is_not_published_on("node0", name)
    }

    /// As [`Self::is_not_published`], on another node.
    pub fn is_not_published_on(&self, node: &str, name: &str) -> Result<()> {
        eventually(PUBLISHED, &format!("{name} is not published on {node}"), || {
            ensure!(self.cluster.device_of(node, name)?.is_none(), "it is");
            Ok(())
        })
    }

    /// Writes a lease of `network` as another program's host-local would; returns its path on the node.
    pub fn foreign_lease(&self, network: &str, address: &str, holder: &str) -> Result<String> {
        let lease = format!("/var/lib/cni/networks/netclaim-{network}/{address}");
        let (_, host) = address.rsplit_once('.').context("no IPv4 address")?;
        let write = format!("mkdir -p $(dirname {lease}) && printf '{holder}\\r\\neth{host}' > {lease}");
        self.cluster.on_node(&["sh", "-c", &write])?;
        Ok(lease)
    }

    /// Waits until the first node has `count` leases and as many files in the journal. Other scenarios must
    /// not run.
    pub fn node_has_leases(&self, count: usize) -> Result<()> {
        eventually(20, &format!("the node has {count} leases"), || {
            let (leases, journal) = (self.cluster.node().leases()?, self.cluster.node().journal()?);
            ensure!(
                leases.len() == count && journal.len() == count,
                "leases {leases:?}, journal {journal:?}"
            );
            Ok(())
        })
    }

    /// Reports the state of the scenario's objects and of the agent, for people.
    pub(crate) fn report(&self) -> String {
        let agent = ["logs", "-n", SYSTEM, "-l", AGENT_PODS, "--tail=40", "--prefix"];
        let claims = "jsonpath={range .items[*]}{.metadata.name}: {.status}{\"\\n\"}{end}";
        let parts: [(&str, Result<String>); 5] = [
            ("pods", self.kubectl(&["get", "pods", "-o", "wide"])),
            ("events", self.kubectl(&["get", "events", "--sort-by=.metadata.creationTimestamp"])),
            ("claims", self.kubectl(&["get", "resourceclaims", "-o", claims])),
            ("agents", self.cluster.kubectl(&["get", "pods", "-n", SYSTEM, "-o", "wide"])),
            ("agents' logs", self.cluster.kubectl(&agent)),
        ];
        let part = |(title, result): &(&str, Result<String>)| match result {
            Ok(text) => format!("--- {title}\n{text}"),
            Err(error) => format!("--- {title}: {error:#}\n"),
        };
        parts.iter().map(part).collect()
    }
}
