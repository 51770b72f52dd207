//! The nodes that each ClaimNetwork is on, and what they have for it, from the agents' ResourceSlices. Pure.
//!
//! A change of a slice or a Node touches that node of the ClaimNetworks that the slice has or had, and
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{DeviceTaint, DeviceTaintRule, ResourceSlice};
use kube::ResourceExt as _;
use kube::api::{ApiResource, NotUsed, Object};
use kube::runtime::watcher::Event;
use netclaim_allocation::{NO_EXECUTE, taint_rules};
use netclaim_api::configuration::older_pods;
use netclaim_api::device::DeviceName;
use netclaim_api::node_selector::{NodeSelector, selects_node};
use netclaim_api::published::POLICY_LINKS;
use netclaim_api::{NetworkName, Quantity};
use serde::Deserialize;

use crate::networks::nodes::{Change, NetworkNodes, NodeNow, OnNode};
use crate::objects::nodes::Nodes;

/// A ResourceSlice with little of its spec, because a cluster may have hundreds of thousands of devices.
pub(crate) type DevicesOfSlice = Object<Devices, NotUsed>;

/// The part of a ResourceSlice's spec that is read.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Devices {
    driver: String,
    #[serde(default)]
    pool: Pool,
    node_name: Option<String>,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Pool {
    name: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Device {
    name: String,
    #[serde(default)]
    taints: Vec<Taint>,
    #[serde(default)]
    capacity: Capacity,
}

#[derive(Debug, Clone, Deserialize)]
struct Taint {
    key: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    effect: String,
}

/// The taints by which devices have to be left (`NoExecute`).
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Evictions {
    /// Those that agents publish, by pool and device.
    pub(crate) taints: BTreeMap<(String, String), Vec<DeviceTaint>>,
    /// Those of admins.
    pub(crate) rules: Vec<DeviceTaintRule>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Capacity {
    bandwidth: Option<Amount>,
}

#[derive(Debug, Clone, Deserialize)]
struct Amount {
    value: String,
}

/// Returns the API's name of [`DevicesOfSlice`].
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<ResourceSlice>(&())
}

/// What one slice of a node offers.
#[derive(Debug, Clone, Default, PartialEq)]
struct Offer {
    node: String,
    driver: String,
    pool: String,
    networks: BTreeMap<NetworkName, OnNode>,
    /// Devices that have to be left.
    evicting: BTreeMap<String, Vec<DeviceTaint>>,
    /// How many links follow each UplinkPolicy, in each slice of the node.
    followers: BTreeMap<String, u32>,
    /// How many pods run an older configuration of each ClaimNetwork, in each slice of the node.
    older: BTreeMap<NetworkName, u32>,
}

impl Offer {
    /// Returns the offer of a slice; `None` where it belongs to no node.
    fn of(slice: DevicesOfSlice) -> Option<Self> {
        // Agents write it, and one of them may be broken.
        let followers = slice.annotations().get(POLICY_LINKS);
        let followers = followers.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let older = older_pods(slice.annotations());
        let older = older.into_iter().map(|(network, older)| (network, older.pods)).collect();
        let Devices { driver, pool, node_name, devices } = slice.spec;
        let mut networks: BTreeMap<NetworkName, OnNode> = BTreeMap::new();
        let mut evicting: BTreeMap<String, Vec<DeviceTaint>> = BTreeMap::new();
        for device in devices {
            for Taint { key, value, effect } in
                device.taints.iter().filter(|taint| taint.effect == NO_EXECUTE)
            {
                let (key, value, effect) = (key.clone(), value.clone(), effect.clone());
                let taint = DeviceTaint { key, value, effect, time_added: None };
                evicting.entry(device.name.clone()).or_default().push(taint);
            }
            let Ok(DeviceName::Network(network)) = device.name.parse() else { continue };
            let on = networks.entry(network).or_default();
            on.bandwidth = device.capacity.bandwidth.and_then(|amount| amount.value.parse().ok());
            on.taints.extend(device.taints.into_iter().map(|taint| taint.key));
        }
        Some(Self { node: node_name?, driver, pool: pool.name, networks, evicting, followers, older })
    }
}

/// The requirements of an accepted ClaimNetwork on nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeAsk {
    /// Its nodes; `None` for all.
    pub(crate) node_selector: Option<NodeSelector>,
    pub(crate) bandwidth: Option<Quantity>,
    /// The label of the nodes that have it, if it is a device of the cluster. Otherwise nodes publish it.
    pub(crate) label: Option<String>,
}

