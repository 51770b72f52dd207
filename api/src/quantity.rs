//! Whole amounts in the notation of Kubernetes quantities.

use std::fmt;
use std::str::FromStr;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A non-negative whole amount, written as Kubernetes writes quantities: `10G`, `500M`, `1Gi`, `64`.
///
/// Bandwidth is in bits per second, everything else counts things. Fractions of one are refused because the
/// scheduler rounds them (see `docs/architecture.md`, capacities). Compare values, never spellings: the
/// scheduler may hand `1G` back as `1000000000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "String")]
pub struct Quantity(u64);

/// What people write in YAML: `10G` or a plain number.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "the variants are read by TryFrom and described to schemars")]
enum Text {
    Number(u64),
    Text(String),
}

impl Quantity {
    /// `amount` of whatever is counted.
    pub const fn new(amount: u64) -> Self {
        Self(amount)
    }

    /// The amount.
    pub const fn value(self) -> u64 {
        self.0
    }
}

const SUFFIXES: [(&str, u64); 13] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("", 1),
];

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// The form that structural schemas prescribe for "a number or a text".
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true})
    }
}

impl FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("{text:?} is not a quantity: {why}; write for example 10G, 500M or 64");
        let (number, factor) = SUFFIXES
            .iter()
            .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)))
            .ok_or_else(|| wrong("unknown suffix"))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || whole.len() + fraction.len() == 0 || fraction.len() > 18 {
            return Err(wrong("it is no whole, non-negative amount"));
        }
        let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(u32::MAX));
        let amount = format!("{whole}{fraction}").parse::<u128>().map_err(|_| wrong("it is too large"))?;
        let scaled = amount.checked_mul(factor.into()).ok_or_else(|| wrong("it is too large"))?;
        if scaled % scale != 0 {
            return Err(wrong("fractions of one cannot be handed out"));
        }
        // Quantities are int64 in Kubernetes.
        match i64::try_from(scaled / scale).map(u64::try_from) {
            Ok(Ok(value)) => Ok(Self(value)),
            _ => Err(wrong("it is too large")),
        }
    }
}

impl TryFrom<Text> for Quantity {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        match text {
            Text::Number(number) => number.to_string().parse(),
            Text::Text(text) => text.parse(),
        }
    }
}

/// Canonical: the largest decimal suffix that leaves a whole number.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimal = SUFFIXES.iter().rev().filter(|(suffix, _)| suffix.len() == 1);
        let (suffix, factor) = decimal
            .filter(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor))
            .max_by_key(|(_, factor)| *factor)
            .copied()
            .unwrap_or(("", 1));
        write!(f, "{}{suffix}", self.0 / factor)
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        quantity.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<u64, String> {
        text.parse().map(Quantity::value)
    }

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        assert_eq!(parsed("10G"), Ok(10_000_000_000));
        assert_eq!(parsed("1Gi"), Ok(1 << 30));
        assert_eq!(parsed("1.5k"), Ok(1_500));
        assert_eq!(parsed(".5k"), Ok(500));
        assert_eq!(parsed("0"), Ok(0));
        for bad in ["", "-1", "1m", "G", "1.5", "1,5", "1e3x", "99E", "1 G", "."] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_canonical_form_is_short() {
        for (value, text) in [
            (0, "0"),
            (64, "64"),
            (1_000, "1k"),
            (10_000_000_000, "10G"),
            (1_500, "1500"),
            (1 << 30, "1073741824"),
        ] {
            assert_eq!(Quantity::new(value).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn the_canonical_form_reads_back(value in 0..=i64::MAX as u64) {
            prop_assert_eq!(Quantity::new(value).to_string().parse(), Ok(Quantity::new(value)));
        }
    }
}
