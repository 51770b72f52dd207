//! From a NetworkAttachmentDefinition to a ClaimNetwork.

use std::collections::BTreeSet;

use netclaim_api::addresses::NetworkAddresses;
use netclaim_api::network::{
    ClaimNetworkSpec, Conflicts, Gateway, Namespaces, NetworkBandwidth, NetworkCapacity, OnFailure, OwnClass,
    Repair, Scope, TrafficMetrics, UplinkSelector,
};
use netclaim_api::{Allow, IfName, Invalid, NetworkName, Setting};
use netclaim_cni::refuse_duplicate_keys;
use serde_json::{Map, Value, json};

use super::existing;
use super::input::Nad;
use super::nad_name::NadName;
use super::plugins::{self, Uplink};

/// Where a NetworkAttachmentDefinition has its configuration.
const CONFIG: &str = "spec.config";

/// A ClaimNetwork that is made from a NetworkAttachmentDefinition.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) name: NetworkName,
    pub(super) spec: ClaimNetworkSpec,
    /// Whether an earlier run has made the ClaimNetwork.
    pub(super) exists: bool,
    /// What is different, by field of the NetworkAttachmentDefinition.
    pub(super) notes: Vec<Invalid>,
}

/// Where the addresses of pods come from, if whereabouts has handed them out.
pub(super) type Addresses = Result<NetworkAddresses, Vec<Invalid>>;

