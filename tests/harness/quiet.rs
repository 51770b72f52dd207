//! Scenarios that measure time have the machine to themselves, also where lanes run side by side
//! (`tests/lanes.sh`).

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cluster::project;

/// The file whose lock all lanes of a work tree share. `tests/lanes.sh` holds it, too, for tests without a
/// cluster.
pub(crate) fn lock_file() -> PathBuf {
    project("target/quiet.lock")
}

/// Waits until no scenario measures, or to measure until no other scenario of any lane runs; holds for as
/// long as the file is open. Who measures may wait until the other lanes have ended.
pub(crate) fn turn(lock: &Path, measures: bool) -> Result<File> {
    let open = || -> std::io::Result<File> {
        let file = File::create(lock)?;
        if measures {
            file.lock()?
        } else {
            file.lock_shared()?
        }
        Ok(file)
    };
    open().with_context(|| format!("cannot lock {}", lock.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_scenario_that_measures_runs_beside_no_other_and_others_run_side_by_side() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("lock");
        let others = [turn(&lock, false).unwrap(), turn(&lock, false).unwrap()];
        let (began, begins) = mpsc::channel();
        let measuring = lock.clone();
        let measuring = thread::spawn(move || {
            let turn = turn(&measuring, true).unwrap();
            began.send(()).unwrap();
            turn
        });
        for other in others {
            assert!(begins.recv_timeout(Duration::from_millis(200)).is_err(), "another scenario still runs");
            drop(other);
        }
        begins.recv_timeout(Duration::from_secs(10)).unwrap();
        let measures = measuring.join().unwrap();
        let other = thread::spawn(move || turn(&lock, false).map(drop));
        thread::sleep(Duration::from_millis(200));
        assert!(!other.is_finished(), "a scenario measures");
        drop(measures);
        other.join().unwrap().unwrap();
    }
}
