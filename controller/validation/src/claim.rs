//! ResourceClaims and ResourceClaimTemplates: what they ask for, and how it is attached.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::merge::{Author, CNI_OF_CLAIM, EITHER_IPS};
use netclaim_api::segmentation::MAX_ID;
use netclaim_api::{AttachmentConfig, Invalid, Quantity, attributes};
use serde_json::Value;

use crate::config::{Config, MAX_CONFIGS};
use crate::known::KnownObjects;
use crate::limits::{Judged, Late, Limit, too_many};
use crate::review::Review;
use crate::selectors::{Budget, Selectors, is_capacity_name, known_capacities};

/// What the specification of a claim is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// A claim.
    Claim,
    /// A template, from which each pod gets a claim.
    Template,
}

/// One device, or a count of devices, that a claim asks for: a request, or one alternative of it.
struct DeviceAsk<'a> {
    /// `REQUEST`, or `REQUEST/ALTERNATIVE`.
    name: String,
    /// The path of `body`.
    field: String,
    body: &'a Value,
    selectors: Selectors,
    /// Whether nothing but a device of the driver is meant.
    is_ours: bool,
}

/// Most requests of a claim, and constraints (`DeviceRequestsMaxSize`, `DeviceConstraintsMaxSize`).
const MAX_REQUESTS: usize = 32;
/// Most alternatives of a request (`FirstAvailableDeviceRequestMaxSize`).
const MAX_ALTERNATIVES: usize = 8;

/// Reviews the specification of a claim at `path`. `Ok(None)`: it is not about the driver.
pub(crate) fn review(
    spec: &Value,
    path: &str,
    of: Of,
    driver: &str,
    known: &KnownObjects,
    limit: &Limit<'_>,
) -> Judged {
    let mut review = Review::default();
    let devices = &spec["devices"];
    let path = format!("{path}.devices");
    too_much(devices, &path, &mut review);
    if review != Review::default() {
        return Ok(Some(review));
    }
    let configs = Config::of(&devices["config"], &format!("{path}.config"), driver, &mut review, limit)?;
    let requests =
        requests(&devices["requests"], &format!("{path}.requests"), &configs, driver, known, limit)?;
    let is_ours = requests.iter().flatten().any(|asked| asked.is_ours);
    if !is_ours && configs.is_empty() && review == Review::default() {
        return Ok(None);
    }
    for config in &configs {
        limit.check()?;
        of_config(config, of, &mut review);
    }
    for asked in requests.iter().flatten() {
        limit.check()?;
        asked.selectors.review(driver, &mut review);
        if asked.is_ours {
            of_request(asked, &configs, driver, &mut review);
        }
        refused_by_network(asked, &configs, known, &mut review);
        of_reserved_addresses(asked, &configs, known, &mut review);
    }
    same_names(&requests, &configs, &mut review);
    primaries(&requests, &configs, known, &mut review);
    Ok(Some(review))
}

/// Adds the lists that are longer than those that the API server stores: the rest of the review goes by their
/// lengths.
fn too_much(devices: &Value, path: &str, review: &mut Review) {
    for (field, max) in [("requests", MAX_REQUESTS), ("constraints", MAX_REQUESTS), ("config", MAX_CONFIGS)] {
        too_many(&devices[field], &format!("{path}.{field}"), max, review);
    }
    if review.errors.is_empty() {
        let items = |field: &str| devices[field].as_array().into_iter().flatten().enumerate();
        for (index, request) in items("requests") {
            let field = format!("{path}.requests[{index}].firstAvailable");
            too_many(&request["firstAvailable"], &field, MAX_ALTERNATIVES, review);
        }
        for (index, config) in items("config") {
            too_many(&config["requests"], &format!("{path}.config[{index}].requests"), MAX_REQUESTS, review);
        }
    }
}

