//! Selects the links that a policy applies to.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::written::nets;
use crate::{Invalid, Quantity};

/// The most entries of one field.
const MAX_ENTRIES: usize = 32;

/// Selects links. A link must match one entry of every field that is set. `*` stands for any characters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("x-kubernetes-validations" = super::admission::links_rules()))]
pub struct LinkSelector {
    /// Interface names, including alternative names: `eth1`, `ens*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), extend("x-kubernetes-list-type" = "set"))]
    pub names: Vec<Pattern>,
    /// Kernel drivers, or the kinds of virtual links: `mlx5_core`, `bond`, `veth`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), extend("x-kubernetes-list-type" = "set"))]
    pub drivers: Vec<Pattern>,
    /// PCI vendor and device ids: `8086:1572`, `15b3:*`.
    #[serde(rename = "pciIDs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), extend("x-kubernetes-list-type" = "set"))]
    pub pci_ids: Vec<Pattern>,
    /// PCI addresses: `0000:3b:00.1`, `0000:3b:*`.
    #[serde(rename = "pciBusIDs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), extend("x-kubernetes-list-type" = "set"))]
    pub pci_bus_ids: Vec<Pattern>,
    /// MAC addresses: `02:00:00:00:00:01`, `02:00:*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), extend("x-kubernetes-list-type" = "set"))]
    pub macs: Vec<Pattern>,
    /// Networks in CIDR notation: a link must have an IP address in one of them, such as `10.1.0.0/16`.
    #[serde(deserialize_with = "nets", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES), with = "Vec<String>", extend("x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<IpNet>,
    /// The lowest speed of a link, in bits per second, such as `25G`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_speed: Option<Quantity>,
}

/// A pattern in which `*` stands for any number of characters. Case is ignored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Pattern(String);

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > 64 || !printable {
            return Err(format!(
                "{text:?} is not a pattern: write 1 to 64 printable characters, * for any number of any"
            ));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

impl Pattern {
    /// Whether `text` matches the pattern.
    pub fn fits(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        let mut pieces = self.0.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let Some(last) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            let Some((_, after)) = rest.split_once(piece) else { return false };
            rest = after;
        }
        rest.ends_with(last)
    }
}

/// The properties of a link that a policy can select by.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "see `LinkSelector`")]
pub struct LinkFacts<'a> {
    pub names: &'a [&'a str],
    pub driver: Option<&'a str>,
    pub pci_id: Option<&'a str>,
    pub pci_bus_id: Option<&'a str>,
    pub mac: Option<&'a str>,
    pub addresses: &'a [IpAddr],
    pub speed: Option<u64>,
}

impl LinkSelector {
    /// Whether a link is selected.
    pub fn selects(&self, link: &LinkFacts<'_>) -> bool {
        let any = |patterns: &[Pattern], text: Option<&str>| {
            patterns.is_empty() || text.is_some_and(|text| patterns.iter().any(|pattern| pattern.fits(text)))
        };
        let named = |name: &&str| self.names.iter().any(|pattern| pattern.fits(name));
        let within = |address: &IpAddr| self.addresses.iter().any(|network| network.contains(address));
        (self.names.is_empty() || link.names.iter().any(named))
            && any(&self.drivers, link.driver)
            && any(&self.pci_ids, link.pci_id)
            && any(&self.pci_bus_ids, link.pci_bus_id)
            && any(&self.macs, link.mac)
            && (self.addresses.is_empty() || link.addresses.iter().any(within))
            && self.min_speed.is_none_or(|least| link.speed.is_some_and(|speed| speed >= least.value()))
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns every problem; paths are relative to the selector.
    pub(super) fn problems(&self) -> Vec<Invalid> {
        let Self { names, drivers, pci_ids, pci_bus_ids, macs, addresses, min_speed: _ } = self;
        let lists = [
            ("names", names.len()),
            ("drivers", drivers.len()),
            ("pciIDs", pci_ids.len()),
            ("pciBusIDs", pci_bus_ids.len()),
            ("macs", macs.len()),
            ("addresses", addresses.len()),
        ];
        lists.into_iter().filter_map(|(field, count)| Invalid::too_many(field, count, MAX_ENTRIES)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        let fits =
            |pattern: &str, text: &str| Pattern::try_from(pattern.to_owned()).expect("a pattern").fits(text);
        assert!(fits("eth1", "eth1") && fits("eth*", "eth1") && fits("*", "") && fits("15B3:*", "15b3:1017"));
        assert!(fits("e*s*np0", "enp3s0f0np0") && fits("a*a", "aa"));
        assert!(
            !fits("eth1", "eth10") && !fits("*h1", "eth10") && !fits("a*a", "a") && !fits("a*b*c", "acb")
        );
    }

    #[test]
    fn every_field_that_is_set_has_to_fit() {
        let nic = LinkFacts {
            names: &["ens1f0", "storage0"],
            driver: Some("mlx5_core"),
            pci_id: Some("15b3:1017"),
            pci_bus_id: Some("0000:3b:00.0"),
            mac: Some("02:00:00:00:00:01"),
            addresses: &["10.1.2.3".parse().expect("an address")],
            speed: Some(25_000_000_000),
        };
        let selects =
            |links: Value| serde_json::from_value::<LinkSelector>(links).expect("a selector").selects(&nic);
        assert!(selects(json!({})));
        assert!(selects(json!({"names": ["storage*"], "pciIDs": ["8086:*", "15b3:*"], "minSpeed": "25G"})));
        assert!(selects(json!({"addresses": ["10.1.0.0/16"], "drivers": ["mlx5_core"]})));
        assert!(!selects(json!({"names": ["ens1f0"], "minSpeed": "40G"})));
        assert!(!selects(json!({"addresses": ["fd00::/8"]})));
    }
}
