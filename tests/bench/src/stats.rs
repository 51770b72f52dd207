//! Statistics of measurements. Pure.

/// The value that the share `q` (0 to 1) of all values does not exceed (nearest rank); 0 for none.
pub(crate) fn percentile(values: &mut [u64], q: f64) -> u64 {
    values.sort_unstable();
    // Counts of measurements are far below 2^52.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rank = (values.len() as f64 * q).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// The middle value, or the mean of the middle two; 0 for none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.len() % 2, values.get(half.saturating_sub(1)), values.get(half)) {
        (0, Some(low), Some(high)) => f64::midpoint(*low, *high),
        (_, _, Some(middle)) => *middle,
        _ => 0.0,
    }
}

/// A ratio over the rounds of a run, with its interval of 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;

impl Ratio {
    /// Divides `a` by `b` for each round, so that a slow round does not matter. The interval is a
    /// bootstrap's, with the same draws every time.
    pub(crate) fn of(a: &[f64], b: &[f64]) -> Self {
        let mut ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let mut draw: Vec<f64> = (0..ratios.len())
                    .filter_map(|_| ratios.get(below(&mut state, ratios.len())))
                    .copied()
                    .collect();
                median(&mut draw)
            })
            .collect();
        medians.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| medians.get(index).copied().unwrap_or_default();
        Self {
            median: median(&mut ratios),
            low: at(RESAMPLES / 40),
            high: at(RESAMPLES - RESAMPLES / 40 - 1),
        }
    }
}

/// A number below `limit` (xorshift; good enough to choose rounds).
fn below(state: &mut u64, limit: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state % (limit.max(1) as u64)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut values, 0.5), 50);
        assert_eq!(percentile(&mut values, 0.99), 99);
        assert_eq!(percentile(&mut values, 1.0), 100);
        assert_eq!(percentile(&mut [7], 0.99), 7);
        assert_eq!(percentile(&mut [], 0.5), 0);
    }

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        assert!((median(&mut [4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!(median(&mut []).abs() < 1e-9);
    }

    #[test]
    fn a_slow_round_does_not_change_a_ratio() {
        let b = [1.0, 1.0, 10.0, 1.0, 1.0];
        let a = b.map(|b| b * 1.5);
        assert_eq!(Ratio::of(&a, &b), Ratio { median: 1.5, low: 1.5, high: 1.5 });
    }

    #[test]
    fn the_interval_holds_the_median_and_narrows_with_more_rounds() {
        let noisy = |count: usize| -> Vec<f64> {
            let mut state = 1;
            (0..count).map(|_| 1.0 + below(&mut state, 1000) as f64 / 1000.0).collect()
        };
        let width = |count| {
            let ratio = Ratio::of(&noisy(count), &vec![1.0; count]);
            assert!(ratio.low <= ratio.median && ratio.median <= ratio.high, "{ratio:?}");
            ratio.high - ratio.low
        };
        assert!(width(400) < width(10) / 2.0);
    }
}
