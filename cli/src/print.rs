//! How commands say that they have failed, and what they print for programs.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::printable::printable;

/// A form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For programs, with everything that was found
    Json,
}

impl Output {
    /// Returns a report in this form; `table` makes that for people.
    ///
    /// # Errors
    /// As of [`json`].
    pub(crate) fn of(
        self,
        report: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<String, String> {
        match self {
            Self::Table => Ok(table()),
            Self::Json => json(report),
        }
    }
}

/// Says why a command has failed. If standard error is closed, no one reads it.
pub(crate) fn failed(err: &mut (dyn Write + Send), error: impl Display) -> ExitCode {
    let _ = writeln!(err, "netclaimctl: {error}");
    ExitCode::FAILURE
}

/// Says what is to be known beside a report.
pub(crate) fn say_notes(err: &mut (dyn Write + Send), notes: impl IntoIterator<Item = impl AsRef<str>>) {
    for note in notes {
        let _ = writeln!(err, "netclaimctl: {}", printable(note.as_ref()));
    }
}

/// Returns `value` as JSON for programs and people, with a line's end.
///
/// # Errors
/// Fails if JSON cannot have a value.
pub(crate) fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map(|json| json + "\n").map_err(|error| error.to_string())
}