/// Translates a NetworkAttachmentDefinition. `addresses` are those that whereabouts hands over, if it uses
/// whereabouts.
///
/// # Errors
/// Everything that has no equivalent, by field of the NetworkAttachmentDefinition.
pub(super) fn translate(
    of: &NadName,
    nad: &Nad,
    name: NetworkName,
    addresses: Option<&Addresses>,
) -> Result<Draft, Vec<Invalid>> {
    let mut problems = Vec::new();
    let mut notes = Vec::new();
    if let Some(resource) = &nad.resource {
        problems.push(Invalid::new(
            "metadata.annotations[k8s.v1.cni.cncf.io/resourceName]",
            format!(
                "devices of {resource} come from a device plugin: write a DeviceClass that selects the links or virtual functions, \
                 with extendedResourceName {resource} if pods keep their limits; if the resource only marks nodes, use \
                 spec.nodeSelector of a ClaimNetwork instead, and remove the annotation"
            ),
        ));
    }
    if let Some(owner) = &nad.sriov_owner {
        problems.push(Invalid::new(
            "metadata.annotations[sriovnetwork.openshift.io/owner-ref]",
            format!("the SR-IOV operator makes it from {owner}: see the guide on virtual functions"),
        ));
    }
    let mut cni = match conflist(of, nad) {
        Ok(cni) => cni,
        Err(problem) => return Err(problems.into_iter().chain([problem]).collect()),
    };
    let is_list = cni.is_list;
    let field = |i: usize| if is_list { format!("{CONFIG}.plugins[{i}]") } else { CONFIG.to_owned() };
    let mut uplink: Option<IfName> = None;
    for (i, plugin) in cni.plugins().enumerate() {
        let at = field(i);
        let findings = plugins::adapt(plugin);
        problems.extend(findings.problems.into_iter().map(|problem| problem.within(&at)));
        notes.extend(findings.notes.into_iter().map(|note| note.within(&at)));
        match (findings.uplink, &uplink) {
            (Some(Uplink { key, link }), Some(first)) if *first != link => {
                let problem = format!(
                    "{link} is another link than {first}: a ClaimNetwork has one uplink, make two of it"
                );
                problems.push(Invalid::new(key, problem).within(&at));
            }
            (Some(Uplink { link, .. }), _) => uplink = Some(link),
            (None, _) => {}
        }
        match addresses {
            Some(Err(refused)) if findings.is_whereabouts => {
                problems.extend(refused.iter().cloned().map(|problem| problem.within("ipam").within(&at)));
            }
            None if findings.is_whereabouts => {
                problems.push(Invalid::new("ipam", "cannot be read as whereabouts reads it").within(&at));
            }
            _ => {}
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let addresses = addresses.and_then(|addresses| addresses.as_ref().ok()).cloned();
    finish(&mut cni.list, of, addresses.is_some(), &mut notes);
    let spec = ClaimNetworkSpec {
        pod_labels: None,
        accept_ra: false,
        conflicts: Conflicts::Ignore,
        gateway: Gateway::Optional,
        traffic_metrics: TrafficMetrics::None,
        scope: Scope::Node,
        node_selector: None,
        namespaces: Namespaces::with(existing::selector([of.namespace.clone()].into())),
        // The class has an annotation of the migration.
        device_class: Some(OwnClass::None),
        device_classes: Vec::new(),
        device_class_names: Vec::new(),
        default: None,
        uplink: uplink.map(|link| UplinkSelector { links: vec![link], ..UplinkSelector::default() }),
        node: None,
        finalize: None,
        repair: Repair::None,
        on_failure: OnFailure::default(),
        cni: cni.list,
        addresses,
        capacity: NetworkCapacity::default(),
        bandwidth: NetworkBandwidth::default(),
        segmentation: None,
        attributes: Default::default(),
        allow: Allow::default(),
    };
    Ok(Draft { name, spec, exists: false, notes })
}

/// Names the conflist, and keeps netclaim from removing what Multus has attached.
fn finish(list: &mut Map<String, Value>, of: &NadName, has_addresses: bool, notes: &mut Vec<Invalid>) {
    // With addresses of netclaim, no leases are shared with Multus.
    if has_addresses {
        list.remove("name");
    } else {
        list.entry("name").or_insert_with(|| Value::String(of.name.clone()));
    }
    let versions = list.get("cniVersions").and_then(Value::as_array).into_iter().flatten();
    let has_gc = versions.chain(list.get("cniVersion")).any(|version| version.as_str() == Some("1.1.0"));
    if has_gc && !has_addresses && list.get("disableGC").is_none() {
        list.insert("disableGC".to_owned(), Value::Bool(true));
        let note = "the ClaimNetwork has disableGC, as a GC would remove what Multus has attached: remove it when no pod uses Multus";
        notes.push(Invalid::new(CONFIG, note));
    }
}

/// The configuration of a NetworkAttachmentDefinition as a list.
struct Conflist {
    list: Map<String, Value>,
    /// Whether it was written as a list.
    is_list: bool,
}

impl Conflist {
    fn plugins(&mut self) -> impl Iterator<Item = &mut Map<String, Value>> {
        let plugins = self.list.get_mut("plugins").and_then(Value::as_array_mut);
        plugins.into_iter().flatten().filter_map(Value::as_object_mut)
    }
}

fn conflist(of: &NadName, nad: &Nad) -> Result<Conflist, Invalid> {
    let text = nad.config.as_str();
    if text.is_empty() {
        let problem = format!(
            "is empty: Multus reads the configuration named {} from /etc/cni/multus/net.d of each node; copy it here",
            of.name
        );
        return Err(Invalid::new(CONFIG, problem));
    }
    let wrong = |problem: String| Invalid::new(CONFIG, problem);
    let config = refuse_duplicate_keys(text).and_then(|()| serde_json::from_str(text));
    let mut config = match config.map_err(|error| wrong(format!("is not valid JSON: {error}")))? {
        Value::Object(config) => escaped(config),
        _ => return Err(wrong("is not a JSON object".to_owned())),
    };
    if config.contains_key("plugins") {
        return Ok(Conflist { list: config, is_list: true });
    }
    let mut list = Map::new();
    for key in ["cniVersion", "name", "disableCheck"] {
        list.extend(config.remove(key).map(|value| (key.to_owned(), value)));
    }
    list.insert("plugins".to_owned(), json!([config]));
    Ok(Conflist { list, is_list: false })
}

/// Returns the configuration with `$${` for each `${`, which ClaimNetworks would take for a placeholder.
fn escaped(object: Map<String, Value>) -> Map<String, Value> {
    fn of(value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(text.replace("${", "$${")),
            Value::Array(items) => Value::Array(items.into_iter().map(of).collect()),
            Value::Object(object) => Value::Object(escaped(object)),
            other => other,
        }
    }
    object.into_iter().map(|(key, value)| (key, of(value))).collect()
}

impl Draft {
    /// Returns the namespaces that have the ClaimNetwork; `None` if all have it, or those of a selector that
    /// netclaim has not written.
    pub(super) fn namespaces(&self) -> Option<BTreeSet<String>> {
        self.spec.namespaces.selector.as_ref().and_then(existing::namespaces)
    }

    /// Offers the ClaimNetwork to a namespace. Returns whether that opens it.
    pub(super) fn offer(&mut self, namespace: &str) -> bool {
        let Some(mut namespaces) = self.namespaces() else { return false };
        let is_new = namespaces.insert(namespace.to_owned());
        if is_new {
            self.spec.namespaces = Namespaces::with(existing::selector(namespaces));
        }
        is_new
    }

    /// Lets claims set something. A plugin that takes an address or MAC from Multus without the capability
    /// gets it here. Returns whether that opens the ClaimNetwork.
    ///
    /// # Errors
    /// No plugin takes it; what to do.
    pub(super) fn permit(&mut self, setting: Setting) -> Result<bool, String> {
        if setting == Setting::Ips && self.spec.addresses.is_some() {
            return Err("whereabouts gives these beside an address of its pool, and netclaim gives one address of each family: \
                 remove the key, or reserve the addresses in the ClaimNetwork and write the claim by hand"
                .to_owned());
        }
        let plugins = self.spec.cni.get_mut("plugins").and_then(Value::as_array_mut).into_iter().flatten();
        let mut plugins: Vec<&mut Map<String, Value>> = plugins.filter_map(Value::as_object_mut).collect();
        let is_declared =
            !setting.is_capability() || plugins.iter().any(|plugin| plugins::declares(plugin, setting));
        if !is_declared {
            let taker = plugins.iter_mut().find(|plugin| plugins::takes(plugin, setting));
            let Some(taker) = taker else { return Err(plugins::untaken(setting).to_owned()) };
            let capabilities = taker.entry("capabilities").or_insert_with(|| json!({}));
            if let Some(capabilities) = capabilities.as_object_mut() {
                capabilities.insert(setting.as_str().to_owned(), Value::Bool(true));
            }
        }
        let allow = &mut self.spec.allow;
        let was_allowed = allow.allows(setting);
        allow.allow(setting);
        Ok(!was_allowed || !is_declared)
    }

    /// Permits what the ClaimNetwork permitted before, to those whom it permitted it: claims of pods that
    /// have moved depend on it.
    pub(super) fn keep(&mut self, before: &ClaimNetworkSpec) {
        self.exists = true;
        self.spec.namespaces = before.namespaces.clone();
        let plugins = |list: &Map<String, Value>| list.get("plugins").and_then(Value::as_array).cloned();
        let old = plugins(&before.cni).unwrap_or_default();
        let new = self.spec.cni.get_mut("plugins").and_then(Value::as_array_mut).into_iter().flatten();
        for (plugin, old) in new.filter_map(Value::as_object_mut).zip(&old) {
            let is_same = plugin.get("type") == old.get("type");
            let Some(old) = old.get("capabilities").and_then(Value::as_object).filter(|_| is_same) else {
                continue;
            };
            let capabilities = plugin.entry("capabilities").or_insert_with(|| json!({}));
            if let Some(capabilities) = capabilities.as_object_mut() {
                let declared = old.iter().filter(|(_, value)| **value == Value::Bool(true));
                capabilities.extend(declared.map(|(name, value)| (name.clone(), value.clone())));
            }
        }
        let drafted = std::mem::replace(&mut self.spec.allow, before.allow.clone());
        Setting::ALL.into_iter().filter(|setting| drafted.allows(*setting)).for_each(|setting| {
            self.spec.allow.allow(setting);
        });
    }

    /// Returns every problem that the controller would find, by field of the ClaimNetwork.
    pub(super) fn problems(&self) -> Vec<Invalid> {
        self.spec.problems(self.name.as_str())
    }

    /// Returns what the controller would warn of, by field of the ClaimNetwork.
    pub(super) fn warnings(&self) -> Vec<Invalid> {
        self.spec.warnings(self.name.as_str()).into_iter().chain(self.spec.repeated_addresses()).collect()
    }
}
