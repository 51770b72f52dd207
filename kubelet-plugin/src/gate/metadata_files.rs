//! The files that containers read about their devices: RUN_DIR/metadata/CLAIM-UID_REQUEST.json. The CDI spec
//! of the claim mounts them.
//!
//! * A file exists from the claim's preparation to its release. It is empty at first.
//! * The runtime mounts the file before it runs the hook that waits, so a container would never see a file
//!   that replaces it. The agent writes in place, when everything is attached and before the gate opens:
//!   no container reads the file then.
//! * The gate is the claim's own CDI device, which every container with one of these files has too.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::pods::owner::{Plan, Record};

use crate::gate::metadata::{self, RequestKey};
use netclaim_process::files;

/// The label of the calling thread, and the one of files that it makes.
const OWN_LABEL: &str = "/proc/thread-self/attr/current";
const LABEL_OF_FILES: &str = "/proc/thread-self/attr/fscreate";

/// The directory of the files.
#[derive(Debug)]
pub(crate) struct MetadataFiles {
    dir: PathBuf,
    driver: String,
}

/// Where a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) host_path: PathBuf,
    /// In the containers that name the request.
    pub(crate) container_path: String,
}

impl MetadataFiles {
    /// Creates `dir` where it is missing.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub(crate) fn new(dir: &Path, driver: &str) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned(), driver: driver.to_owned() })
    }

    /// Returns where the file of the plan's request is.
    pub(crate) fn mount(&self, plan: &Plan) -> Mount {
        let container_path = metadata::path_in_container(&self.driver, plan);
        Mount { host_path: self.file(&RequestKey::of(plan)), container_path }
    }

    /// Creates the file of the plan's request, where it is missing.
    ///
    /// # Errors
    /// When it does not exist afterwards.
    pub(crate) fn provide(&self, plan: &Plan) -> io::Result<()> {
        let file = self.file(&RequestKey::of(plan));
        let open = || OpenOptions::new().create(true).write(true).truncate(false).mode(0o644).open(&file);
        readable_for_containers(open).map(drop).map_err(|error| at(&file, &error))
    }

    /// Writes the `records` of a pod into its files. A file that changes gets the next generation.
    ///
    /// # Errors
    /// When a file is not current afterwards.
    pub(crate) fn write_all(&self, records: &[Record]) -> io::Result<()> {
        for (key, records) in metadata::by_request(records) {
            let path = self.file(&key);
            self.write(&path, &records).map_err(|error| at(&path, &error))?;
        }
        Ok(())
    }

    fn write(&self, path: &Path, records: &[&Record]) -> io::Result<()> {
        let old = fs::read(path)?;
        let old = String::from_utf8_lossy(&old);
        let known = metadata::generation(&old);
        if known.is_some_and(|known| metadata::file(&self.driver, records, known) == old) {
            return Ok(());
        }
        let text = metadata::file(&self.driver, records, known.map_or(1, |known| known + 1));
        let file = OpenOptions::new().write(true).open(path)?;
        // In this order: anybody who reads nevertheless finds a complete object first.
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }

    /// Removes the file of a request, if it exists.
    ///
    /// # Errors
    /// When it exists afterwards.
    pub(crate) fn remove(&self, key: &RequestKey) -> io::Result<()> {
        files::remove(&self.file(key))
    }

    /// Removes the files of all other requests.
    ///
    /// # Errors
    /// When the directory cannot be read or a file cannot be removed.
    pub(crate) fn retain(&self, keys: &BTreeSet<RequestKey>) -> io::Result<()> {
        let files: BTreeSet<PathBuf> = keys.iter().map(|key| self.file(key)).collect();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if !files.contains(&path) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn file(&self, key: &RequestKey) -> PathBuf {
        self.dir.join(format!("{key}.json"))
    }
}

/// Makes a file that containers may read. Where SELinux is on, that takes a label; a policy without the label
/// takes the one of the directory.
fn readable_for_containers<T>(make: impl FnOnce() -> T) -> T {
    let label = fs::read_to_string(OWN_LABEL).ok().as_deref().and_then(label_for_containers);
    let is_set = label.is_some_and(|label| fs::write(LABEL_OF_FILES, label).is_ok());
    let made = make();
    // An empty line is the default again. The thread makes other files, too.
    if is_set && let Err(error) = fs::write(LABEL_OF_FILES, "\n") {
        tracing::error!(%error, "files that the agent makes may have the SELinux label of those for containers");
    }
    made
}

/// Returns the SELinux label of files that every container may read; `None` where a process has none. Other
/// security modules have names in its place.
fn label_for_containers(of_process: &str) -> Option<String> {
    let mut parts = of_process.trim_end_matches(['\0', '\n']).split(':');
    let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
    (role.ends_with("_r") && kind.ends_with("_t")).then(|| format!("{user}:object_r:container_file_t:s0"))
}

/// Adds the file's path to an error.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::Arc;

    use netclaim_driver::attach::Phase;

    use super::*;
    use crate::fixtures::{attached, record};

    fn files(dir: &tempfile::TempDir) -> MetadataFiles {
        MetadataFiles::new(&dir.path().join("files"), "netclaim.dev").unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_have_the_selinux_label_of_those_for_containers_where_processes_have_one() {
        let for_containers = Some("system_u:object_r:container_file_t:s0".to_owned());
        for of_process in ["system_u:system_r:spc_t:s0\0", "system_u:system_r:spc_t:s0:c1,c2\n"] {
            assert_eq!(label_for_containers(of_process), for_containers);
        }
        // AppArmor's names, and none.
        for other in ["unconfined\n", "cri-containerd.apparmor.d (enforce)\n", "a:b:c", ""] {
            assert_eq!(label_for_containers(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_file_that_is_mounted_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir);
        let planned = record("u1", Phase::Planned);
        files.provide(&planned.plan).unwrap();
        let mounted = files.mount(&planned.plan).host_path;
        let inode = fs::metadata(&mounted).unwrap().ino();
        for (sandbox, generation) in [("s1", 1), ("s1", 1)] {
            files.write_all(&[attached("u1", sandbox)]).unwrap();
            let text = fs::read_to_string(&mounted).unwrap();
            assert_eq!(metadata::generation(&text), Some(generation));
        }
        let mut renamed = attached("u1", "s2");
        Arc::make_mut(&mut renamed.plan).spec.if_name = "n".parse().unwrap();
        files.provide(&renamed.plan).unwrap();
        files.write_all(std::slice::from_ref(&renamed)).unwrap();
        let text = fs::read_to_string(&mounted).unwrap();
        assert_eq!(
            text,
            metadata::file("netclaim.dev", &[&renamed], 2),
            "nothing of the longer text is left"
        );
        assert_eq!(fs::metadata(&mounted).unwrap().ino(), inode);
    }

    #[test]
    fn files_of_released_claims_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir);
        let (kept, gone) = (record("u1", Phase::Planned).plan, record("u2", Phase::Planned).plan);
        files.provide(&kept).unwrap();
        files.provide(&gone).unwrap();
        files.retain(&BTreeSet::from([RequestKey::of(&kept)])).unwrap();
        assert_eq!(names(&dir.path().join("files")), ["u1_net.json"]);
        files.remove(&RequestKey::of(&kept)).unwrap();
        files.remove(&RequestKey::of(&kept)).unwrap();
        assert_eq!(names(&dir.path().join("files")), [""; 0]);
    }
}
