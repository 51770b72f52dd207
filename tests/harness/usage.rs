//! The memory, descriptors and CPU time of a process, from `/proc`.

use std::fs;

use anyhow::{Context as _, Result, bail};

/// Clock ticks per second in `/proc` (`USER_HZ`).
const TICKS: u64 = 100;

/// What a process holds and has used.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Resident memory in KiB.
    pub rss: u64,
    /// Anonymous memory in KiB: what is resident without a file behind it.
    pub anonymous: u64,
    /// Peak of the resident memory in KiB.
    pub peak: u64,
    /// Open descriptors.
    pub fds: usize,
    /// Its CPU time in milliseconds.
    pub cpu: u64,
    /// CPU time in milliseconds of the programs that it has waited for: CNI plugins.
    pub programs: u64,
}

impl Usage {
    /// Reads the usage of a process.
    pub fn of(pid: i32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = |key: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let line = line.with_context(|| format!("no {key} of {pid}"))?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        let fds = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        // After the name in parentheses: utime, stime, cutime and cstime are the fields 14 to 17 of proc(5).
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let times = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(4);
        let times: Vec<u64> = times.map(str::parse).collect::<Result<_, _>>()?;
        let [user, system, of_user, of_system] = times.as_slice() else { bail!("no times in {stat}") };
        let millis = |ticks: u64| ticks * 1000 / TICKS;
        Ok(Self {
            rss: kib("VmRSS:")?,
            anonymous: kib("RssAnon:")?,
            peak: kib("VmHWM:")?,
            fds,
            cpu: millis(user + system),
            programs: millis(of_user + of_system),
        })
    }
}
