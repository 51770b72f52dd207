//! Amounts in the notation of `resource.Quantity`: `500m`, `10G`, `1.5Gi`, `1e9`.
//!
//! A quantity is a number of billionths, because the API server keeps nothing finer. Compare numbers, never
//! texts: `1G` may come back as `1000M` or `1e9`.

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

/// Returns the canonical form of a whole amount: the largest decimal suffix that leaves a whole number.
pub fn canonical(amount: u64) -> String {
    let decimal = SUFFIXES.iter().filter(|(_, twos, tens)| *twos == 0 && *tens >= 0);
    let factors = decimal.map(|(suffix, _, tens)| (*suffix, 10_u64.pow(tens.unsigned_abs())));
    let (suffix, factor) = factors
        .filter(|(_, factor)| amount != 0 && amount.is_multiple_of(*factor))
        .max_by_key(|(_, factor)| *factor)
        .unwrap_or(("", 1));
    format!("{}{suffix}", amount / factor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn the_canonical_form_is_short() {
        for (value, text) in [
            (0, "0"),
            (64, "64"),
            (1_000, "1k"),
            (10_000_000_000, "10G"),
            (1_500, "1500"),
            (1 << 30, "1073741824"),
        ] {
            assert_eq!(canonical(value), text);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,60}|[-+]?[0-9.]{0,50}[a-zA-Z]{0,2}[-+]?[0-9]{0,12}") {
            let _ = billionths(&text);
        }

        #[test]
        fn the_canonical_form_reads_back(value: u64) {
            prop_assert_eq!(billionths(&canonical(value)), Ok(i128::from(value) * ONE));
        }
    }
}
