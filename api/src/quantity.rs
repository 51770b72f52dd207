//! Whole amounts in the notation of Kubernetes quantities.

use std::fmt;
use std::str::FromStr;

use std::borrow::Cow;

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

/// Suffixes with their powers of two and of ten.
const SUFFIXES: [(&str, u32, i32); 16] = [
    ("Ki", 10, 0),
    ("Mi", 20, 0),
    ("Gi", 30, 0),
    ("Ti", 40, 0),
    ("Pi", 50, 0),
    ("Ei", 60, 0),
    ("n", 0, -9),
    ("u", 0, -6),
    ("m", 0, -3),
    ("", 0, 0),
    ("k", 0, 3),
    ("M", 0, 6),
    ("G", 0, 9),
    ("T", 0, 12),
    ("P", 0, 15),
    ("E", 0, 18),
];

/// Billionths of one: the finest unit that the API server keeps.
pub const ONE: i128 = 1_000_000_000;

/// Why a text is not a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Neither a known suffix nor an exponent.
    #[error("unknown suffix")]
    Suffix,
    /// No number before the suffix.
    #[error("it has no digits, or two points")]
    Digits,
    /// More than this type holds, which is far beyond what the API server holds.
    #[error("it is too large")]
    TooLarge,
}

/// Returns a quantity in billionths, rounded away from zero. Grammar and rounding: apimachinery's
/// `resource.ParseQuantity`.
///
/// # Errors
/// See [`Malformed`].
pub fn billionths(text: &str) -> Result<i128, Malformed> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let exponent = || suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok();
    let (twos, tens) = match SUFFIXES.iter().find(|(known, ..)| *known == suffix) {
        Some((_, twos, tens)) => (*twos, *tens),
        None => (0, exponent().ok_or(Malformed::Suffix)?),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return Err(Malformed::Digits);
    }
    let fraction = fraction.trim_end_matches('0');
    // Digits behind these are less than a billionth.
    let exact = usize::try_from(if twos > 0 { 27 } else { tens.saturating_add(9) }).unwrap_or(0);
    let (near, far) = fraction.split_at(fraction.len().min(exact));
    let amount = whole
        .bytes()
        .chain(near.bytes())
        .try_fold(0_i128, |amount, digit| amount.checked_mul(10)?.checked_add(i128::from(digit - b'0')));
    let scale = i64::from(tens) + 9 - i64::try_from(near.len()).unwrap_or(i64::MAX);
    let power = u32::try_from(scale.unsigned_abs()).ok().and_then(|power| 10_i128.checked_pow(power));
    let scaled = amount.and_then(|amount| amount.checked_mul(1 << twos)).and_then(|amount| match power {
        _ if amount == 0 => Some((0, 0)),
        Some(power) if scale >= 0 => Some((amount.checked_mul(power)?, 0)),
        None if scale >= 0 => None,
        Some(power) => Some((amount / power, amount % power)),
        // Less than a billionth.
        None => Some((0, 1)),
    });
    let (amount, rest) = scaled.ok_or(Malformed::TooLarge)?;
    let amount = amount.checked_add(i128::from(rest != 0 || !far.is_empty())).ok_or(Malformed::TooLarge)?;
    Ok(if text.starts_with('-') { -amount } else { amount })
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

/// Writes the canonical form: the largest decimal suffix that leaves a whole number.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimal = SUFFIXES.iter().filter(|(_, twos, tens)| *twos == 0 && *tens >= 0);
        let factors = decimal.map(|(suffix, _, tens)| (*suffix, 10_u64.pow(tens.unsigned_abs())));
        let (suffix, factor) = factors
            .filter(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor))
            .max_by_key(|(_, factor)| *factor)
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
    fn one_number_has_many_spellings() {
        for (a, b) in [
            ("1000M", "1G"),
            ("0.5", "500m"),
            ("1Ki", "1024"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("1.50", "1500m"),
            ("+5", "5"),
            (".5", "500m"),
            ("5.", "5"),
            ("-1G", "-1000M"),
            ("0.1n", "1n"),
            ("1e-30", "1n"),
            ("0.1234567890123456789012345678901234567890", "123456790n"),
            ("12345678901234.000000000000000000000000000000001", "12345678901234.000000001"),
            ("0.0009765625Ki", "1"),
            ("0e99", "0"),
        ] {
            assert_eq!(billionths(a).unwrap(), billionths(b).unwrap(), "{a} {b}");
        }
        assert_eq!(billionths("10G"), Ok(10_000_000_000 * ONE));
        assert_eq!(billionths("8Ei"), Ok((1 << 63) * ONE));
    }

    #[test]
    fn a_malformed_quantity_is_refused() {
        for text in ["", "-", ".", "1.2.3", "G", "1 G", "1g", "1e", "1ee3", "0x10", "--1", "1e99", "1K", "½"]
        {
            assert!(billionths(text).is_err(), "{text}");
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
        fn no_text_makes_the_parser_panic(text in ".{0,60}|[-+]?[0-9.]{0,50}[a-zA-Z]{0,2}[-+]?[0-9]{0,12}") {
            let _ = billionths(&text);
        }

        #[test]
        fn the_canonical_form_reads_back(value in 0..=i64::MAX as u64) {
            prop_assert_eq!(Quantity::new(value).to_string().parse(), Ok(Quantity::new(value)));
        }
    }
}
