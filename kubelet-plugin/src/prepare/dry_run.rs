//! Says what an ADD for a ClaimNetwork would be on this node, for people who ask before there is a pod.
//!
//! A claim that sets nothing, of no pod, is planned by the very code of a Prepare. Nothing is journalled,
//! leased or taken, and of the plugins only VERSION and STATUS run.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt as _;
use netclaim_api::device::{self, DeviceName};
use netclaim_api::dry_run::{Addresses, DryRun, FoundPlugin, FoundUplink, SetUp, Status};
use netclaim_api::network::{ClaimNetworkSpec, LEAST_BANDWIDTH, NetworkClass};
use netclaim_api::segmentation::ChosenBy;
use netclaim_api::{NetworkName, ParameterRule, ParameterType};
use netclaim_cni::{NetworkList, PluginType, error_chain};
use netclaim_driver::attach::{self, CniPlugins};
use serde_json::{Value, json};

use super::call::{NodeAgent, Plugins, PrepareError, UNKNOWN};
use super::claim::{AllocatedDevice, Claim};
use super::error::PlanError;
use crate::devices::addresses::{Users, of as addresses_of};
use crate::devices::availability::Chain;
use crate::devices::{held_on, id_of, link_unhealthy, segments, space};
use crate::inventory::{Inventory, node_scope};
use crate::node_networks::Readiness;
use crate::pods::owner::{DeviceRef, ObjectRef, Plan, Segment};

/// What stands for an object in placeholders: they stay as they are.
fn placeholder(kind: &str) -> ObjectRef {
    let [namespace, name, uid] = ["namespace", "name", "uid"].map(|field| format!("${{{kind}.{field}}}"));
    ObjectRef { namespace, name, uid }
}

/// Returns a claim of a pod of any namespace that has the ClaimNetwork's device and sets nothing, and the
/// inventory by which it is planned: parameters that a claim has to set have a value that stands for them.
fn without_a_pod(
    name: &NetworkName,
    inventory: &Inventory,
    node: &str,
    taken: &BTreeSet<Segment>,
) -> (Claim, Inventory) {
    let (mut inventory, mut chosen, mut pool) = (inventory.clone(), BTreeSet::new(), node.to_owned());
    let mut bandwidth = None;
    if let Some(mut spec) = inventory.networks.get(name).cloned() {
        pool = device::pool(name, spec.scope, node);
        if is_id_chosen(&spec) {
            let (space, ids) = (space(name, &spec, &inventory), segments(&inventory, &[]).remove(name));
            let is_free = |id: &u32| !taken.contains(&Segment { space: space.clone(), id: *id });
            let ids = ids.unwrap_or_default();
            chosen.extend(ids.iter().find(|id| is_free(id)).or_else(|| ids.first()));
        }
        bandwidth = spec.requires_bandwidth().then_some(LEAST_BANDWIDTH);
        spec.namespaces = Default::default();
        for (parameter, rule) in &mut spec.allow.parameters {
            rule.default = rule.default.take().or_else(|| Some(stand_in(parameter, rule)));
        }
        inventory.networks.insert(name.clone(), spec);
    }
    let device = DeviceName::Network(name.clone()).to_string();
    let device = AllocatedDevice {
        device: DeviceRef { request: "network".to_owned(), pool, device, share_id: None },
        bandwidth,
        segments: chosen,
        takes_no_address: false,
        layers: Vec::new(),
    };
    let claim = Claim {
        object: placeholder("claim"),
        pod: placeholder("pod"),
        pod_claim_name: None,
        by_attachment: None,
        node_selector: None,
        devices: vec![device],
        observed: Vec::new(),
    };
    (claim, inventory)
}

/// Returns what stands for a parameter that a claim has to set: a value that plugins may take, or of a text
/// the placeholder.
fn stand_in(name: &str, rule: &ParameterRule) -> Value {
    rule.r#enum.first().cloned().unwrap_or_else(|| match rule.r#type {
        ParameterType::Integer => json!(rule.minimum.or(rule.maximum).unwrap_or_default()),
        ParameterType::String => json!(format!("${{parameters.{name}}}")),
        ParameterType::Boolean => json!(false),
        ParameterType::Array => json!([]),
    })
}

fn is_id_chosen(spec: &ClaimNetworkSpec) -> bool {
    spec.segmentation.as_ref().is_some_and(|segmentation| segmentation.chosen_by == ChosenBy::Claim)
}

