//! Reviews every object that a user writes for netclaim: what is wrong with it, and what is legal and unwise.
//!
//! ```text
//!   object (JSON) ──> kind ──┬─> Network, UplinkPolicy, AddressPool ── netclaim_api ──┐
//!                            ├─> DeviceClass ──┬─ selectors ── netclaim_allocation ───┼──> Review
//!                            └─> claim, template ── configs ── netclaim_api ──────────┘
//! ```
//!
//! Invariants:
//! * Nothing here does IO or panics, whatever the object is. Lists are counted before they are looked at.
//! * Controller and agent check the same with the same functions, so that they say the same words.
//! * An error is what netclaim refuses, whatever else is in the cluster. What the API server refuses by itself is left to it.
//! * A field has its whole path in the object, such as `spec.devices.config[0].opaque.parameters.ips[1]`.

mod claim;
mod class;
mod config;
mod known;
mod limits;
mod selectors;

use netclaim_api::addresses::AddressPoolSpec;
use netclaim_api::network::NetworkSpec;
use netclaim_api::uplink_policy::UplinkPolicySpec;
use netclaim_api::{API_VERSION, GROUP, Invalid, shorten};
use serde_json::Value;

pub use crate::limits::{Late, Limit};

use crate::known::Known;

/// The API group of claims and classes.
const RESOURCE_GROUP: &str = "resource.k8s.io";

/// The deepest nesting of an object, as serde_json reads it.
const MAX_DEPTH: usize = 128;

/// What is wrong with an object, and what is legal and unwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// What makes netclaim refuse the object, or what is made of it.
    pub errors: Vec<Invalid>,
    /// What is legal and unwise.
    pub warnings: Vec<Invalid>,
}

/// What becomes of an object; `None` if it is not for netclaim.
type Judged = Result<Option<Review>, Late>;

/// Reviews an object as JSON. `driver` is the driver's name. `None`: the object is not for netclaim, because it is of another
/// kind or has nothing of this driver in it.
pub fn review(object: &Value, driver: &str) -> Option<Review> {
    review_known(object, driver, &Known::default(), &Limit::new(&|| false)).unwrap_or_default()
}

/// Reviews an object of somebody whom nobody knows, as [`review`] does.
///
/// # Errors
/// The time of the review is over.
pub fn review_within(object: &Value, driver: &str, limit: &Limit<'_>) -> Result<Option<Review>, Late> {
    review_known(object, driver, &Known::default(), limit)
}

/// Reviews objects that are applied together, in their order. A claim is also compared with the classes and Networks that are
/// among them; about what is missing nothing is said.
pub fn review_set(objects: &[Value], driver: &str) -> Vec<Option<Review>> {
    let (known, limit) = (Known::of(objects, driver), Limit::new(&|| false));
    let mut reviews: Vec<Option<Review>> = objects
        .iter()
        .map(|object| review_known(object, driver, &known, &limit).unwrap_or_default())
        .collect();
    for (network, warning) in known.overlaps() {
        // Others have a kind Network, too.
        let is_it = |object: &Value| {
            object["apiVersion"] == API_VERSION
                && object["kind"] == "Network"
                && object["metadata"]["name"] == network.as_str()
        };
        let review = objects.iter().position(is_it).and_then(|index| reviews.get_mut(index));
        if let Some(Some(review)) = review {
            review.warnings.push(warning);
        }
    }
    reviews
}

fn review_known(object: &Value, driver: &str, known: &Known, limit: &Limit<'_>) -> Judged {
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

/// The API group of a version; empty for that of pods.
fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn of_netclaim(object: &Value, api_version: &str, kind: &str) -> Option<Review> {
    let review = match kind {
        // netclaim itself writes them.
        "AddressBlock" | "AddressLease" => return None,
        "Network" | "UplinkPolicy" | "AddressPool" => own(object, kind),
        _ => {
            let problem =
                format!("{kind:?} is no kind of {GROUP}: write Network, UplinkPolicy or AddressPool");
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
        "Network" => NetworkSpec::read(name, spec).map(|(_, spec)| {
            let mut warnings = spec.warnings(name);
            warnings.extend(spec.repeated_addresses());
            warnings
        }),
        "UplinkPolicy" => UplinkPolicySpec::read_strictly(spec).map(|spec| spec.warnings()),
        _ => AddressPoolSpec::read(name, spec).map(|_| Vec::new()),
    };
    match warnings {
        Ok(warnings) => Review { errors: Vec::new(), warnings },
        Err(errors) => Review { errors, warnings: Vec::new() },
    }
}

fn of_kubernetes(object: &Value, kind: &str, driver: &str, known: &Known, limit: &Limit<'_>) -> Judged {
    match kind {
        "DeviceClass" => class::review(object, driver, limit),
        "ResourceClaim" => claim::review(&object["spec"], "spec", claim::Of::Claim, driver, known, limit),
        "ResourceClaimTemplate" => {
            claim::review(&object["spec"]["spec"], "spec.spec", claim::Of::Template, driver, known, limit)
        }
        _ => Ok(None),
    }
}

impl Review {
    /// An object that is refused for one thing.
    pub fn refused(error: Invalid) -> Self {
        Self { errors: vec![error], warnings: Vec::new() }
    }

    fn error(&mut self, field: impl Into<String>, problem: impl Into<String>) {
        self.errors.push(Invalid::new(field, problem));
    }

    fn warn(&mut self, field: impl Into<String>, problem: impl Into<String>) {
        self.warnings.push(Invalid::new(field, problem));
    }

    /// Bounds what users have written into names and values, and escapes what would move a terminal's cursor.
    fn printable(mut self) -> Self {
        for invalid in self.errors.iter_mut().chain(&mut self.warnings) {
            invalid.field = printable(&invalid.field, MAX_FIELD);
            invalid.problem = printable(&invalid.problem, MAX_PROBLEM);
        }
        self
    }
}

/// The longest path of a field and the longest text of a problem, in bytes.
const MAX_FIELD: usize = 256;
const MAX_PROBLEM: usize = 1024;

/// Returns a text in printable ASCII, so that letters which look alike differ. The middle of a long one is left out: what to do is
/// at the end.
fn printable(text: &str, max: usize) -> String {
    let escaped = |text: &str| -> String {
        let plain = |c: char| c == '…' || c == ' ' || c.is_ascii_graphic();
        text.chars().map(|c| if plain(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
    };
    if text.len() <= max {
        return shorten(escaped(text), max);
    }
    let half = max / 2;
    let (head, tail) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half / 2));
    let head = shorten(escaped(&text[..head]), half);
    format!("{}…{}", head.trim_end_matches('…'), shorten(escaped(&text[tail..]), half))
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
