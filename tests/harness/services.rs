//! The services of a cluster, as `tests/node/svc.sh` has noted them: without a shell for each look.

use std::fs;
use std::path::Path;

use crate::process::Stat;

/// The process of a service that runs.
pub(crate) fn pid(dir: &Path, name: &str) -> Option<i32> {
    let noted = fs::read_to_string(dir.join("pid").join(name)).ok()?;
    let (pid, started) = noted.trim().split_once(' ')?;
    let stat = Stat::of(pid.parse().ok()?)?;
    // Linux reuses pids, but not with the same start.
    (stat.is_alive() && stat.start() == started).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::{is_paused, signal};
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
