//! The memory, descriptors and CPU time of a process, from `/proc`, and the CPU time of cgroups.

use std::fs;
use std::path::{Path, PathBuf};

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
    /// Reads the usage of this process.
    pub fn own() -> Result<Self> {
        Self::of(std::process::id().try_into()?)
    }

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

/// A cgroup of the hierarchy that counts CPU time. It counts what has ended in it, too.
#[derive(Clone, Debug)]
pub struct CpuGroup(PathBuf);

impl CpuGroup {
    /// The cgroup that a process is in.
    pub fn of(pid: i32) -> Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        // cgroups(7): ID:CONTROLLERS:PATH, without controllers in version 2.
        let lines: Vec<_> = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')).collect();
        let counts = |(controllers, _): &&(&str, &str)| controllers.split(',').any(|name| name == "cpuacct");
        let found = lines.iter().find(counts).or_else(|| lines.iter().find(|(names, _)| names.is_empty()));
        let (controllers, path) = found.with_context(|| format!("{pid} is in no cgroup: {text}"))?;
        Ok(Self(Path::new("/sys/fs/cgroup").join(controllers).join(path.trim_start_matches('/'))))
    }

    /// The cgroup that this one is in.
    pub fn parent(&self) -> Self {
        Self(self.0.parent().unwrap_or(&self.0).to_owned())
    }

    /// A cgroup in this one.
    pub fn child(&self, name: &str) -> Self {
        Self(self.0.join(name))
    }

    /// The CPU time in microseconds of everything that was ever in it, or in a cgroup in it.
    pub fn cpu(&self) -> Result<u64> {
        if let Ok(nanos) = fs::read_to_string(self.0.join("cpuacct.usage")) {
            return Ok(nanos.trim().parse::<u64>()? / 1000);
        }
        let path = self.0.join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        Ok(micros.with_context(|| format!("no usage_usec in {}", path.display()))?.trim().parse()?)
    }
}
