//! DeviceClasses: which devices they select, and how these are attached.

use netclaim_api::merge::{Author, Base, Layer, cni_of_network, merge};
use netclaim_api::opaque::Opaque;
use netclaim_api::{AttachmentConfig, CniConfig, LinkUse};
use serde_json::Value;

use crate::config::{Config, MAX_CONFIGS};
use crate::limits::{Judged, Limit, too_many};
use crate::review::Review;
use crate::selectors::{Budget, Selectors};

/// A class for the driver.
pub(crate) struct Class {
    /// The ClaimNetwork that its devices must have, if its selectors say so; an empty text for a link's own
    /// devices.
    pub(crate) network: Option<String>,
    /// Its configurations.
    pub(crate) layers: Vec<Layer>,
}

impl Class {
    /// Whether its attachments are the primary networks of their pods.
    pub(crate) fn is_primary(&self) -> bool {
        let is_set =
            |layer: &Layer| matches!(&layer.config, Opaque::Attachment(settings) if settings.primary);
        self.layers.iter().any(is_set)
    }
}

/// Reviews a class. `lacks` is what its ClaimNetwork lacks as a primary network. `Ok(None)`: it is not about
/// the driver.
pub(crate) fn review(class: &Value, driver: &str, lacks: Vec<String>, limit: &Limit<'_>) -> Judged {
    let mut review = Review::default();
    let spec = &class["spec"];
    too_many(&spec["config"], "spec.config", MAX_CONFIGS, &mut review);
    if review != Review::default() {
        return Ok(Some(review));
    }
    let selectors = Selectors::of(&spec["selectors"], "spec.selectors", &Budget::default());
    let configs = Config::of(&spec["config"], "spec.config", driver, &mut review, limit)?;
    if !selectors.name(driver) && configs.is_empty() && review == Review::default() {
        return Ok(None);
    }
    selectors.review(driver, &mut review);
    breadth(&selectors, driver, &mut review);
    for config in &configs {
        if let Some(settings) = config.attachment() {
            shared_by_claims(config, settings, &mut review);
        }
    }
    if let Some(config) = configs.iter().find(|config| config.attachment().is_some_and(|of| of.primary)) {
        lacks.into_iter().for_each(|problem| review.warn(format!("{}.primary", config.field), problem));
    }
    let of_uplinks: Vec<(&Config, &CniConfig)> =
        configs.iter().filter_map(|config| Some((config, config.cni()?))).collect();
    for (config, cni) in &of_uplinks {
        limit.check()?;
        review.errors.extend(cni.problems().into_iter().map(|problem| problem.within(&config.field)));
        review.warnings.extend(cni.warnings().into_iter().map(|warning| warning.within(&config.field)));
        if let Some(network) = selectors.network(driver).filter(|network| !network.is_empty()) {
            review.error(format!("{}.kind", config.field), cni_of_network(network));
        }
    }
    if let Some(((last, cni), earlier)) = of_uplinks.split_last() {
        for (config, _) in earlier {
            let problem = format!("has no effect: the CNIConfig in spec.config[{}] replaces it", last.index);
            review.warn(&config.field, problem);
        }
        limit.check()?;
        if cni.problems().is_empty() {
            untaken(&configs, last, cni, &mut review);
        }
    }
    Ok(Some(review))
}

/// Returns what claims meet in a class that is about the driver.
pub(crate) fn known(class: &Value, driver: &str) -> Option<Class> {
    let mut review = Review::default();
    let selectors = Selectors::of(&class["spec"]["selectors"], "", &Budget::default());
    let configs =
        Config::of(&class["spec"]["config"], "", driver, &mut review, &Limit::new(&|| false)).ok()?;
    (selectors.name(driver) || !configs.is_empty()).then(|| Class {
        network: selectors.network(driver).map(str::to_owned),
        layers: configs.iter().filter_map(|config| config.layer(Author::Class)).collect(),
    })
}

/// Warns of a class that matches more devices than it may mean.
fn breadth(selectors: &Selectors, driver: &str, review: &mut Review) {
    let example =
        format!("device.driver == \"{driver}\" && device.attributes[\"{driver}\"].network == \"NAME\"");
    match selectors.naming(driver) {
        None => {
            let problem = format!(
                "none is about driver {driver}, so that devices of other drivers match, too: write {example}"
            );
            review.warn("spec.selectors", problem);
        }
        Some(field) if !selectors.narrow() => {
            let problem = format!(
                "matches every device of {driver}, whole links too: say which ClaimNetwork or mode, for example {example}"
            );
            review.warn(field, problem);
        }
        Some(_) => {}
    }
}

/// Warns of settings that no two attachments can have at once.
fn shared_by_claims(config: &Config, settings: &AttachmentConfig, review: &mut Review) {
    let shared = [("ips", !settings.ips.is_empty()), ("mac", settings.mac.is_some())];
    for (name, _) in shared.into_iter().filter(|(_, is_set)| *is_set) {
        let problem = "is the same for every claim of the class, so that one pod at a time can have it: set it in claims";
        review.warn(format!("{}.{name}", config.field), problem);
    }
}

/// Refuses settings of the class that no plugin of its configuration takes: every claim of the class would be
/// refused.
fn untaken(configs: &[Config], of_uplink: &Config, cni: &CniConfig, review: &mut Review) {
    let mut layers: Vec<Layer> = configs.iter().filter_map(|config| config.layer(Author::Class)).collect();
    while let Err(problem) = merge(Base::Uplink(LinkUse::Nic), &layers, None) {
        let setter = configs.iter().rev().find(|config| config.sets(&problem.field));
        let field = setter.map_or(&of_uplink.field, |config| &config.field);
        let mut cleared = false;
        for layer in &mut layers {
            if let Opaque::Attachment(settings) = &mut layer.config {
                cleared |= settings.clear(&problem.field);
            }
        }
        review.errors.push(problem.within(field));
        if !cleared {
            break;
        }
    }
    for config in configs {
        for name in config.attachment().into_iter().flat_map(|settings| settings.parameters.keys()) {
            if !cni.allow.parameters.contains_key(name) {
                let problem = format!(
                    "has no effect: the CNIConfig in spec.config[{}] has no such parameter in allow.parameters",
                    of_uplink.index
                );
                review.warn(format!("{}.parameters.{name}", config.field), problem);
            }
        }
    }
}
