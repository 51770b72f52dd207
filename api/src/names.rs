//! Names that are valid once they are parsed.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use netclaim_kubernetes::names::{is_dns_label, is_dns_subdomain};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::Invalid;

/// Name of a [`ClaimNetwork`](crate::network::ClaimNetwork): a DNS label of at most 58 bytes, because
/// `net-NAME` is the name of its device, and that must be a DNS label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkName(String);

impl NetworkName {
    /// The longest name, in bytes.
    pub const MAX: usize = 58;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NetworkName {
    type Error = Invalid;

    fn try_from(name: String) -> Result<Self, Invalid> {
        if name.len() <= Self::MAX && is_dns_label(&name) {
            return Ok(Self(name));
        }
        let problem = format!(
            "{name:?} cannot name a ClaimNetwork: use at most {} lower-case letters, digits and \"-\", \
             with a letter or digit at both ends",
            Self::MAX
        );
        Err(Invalid::new("", problem))
    }
}

/// Name of an object or of its namespace, as Kubernetes has them: a DNS subdomain. Requests put names into
/// URLs as they are, so that only a name of this type may come from a field of an object: a `/` or `?` in it
/// would make another request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectName(String);

impl ObjectName {
    /// The longest name, in bytes.
    pub const MAX: usize = 253;

    /// What every name looks like, for schemas.
    pub const PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ObjectName {
    type Error = Invalid;

    fn try_from(name: String) -> Result<Self, Invalid> {
        if is_dns_subdomain(&name) {
            return Ok(Self(name));
        }
        let problem = format!(
            "{name:?} cannot name an object: use at most {} lower-case letters, digits, \"-\" and \".\", with a letter or digit \
             at both ends and on both sides of each \".\"",
            Self::MAX
        );
        Err(Invalid::new("", problem))
    }
}

impl JsonSchema for ObjectName {
    fn schema_name() -> Cow<'static, str> {
        "ObjectName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": Self::MAX, "pattern": Self::PATTERN})
    }
}

impl JsonSchema for NetworkName {
    fn schema_name() -> Cow<'static, str> {
        "NetworkName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": Self::MAX, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<NetworkName> for ObjectName {
    /// Each DNS label is the name of an object, too.
    fn from(name: NetworkName) -> Self {
        Self(name.0)
    }
}

impl From<NetworkName> for String {
    fn from(name: NetworkName) -> Self {
        name.0
    }
}

impl AsRef<str> for NetworkName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for NetworkName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::try_from(text.to_owned())
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<ObjectName> for String {
    fn from(name: ObjectName) -> Self {
        name.0
    }
}

impl FromStr for ObjectName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::try_from(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_name_has_nothing_that_makes_another_request() {
        for good in ["c", "shop", "web-0.net", "0", "x--y", &"a".repeat(253)] {
            assert!(good.parse::<ObjectName>().is_ok(), "{good:?}");
        }
        let paths = ["shop/resourceclaims?watch=1&x=", "..", ".", "a/../b", "a?b", "a#b", "a%2fb", "a\\b"];
        let others =
            ["", "-a", "a-", "a..b", "a.-b", ".a", "a.", "A", "a b", "a\n", "\u{e9}", &"a".repeat(254)];
        for bad in paths.into_iter().chain(others) {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_network_name_leaves_room_for_its_device_name() {
        assert!("storage-10".parse::<NetworkName>().is_ok());
        assert!("a".repeat(58).parse::<NetworkName>().is_ok());
        for bad in ["", "-a", "a-", "a.b", "A", &"a".repeat(59)] {
            assert!(bad.parse::<NetworkName>().is_err(), "{bad:?}");
        }
    }
}