/// Returns the requests of a claim, each with its alternatives.
fn requests<'a>(
    list: &'a Value,
    path: &str,
    configs: &[Config],
    driver: &str,
    known: &KnownObjects,
    limit: &Limit<'_>,
) -> Result<Vec<Vec<DeviceAsk<'a>>>, Late> {
    let requests: Vec<&Value> = list.as_array().into_iter().flatten().collect();
    let is_alone = requests.len() == 1;
    let budget = Budget::default();
    let asked = |name: String, field: String, body: &'a Value| {
        let selectors = Selectors::of(&body["selectors"], &format!("{field}.selectors"), &budget);
        let is_named =
            configs.iter().any(|config| config.requests.iter().any(|request| names(request, &name)));
        let is_ours = is_named
            || (is_alone && configs.iter().any(|config| config.requests.is_empty()))
            || selectors.name(driver)
            || known.has_class(body["deviceClassName"].as_str().unwrap_or_default())
            || capacities(body).any(|(name, _)| unqualified(name, driver).is_some());
        DeviceAsk { name, field, body, selectors, is_ours }
    };
    let alternatives = |(index, request): (usize, &'a Value)| {
        limit.check()?;
        let name = request["name"].as_str().unwrap_or_default();
        let field = format!("{path}[{index}]");
        let alternatives = request["firstAvailable"].as_array();
        Ok(match (request.get("exactly"), alternatives) {
            (Some(exactly), _) => vec![asked(name.to_owned(), format!("{field}.exactly"), exactly)],
            (None, Some(alternatives)) => {
                let alternative = |(j, body): (usize, &'a Value)| {
                    let alternative = body["name"].as_str().unwrap_or_default();
                    asked(format!("{name}/{alternative}"), format!("{field}.firstAvailable[{j}]"), body)
                };
                alternatives.iter().enumerate().map(alternative).collect()
            }
            // v1beta1 has no `exactly`.
            (None, None) => vec![asked(name.to_owned(), field, request)],
        })
    };
    requests.into_iter().enumerate().map(alternatives).collect()
}

/// Whether `request` in a configuration is for what is asked for under this name.
fn names(request: &str, asked: &str) -> bool {
    request == asked || asked.split_once('/').is_some_and(|(main, _)| request == main)
}

/// Returns the configurations that apply, in their order.
fn applying<'a>(asked: &DeviceAsk<'_>, configs: &'a [Config]) -> impl DoubleEndedIterator<Item = &'a Config> {
    configs.iter().filter(move |config| {
        config.requests.is_empty() || config.requests.iter().any(|request| names(request, &asked.name))
    })
}

/// Returns the last configuration that names the interface, and the name.
fn interface_name<'a>(asked: &DeviceAsk<'_>, configs: &'a [Config]) -> Option<(&'a Config, &'a str)> {
    applying(asked, configs)
        .rev()
        .find_map(|config| Some((config, config.attachment()?.interface_name.as_ref()?.as_str())))
}

/// Adds what a claim cannot set, and what it had better not.
fn of_config(config: &Config, of: Of, review: &mut Review) {
    let field = &config.field;
    if config.cni().is_some() {
        review.error(format!("{field}.kind"), CNI_OF_CLAIM);
    }
    let Some(settings) = config.attachment() else { return };
    review.errors.extend(settings.never_of_claims().into_iter().map(|problem| problem.within(field)));
    let AttachmentConfig { ips, replica_ips, mac, .. } = settings;
    if !ips.is_empty() && !replica_ips.is_empty() {
        review.error(format!("{field}.replicaIPs"), EITHER_IPS);
    }
    match of {
        Of::Template => {
            if !ips.is_empty() {
                let problem = "is the same for every claim of the template, so that one pod at a time can have it: use replicaIPs \
                               for a StatefulSet, else a ResourceClaim for each pod";
                review.warn(format!("{field}.ips"), problem);
            }
            if mac.is_some() {
                let problem = "is the same for every claim of the template, so that one pod at a time can have it: leave it out, or \
                               use a ResourceClaim for each pod";
                review.warn(format!("{field}.mac"), problem);
            }
        }
        Of::Claim => {
            if !replica_ips.is_empty() {
                let problem = "is for templates, whose claims the replicas of a StatefulSet get: use ips";
                review.warn(format!("{field}.replicaIPs"), problem);
            }
        }
    }
}

/// Adds what is wrong with a request for devices of the driver.
fn of_request(asked: &DeviceAsk<'_>, configs: &[Config], driver: &str, review: &mut Review) {
    let DeviceAsk { name, field, body, .. } = asked;
    if body["adminAccess"] == true {
        let problem = "attaches nothing, because others may have the device: leave it out to get a network";
        review.warn(format!("{field}.adminAccess"), problem);
    }
    let all = body["allocationMode"] == "All";
    if all {
        let problem = "makes an interface of every device of a node that matches: use ExactCount";
        review.warn(format!("{field}.allocationMode"), problem);
    }
    let count = body["count"].as_i64().unwrap_or(1);
    if let Some((config, interface_name)) = interface_name(asked, configs) {
        let place = format!("{}.interfaceName", config.field);
        if count > 1 && !all {
            let problem = format!(
                "{interface_name:?} would be the name of {count} interfaces, since request {name} is for {count} devices: make a request \
                 for each"
            );
            review.error(place, problem);
        } else if all {
            let problem = format!(
                "{interface_name:?} is for one interface, and request {name} may get several devices"
            );
            review.warn(place, problem);
        }
    }
    of_capacity(asked, driver, review);
    let granted = granted(body);
    let limits = |config| Some((config, Config::attachment(config)?.bandwidth?));
    let limited = applying(asked, configs).rev().find_map(limits);
    if let Some((granted, (config, limits))) = granted.zip(limited) {
        review.errors.extend(limits.beyond(granted).into_iter().map(|problem| problem.within(&config.field)));
    }
}

