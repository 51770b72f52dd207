//! How pods use a link of the node, as the field `modes`, the attribute `mode` and device names spell it.
//!
//! The kernel gives a link one receive handler: a link has macvlan children or ipvlan children, or is moved
//! as a whole.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Invalid;

/// How pods use a link. Different uses of one link exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LinkUse {
    /// The whole link, moved into one pod: device `nic-LINK`. A macvlan in mode `passthru` takes all of it,
    /// too, and leaves it on the node.
    Nic,
    /// A macvlan child in each pod: device `macvlan-LINK`.
    Macvlan,
    /// An ipvlan child in each pod: device `ipvlan-LINK`.
    Ipvlan,
}

impl LinkUse {
    /// Every use, in the order in which a link's devices are published.
    pub const ALL: [Self; 3] = [Self::Nic, Self::Macvlan, Self::Ipvlan];

    /// The name, as in `mode`, `modes` and device names.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Macvlan => "macvlan",
            Self::Ipvlan => "ipvlan",
        }
    }

    /// Whether two uses of one link exclude each other; `None` is what is stacked on the link without taking
    /// its receive handler, such as a VLAN, or what passes through it as a port. It goes with the link when
    /// that is moved.
    pub fn exclude(one: Option<Self>, other: Option<Self>) -> bool {
        match (one, other) {
            (Some(Self::Nic), _) | (_, Some(Self::Nic)) => true,
            (Some(one), Some(other)) => one != other,
            (None, _) | (_, None) => false,
        }
    }

    /// The use that a CNI plugin of this type makes of its link; `None` if it leaves the receive handler
    /// alone.
    pub fn of_plugin(plugin_type: &str) -> Option<Self> {
        match plugin_type {
            "host-device" => Some(Self::Nic),
            "macvlan" => Some(Self::Macvlan),
            "ipvlan" => Some(Self::Ipvlan),
            _ => None,
        }
    }
}

impl fmt::Display for LinkUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LinkUse {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let named = Self::ALL.into_iter().find(|link_use| link_use.as_str() == text);
        named.ok_or_else(|| {
            Invalid::new("", format!("{text:?} is not a use of a link: write nic, macvlan or ipvlan"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_has_one_name_in_text_json_and_device_names() {
        for link_use in LinkUse::ALL {
            assert_eq!(link_use.as_str().parse(), Ok(link_use));
            assert_eq!(serde_json::to_value(link_use).expect("JSON"), link_use.to_string());
        }
        assert!("host-device".parse::<LinkUse>().is_err());
    }
}
