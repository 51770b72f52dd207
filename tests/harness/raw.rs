//! The raw numbers of a measurement, as files for programs, their percentiles, and how many are measured.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

/// A new folder for the files of one measurement.
pub struct RawNumbers(PathBuf);

impl RawNumbers {
    /// Creates `target/KIND/TIME-NAME`, where `tmpdir` is the `CARGO_TARGET_TMPDIR` of the test program.
    pub fn new(tmpdir: &str, kind: &str, name: &str) -> Result<Self> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let dir = Path::new(tmpdir).with_file_name(kind).join(format!("{seconds}-{name}"));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Writes or replaces a file.
    pub fn write(&self, file: &str, head: &str, lines: impl IntoIterator<Item = String>) -> Result<()> {
        let mut file = File::create(self.0.join(file))?;
        writeln!(file, "{head}")?;
        lines.into_iter().try_for_each(|line| writeln!(file, "{line}"))?;
        Ok(())
    }
}

/// Returns the value that `percent` of the numbers do not exceed; `None` for no numbers.
pub fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// A number from the environment.
pub fn setting(name: &str, default: usize) -> Result<usize> {
    match std::env::var(name) {
        Ok(value) => value.parse().with_context(|| format!("{name} is {value:?}")),
        Err(_) => Ok(default),
    }
}
