//! Reviews every object that a user writes for netclaim: what is wrong with it, and what is legal and unwise.
//!
//! ```text
//!   object (JSON) ──> kind ──┬─> ClaimNetwork and other kinds of ours ─── netclaim_api ──┐
//!                            ├─> DeviceClass ──┬─ selectors ── netclaim_allocation ──────┼──> Review
//!                            └─> claim, template ── configs ── netclaim_api ─────────────┘
//! ```
//!
//! Invariants:
//! * Nothing here does IO or panics, whatever the object is. Lists are counted before they are looked at.
//! * Controller and agent check the same with the same functions, so that they say the same words.
//! * An error is what netclaim refuses, whatever else is in the cluster. What the API server refuses by
//!   itself is left to it.
//! * A field has its whole path in the object, such as `spec.devices.config[0].opaque.parameters.ips[1]`.

mod claim;
mod class;
mod config;
mod known;
mod limits;
mod review;
mod selectors;

use netclaim_api::addresses::AddressPoolSpec;
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::network_attachment::NetworkAttachmentSpec;
use netclaim_api::uplink_policy::UplinkPolicySpec;
use netclaim_api::{API_VERSION, GROUP, Invalid};
use serde_json::Value;

pub use crate::limits::{Late, Limit};
pub use crate::review::Review;

use crate::known::{KnownObjects, RESOURCE_GROUP, group};
use crate::limits::Judged;

/// The deepest nesting of an object, as serde_json reads it.
const MAX_DEPTH: usize = 128;

/// Reviews an object as JSON. `driver` is the driver's name. `None`: the object is not for netclaim, because
/// it is of another kind or has nothing of this driver in it.
pub fn review(object: &Value, driver: &str) -> Option<Review> {
    review_known(object, driver, &KnownObjects::default(), &Limit::new(&|| false)).unwrap_or_default()
}

/// Reviews an object of an unknown user, as [`review`] does.
///
/// # Errors
/// The time of the review is over.
pub fn review_within(object: &Value, driver: &str, limit: &Limit<'_>) -> Result<Option<Review>, Late> {
    review_known(object, driver, &KnownObjects::default(), limit)
}

/// Reviews objects that are applied together, in their order. Claims and classes are also compared with the
/// classes and ClaimNetworks that are among them; about what is missing nothing is said.
pub fn review_set(objects: &[Value], driver: &str) -> Vec<Option<Review>> {
    let (known, limit) = (KnownObjects::of(objects, driver), Limit::new(&|| false));
    let mut reviews: Vec<Option<Review>> = objects
        .iter()
        .map(|object| review_known(object, driver, &known, &limit).unwrap_or_default())
        .collect();
    for (network, warning) in known.overlaps() {
        // Others have a kind ClaimNetwork, too.
        let is_it = |object: &Value| {
            object["apiVersion"] == API_VERSION
                && object["kind"] == "ClaimNetwork"
                && object["metadata"]["name"] == network.as_str()
        };
        let review = objects.iter().position(is_it).and_then(|index| reviews.get_mut(index));
        if let Some(Some(review)) = review {
            review.warnings.push(warning);
        }
    }
    reviews
}

fn review_known(object: &Value, driver: &str, known: &KnownObjects, limit: &Limit<'_>) -> Judged {
    let text = |field: &str| object.get(field).and_then(Value::as_str);
    let (api_version, kind) = (text("apiVersion").unwrap_or_default(), text("kind").unwrap_or_default());
    let group = group(api_version);
    let is_ours = group == GROUP;
    if !is_ours && group != RESOURCE_GROUP {
        return Ok(None);
    }
    if is_deeper(object, MAX_DEPTH) {
        let problem = format!("is nested more than {MAX_DEPTH} deep");
        return Ok(Some(Review::refused(Invalid::new("", problem))));
    }
    let review = if is_ours {
        of_netclaim(object, api_version, kind)
    } else {
        of_kubernetes(object, kind, driver, known, limit)?
    };
    limit.check()?;
    Ok(review.map(Review::printable))
}

fn of_netclaim(object: &Value, api_version: &str, kind: &str) -> Option<Review> {
    let review = match kind {
        // netclaim itself writes them.
        "AddressBlock" | "AddressLease" => return None,
        "ClaimNetwork" | "UplinkPolicy" | "AddressPool" | "NetworkAttachment" => own(object, kind),
        _ => {
            let problem = format!(
                "{kind:?} is not a kind of {GROUP}: write ClaimNetwork, UplinkPolicy, AddressPool or NetworkAttachment"
            );
            Review::refused(Invalid::new("kind", problem))
        }
    };
    if api_version == API_VERSION {
        return Some(review);
    }
    let problem = format!("{api_version:?} is unknown: use {API_VERSION:?}");
    Some(Review::refused(Invalid::new("apiVersion", problem)))
}

fn own(object: &Value, kind: &str) -> Review {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let warnings = match kind {
        "ClaimNetwork" => ClaimNetworkSpec::read(name, spec).map(|(_, spec)| {
            let mut warnings = spec.warnings(name);
            warnings.extend(spec.repeated_addresses());
            warnings
        }),
        "UplinkPolicy" => UplinkPolicySpec::read_strictly(spec).map(|spec| spec.warnings()),
        "NetworkAttachment" => NetworkAttachmentSpec::read(spec).map(|_| Vec::new()),
        _ => AddressPoolSpec::read(name, spec).map(|_| Vec::new()),
    };
    match warnings {
        Ok(warnings) => Review { errors: Vec::new(), warnings },
        Err(errors) => Review { errors, warnings: Vec::new() },
    }
}

fn of_kubernetes(
    object: &Value,
    kind: &str,
    driver: &str,
    known: &KnownObjects,
    limit: &Limit<'_>,
) -> Judged {
    match kind {
        "DeviceClass" => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            class::review(object, driver, known.lacks_as_primary(name), limit)
        }
        "ResourceClaim" => claim::review(&object["spec"], "spec", claim::Of::Claim, driver, known, limit),
        "ResourceClaimTemplate" => {
            claim::review(&object["spec"]["spec"], "spec.spec", claim::Of::Template, driver, known, limit)
        }
        _ => Ok(None),
    }
}

/// Whether a value is nested deeper than `levels`. Looks no deeper than that.
fn is_deeper(value: &Value, levels: usize) -> bool {
    let Some(levels) = levels.checked_sub(1) else { return value.is_object() || value.is_array() };
    match value {
        Value::Object(fields) => fields.values().any(|value| is_deeper(value, levels)),
        Value::Array(items) => items.iter().any(|value| is_deeper(value, levels)),
        _ => false,
    }
}
