//! Reports: a table for people, and files for programs.

use std::time::Duration;

use anyhow::Result;
use netclaim_tests::{RawNumbers, percentile};

/// The numbers of one measurement.
pub struct Report {
    raw: RawNumbers,
    rows: Vec<(String, f64, &'static str)>,
}

impl Report {
    /// Creates a report in a new folder below `target/scale`.
    pub fn new(name: &str) -> Result<Self> {
        let raw = RawNumbers::new(env!("CARGO_TARGET_TMPDIR"), "scale", name)?;
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        eprintln!("         {build} build; raw numbers: {}", raw.dir().display());
        Ok(Self { raw, rows: Vec::new() })
    }

    /// Adds a line to the table, and writes the file at once: a later measurement may fail.
    pub fn row(&mut self, what: impl Into<String>, value: f64, unit: &'static str) -> Result<()> {
        let what = what.into();
        eprintln!("         {what:<58} {value:>10.1} {unit}");
        self.rows.push((what, value, unit));
        let line = |(what, value, unit): &(String, f64, &str)| format!("{what},{value:.3},{unit}");
        self.raw("table.csv", "what,value,unit", self.rows.iter().map(line))
    }

    /// Adds a line with a time in seconds.
    pub fn seconds(&mut self, what: impl Into<String>, took: Duration) -> Result<()> {
        self.row(what, took.as_secs_f64(), "s")
    }

    /// Adds the median and the 99th percentile of times, and writes all times to a file.
    pub fn times(&mut self, what: &str, file: &str, times: &[Duration]) -> Result<()> {
        let mut millis: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1000.0).collect();
        self.raw(file, "milliseconds", millis.iter().map(|time| format!("{time:.3}")))?;
        millis.sort_unstable_by(f64::total_cmp);
        for (name, percent) in [("p50", 50), ("p99", 99)] {
            let value = percentile(&millis, percent).unwrap_or_default();
            self.row(format!("{what}, {name} of {}", millis.len()), value, "ms")?;
        }
        Ok(())
    }

    /// Writes a file of numbers.
    pub fn raw(&self, file: &str, head: &str, lines: impl IntoIterator<Item = String>) -> Result<()> {
        self.raw.write(file, head, lines)
    }
}

/// KiB as MiB.
pub fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Milliseconds as seconds.
pub fn millis(millis: u64) -> f64 {
    millis as f64 / 1000.0
}
