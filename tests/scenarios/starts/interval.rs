//! How sure a difference is.

use std::collections::BTreeMap;
use std::fmt;

use netclaim_tests::percentile;

use crate::samples::short;

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;
/// 97.5 % of Student's t distribution is below these, for 1 degree of freedom and so on. More than 10 are
/// taken for 10.
const STUDENT: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];

/// By how much one middle exceeds another, with its interval of 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    pub by: f64,
    low: f64,
    high: f64,
}

impl Difference {
    /// Of the medians of two sets of single measurements that do not depend on each other; `None` if one is
    /// empty. The interval is a bootstrap's, with the same draws every time.
    pub fn of(new: &[f64], old: &[f64]) -> Option<Self> {
        let by = middle(new.to_vec())? - middle(old.to_vec())?;
        let mut random = fastrand::Rng::with_seed(1);
        let mut draw = || Some(middle(drawn(new, &mut random))? - middle(drawn(old, &mut random))?);
        let mut all: Vec<f64> = (0..RESAMPLES).filter_map(|_| draw()).collect();
        all.sort_unstable_by(f64::total_cmp);
        Some(Self { by, low: *all.get(RESAMPLES / 40)?, high: *all.get(RESAMPLES - RESAMPLES / 40 - 1)? })
    }

    /// The mean of the differences in each round, so that a slow one does not matter; `None` with less than
    /// two. The interval is Student's: of few rounds a bootstrap would be too sure.
    pub fn by_round(new: &BTreeMap<usize, f64>, old: &BTreeMap<usize, f64>) -> Option<Self> {
        let pairs: Vec<f64> = new.iter().filter_map(|(round, new)| Some(new - old.get(round)?)).collect();
        let student = STUDENT.get(pairs.len().checked_sub(2)?.min(STUDENT.len() - 1))?;
        let count = pairs.len() as f64;
        let by = pairs.iter().sum::<f64>() / count;
        let variance = pairs.iter().map(|pair| (pair - by).powi(2)).sum::<f64>() / (count - 1.0);
        let width = student * (variance / count).sqrt();
        Some(Self { by, low: by - width, high: by + width })
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
        write!(f, "{} ({} to {})", signed(self.by), signed(self.low), signed(self.high))
    }
}

fn drawn(values: &[f64], random: &mut fastrand::Rng) -> Vec<f64> {
    (0..values.len()).filter_map(|_| values.get(random.usize(..values.len()))).copied().collect()
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    percentile(&values, 50)
}
