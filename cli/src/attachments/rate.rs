//! Rates for people.

/// A rate for people: three digits, and the prefix of its unit.
pub(super) fn rate(bits: u64) -> String {
    let (mut value, mut prefixes) = (bits as f64, ["", "k", "M", "G"].into_iter());
    let mut prefix = prefixes.next().unwrap_or_default();
    while value >= 999.5 {
        let Some(next) = prefixes.next() else { break };
        (value, prefix) = (value / 1000.0, next);
    }
    let digits = if prefix.is_empty() || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_three_digits_and_a_prefix() {
        for (bits, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1.00k"),
            (12_340, "12.3k"),
            (999_600, "1.00M"),
            (2_000_000_000, "2.00G"),
            (123_400_000_000, "123G"),
            (5_000_000_000_000, "5000G"),
        ] {
            assert_eq!(rate(bits), text);
        }
    }
}
