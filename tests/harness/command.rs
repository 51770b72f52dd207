//! Runs programs; an error has what they wrote to standard error.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs `command` to its end and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    output_of(command, "")
}

/// As [`output`], with `input` on standard input.
pub fn output_of(command: &mut Command, input: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that stops reading explains itself by its exit status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        let program = command.get_program().to_string_lossy().into_owned();
        bail!(
            "{} {} ({}): {}",
            program.rsplit('/').next().unwrap_or_default(),
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
