//! The numbers of all measurements: one file for programs, tables for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use netclaim_tests::{RawNumbers, percentile};

const HEAD: &str = "round,who,what,of,value";

/// One number.
struct Sample {
    /// Which turn it is of.
    round: usize,
    /// Whose it is: `plain`, `netclaim` and so on.
    who: String,
    /// What was measured, with its unit.
    what: String,
    /// The pod or the process.
    of: String,
    value: f64,
}

impl Sample {
    fn line(&self) -> String {
        let Self { round, who, what, of, value } = self;
        format!("{round},{who},{what},{of},{value:.3}")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(5, ',');
        let mut field = || fields.next();
        let round = field()?.parse().ok()?;
        let (who, what, of) = (field()?.to_owned(), field()?.to_owned(), field()?.to_owned());
        Some(Self { round, who, what, of, value: field()?.parse().ok()? })
    }
}

/// All numbers of one measurement.
pub struct Samples {
    raw: RawNumbers,
    all: Vec<Sample>,
}

impl Samples {
    /// Creates an empty set in a new folder `target/KIND/TIME-NAME`. `$NETCLAIM_BENCH_WITH` is the folder of
    /// an earlier run, whose numbers become part of this one: a long measurement can be taken in pieces.
    pub fn new(kind: &str, name: &str) -> Result<Self> {
        let raw = RawNumbers::new(env!("CARGO_TARGET_TMPDIR"), kind, name)?;
        eprintln!("         raw numbers: {}", raw.dir().display());
        let mut all = Vec::new();
        if let Some(earlier) = std::env::var_os("NETCLAIM_BENCH_WITH") {
            let path = Path::new(&earlier).join("samples.csv");
            let text =
                fs::read_to_string(&path).with_context(|| format!("no numbers in {}", path.display()))?;
            all.extend(text.lines().skip(1).filter_map(Sample::parse));
        }
        Ok(Self { raw, all })
    }

    /// The folder of this measurement.
    pub fn dir(&self) -> &Path {
        self.raw.dir()
    }

    /// The number of the next round: earlier ones may come from another run.
    pub fn next_round(&self) -> usize {
        self.all.iter().map(|sample| sample.round + 1).max().unwrap_or_default()
    }

    /// Adds a number.
    pub fn add(&mut self, round: usize, who: &str, what: &str, of: &str, value: f64) {
        let [who, what, of] = [who, what, of].map(str::to_owned);
        self.all.push(Sample { round, who, what, of, value });
    }

    /// Writes all numbers to `samples.csv`.
    pub fn save(&self) -> Result<()> {
        self.raw.write("samples.csv", HEAD, self.all.iter().map(Sample::line))
    }

    /// Writes a text beside the numbers, and shows it.
    pub fn publish(&self, file: &str, text: &str) -> Result<()> {
        eprintln!("\n{text}");
        Ok(fs::write(self.dir().join(file), text)?)
    }

    /// The sorted numbers of one kind.
    pub fn values(&self, who: &str, what: &str) -> Vec<f64> {
        let of_kind = self.all.iter().filter(|sample| sample.who == who && sample.what == what);
        let mut values: Vec<f64> = of_kind.map(|sample| sample.value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    }

    /// The median of one kind in each round, which is the number of a kind that has one in a round.
    pub fn by_round(&self, who: &str, what: &str) -> BTreeMap<usize, f64> {
        let of_kind = self.all.iter().filter(|sample| sample.who == who && sample.what == what);
        let rounds: BTreeSet<usize> = of_kind.map(|sample| sample.round).collect();
        let median = |round| Some((round, self.median_of_round(who, what, round)?));
        rounds.into_iter().filter_map(median).collect()
    }

    /// The median of one kind.
    pub fn median(&self, who: &str, what: &str) -> Option<f64> {
        percentile(&self.values(who, what), 50)
    }

    /// The median of one kind in one round.
    pub fn median_of_round(&self, who: &str, what: &str, round: usize) -> Option<f64> {
        let is_of = |sample: &&Sample| sample.round == round && sample.who == who && sample.what == what;
        let mut values: Vec<f64> = self.all.iter().filter(is_of).map(|sample| sample.value).collect();
        values.sort_unstable_by(f64::total_cmp);
        percentile(&values, 50)
    }

    /// A cell of a table: `p50 / p90 / p99` of milliseconds.
    pub fn cell(&self, who: &str, what: &str) -> String {
        let values = self.values(who, what);
        let text: Vec<String> =
            [50, 90, 99].iter().filter_map(|percent| Some(short(percentile(&values, *percent)?))).collect();
        if text.is_empty() { "–".to_owned() } else { text.join(" / ") }
    }

    /// A cell of a table: the median of each of `whats`.
    pub fn medians(&self, who: &str, whats: &[&str]) -> String {
        let text: Vec<String> =
            whats.iter().filter_map(|what| Some(short(self.median(who, what)?))).collect();
        if text.is_empty() { "–".to_owned() } else { text.join("; ") }
    }
}

/// A number with the digits that mean something.
pub fn short(value: f64) -> String {
    if value.abs() < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// A table in Markdown.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}
