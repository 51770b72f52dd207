//! ClaimNetworks and DeviceClasses that exist: of an earlier migration, or of another owner.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::Invalid;
use netclaim_api::labels::{LabelOperator, LabelRequirement, LabelSelector};
use netclaim_api::network::ClaimNetworkSpec;
use serde_json::Value;

use super::nad_name::NadName;

/// The annotation of an object that a migration makes, with the NetworkAttachmentDefinition.
pub(super) const MIGRATED_FROM: &str = "netclaim.dev/migrated-from";
/// The label of a namespace that has its name.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

/// The objects whose names a migration could take.
#[derive(Debug, Default)]
pub(super) struct Existing {
    networks: BTreeMap<String, Object>,
    classes: BTreeMap<String, Object>,
}

#[derive(Debug)]
struct Object {
    migrated_from: Option<String>,
    spec: Value,
}

impl Existing {
    pub(super) fn add_network(&mut self, name: String, object: &Value) {
        self.networks.insert(name, Object::of(object));
    }

    pub(super) fn add_class(&mut self, name: String, object: &Value) {
        self.classes.insert(name, Object::of(object));
    }

    /// Returns the kind of an object of this name that is not made from the NetworkAttachmentDefinition.
    pub(super) fn other(&self, name: &str, of: &NadName) -> Option<&'static str> {
        let is_other = |objects: &BTreeMap<String, Object>| {
            objects.get(name).is_some_and(|object| !object.is_made_from(of))
        };
        [("ClaimNetwork", &self.networks), ("DeviceClass", &self.classes)]
            .into_iter()
            .find_map(|(kind, objects)| is_other(objects).then_some(kind))
    }

    /// Whether an earlier migration has made the ClaimNetwork of this name from the
    /// NetworkAttachmentDefinition.
    pub(super) fn is_made(&self, name: &str, of: &NadName) -> bool {
        self.networks.get(name).is_some_and(|object| object.is_made_from(of))
    }

    /// Returns the ClaimNetwork that an earlier migration has made under this name.
    ///
    /// # Errors
    /// It cannot be read, so a new one could lose what it permits.
    pub(super) fn network(&self, name: &str, of: &NadName) -> Result<Option<ClaimNetworkSpec>, Invalid> {
        let made = self.networks.get(name).filter(|object| object.is_made_from(of));
        let decode = |object: &Object| serde_json::from_value(object.spec.clone());
        made.map(decode).transpose().map_err(|error| {
            let problem = format!(
                "ClaimNetwork {name} exists and cannot be read ({error}), so what it permits would be lost: use the netclaimctl of the \
                 cluster's version"
            );
            Invalid::new("metadata.name", problem)
        })
    }
}

impl Object {
    fn of(object: &Value) -> Self {
        let annotations = object.pointer("/metadata/annotations");
        let migrated_from = annotations.and_then(|annotations| annotations.get(MIGRATED_FROM)?.as_str());
        Self {
            migrated_from: migrated_from.map(str::to_owned),
            spec: object.get("spec").cloned().unwrap_or_default(),
        }
    }

    fn is_made_from(&self, of: &NadName) -> bool {
        self.migrated_from.as_ref().is_some_and(|from| *from == of.to_string())
    }
}

/// Returns the selector of these namespaces.
pub(super) fn selector(namespaces: BTreeSet<String>) -> LabelSelector {
    let mut selector = LabelSelector::default();
    if namespaces.len() == 1 {
        selector.match_labels =
            namespaces.into_iter().map(|name| (NAMESPACE_LABEL.to_owned(), name)).collect();
    } else {
        let (key, values) = (NAMESPACE_LABEL.to_owned(), namespaces.into_iter().collect());
        selector.match_expressions = vec![LabelRequirement { key, operator: LabelOperator::In, values }];
    }
    selector
}

/// Returns the namespaces of a selector that [`selector`] has made; `None` if it was changed to another
/// one.
pub(super) fn namespaces(selector: &LabelSelector) -> Option<BTreeSet<String>> {
    let mut labels = selector.match_labels.iter();
    match (labels.next(), labels.next(), selector.match_expressions.as_slice()) {
        (Some((key, value)), None, []) if key == NAMESPACE_LABEL => Some(BTreeSet::from([value.clone()])),
        (None, None, [LabelRequirement { key, operator: LabelOperator::In, values }])
            if key == NAMESPACE_LABEL =>
        {
            Some(values.iter().cloned().collect())
        }
        _ => None,
    }
}
