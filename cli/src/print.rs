//! How commands say that they have failed, and what they print for programs.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

/// Says why a command has failed. If standard error is closed, no one reads it.
pub(crate) fn failed(err: &mut (dyn Write + Send), error: impl Display) -> ExitCode {
    let _ = writeln!(err, "netclaimctl: {error}");
    ExitCode::FAILURE
}

/// Returns `value` as JSON for programs and people, with a line's end.
///
/// # Errors
/// Fails if JSON cannot have a value.
pub(crate) fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map(|json| json + "\n").map_err(|error| error.to_string())
}
