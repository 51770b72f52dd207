//! Processes. The node's are the machine's: it has no process namespace of its own.

use std::fs::{self, File};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::command::output;

/// A process that was running when it was looked for.
#[derive(Debug)]
pub struct Process(i32);

impl Process {
    /// Kills it with SIGKILL; it must still run.
    pub fn kill(&self) -> Result<()> {
        signal(self.0, "KILL")
    }
}

/// Processes whose command line contains `words`; a zero byte separates arguments.
pub fn processes(words: &str) -> Result<Vec<Process>> {
    Ok(pids()?.into_iter().filter(|pid| command_line(*pid).contains(words)).map(Process).collect())
}

/// Every process of the machine.
pub(crate) fn pids() -> Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// A process's arguments, each followed by a zero byte; empty if the process is gone.
pub(crate) fn command_line(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// Sends a signal to a process, or to a process group by its negative number.
pub fn signal(pid: i32, name: &str) -> Result<()> {
    output(Command::new("kill").args([&format!("-{name}"), "--", &pid.to_string()])).map(drop)
}

/// Whether a process runs; a zombie does not.
pub fn is_alive(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.is_alive())
}

/// Whether a process is stopped by SIGSTOP.
pub(crate) fn is_paused(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.field(3) == "T")
}

/// What proc(5) says of a process, from its third field on.
pub(crate) struct Stat(Vec<String>);

impl Stat {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the name, in parentheses, and may hold anything.
        let (_, rest) = stat.rsplit_once(')')?;
        Some(Self(rest.split_whitespace().map(str::to_owned).collect()))
    }

    fn field(&self, number: usize) -> &str {
        self.0.get(number - 3).map_or("", String::as_str)
    }

    /// Whether it runs; a zombie does not.
    pub(crate) fn is_alive(&self) -> bool {
        self.field(3) != "Z"
    }

    /// When it began, in clock ticks since the boot.
    pub(crate) fn start(&self) -> &str {
        self.field(22)
    }
}

/// A child process that is killed when this value is dropped.
pub struct Running(Child);

impl Running {
    /// Starts `command`; returns its standard output, too.
    pub fn piped(command: &mut Command) -> Result<(Self, ChildStdout)> {
        let child = command.stdout(Stdio::piped()).spawn();
        let mut running = Self(child.with_context(|| format!("cannot run {command:?}"))?);
        let stdout = running.0.stdout.take().context("the child has no pipe")?;
        Ok((running, stdout))
    }

    /// Starts `command` with its output in a file.
    pub fn logged(command: &mut Command, log: File) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        Ok(Self(child.with_context(|| format!("cannot run {command:?}"))?))
    }

    /// Its process.
    pub fn pid(&self) -> Result<i32> {
        Ok(self.0.id().try_into()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