/// Returns the bandwidth that the request asks for, and is granted.
fn granted(body: &Value) -> Option<Quantity> {
    let (_, rate) = capacities(body).find(|(name, _)| *name == attributes::BANDWIDTH)?;
    rate.filter(|rate| rate.value() > 0)
}

/// Adds what the agent would refuse with the class and the ClaimNetwork, if they are known.
fn refused_by_network(asked: &DeviceAsk<'_>, configs: &[Config], known: &KnownObjects, review: &mut Review) {
    let class = asked.body["deviceClassName"].as_str().unwrap_or_default();
    if !known.has_class(class) {
        return;
    }
    let layers = applying(asked, configs).filter_map(|config| config.layer(Author::Claim)).collect();
    let Some(problem) = known.refusal(class, layers, granted(asked.body)) else { return };
    let of_config = |config: &&Config| problem.field.starts_with(&format!("claim config[{}]", config.index));
    let found = match applying(asked, configs).find(of_config) {
        Some(config) => {
            let place = format!("claim config[{}]", config.index);
            let field = problem.field.strip_prefix(&place).unwrap_or_default().trim_start_matches('.');
            Invalid::new(field, problem.problem.clone()).within(&config.field)
        }
        // The setting alone: of the last configuration that has it, be it of the class.
        None => match applying(asked, configs).rev().find(|config| config.sets(&problem.field)) {
            Some(config) => problem.clone().within(&config.field),
            None => Invalid::new(format!("{}.deviceClassName", asked.field), format!("{class}: {problem}")),
        },
    };
    // What no ClaimNetwork permits is known already.
    if !review.errors.iter().any(|error| error.field == found.field) {
        review.errors.push(found);
    }
}

/// Adds whether a request takes an address of the node, if the ClaimNetwork is known to have reserved ones:
/// who asks for these needs no other.
fn of_reserved_addresses(
    asked: &DeviceAsk<'_>,
    configs: &[Config],
    known: &KnownObjects,
    review: &mut Review,
) {
    let class = asked.body["deviceClassName"].as_str().unwrap_or_default();
    let layers = applying(asked, configs).filter_map(|config| config.layer(Author::Claim)).collect();
    let Some(asks) = known.asks_for_reserved(class, layers, granted(asked.body)) else { return };
    let requested = capacities(asked.body).find(|(name, _)| *name == attributes::ADDRESSES);
    let is_none = requested.and_then(|(_, amount)| amount).is_some_and(|amount| amount.value() == 0);
    let field = format!("{}.capacity.requests[{}]", asked.field, attributes::ADDRESSES);
    if asks && !is_none {
        let problem = "is not \"0\", so that the pod waits for an address of a node that it does not need: write addresses: \"0\"";
        review.warn(field, problem);
    } else if is_none && !asks {
        let problem = "is 0, but the claim asks for none of the reserved addresses: ask for some by ips, or remove the 0";
        review.error(field, problem);
    }
}

/// Adds capacities that no device of the driver has.
fn of_capacity(asked: &DeviceAsk<'_>, driver: &str, review: &mut Review) {
    let field = format!("{}.capacity.requests", asked.field);
    let mut ids = Vec::new();
    for (name, amount) in capacities(asked.body) {
        let field = format!("{field}[{name}]");
        let plain = unqualified(name, driver).unwrap_or(name);
        if !is_capacity_name(plain) {
            review.error(field, format!("no device of {driver} has this capacity: {}", known_capacities()));
            continue;
        }
        if plain != name {
            let problem = format!(
                "is not found by the scheduler of Kubernetes 1.37 and older, which compares names as they are published: write {plain}"
            );
            review.warn(field, problem);
            continue;
        }
        let Some(id) = attributes::id_of_segment(name) else { continue };
        ids.push(name);
        if !(1..=MAX_ID).contains(&id) {
            review.error(field, format!("{id} is not a segmentation id: ids are from 1 to {MAX_ID}"));
        } else if amount.is_some_and(|amount| amount.value() > 1) {
            review.error(field, "an attachment takes 1 of an id: write 1");
        }
    }
    if ids.len() > 1 {
        let problem =
            format!("chooses the segmentation ids {}: an attachment has one, so ask for one", ids.join(", "));
        review.error(field, problem);
    }
}