/// Says what a claim has to set, and who may have the ClaimNetwork.
fn notes(spec: &ClaimNetworkSpec) -> Vec<String> {
    let mut notes = Vec::new();
    let needed = spec.allow.parameters.iter().filter(|(_, rule)| rule.default.is_none());
    notes.extend(needed.map(|(name, rule)| {
        let value = stand_in(name, rule);
        format!("a claim or its class has to set parameters.{name}: here {value} stands for it")
    }));
    if is_id_chosen(spec) {
        notes.push("a claim has to choose a segmentation id: here it is the first that is free".to_owned());
    }
    if spec.requires_bandwidth() {
        notes.push(format!("a claim has to ask for bandwidth: here it has {LEAST_BANDWIDTH}"));
    }
    let is_primary = |class: &&NetworkClass| class.defaults.as_ref().is_some_and(|settings| settings.primary);
    notes.extend(spec.device_classes.iter().filter(is_primary).map(|class| {
        format!("by class {} it is the pod's primary network, eth0: here it is not", class.name)
    }));
    if !spec.namespaces.is_all() {
        notes.push("spec.namespaces says of which namespaces pods may have it".to_owned());
    }
    notes
}

/// Why the claim without a pod is not planned, without that claim's name.
fn refusal(error: &PrepareError) -> String {
    match error {
        PrepareError::Plan(PlanError::Device { source, .. }) => error_chain(source),
        PrepareError::Plugins { source, .. } => error_chain(source),
        PrepareError::Excluded(excluded) => excluded.in_full(),
        PrepareError::InPod(in_pod) => in_pod.in_full(),
        other => error_chain(other),
    }
}

/// The configuration as a plugin would get it.
fn as_json(list: &NetworkList) -> Option<Value> {
    serde_json::from_str(list.raw()).ok()
}

/// Returns what `spec.node` sets up here.
fn set_up(
    name: &NetworkName,
    spec: &ClaimNetworkSpec,
    inventory: &Inventory,
    node: &str,
    readiness: &Readiness,
) -> Option<SetUp> {
    let scope = node_scope(name.as_str(), node, &inventory.labels, inventory.uplink_of(spec));
    Some(match spec.node.as_ref()?.resolve(name, &scope) {
        Ok(on_node) => SetUp {
            interface: on_node.interface.to_string(),
            conflist: as_json(&on_node.conflist),
            // Nothing is waited for.
            is_ready: matches!(readiness.of(name).now_or_never(), Some(Ok(()))),
            problem: None,
        },
        Err(problem) => SetUp { problem: Some(problem.to_string()), ..SetUp::default() },
    })
}

impl<N: Plugins> NodeAgent<N> {
    /// Plans what a pod would get of the ClaimNetwork whose claim sets nothing.
    async fn plan_without_a_pod(
        &self,
        name: &NetworkName,
        inventory: &Inventory,
    ) -> Result<Vec<Plan>, PrepareError> {
        let taken = self.attacher.plans(id_of).into_iter().flatten().collect();
        let (claim, inventory) = without_a_pod(name, inventory, &self.node_name, &taken);
        let inventory = Arc::new(inventory);
        let foreign = self.foreign_addresses(&claim, &inventory).await;
        let book = self.plan_lock.lock().await.clone();
        let made = self.plan(&claim, None, &inventory, &UNKNOWN, (&foreign, &book)).map_err(|error| {
            let in_pod = error.is_for_lack_of_a_link().then(|| self.in_pod(&claim, &inventory)).flatten();
            in_pod.map_or_else(|| error.into(), PrepareError::from)
        })?;
        let settled = self.settle(made).await?;
        match self.obstacle(&settled)? {
            Some(other) => Err(other.refusal.into()),
            None => Ok(settled),
        }
    }

    /// Returns for how many attachments the node has addresses of the ClaimNetwork. Reads files.
    async fn addresses_left(
        &self,
        name: &NetworkName,
        spec: &ClaimNetworkSpec,
        inventory: &Arc<Inventory>,
    ) -> Option<Addresses> {
        let held = held_on(&self.node_name, &self.attacher.kinds());
        let (ours, reservations) = (self.attacher.sandbox_ids(), self.reservations.clone());
        let (name, spec, inventory) = (name.clone(), spec.clone(), Arc::clone(inventory));
        let counted = tokio::task::spawn_blocking(move || {
            let (networks, leased) = (&inventory.networks, &inventory.addresses);
            let users = Users { networks, ours: &ours, leased, held: &held, reservations: &reservations };
            let stated = spec.capacity.addresses.map(|addresses| addresses.value());
            let all = stated.or_else(|| addresses_of(&name, &spec, users))?;
            let taken =
                held.iter().filter(|held| held.takes_address_of(&name)).map(|held| held.many() as u64);
            Some(Addresses { left: all.saturating_sub(taken.sum()), all })
        });
        counted.await.ok().flatten()
    }
}

