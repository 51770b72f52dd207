//! The services of a cluster, as `tests/node/svc.sh` has noted them: without a shell for each look.

use std::fs;
use std::path::Path;

/// The process of a service that runs.
pub(crate) fn pid(dir: &Path, name: &str) -> Option<i32> {
    let noted = fs::read_to_string(dir.join("pid").join(name)).ok()?;
    let (pid, started) = noted.trim().split_once(' ')?;
    let stat = Stat::of(pid.parse().ok()?)?;
    // Linux reuses pids, but not with the same start.
    (stat.state() != "Z" && stat.start() == started).then(|| pid.parse().ok())?
}

/// Whether a process is stopped by SIGSTOP.
pub(crate) fn is_paused(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.state() == "T")
}

/// What proc(5) says of a process, from its third field on.
struct Stat(Vec<String>);

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the name, in parentheses, and may hold anything.
        let (_, rest) = stat.rsplit_once(')')?;
        Some(Self(rest.split_whitespace().map(str::to_owned).collect()))
    }

    fn field(&self, number: usize) -> &str {
        self.0.get(number - 3).map_or("", String::as_str)
    }

    fn state(&self) -> &str {
        self.field(3)
    }

    /// In clock ticks since the boot.
    fn start(&self) -> &str {
        self.field(22)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::signal;
    use crate::wait::eventually;

    #[test]
    fn a_service_is_the_process_that_was_noted_and_no_later_one_of_its_number() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("pid")).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = i32::try_from(child.id()).unwrap();
        let start = Stat::of(id).unwrap().start().to_owned();
        let note = |text: &str| fs::write(dir.path().join("pid/etcd"), text).unwrap();
        note(&format!("{id} {start}\n"));
        assert_eq!(pid(dir.path(), "etcd"), Some(id));
        note(&format!("{id} 1{start}\n"));
        assert_eq!(pid(dir.path(), "etcd"), None);
        note(&format!("{id} {start}\n"));
        signal(id, "STOP").unwrap();
        eventually(5, "it is stopped", || {
            anyhow::ensure!(is_paused(id));
            Ok(())
        })
        .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((pid(dir.path(), "etcd"), pid(dir.path(), "kubelet")), (None, None));
    }
}
