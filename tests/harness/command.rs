//! Runs programs; an error has what they wrote to standard error, or else to standard output.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::signal;

/// No program of a scenario takes as long. One that waits for ever would keep the lane from its end, and from
/// a report.
const LIMIT: Duration = Duration::from_mins(10);

/// Runs `command` to its end, or kills it after ten minutes, and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    output_of(command, "")
}

/// As [`output`], with `input` on standard input.
pub fn output_of(command: &mut Command, input: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.process_group(0).spawn().with_context(|| format!("cannot run {command:?}"))?;
    let (output, killed) = end_of(child, input, LIMIT)?;
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        let program = command.get_program().to_string_lossy().into_owned();
        let said = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
        bail!(
            "{} {} ({}): {}",
            program.rsplit('/').next().unwrap_or_default(),
            words.join(" "),
            if killed { format!("killed after {LIMIT:?}") } else { output.status.to_string() },
            String::from_utf8_lossy(said).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits for the end of `child`, which leads a process group, and kills the group after `limit`: a script's
/// own children hold its output open. Returns the output, and whether it was killed.
fn end_of(mut child: Child, input: &str, limit: Duration) -> Result<(Output, bool)> {
    let pid: i32 = child.id().try_into()?;
    let (ended, end) = channel::<()>();
    let watch = thread::spawn(move || {
        end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) && signal(-pid, "KILL").is_ok()
    });
    if let Some(mut stdin) = child.stdin.take() {
        // A program that stops reading explains itself by its exit status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output();
    drop(ended);
    Ok((output?, watch.join().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let mut script = Command::new("sh");
        let child = script.args(["-c", "sleep 60; true"]).stdout(Stdio::piped()).process_group(0).spawn();
        let (output, killed) = end_of(child.unwrap(), "", Duration::from_millis(50)).unwrap();
        assert!(killed && !output.status.success());
    }
}