/// Returns the capacities that a request asks for. An amount is `None` if it is none.
fn capacities(body: &Value) -> impl Iterator<Item = (&str, Option<Quantity>)> {
    let requests = body["capacity"]["requests"].as_object().into_iter().flatten();
    requests.map(|(name, amount)| {
        let amount = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        (name.as_str(), Quantity::rounded_up(&amount).ok())
    })
}

/// Returns a name in the driver's domain without the domain.
fn unqualified<'a>(name: &'a str, driver: &str) -> Option<&'a str> {
    name.strip_prefix(driver)?.strip_prefix('/')
}

/// Adds interface names that two requests have: a pod has one interface of a name.
fn same_names(requests: &[Vec<DeviceAsk<'_>>], configs: &[Config], review: &mut Review) {
    let named: Vec<Vec<Option<(&Config, &str)>>> = requests
        .iter()
        .map(|alternatives| alternatives.iter().map(|asked| interface_name(asked, configs)).collect())
        .collect();
    // The first request with an alternative of this name.
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    let mut reported: BTreeSet<usize> = BTreeSet::new();
    for (index, names) in named.iter().enumerate() {
        let found = names
            .iter()
            .flatten()
            .next()
            .and_then(|(config, name)| Some((*config, *name, *first.get(name)?)));
        for (_, name) in names.iter().flatten() {
            first.entry(name).or_insert(index);
        }
        let Some((config, name, earlier)) = found.filter(|(config, ..)| reported.insert(config.index)) else {
            continue;
        };
        let request = |index: usize| {
            let first = requests.get(index).and_then(|alternatives| alternatives.first());
            let name = first.map(|asked| asked.name.as_str()).unwrap_or_default();
            name.split('/').next().unwrap_or_default().to_owned()
        };
        let problem = format!(
            "{name:?} would be the name of two interfaces, those of requests {} and {}: give each request a config of its own",
            request(earlier),
            request(index)
        );
        let has = |index: usize| {
            let of_request = requests.iter().zip(&named).nth(index);
            let alternatives = of_request.into_iter().flat_map(|(asked, names)| asked.iter().zip(names));
            let is_it = |(asked, named): (&DeviceAsk<'_>, &Option<(&Config, &str)>)| {
                asked.is_ours && named.is_some_and(|(_, other)| other == name)
            };
            alternatives.into_iter().all(is_it)
        };
        let is_certain = has(earlier) && has(index);
        let field = format!("{}.interfaceName", config.field);
        if is_certain { review.error(field, problem) } else { review.warn(field, problem) }
    }
}

/// Returns the field that makes a device the pod's primary network: of a configuration, or the class.
fn primary_field(asked: &DeviceAsk<'_>, configs: &[Config], known: &KnownObjects) -> Option<String> {
    let is_primary = |config: &&Config| config.attachment().is_some_and(|settings| settings.primary);
    let of_config =
        applying(asked, configs).find(is_primary).map(|config| format!("{}.primary", config.field));
    let class = asked.body["deviceClassName"].as_str().unwrap_or_default();
    of_config.or_else(|| known.is_primary(class).then(|| format!("{}.deviceClassName", asked.field)))
}

/// Adds what would be a second primary network: a pod has one.
fn primaries(requests: &[Vec<DeviceAsk<'_>>], configs: &[Config], known: &KnownObjects, review: &mut Review) {
    let mut first: Option<(&str, bool)> = None;
    for alternatives in requests {
        let is_primary = |asked: &DeviceAsk<'_>| primary_field(asked, configs, known);
        let Some((asked, field)) = alternatives.iter().find_map(|asked| Some((asked, is_primary(asked)?)))
        else {
            continue;
        };
        let request = asked.name.split('/').next().unwrap_or_default();
        let is_certain = alternatives.iter().all(|asked| asked.is_ours && is_primary(asked).is_some());
        let mut add = |is_certain: bool, problem: String| {
            if is_certain {
                review.error(field.clone(), problem)
            } else {
                review.warn(field.clone(), problem)
            }
        };
        let all = asked.body["allocationMode"] == "All";
        if all || asked.body["count"].as_i64() > Some(1) {
            let problem = format!(
                "request {request} may get several devices, and a pod has one primary network: ask for one"
            );
            add(is_certain && !all, problem);
        }
        match first {
            Some((earlier, is_other_certain)) => {
                let problem = format!(
                    "requests {earlier} and {request} would both be the pod's primary network, and it has one: make one of them primary"
                );
                add(is_certain && is_other_certain, problem);
            }
            None => first = Some((request, is_certain)),
        }
    }
}