impl NodeAgent<CniPlugins> {
    /// Returns what an attachment to the ClaimNetwork would be. `readiness` says what is set up on the node.
    pub(crate) async fn dry_run(&self, name: &NetworkName, readiness: &Readiness) -> DryRun {
        let Some(known) = self.inventory.borrow().clone() else {
            let refusal = "the agent does not know the node's ClaimNetworks yet".to_owned();
            return DryRun { refusal: Some(refusal), ..DryRun::default() };
        };
        let inventory = self.settled(&known);
        let mut answer = DryRun::default();
        match self.plan_without_a_pod(name, &inventory).await {
            Ok(plans) => {
                let of = |is_finalizer: bool| plans.iter().find(|plan| plan.is_finalizer() == is_finalizer);
                answer.conflist = of(false).and_then(|plan| as_json(&plan.spec.conflist));
                answer.finalize = of(true).and_then(|plan| as_json(&plan.spec.conflist));
            }
            Err(error) => answer.refusal = Some(refusal(&error)),
        }
        let Some(spec) = inventory.networks.get(name) else { return answer };
        let chain = Chain::of(name, spec, &inventory, &self.node_name);
        answer.plugins = chain.plugins.iter().map(|plugin| self.found(plugin)).collect();
        answer.status = self.status_of(&chain, &answer.plugins).await;
        answer.uplink = inventory.uplink_of(spec).map(|uplink| FoundUplink {
            name: uplink.name.to_string(),
            mtu: uplink.link.mtu,
            problem: link_unhealthy(uplink, spec.link_use(), spec.moves_link())
                .next()
                .map(|unhealthy| unhealthy.to_string()),
        });
        answer.addresses = self.addresses_left(name, spec, &inventory).await;
        answer.node = set_up(name, spec, &inventory, &self.node_name, readiness);
        answer.notes = notes(spec);
        answer.notes.extend(inventory.lacks(spec).map(|unhealthy| unhealthy.to_string()));
        let named = spec.uplink.iter().flat_map(|uplink| &uplink.links);
        let withheld = named.filter_map(|link| inventory.withheld.get(link.as_str()));
        answer.notes.extend(withheld.cloned());
        answer
    }

    fn found(&self, plugin: &PluginType) -> FoundPlugin {
        let found = self.plugins.installed(plugin);
        FoundPlugin {
            plugin: plugin.to_string(),
            path: found.as_ref().ok().map(|program| program.path.display().to_string()),
            problem: found.err().map(|failure| failure.message),
        }
    }

