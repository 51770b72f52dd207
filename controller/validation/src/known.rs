//! What the objects of a set know about each other. What is not in the set is unknown, and nothing is said
//! about it.

use std::collections::BTreeMap;

use netclaim_api::addresses::{AddressPoolSpec, NetworkAddresses};
use netclaim_api::merge::{Asked, Base, Layer, merge};
use netclaim_api::network::overlap::overlaps;
use netclaim_api::network::{ClaimNetworkSpec, NetworkClass};
use netclaim_api::{API_VERSION, Invalid, NetworkName, Quantity};
use serde_json::Value;

use crate::class::{self, Class};

/// The API group of claims and classes.
pub(crate) const RESOURCE_GROUP: &str = "resource.k8s.io";

/// The valid objects of a set that others name.
#[derive(Default)]
pub(crate) struct KnownObjects {
    networks: BTreeMap<NetworkName, ClaimNetworkSpec>,
    pools: BTreeMap<String, AddressPoolSpec>,
    classes: BTreeMap<String, Class>,
}

/// The API group of a version; empty for that of pods.
pub(crate) fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

impl KnownObjects {
    pub(crate) fn of(objects: &[Value], driver: &str) -> Self {
        let mut known = Self::default();
        let mut made = Vec::new();
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let spec = &object["spec"];
            let api_version = object["apiVersion"].as_str().unwrap_or_default();
            match object["kind"].as_str().unwrap_or_default() {
                "ClaimNetwork" if api_version == API_VERSION => {
                    let network = ClaimNetworkSpec::read(name, spec).ok();
                    made.extend(network.iter().flat_map(|(name, spec)| {
                        let class = |class: &NetworkClass| Class {
                            network: Some(name.to_string()),
                            layers: Layer::of_class(class).into_iter().collect(),
                        };
                        let classes = spec.classes(name);
                        classes.iter().map(|of| (of.name.as_str().to_owned(), class(of))).collect::<Vec<_>>()
                    }));
                    known.networks.extend(network);
                }
                "AddressPool" if api_version == API_VERSION => {
                    known.pools.extend(AddressPoolSpec::read(name, spec).map(|pool| (name.to_owned(), pool)));
                }
                "DeviceClass" if group(api_version) == RESOURCE_GROUP => {
                    known.classes.extend(class::known(object, driver).map(|class| (name.to_owned(), class)));
                }
                _ => {}
            }
        }
        // The controller leaves a class alone that is there.
        for (name, class) in made {
            known.classes.entry(name).or_insert(class);
        }
        known
    }

    /// Whether the set has a class of this name that is for the driver.
    pub(crate) fn has_class(&self, name: &str) -> bool {
        self.classes.contains_key(name)
    }

    /// Whether a class of the set makes its attachments primary networks.
    pub(crate) fn is_primary(&self, class: &str) -> bool {
        self.classes.get(class).is_some_and(Class::is_primary)
    }

    /// Returns what a pod lacks whose primary network is that of a class of the set. What the ClaimNetwork
    /// itself gets as warnings is left out.
    pub(crate) fn lacks_as_primary(&self, class: &str) -> Vec<String> {
        let network = self.is_primary(class).then(|| self.network(class, Vec::new())).flatten();
        let Some((name, spec, _)) = network else { return Vec::new() };
        let lacks = spec.lacks_as_primary().filter(|_| !spec.is_for_primary());
        lacks.map(|problem| format!("ClaimNetwork {name}: {problem}")).collect()
    }

    /// Returns ClaimNetworks of the set that hand out the same addresses, each with a warning.
    pub(crate) fn overlaps(&self) -> Vec<(&NetworkName, Invalid)> {
        overlaps(self.networks.iter(), &self.pools)
    }

    /// Returns what the agent would refuse of a claim's configurations for a class of the set. The path is
    /// that of the agent's messages: `claim config[0].FIELD`, or the setting alone.
    pub(crate) fn refusal(
        &self,
        class: &str,
        claim: Vec<Layer>,
        granted: Option<Quantity>,
    ) -> Option<Invalid> {
        let (name, spec, layers) = self.network(class, claim)?;
        match merge(Base::Network(name, spec), &layers, granted) {
            Ok(merged) => self.not_reserved(spec, &merged.asked),
            Err(problem) => Some(problem),
        }
    }

    /// Returns whether a claim asks for reserved addresses, if claims can ask for some of the ClaimNetwork of
    /// a class of the set.
    pub(crate) fn asks_for_reserved(
        &self,
        class: &str,
        claim: Vec<Layer>,
        granted: Option<Quantity>,
    ) -> Option<bool> {
        let (name, spec, layers) = self.network(class, claim)?;
        let pool = self.pool(spec).filter(|pool| spec.allow.ips.is_some() && pool.can_be_asked());
        let merged = merge(Base::Network(name, spec), &layers, granted).ok()?;
        pool.map(|_| !matches!(merged.asked, Asked::None))
    }

    /// Returns the ClaimNetwork of a class, with the configurations of the class and then those of the claim.
    fn network(
        &self,
        class: &str,
        claim: Vec<Layer>,
    ) -> Option<(&NetworkName, &ClaimNetworkSpec, Vec<Layer>)> {
        let class = self.classes.get(class)?;
        let (name, spec) =
            self.networks.get_key_value(&class.network.as_ref()?.parse::<NetworkName>().ok()?)?;
        Some((name, spec, class.layers.iter().cloned().chain(claim).collect()))
    }

    /// Returns the pool that a ClaimNetwork draws from.
    fn pool(&self, spec: &ClaimNetworkSpec) -> Option<AddressPoolSpec> {
        let addresses: &NetworkAddresses = spec.addresses.as_ref()?;
        addresses.inline().or_else(|| self.pools.get(addresses.pool.as_ref()?).cloned())
    }

    /// Returns why a claim cannot ask for these addresses of a ClaimNetwork.
    fn not_reserved(&self, spec: &ClaimNetworkSpec, asked: &Asked) -> Option<Invalid> {
        let Asked::Addresses(ips) = asked else { return None };
        self.pool(spec)?.asked(ips).err()
    }
}