impl NodeAsk {
    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        selects_node(self.node_selector.as_ref(), labels)
    }

    /// Whether a node with these labels has a device of the cluster.
    fn is_on(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.label.as_ref().is_some_and(|label| labels.is_some_and(|labels| labels.contains_key(label)))
    }
}

/// What has changed since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// ClaimNetworks whose status may have changed.
    pub(crate) networks: BTreeSet<NetworkName>,
    /// Some ClaimNetwork is on other nodes, or selects others.
    pub(crate) places: bool,
    /// Nodes whose agent has come or gone.
    pub(crate) agents: BTreeSet<String>,
    /// Other links follow an UplinkPolicy.
    pub(crate) followers: bool,
}

/// What agents publish, and the nodes of each ClaimNetwork.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Offers by the name of the slice.
    slices: BTreeMap<String, Offer>,
    /// Names of the slices of each node.
    agents: BTreeMap<String, BTreeSet<String>>,
    /// The requirements of the accepted ClaimNetworks.
    wanted: BTreeMap<NetworkName, NodeAsk>,
    networks: BTreeMap<NetworkName, NetworkNodes>,
    /// ClaimNetworks of the cluster, with each node that has the label of one.
    labelled: BTreeSet<(NetworkName, String)>,
    /// Taints that an admin gives devices.
    rules: Vec<DeviceTaintRule>,
    /// The list in progress.
    listing: BTreeMap<String, Offer>,
    changes: Changes,
}