    /// Asks the plugins as they are asked before devices are published.
    async fn status_of(&self, chain: &Chain, plugins: &[FoundPlugin]) -> Status {
        let not_asked = |message: &str| Status { is_ready: None, message: message.to_owned() };
        if plugins.iter().any(|plugin| plugin.path.is_none()) {
            return not_asked("not asked, because a plugin is missing");
        }
        let Some(conflist) = &chain.conflist else {
            return not_asked(
                "not asked: the configuration is of CNI before 1.1.0, or a claim or pod fills in a part of it",
            );
        };
        match self.plugins.status(conflist).await {
            attach::Status::Ready => Status { is_ready: Some(true), message: String::new() },
            attach::Status::NotReady(why) | attach::Status::Unclear(why) | attach::Status::Limited(why) => {
                Status { is_ready: Some(false), message: why }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::offered::{Labels, Node};
    use super::super::plan::{Taken, plans};
    use super::*;
    use crate::inventory::fixtures::uplink;

    fn name() -> NetworkName {
        "storage".parse().expect("a name")
    }

    fn inventory(spec: Value) -> Inventory {
        let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("a network");
        Inventory { uplinks: vec![uplink("eth1")], networks: [(name(), spec)].into(), ..Inventory::default() }
    }

    fn conflist(claim: &Claim, inventory: &Inventory) -> Result<Value, PlanError> {
        let labels = Labels::default();
        let node = Node { name: "node0", inventory, labels: &labels, kept: &[], primary: true };
        let plans = plans(claim, node, &Taken::default())?;
        Ok(as_json(&plans[0].spec.conflist).expect("JSON"))
    }

    #[test]
    fn a_plan_without_a_pod_is_that_of_a_pod_but_for_its_own_values() {
        let inventory = inventory(json!({
            "uplink": {"links": ["eth1"]},
            "namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}},
            "allow": {"parameters": {"pool": {"type": "string", "pattern": "^[a-z]{1,9}$"}, "mode": {"type": "string", "enum": ["vepa"]}, "mtu": {"type": "integer", "minimum": 1280}}},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}", "mtu": "${parameters.mtu}", "mode": "${parameters.mode}",
                "note": "${pod.namespace}/${pod.name} ${claim.uid} ${node.name} ${parameters.pool}", "ipam": {"type": "dhcp"}}]}}));
        let (planned, opened) = without_a_pod(&name(), &inventory, "node0", &BTreeSet::new());
        let found = conflist(&planned, &opened).expect("planned");
        let plugin = &found["plugins"][0];
        assert_eq!(
            [&plugin["master"], &plugin["mtu"], &plugin["mode"]],
            [&json!("eth1"), &json!(1280), &json!("vepa")]
        );
        assert_eq!(plugin["note"], "${pod.namespace}/${pod.name} ${claim.uid} node0 ${parameters.pool}");
        let object = |name: &str| ObjectRef { namespace: "shop".into(), name: name.into(), uid: name.into() };
        let of_pod = Claim { object: object("c"), pod: object("p"), ..planned };
        let of_pod = conflist(&of_pod, &opened).expect("planned").to_string();
        let filled = found.to_string().replace("${pod.namespace}/${pod.name} ${claim.uid}", "shop/p c");
        assert_eq!(of_pod, filled);
        let said = notes(&inventory.networks[&name()]);
        assert_eq!(said[1], "a claim or its class has to set parameters.mtu: here 1280 stands for it");
        assert!(said.len() == 4 && said[3].contains("spec.namespaces"), "{said:?}");
    }

    #[test]
    fn an_id_that_a_claim_has_to_choose_is_the_first_that_is_free() {
        let inventory = inventory(json!({
            "uplink": {"links": ["eth1"]}, "segmentation": {"ids": ["100-101"], "chosenBy": "Claim"},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "vlan", "master": "${uplink.name}", "vlanId": "${segmentation.id}", "ipam": {"type": "dhcp"}}]}}));
        let taken = [Segment { space: "uplink eth1".into(), id: 100 }].into();
        for (taken, id) in [(BTreeSet::new(), 100), (taken, 101)] {
            let (claim, opened) = without_a_pod(&name(), &inventory, "node0", &taken);
            assert_eq!(conflist(&claim, &opened).expect("planned")["plugins"][0]["vlanId"], id);
        }
        assert!(notes(&inventory.networks[&name()])[0].contains("choose a segmentation id"));
    }

    #[test]
    fn a_class_of_primary_networks_is_noted() {
        let class = |name: &str, primary: bool| json!({"name": name, "defaults": {"primary": primary}});
        let inventory = inventory(json!({
            "deviceClasses": [class("site", true), class("second", false)],
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "ptp", "ipam": {"type": "dhcp"}}]}}));
        let said = notes(&inventory.networks[&name()]);
        assert_eq!(said, ["by class site it is the pod's primary network, eth0: here it is not"]);
    }

    #[test]
    fn a_network_that_the_node_does_not_have_is_refused_without_the_name_of_a_claim() {
        let inventory = Inventory::default();
        let (claim, opened) = without_a_pod(&name(), &inventory, "node0", &BTreeSet::new());
        let error = conflist(&claim, &opened).expect_err("no such network");
        let said = refusal(&error.into());
        assert!(said.starts_with("ClaimNetwork \"storage\" does not exist or is not accepted"), "{said}");
    }

    #[tokio::test]
    async fn the_chain_of_the_node_is_resolved_and_not_waited_for() {
        let inventory = inventory(json!({
            "uplink": {"links": ["eth1"]},
            "node": {"interfaceName": "br-${uplink.name}", "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "netclaim-link", "kind": "bridge", "bridge": "br-${uplink.name}", "master": "${uplink.name}"}]}},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "bridge", "bridge": "${node.interfaceName}", "ipam": {"type": "dhcp"}}]}}));
        let spec = &inventory.networks[&name()];
        let found = set_up(&name(), spec, &inventory, "node0", &Readiness::default()).expect("spec.node");
        assert_eq!((found.interface.as_str(), found.is_ready, found.problem), ("br-eth1", false, None));
        assert_eq!(found.conflist.expect("a chain")["plugins"][0]["master"], "eth1");
    }
}
