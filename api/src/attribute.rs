//! Attributes that people declare: of uplinks in an [`UplinkPolicy`](crate::uplink_policy) or a file on the
//! node, of networks in a [`ClaimNetwork`](crate::network).

use std::collections::BTreeMap;
use std::fmt;

use netclaim_kubernetes::names::is_dns_label;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Invalid, attributes};

/// Declared attributes by name.
pub type DeclaredAttributes = BTreeMap<AttributeName, AttributeValue>;

/// The most declared attributes of a device.
pub const MAX_DECLARED: usize = 15;

/// Attributes and capacities that a device has room for (`ResourceSliceMaxAttributesAndCapacitiesPerDevice`).
const ROOM: usize = 32;

// A new attribute or capacity of ours needs room beside the declared ones.
const _: () = assert!(attributes::ATTRIBUTES.len() + attributes::CAPACITIES.len() + MAX_DECLARED <= ROOM);

/// The longest text that an attribute may hold, in bytes (`DeviceAttributeMaxValueLength`).
pub const MAX_TEXT: usize = 64;

/// The name of an attribute: an identifier of up to 32 letters, digits and `_`, with a domain and `/` in
/// front or in the driver's own domain (`QualifiedName` of resource.k8s.io).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct AttributeName(String);

impl AttributeName {
    /// The name, as it is published.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AttributeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for AttributeName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (domain, name) = match text.split_once('/') {
            Some((domain, name)) => (Some(domain), name),
            None => (None, text.as_str()),
        };
        let identifier = name.len() <= 32
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
        let is_domain = |domain: &str| domain.len() <= 63 && domain.split('.').all(is_dns_label);
        if !identifier || !domain.is_none_or(is_domain) {
            return Err(format!(
                "{text:?} cannot be the name of an attribute: write up to 32 letters, digits and _, for example \
                 physicalNetwork or example.com/switch"
            ));
        }
        Ok(Self(text))
    }
}

impl From<AttributeName> for String {
    fn from(name: AttributeName) -> Self {
        name.0
    }
}

/// The value of an attribute, written as in a ResourceSlice: `{string: tor-1}`, `{int: 7}`, `{bool: true}`,
/// `{version: 1.2.3}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AttributeValue {
    /// A text of at most 64 bytes, such as `tor-1`. Selectors compare it as a string.
    String(#[schemars(length(max = 64))] String),
    /// A whole number, such as `7`. Selectors compare it as a number.
    Int(i64),
    /// `true` or `false`. Selectors can use it as a condition.
    Bool(bool),
    /// A [semantic version](https://semver.org); selectors compare it as one.
    Version(#[schemars(length(max = 64))] String),
}

/// Returns the CEL rules by which the API server refuses declared attributes.
pub(crate) fn admission_rules_of_declared() -> serde_json::Value {
    let ours = attributes::OURS;
    serde_json::json!([{
        "rule": format!("self.all(name, !(name in {ours:?}) && !name.startsWith('resource.kubernetes.io/'))"),
        "message": "what the driver itself says of a device cannot be declared: choose another name",
    }])
}

/// Returns every problem of declared attributes; paths are relative to them.
pub fn problems(declared: &DeclaredAttributes) -> Vec<Invalid> {
    let mut problems = Vec::new();
    if declared.len() > MAX_DECLARED {
        let problem = format!("has {} attributes, but a device has room for {MAX_DECLARED}", declared.len());
        problems.push(Invalid::new("", problem));
    }
    for (name, value) in declared {
        if attributes::OURS.contains(&name.as_str()) || name.as_str().starts_with("resource.kubernetes.io/") {
            let problem = "is what the driver itself says of a device: choose another name";
            problems.push(Invalid::new(name.as_str(), problem));
        }
        let problem = match value {
            AttributeValue::String(text) | AttributeValue::Version(text) if text.len() > MAX_TEXT => {
                format!("is longer than {MAX_TEXT} bytes")
            }
            AttributeValue::Version(text) if !is_version(text) => {
                format!("{text:?} is not a version: write MAJOR.MINOR.PATCH")
            }
            _ => continue,
        };
        problems.push(Invalid::new(name.as_str(), problem));
    }
    problems
}

/// Semantic Versioning 2.0.0, as strictly as the API server.
fn is_version(text: &str) -> bool {
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
    let number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|c| c.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
            && part.parse::<u64>().is_ok()
    };
    let identifier =
        |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
    let pre_part =
        |part: &str| identifier(part) && (number(part) || !part.bytes().all(|c| c.is_ascii_digit()));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(|pre| pre.split('.').all(pre_part))
        && build.is_none_or(|build| build.split('.').all(identifier))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn declared(value: Value) -> DeclaredAttributes {
        serde_json::from_value(value).expect("attributes")
    }

    #[test]
    fn names_are_those_that_the_api_server_takes() {
        for name in ["physicalNetwork", "_x1", "example.com/switch"] {
            assert!(AttributeName::try_from(name.to_owned()).is_ok(), "{name}");
        }
        for name in ["", "1x", "a-b", "a/b/c", "Exa_mple/x", "/x", &"x".repeat(33)] {
            assert!(AttributeName::try_from(name.to_owned()).is_err(), "{name}");
        }
    }

    #[test]
    fn values_are_checked_by_type() {
        assert!(
            problems(&declared(json!({"a": {"string": "x"}, "b": {"int": 1}, "c": {"bool": true}})))
                .is_empty()
        );
        assert!(problems(&declared(json!({"v": {"version": "1.2.3-rc.1+b7"}}))).is_empty());
        for bad in ["1.2", "01.2.3", "1.2.3-01", "v1.2.3", ""] {
            assert_eq!(problems(&declared(json!({"v": {"version": bad}}))).len(), 1, "{bad}");
        }
        assert_eq!(problems(&declared(json!({"a": {"string": "x".repeat(65)}}))).len(), 1);
    }

    #[test]
    fn the_attributes_of_the_driver_cannot_be_declared() {
        let taken = json!({"mtu": {"int": 1}, "resource.kubernetes.io/numaNode": {"int": 1}, "bandwidth": {"int": 1}});
        assert_eq!(problems(&declared(taken)).len(), 3);
    }
}
