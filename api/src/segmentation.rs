//! Segmentation ids: VLAN ids or VNIs. On a node, one attachment at a time has each id.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Invalid;

/// The largest id: a VNI has 24 bits (RFC 7348). Plugins that take a VLAN id have a lower limit.
pub const MAX_ID: u32 = (1 << 24) - 1;

/// The most ids that a ClaimNetwork may list if claims choose: each id is a capacity of its device, which has
/// room for 32 attributes and capacities.
pub const MAX_CHOICES: usize = 12;

/// The most entries of `ids`.
const MAX_RANGES: usize = 64;

/// The segmentation ids of a ClaimNetwork. Its CNI configuration uses them as `${segmentation.id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Segmentation {
    /// Ids and ranges of ids, such as `100` and `200-299`. If several ClaimNetworks list an id for one
    /// uplink, the first ClaimNetwork by name has it there.
    #[schemars(length(min = 1, max = MAX_RANGES))]
    pub ids: Vec<IdRange>,
    /// Who chooses the id of an attachment. `Node`: the node takes the lowest free id, and the device's
    /// capacity `segments` counts the ids. `Claim`: the claim requests the capacity of an id, such as
    /// `segment150: 1`, and the scheduler finds a node where that id is free.
    #[serde(default)]
    pub chosen_by: ChosenBy,
}

/// Who chooses the segmentation id of an attachment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum ChosenBy {
    #[default]
    Node,
    Claim,
}

/// One id, or a range of ids that includes both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Text", into = "String")]
#[schemars(with = "Text")]
pub struct IdRange {
    first: u32,
    last: u32,
}

/// What people write in YAML: `100` or `200-299`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "is not an id or range of ids: write for example 100 or 200-299")]
enum Text {
    Number(u32),
    Text(String),
}

impl JsonSchema for Text {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IdRange".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"x-kubernetes-int-or-string": true})
    }
}

impl TryFrom<Text> for IdRange {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let text = match text {
            Text::Number(id) => id.to_string(),
            Text::Text(text) => text,
        };
        let wrong = || {
            format!(
                "{text:?} is not an id or range of ids: write for example 100 or 200-299, from 1 to {MAX_ID}"
            )
        };
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        let id = |text: &str| {
            let id = text.parse::<u32>().ok().filter(|id| (1..=MAX_ID).contains(id));
            id.filter(|_| text.bytes().all(|c| c.is_ascii_digit())).ok_or_else(wrong)
        };
        let range = Self { first: id(first)?, last: id(last)? };
        if range.first > range.last { Err(wrong()) } else { Ok(range) }
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl From<IdRange> for String {
    fn from(range: IdRange) -> Self {
        range.to_string()
    }
}

impl Segmentation {
    /// Returns every id once.
    pub fn ids(&self) -> BTreeSet<u32> {
        self.ids.iter().flat_map(|range| range.first..=range.last).collect()
    }

    /// The smallest and the largest id.
    pub(crate) fn bounds(&self) -> (u32, u32) {
        let first = self.ids.iter().map(|range| range.first).min().unwrap_or(1);
        (first, self.ids.iter().map(|range| range.last).max().unwrap_or(MAX_ID))
    }

    /// Returns every problem of the ids; paths are relative to the object.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let mut problems = Vec::new();
        if self.ids.is_empty() {
            problems.push(Invalid::new("ids", "is empty: no pod could use the network"));
        }
        if let Some(many) = Invalid::too_many("ids", self.ids.len(), MAX_RANGES) {
            return vec![many];
        }
        let mut sorted = self.ids.clone();
        sorted.sort_by_key(|range| range.first);
        for pair in sorted.windows(2) {
            if let [one, other] = pair
                && other.first <= one.last
            {
                problems.push(Invalid::new("ids", format!("{one} and {other} overlap: list each id once")));
            }
        }
        let many = self.ids.iter().map(|range| u64::from(range.last - range.first) + 1).sum::<u64>();
        if self.chosen_by == ChosenBy::Claim && many > MAX_CHOICES as u64 {
            let problem = format!(
                "lists {many} ids, but a device has room for {MAX_CHOICES} that claims choose from: list fewer, make \
                 several ClaimNetworks, or let the Node choose"
            );
            problems.push(Invalid::new("ids", problem));
        }
        // The ids are held in memory one by one.
        if many > u64::from(u16::MAX) {
            problems.push(Invalid::new(
                "ids",
                format!("lists {many} ids, more than {} are of no use on a node", u16::MAX),
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(ids: Value) -> Result<Segmentation, String> {
        serde_json::from_value(json!({"ids": ids})).map_err(|e| e.to_string())
    }

    #[test]
    fn ids_are_numbers_and_ranges() {
        let ids = |value| parse(value).expect("ids").ids().into_iter().collect::<Vec<_>>();
        assert_eq!(ids(json!([100, "7", "200-202"])), [7, 100, 200, 201, 202]);
        for bad in [json!(0), json!("5-"), json!("9-3"), json!("+5"), json!("16777216"), json!("a")] {
            assert!(parse(json!([bad])).is_err(), "{bad}");
        }
        let text = serde_json::to_value(parse(json!([5, "7-9"])).expect("ids")).expect("JSON");
        assert_eq!(text["ids"], json!(["5", "7-9"]));
    }

    #[test]
    fn ids_that_a_device_cannot_offer_are_refused() {
        assert_eq!(parse(json!([])).expect("read").problems().len(), 1);
        assert_eq!(parse(json!(["1-5", "5-6"])).expect("read").problems().len(), 1);
        let chosen = Segmentation { chosen_by: ChosenBy::Claim, ..parse(json!(["100-199"])).expect("read") };
        assert_eq!(chosen.problems().len(), 1);
        assert!(parse(json!(["100-199"])).expect("read").problems().is_empty());
    }
}
