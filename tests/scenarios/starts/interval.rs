//! How sure a difference is.

use std::collections::BTreeMap;
use std::fmt;

use netclaim_tests::percentile;

use crate::samples::short;

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;

/// By how much one median exceeds another, with its interval of 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    pub median: f64,
    low: f64,
    high: f64,
}

impl Difference {
    /// For two sets of single measurements; `None` if one is empty. The interval is a bootstrap's, with the
    /// same draws every time.
    pub fn of(new: &[f64], old: &[f64]) -> Option<Self> {
        let median = middle(new.to_vec())? - middle(old.to_vec())?;
        Self::with(median, |random| Some(middle(drawn(new, random))? - middle(drawn(old, random))?))
    }

    /// For measurements with one number in each round: rounds are compared one by one, so that a slow one
    /// does not matter.
    pub fn by_round(new: &BTreeMap<usize, f64>, old: &BTreeMap<usize, f64>) -> Option<Self> {
        let pairs: Vec<f64> = new.iter().filter_map(|(round, new)| Some(new - old.get(round)?)).collect();
        Self::with(middle(pairs.clone())?, |random| middle(drawn(&pairs, random)))
    }

    fn with(median: f64, draw: impl Fn(&mut fastrand::Rng) -> Option<f64>) -> Option<Self> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut all: Vec<f64> = (0..RESAMPLES).filter_map(|_| draw(&mut random)).collect();
        all.sort_unstable_by(f64::total_cmp);
        Some(Self { median, low: *all.get(RESAMPLES / 40)?, high: *all.get(RESAMPLES - RESAMPLES / 40 - 1)? })
    }

    /// Whether the new one is worse, more being worse, beyond what chance explains.
    pub fn is_worse(&self) -> bool {
        self.low > 0.0
    }

    /// Whether it is better in the same sense.
    pub fn is_better(&self) -> bool {
        self.high < 0.0
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signed = |value: f64| format!("{}{}", if value < 0.0 { "−" } else { "+" }, short(value.abs()));
        write!(f, "{} ({} to {})", signed(self.median), signed(self.low), signed(self.high))
    }
}

fn drawn(values: &[f64], random: &mut fastrand::Rng) -> Vec<f64> {
    (0..values.len()).filter_map(|_| values.get(random.usize(..values.len()))).copied().collect()
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    percentile(&values, 50)
}
