//! Processes of the machine, which are the node's too.

use std::fs;
use std::process::Command;

use anyhow::Result;

use crate::command::output;

/// A process that was there when it was looked for.
#[derive(Debug)]
pub struct Process(i32);

impl Process {
    /// Ends it by SIGKILL.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&self) -> Result<()> {
        signal(self.0, "KILL")
    }
}

/// Those whose command line has `words`; between arguments there is a zero.
///
/// # Errors
/// When there is no `/proc`.
pub fn processes(words: &str) -> Result<Vec<Process>> {
    Ok(pids()?.into_iter().filter(|pid| command_line(*pid).contains(words)).map(Process).collect())
}

/// Every process of the machine.
pub(crate) fn pids() -> Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// A process's arguments, each with a zero behind it; empty for one that is gone.
pub(crate) fn command_line(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: i32, name: &str) -> Result<()> {
    output(Command::new("kill").args([format!("-{name}"), pid.to_string()])).map(drop)
}