impl Published {
    /// Takes in an event of the watch of slices. Returns whether anything changed.
    pub(crate) fn apply(&mut self, event: Event<DevicesOfSlice>) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(slice) => {
                let name = slice.name_any();
                self.listing.extend(Offer::of(slice).map(|offer| (name, offer)));
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                let gone: Vec<String> =
                    self.slices.keys().filter(|name| !listed.contains_key(*name)).cloned().collect();
                let gone = gone.into_iter().map(|name| (name, None));
                let all: Vec<_> =
                    gone.chain(listed.into_iter().map(|(name, offer)| (name, Some(offer)))).collect();
                all.into_iter().fold(false, |changed, (name, offer)| self.replace(name, offer) | changed)
            }
            Event::Apply(slice) => {
                let name = slice.name_any();
                self.replace(name, Offer::of(slice))
            }
            Event::Delete(slice) => self.replace(slice.name_any(), None),
        }
    }

    /// Replaces what a slice offers. Returns whether that is new.
    fn replace(&mut self, slice: String, now: Option<Offer>) -> bool {
        let before = match now.clone() {
            Some(offer) => self.slices.insert(slice.clone(), offer),
            None => self.slices.remove(&slice),
        };
        if before == now {
            return false;
        }
        let [followed, follow] = [&before, &now].map(|offer| offer.as_ref().map(|offer| &offer.followers));
        self.changes.followers |= followed != follow;
        let nodes: BTreeSet<&String> =
            [&before, &now].into_iter().flatten().map(|offer| &offer.node).collect();
        for node in nodes {
            let had_agent = self.agents.contains_key(node);
            if now.as_ref().is_some_and(|offer| offer.node == *node) {
                self.agents.entry(node.clone()).or_default().insert(slice.clone());
            } else if let Some(slices) = self.agents.get_mut(node) {
                slices.remove(&slice);
                if slices.is_empty() {
                    self.agents.remove(node);
                }
            }
            let offers = [&before, &now].into_iter().flatten().filter(|offer| offer.node == *node);
            let mut touched: BTreeSet<NetworkName> =
                offers.flat_map(|offer| offer.networks.keys().chain(offer.older.keys())).cloned().collect();
            if had_agent != self.agents.contains_key(node) {
                self.changes.agents.insert(node.clone());
                // It lacks ClaimNetworks from now on, or does not any more.
                touched.extend(self.wanted.keys().cloned());
            }
            for network in touched {
                let is_selected = self.of(&network).is_some_and(|nodes| nodes.selects(node));
                self.refresh(network, node, is_selected);
            }
        }
        true
    }

    /// Takes in what the accepted ClaimNetworks ask for, of nodes with these labels.
    pub(crate) fn want(&mut self, wanted: BTreeMap<NetworkName, NodeAsk>, nodes: &Nodes) {
        let before = std::mem::replace(&mut self.wanted, wanted);
        let names: BTreeSet<NetworkName> = before.keys().chain(self.wanted.keys()).cloned().collect();
        for network in names {
            let now = self.wanted.get(&network).cloned();
            if before.get(&network) == now.as_ref() {
                continue;
            }
            let asked = now.as_ref().and_then(|wanted| wanted.bandwidth);
            self.networks.insert(network.clone(), NetworkNodes::asking(asked));
            self.labelled.retain(|(labelled, _)| *labelled != network);
            let all: BTreeSet<String> = self.agents.keys().chain(nodes.keys()).cloned().collect();
            for node in all {
                let selects =
                    |wanted: &NodeAsk| nodes.get(&node).is_some_and(|facts| wanted.selects(&facts.labels));
                let is_selected = now.as_ref().is_some_and(selects);
                if now
                    .as_ref()
                    .is_some_and(|wanted| wanted.is_on(nodes.get(&node).map(|facts| &facts.labels)))
                {
                    self.labelled.insert((network.clone(), node.clone()));
                }
                self.refresh(network.clone(), &node, is_selected);
            }
            self.changes.networks.insert(network);
            self.changes.places = true;
        }
    }

    /// Takes in the labels of a Node; `None` if it is gone.
    pub(crate) fn label(&mut self, node: &str, labels: Option<&BTreeMap<String, String>>) {
        let selects = |wanted: &NodeAsk| labels.is_some_and(|labels| wanted.selects(labels));
        let now: Vec<(NetworkName, bool, bool)> = self
            .wanted
            .iter()
            .map(|(network, wanted)| (network.clone(), selects(wanted), wanted.is_on(labels)))
            .collect();
        for (network, is_selected, is_labelled) in now {
            let of_node = (network.clone(), node.to_owned());
            if is_labelled {
                self.labelled.insert(of_node);
            } else {
                self.labelled.remove(&of_node);
            }
            self.refresh(network, node, is_selected);
        }
    }

    /// Takes in all DeviceTaintRules. Returns whether they have changed.
    pub(crate) fn rule(&mut self, rules: Vec<DeviceTaintRule>) -> bool {
        let spec = |rule: &DeviceTaintRule| (rule.name_any(), rule.spec.clone());
        if self.rules.iter().map(spec).eq(rules.iter().map(spec)) {
            return false;
        }
        self.rules = rules;
        let offers = self.slices.values();
        let offered = offers.flat_map(|offer| offer.networks.keys().map(|network| (network, &offer.node)));
        let offered: BTreeSet<(NetworkName, String)> =
            offered.map(|(network, node)| (network.clone(), node.clone())).collect();
        for (network, node) in offered {
            let is_selected = self.of(&network).is_some_and(|nodes| nodes.selects(&node));
            self.refresh(network, &node, is_selected);
        }
        true
    }

    /// Returns the DeviceTaintRules.
    pub(crate) fn rules(&self) -> &[DeviceTaintRule] {
        &self.rules
    }

    /// Returns the taints by which devices have to be left.
    pub(crate) fn evictions(&self) -> Evictions {
        let of_offer = |offer: &Offer| {
            let pool = offer.pool.clone();
            offer.evicting.clone().into_iter().map(move |(device, taints)| ((pool.clone(), device), taints))
        };
        let rules = self.rules.iter().filter(|rule| rule.spec.taint.effect == NO_EXECUTE);
        Evictions {
            taints: self.slices.values().flat_map(of_offer).collect(),
            rules: rules.cloned().collect(),
        }
    }

    /// Derives again what a node is to a ClaimNetwork.
    fn refresh(&mut self, network: NetworkName, node: &str, is_selected: bool) {
        let slices = self.agents.get(node);
        let has_agent = slices.is_some();
        let device = DeviceName::Network(network.clone()).to_string();
        let mut published: Option<OnNode> = None;
        for offer in slices.into_iter().flatten().filter_map(|name| self.slices.get(name)) {
            let Some(on) = offer.networks.get(&network) else { continue };
            let all = published.get_or_insert_default();
            all.bandwidth = on.bandwidth;
            let of_rules = taint_rules::closing(&self.rules, &offer.driver, &offer.pool, &device);
            all.taints.extend(on.taints.iter().cloned().chain(of_rules.map(taint_rules::named)));
        }
        if self.labelled.contains(&(network.clone(), node.to_owned())) {
            published.get_or_insert_default();
        }
        // A node may publish what it likes, and gets no addresses by it.
        if self.wanted.contains_key(&network) && !is_selected {
            published = None;
        }
        let slices = slices.into_iter().flatten().filter_map(|name| self.slices.get(name));
        let older = slices.filter_map(|offer| offer.older.get(&network).copied()).max().unwrap_or_default();
        let now = NodeNow { published, is_selected, has_agent, older };
        let nodes = self.networks.entry(network.clone()).or_default();
        let Change { status, places } = nodes.set(node, now);
        if nodes.is_empty() && !self.wanted.contains_key(&network) {
            self.networks.remove(&network);
        }
        self.changes.places |= places;
        if status {
            self.changes.networks.insert(network);
        }
    }

    /// Returns the nodes of a ClaimNetwork, if any is known.
    pub(crate) fn of(&self, network: &NetworkName) -> Option<&NetworkNodes> {
        self.networks.get(network)
    }

    /// Returns how many links of a node follow an UplinkPolicy; `None` if its agent publishes nothing.
    pub(crate) fn followers(&self, node: &str, policy: &str) -> Option<u32> {
        let slices = self.agents.get(node)?.iter().filter_map(|name| self.slices.get(name));
        Some(slices.filter_map(|offer| offer.followers.get(policy).copied()).max().unwrap_or_default())
    }

    /// Whether the node's agent publishes anything.
    pub(crate) fn has_agent(&self, node: &str) -> bool {
        self.agents.contains_key(node)
    }

    /// Returns what has changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use netclaim_api::configuration::OLDER_CONFIGURATION;
    use netclaim_api::network::NodeCounts;

    use crate::objects::nodes::NodeFacts;

    fn slice(name: &str, node: Option<&str>, devices: &[Value]) -> DevicesOfSlice {
        serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": "netclaim.dev", "pool": {"name": "p"}, "nodeName": node, "devices": devices}
        }))
        .unwrap()
    }

    fn named(names: &[&str]) -> Vec<Value> {
        names.iter().map(|name| json!({"name": name, "capacity": {}})).collect()
    }

    fn name(name: &str) -> NetworkName {
        name.parse().unwrap()
    }

    /// Has the slice's agent say so of pods with an older configuration.
    fn annotate(slice: &mut DevicesOfSlice, older: &Value) {
        slice.metadata.annotations = Some([(OLDER_CONFIGURATION.to_owned(), older.to_string())].into());
    }

    #[test]
    fn pods_of_an_older_configuration_are_counted_once_on_each_node() {
        let mut published = Published::default();
        let mut first = slice("s1", Some("n1"), &named(&["net-a"]));
        annotate(&mut first, &json!({"a": {"pods": 2}, "gone": {"pods": 1}}));
        let mut second = slice("s2", Some("n1"), &named(&["net-b"]));
        second.metadata = kube::api::ObjectMeta { name: Some("s2".to_owned()), ..first.metadata.clone() };
        published.apply(Event::Apply(first.clone()));
        published.apply(Event::Apply(second));
        let older =
            |published: &Published, of: &str| published.of(&name(of)).map(|nodes| nodes.older().clone());
        assert_eq!(older(&published, "a"), Some([("n1".to_owned(), 2)].into()));
        assert_eq!(older(&published, "gone"), Some([("n1".to_owned(), 1)].into()), "it has no device here");
        published.take_changes();
        published.apply(Event::Delete(slice("s2", Some("n1"), &[])));
        annotate(&mut first, &json!({"a": {"pods": 1}}));
        published.apply(Event::Apply(first));
        assert_eq!(older(&published, "a"), Some([("n1".to_owned(), 1)].into()));
        assert_eq!(older(&published, "gone"), None);
        let Changes { networks, places, .. } = published.take_changes();
        assert!(networks.contains(&name("a")) && networks.contains(&name("gone")), "{networks:?}");
        assert!(places, "net-b is gone");
    }

    #[test]
    fn a_node_counts_once_however_many_slices_it_has() {
        let mut published = Published::default();
        for slice in [
            slice("s1", Some("n1"), &named(&["nic-eth1", "net-a"])),
            slice("s2", Some("n1"), &named(&["net-a", "net-b"])),
            slice("s3", Some("n2"), &named(&["net-a"])),
        ] {
            published.apply(Event::Apply(slice));
        }
        let count =
            |published: &Published, of: &str| published.of(&name(of)).map(|nodes| nodes.counts().publishing);
        assert_eq!((count(&published, "a"), count(&published, "b")), (Some(2), Some(1)));
        published.apply(Event::Delete(slice("s1", Some("n1"), &[])));
        assert_eq!(count(&published, "a"), Some(2));
        published.apply(Event::Delete(slice("s2", Some("n1"), &[])));
        assert_eq!((count(&published, "a"), count(&published, "b")), (Some(1), None));
    }

    #[test]
    fn a_rule_closes_the_nodes_whose_devices_it_selects_and_is_named() {
        let mut published = Published::default();
        for (name, node) in [("s1", "n1"), ("s2", "n2")] {
            let mut slice = slice(name, Some(node), &named(&["net-a", "net-b"]));
            slice.spec.pool.name = node.to_owned();
            published.apply(Event::Apply(slice));
        }
        let rule = |selector: Value| -> DeviceTaintRule {
            let taint = json!({"key": "example.com/maintenance", "effect": "NoSchedule"});
            let rule =
                json!({"metadata": {"name": "work"}, "spec": {"deviceSelector": selector, "taint": taint}});
            serde_json::from_value(rule).unwrap()
        };
        let closed = |published: &Published, of: &str| published.of(&name(of)).unwrap().tainted().clone();
        published.take_changes();
        let of_a = rule(json!({"driver": "netclaim.dev", "pool": "n2", "device": "net-a"}));
        assert!(published.rule(vec![of_a.clone()]));
        assert_eq!(published.take_changes().networks, [name("a")].into());
        let told = "example.com/maintenance (DeviceTaintRule work)".to_owned();
        assert_eq!(closed(&published, "a"), [(told, BTreeSet::from(["n2".to_owned()]))].into());
        assert!(closed(&published, "b").is_empty());
        let mut reported = of_a;
        reported.metadata.resource_version = Some("7".to_owned());
        assert!(!published.rule(vec![reported]), "Kubernetes has written its status");
        assert!(published.rule(Vec::new()));
        assert!(closed(&published, "a").is_empty());
    }

    #[test]
    fn a_node_that_a_network_does_not_select_is_not_one_of_its_nodes() {
        let selector = json!({"matchLabels": {"rack": "7"}});
        let wanted =
            NodeAsk { node_selector: Some(serde_json::from_value(selector).unwrap()), ..NodeAsk::default() };
        let labels = |rack: &str| BTreeMap::from([("rack".to_owned(), rack.to_owned())]);
        let node = |rack: &str| NodeFacts { labels: labels(rack), ..NodeFacts::default() };
        let nodes = Nodes::from([("n1".to_owned(), node("7")), ("n2".to_owned(), node("8"))]);
        let mut published = Published::default();
        for (name, node) in [("s1", "n1"), ("s2", "n2")] {
            published.apply(Event::Apply(slice(name, Some(node), &named(&["net-a"]))));
        }
        let on = |published: &Published| {
            published.of(&name("a")).unwrap().publishing().cloned().collect::<Vec<_>>()
        };
        assert_eq!(on(&published), ["n1", "n2"], "it is unknown which nodes the ClaimNetwork selects");
        published.want([(name("a"), wanted)].into(), &nodes);
        assert_eq!(on(&published), ["n1"]);
        published.label("n2", Some(&labels("7")));
        assert_eq!(on(&published), ["n1", "n2"]);
    }

    #[test]
    fn a_pool_of_the_cluster_is_on_no_node() {
        let mut published = Published::default();
        assert!(!published.apply(Event::Apply(slice("s1", None, &named(&["net-a"])))));
        assert_eq!(published.of(&name("a")), None);
    }

    #[test]
    fn a_slice_that_is_written_again_without_a_change_changes_nothing() {
        let mut published = Published::default();
        assert!(published.apply(Event::Apply(slice("s1", Some("n1"), &named(&["net-a"])))));
        let changes = published.take_changes();
        let agents = BTreeSet::from(["n1".to_owned()]);
        let all =
            Changes { networks: [name("a")].into(), places: true, agents: agents.clone(), followers: true };
        assert_eq!(changes, all);
        assert!(!published.apply(Event::Apply(slice("s1", Some("n1"), &named(&["net-a"])))));
        assert_eq!(published.take_changes(), Changes::default());
        // No node needs other addresses because a link is down.
        let down = json!({"name": "net-a", "taints": [{"key": "netclaim.dev/link-down"}]});
        assert!(published.apply(Event::Apply(slice("s1", Some("n1"), &[down]))));
        let changes = Changes { networks: [name("a")].into(), ..Changes::default() };
        assert_eq!(published.take_changes(), changes);
        published.apply(Event::Delete(slice("s1", Some("n1"), &[])));
        assert_eq!((published.take_changes().agents, published.has_agent("n1")), (agents, false));
    }

    #[test]
    fn a_network_of_the_cluster_is_on_the_nodes_with_its_label() {
        let wanted = NodeAsk { label: Some("up".to_owned()), ..NodeAsk::default() };
        let labelled = |labels: &[&str]| NodeFacts {
            labels: labels.iter().map(|label| (label.to_string(), "up".to_owned())).collect(),
            ..NodeFacts::default()
        };
        let mut published = Published::default();
        let nodes: Nodes = [("n1".to_owned(), labelled(&["up"])), ("n2".to_owned(), labelled(&[]))].into();
        published.want([(name("a"), wanted)].into(), &nodes);
        let counts = |published: &Published| published.of(&name("a")).unwrap().counts();
        assert_eq!(counts(&published), NodeCounts { selected: 2, publishing: 1, available: 1 });
        published.take_changes();
        published.label("n2", Some(&labelled(&["up", "rack"]).labels));
        assert_eq!(counts(&published), NodeCounts { selected: 2, publishing: 2, available: 2 });
        assert_eq!(published.take_changes().networks, BTreeSet::from([name("a")]));
        published.label("n1", None);
        assert_eq!(counts(&published), NodeCounts { selected: 1, publishing: 1, available: 1 });
    }

    #[test]
    fn taints_and_bandwidth_are_collected_by_node() {
        let wanted = NodeAsk { bandwidth: Some("10G".parse().unwrap()), ..NodeAsk::default() };
        let mut published = Published::default();
        let nodes: Nodes = ["n1", "n2"].map(|node| (node.to_owned(), NodeFacts::default())).into();
        published.want([(name("a"), wanted)].into(), &nodes);
        for node in nodes.keys() {
            published.label(node, Some(&BTreeMap::new()));
        }
        let healthy = json!({"name": "net-a", "capacity": {"bandwidth": {"value": "10G"}}});
        let down =
            json!({"name": "net-a", "taints": [{"key": "netclaim.dev/link-down", "effect": "NoSchedule"}]});
        published.apply(Event::Apply(slice("s1", Some("n1"), &[healthy])));
        published.apply(Event::Apply(slice("s2", Some("n2"), &[down])));
        let nodes = published.of(&name("a")).unwrap();
        assert_eq!(nodes.reduced(), &BTreeSet::from(["n2".to_owned()]));
        assert_eq!(
            nodes.tainted(),
            &BTreeMap::from([("netclaim.dev/link-down".into(), BTreeSet::from(["n2".into()]))])
        );
        assert_eq!(nodes.counts(), NodeCounts { selected: 2, publishing: 2, available: 1 });
    }

    /// What has been applied, from which everything can be derived at once.
    #[derive(Default)]
    struct World {
        slices: BTreeMap<String, DevicesOfSlice>,
        nodes: Nodes,
        wanted: BTreeMap<NetworkName, NodeAsk>,
    }

    impl World {
        /// Derives the nodes of a ClaimNetwork from everything.
        fn nodes_of(&self, network: &NetworkName) -> NetworkNodes {
            let offers: BTreeMap<&String, Offer> = self
                .slices
                .iter()
                .filter_map(|(name, slice)| Some((name, Offer::of(slice.clone())?)))
                .collect();
            let wanted = self.wanted.get(network);
            let mut all = NetworkNodes::asking(wanted.and_then(|wanted| wanted.bandwidth));
            let names: BTreeSet<&String> =
                offers.values().map(|offer| &offer.node).chain(self.nodes.keys()).collect();
            for node in names {
                let of_node: Vec<&Offer> = offers.values().filter(|offer| offer.node == *node).collect();
                let on: Vec<&OnNode> =
                    of_node.iter().filter_map(|offer| offer.networks.get(network)).collect();
                let published = on.last().map(|last| OnNode {
                    bandwidth: last.bandwidth,
                    taints: on.iter().flat_map(|on| on.taints.clone()).collect(),
                });
                let labels = self.nodes.get(node).map(|facts| &facts.labels);
                let is_selected = wanted.zip(labels).is_some_and(|(wanted, labels)| wanted.selects(labels));
                let is_on = wanted.is_some_and(|wanted| wanted.is_on(labels));
                let published = published.or_else(|| is_on.then(OnNode::default));
                let published = published.filter(|_| wanted.is_none() || is_selected);
                let older = of_node.iter().filter_map(|offer| offer.older.get(network).copied()).max();
                let (has_agent, older) = (!of_node.is_empty(), older.unwrap_or_default());
                all.set(node, NodeNow { published, is_selected, has_agent, older });
            }
            all
        }
    }

    /// A small generator of numbers (xorshift).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    #[test]
    fn events_lead_to_the_same_state_as_a_full_derivation() {
        for seed in 1..=40 {
            let mut random = Random(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
            let (mut published, mut world) = (Published::default(), World::default());
            for step in 0..250 {
                let (node, network) = (format!("n{}", random.below(5)), format!("{}", random.below(4)));
                match random.below(12) {
                    0..6 => {
                        let of: Vec<Value> = (0..random.below(4))
                            .map(|_| {
                                let taints: Vec<Value> =
                                    (0..random.below(3)).map(|n| json!({"key": format!("t{n}")})).collect();
                                let bandwidth = format!("{}G", random.below(3));
                                json!({"name": format!("net-{}", random.below(4)), "taints": taints,
                                    "capacity": {"bandwidth": {"value": bandwidth}}})
                            })
                            .collect();
                        let name = format!("s{}", random.below(8));
                        let node = (random.below(10) > 0).then_some(node.as_str());
                        let mut slice = slice(&name, node, &of);
                        if random.below(3) == 0 {
                            let older = json!({format!("{}", random.below(4)): {"pods": random.below(3)}});
                            annotate(&mut slice, &older);
                        }
                        published.apply(Event::Apply(slice.clone()));
                        world.slices.insert(name, slice);
                    }
                    6..8 => {
                        let name = format!("s{}", random.below(8));
                        published.apply(Event::Delete(slice(&name, None, &[])));
                        world.slices.remove(&name);
                    }
                    8 => {
                        let mut labels = BTreeMap::from([("rack".to_owned(), random.below(2).to_string())]);
                        labels.extend((random.below(2) > 0).then(|| ("up".to_owned(), "up".to_owned())));
                        published.label(&node, Some(&labels));
                        world.nodes.insert(node, NodeFacts { labels, ..NodeFacts::default() });
                    }
                    9 => {
                        published.label(&node, None);
                        world.nodes.remove(&node);
                    }
                    10 => {
                        let selector = match random.below(4) {
                            0 => Value::Null,
                            1 => {
                                json!({"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["1"]}]})
                            }
                            rack => json!({"matchLabels": {"rack": (rack - 2).to_string()}}),
                        };
                        let node_selector = serde_json::from_value(selector).unwrap();
                        let bandwidth = (random.below(2) > 0).then(|| "1G".parse().unwrap());
                        let label = (network == "3").then(|| "up".to_owned());
                        if random.below(4) == 0 {
                            world.wanted.remove(&name(&network));
                        } else {
                            world.wanted.insert(name(&network), NodeAsk { node_selector, bandwidth, label });
                        }
                        published.want(world.wanted.clone(), &world.nodes);
                    }
                    _ => {
                        // The watch begins again, and has missed some events.
                        let gone = format!("s{}", random.below(8));
                        world.slices.remove(&gone);
                        published.apply(Event::Init);
                        for slice in world.slices.values() {
                            published.apply(Event::InitApply(slice.clone()));
                        }
                        published.apply(Event::InitDone);
                    }
                }
                published.take_changes();
                for network in 0..4 {
                    let network = name(&network.to_string());
                    let known = published.of(&network).cloned().unwrap_or_default();
                    assert_eq!(known, world.nodes_of(&network), "seed {seed}, step {step}");
                }
            }
        }
    }
}
