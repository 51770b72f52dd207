//! Reads Kubernetes quantities as numbers.
//!
//! The API server rewrites a quantity in its canonical form (`1000M` comes back as `1G`), so texts cannot be compared.
//! Grammar: `k8s.io/apimachinery/pkg/api/resource.Quantity`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Billionths: the finest unit that the API server keeps.
pub(crate) const ONE: i128 = 1_000_000_000;

/// The quantity in billionths, rounded away from zero as the API server does; `None` when it is malformed or beyond
/// what this type holds, which is far beyond what the API server holds.
pub(crate) fn billionths(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.as_str();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number_ends = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_ends);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let mut mantissa: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        mantissa = mantissa.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    let (power_of_two, power_of_ten) = scale(suffix)?;
    let scaled = mantissa.checked_mul(1_i128.checked_shl(power_of_two)?)?;
    let exponent = power_of_ten.checked_add(9)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs());
    let value = match (exponent >= 0, power) {
        _ if scaled == 0 => 0,
        (true, power) => scaled.checked_mul(power?)?,
        (false, Some(power)) => scaled / power + i128::from(scaled % power != 0),
        (false, None) => 1,
    };
    Some(if negative { -value } else { value })
}

/// The power of two and the power of ten that a suffix stands for.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        other => (0, other.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<i128> {
        billionths(&Quantity(text.into()))
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
            ("0e99", "0"),
        ] {
            assert_eq!(read(a).unwrap(), read(b).unwrap(), "{a} {b}");
        }
        assert_eq!(read("10G"), Some(10_000_000_000 * ONE));
        assert_eq!(read("8Ei"), Some((1 << 63) * ONE));
    }

    #[test]
    fn what_is_no_quantity_is_none() {
        for text in ["", "-", ".", "1.2.3", "G", "1 G", "1g", "1e", "1ee3", "0x10", "--1", "1e99", "1K", "½"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,60}|[-+]?[0-9.]{0,50}[a-zA-Z]{0,2}[-+]?[0-9]{0,12}") {
            read(&text);
        }
    }
}
