//! Whole amounts in the notation of Kubernetes quantities.

use std::fmt;
use std::str::FromStr;

use std::borrow::Cow;

use netclaim_kubernetes::quantity::{ONE, billionths, canonical};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Invalid;

/// A non-negative whole amount, written as Kubernetes writes quantities: `10G`, `500M`, `1Gi`, `64`.
///
/// Bandwidth is in bits per second; other quantities are numbers of things. Parsing refuses fractions of one;
/// [`rounded_up`](Self::rounded_up) rounds them up as Kubernetes does. Compare values, never texts: the
/// scheduler may write `1G` as `1000000000` or `1e9`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Quantity(u64);

/// What people write in YAML: `10G` or a plain number.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "is not an amount: write for example 10G, 500M or 64")]
#[allow(dead_code, reason = "the variants are read by TryFrom and described to schemars")]
enum Written {
    Whole(u64),
    /// `1e9` is this in YAML.
    Float(f64),
    Text(String),
}

impl Quantity {
    /// Returns the quantity of `amount`.
    pub const fn new(amount: u64) -> Self {
        Self(amount)
    }

    /// The amount.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// Parses a quantity that Kubernetes has accepted, and rounds fractions of one up, as `Quantity.Value`
    /// does.
    ///
    /// # Errors
    /// Refuses texts that are not quantities, and negative or too large ones.
    pub fn rounded_up(text: &str) -> Result<Self, Invalid> {
        parse(text).map(|(amount, _)| amount)
    }
}

/// Returns the rule by which the API server refuses a field that is not an amount, a negative one, or 0 if
/// `least` is 1.
pub(crate) fn amount_rule(field: &str, least: u8, message: &str) -> Value {
    let text = format!("string(self.{field})");
    json!({
        "rule": format!(
            "!has(self.{field}) || self.{field} == null || isQuantity({text}) && quantity({text}).compareTo(quantity('0')) >= {least}"
        ),
        "message": message,
        "fieldPath": format!(".{field}"),
    })
}

fn not_a_quantity(text: &str, why: &str) -> Invalid {
    Invalid::new("", format!("{text:?} is not a quantity: {why}; write for example 10G, 500M or 64"))
}

/// Returns the amount, rounded up, and whether it was whole.
fn parse(text: &str) -> Result<(Quantity, bool), Invalid> {
    let wrong = |why: &str| not_a_quantity(text, why);
    let amount = billionths(text).map_err(|why| wrong(&why.to_string()))?;
    let is_whole = amount % ONE == 0;
    // Quantities are int64 in Kubernetes.
    let rounded =
        i64::try_from(amount / ONE + i128::from(!is_whole)).map_err(|_| wrong("it is too large"))?;
    match u64::try_from(rounded) {
        Ok(rounded) if amount >= 0 => Ok((Quantity(rounded), is_whole)),
        _ => Err(wrong("it is negative")),
    }
}

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
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match parse(text)? {
            (amount, true) => Ok(amount),
            (_, false) => Err(not_a_quantity(text, "fractions of one cannot be handed out")),
        }
    }
}

impl TryFrom<Written> for Quantity {
    type Error = Invalid;

    fn try_from(text: Written) -> Result<Self, Invalid> {
        match text {
            Written::Whole(number) => number.to_string().parse(),
            Written::Float(number) => number.to_string().parse(),
            Written::Text(text) => text.parse(),
        }
    }
}

/// Writes the canonical form.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&canonical(self.0))
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

    fn parsed(text: &str) -> Result<u64, Invalid> {
        text.parse().map(Quantity::value)
    }

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        assert_eq!(parsed("10G"), Ok(10_000_000_000));
        assert_eq!(parsed("1Gi"), Ok(1 << 30));
        assert_eq!(parsed("1.5k"), Ok(1_500));
        assert_eq!(parsed(".5k"), Ok(500));
        assert_eq!(parsed("0"), Ok(0));
        for gigabit in ["1e9", "1E9", "1e+9", "+1G", "0.1e10", "1000e6", "1000000000000m", "1.G", "01G"] {
            assert_eq!(parsed(gigabit), Ok(1_000_000_000), "{gigabit}");
        }
        assert_eq!(
            (parsed("1E"), parsed("-0"), parsed("0e99")),
            (Ok(1_000_000_000_000_000_000), Ok(0), Ok(0))
        );
        for bad in [
            "", "-1", "1m", "G", "1.5", "1,5", "1e3x", "99E", "1 G", ".", "1.2.3", "+-1", "1e", "1e19",
            "1e-1",
        ] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn quantities_of_kubernetes_are_rounded_up_as_it_rounds_them() {
        let rounded = |text: &str| Quantity::rounded_up(text).map(Quantity::value);
        for (text, amount) in [
            ("1500m", 2),
            ("1.5", 2),
            ("1n", 1),
            ("1e-99", 1),
            ("0.0000000000000000001", 1),
            ("1.0000000000000000000000", 1),
            ("1e9", 1_000_000_000),
            ("1.5Ki", 1536),
            ("0.1Ki", 103),
            ("0", 0),
        ] {
            assert_eq!(rounded(text), Ok(amount), "{text}");
        }
        assert!(rounded("-1m").is_err() && rounded("16Ei").is_err() && rounded("1x").is_err());
    }

    #[test]
    fn numbers_of_yaml_are_read_in_every_spelling() {
        let read = |json: &str| serde_json::from_str::<Quantity>(json).map(Quantity::value).ok();
        for (json, amount) in [
            ("1000", Some(1000)),
            ("1e9", Some(1_000_000_000)),
            ("1e+09", Some(1_000_000_000)),
            ("\"1e9\"", Some(1_000_000_000)),
            ("1.5", None),
            ("-1", None),
        ] {
            assert_eq!(read(json), amount, "{json}");
        }
    }

    proptest! {
        #[test]
        fn the_canonical_form_reads_back(value in 0..=i64::MAX as u64) {
            prop_assert_eq!(Quantity::new(value).to_string().parse(), Ok(Quantity::new(value)));
        }
    }
}
