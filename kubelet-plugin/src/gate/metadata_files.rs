//! The files that containers read about their devices, and the CDI specs that mount them.
//!
//! ```text
//! RUN_DIR/metadata/CLAIM-UID_REQUEST.json              the file
//! CDI_DIR/DRIVER_metadata_CLAIM-UID_REQUEST.json       mounts it: device DRIVER/metadata=CLAIM-UID_REQUEST
//! ```
//!
//! * Both exist from the claim's preparation to its release. The file is empty at first.
//! * The runtime mounts the file before it runs the hook that waits, so a container would never see a file that replaces
//!   it. The agent writes in place, when everything is attached and before the gate opens: nobody reads the file then.
//! * The gate is the claim's own CDI device, which every container with one of these devices has too.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::owner::{Plan, Record};
use serde_json::json;

use crate::gate::metadata::{self, RequestKey};
use crate::process::files;

/// The directories of the files and of their specs.
#[derive(Debug)]
pub struct MetadataFiles {
    dir: PathBuf,
    cdi_dir: PathBuf,
    driver: String,
}

impl MetadataFiles {
    /// Creates `dir`, for the files, where it is missing. Specs are in `cdi_dir`.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub fn new(dir: &Path, cdi_dir: &Path, driver: &str) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned(), cdi_dir: cdi_dir.to_owned(), driver: driver.to_owned() })
    }

    /// Returns the fully qualified name of the CDI device that mounts the file of the plan's request.
    pub fn device(&self, plan: &Plan) -> String {
        format!("{}/metadata={}", self.driver, RequestKey::of(plan))
    }

    /// Creates the file of the plan's request, where it is missing, and its CDI spec.
    ///
    /// # Errors
    /// When one of them does not exist afterwards.
    pub fn provide(&self, plan: &Plan) -> io::Result<()> {
        let key = RequestKey::of(plan);
        let file = self.file(&key);
        let open = OpenOptions::new().create(true).write(true).truncate(false).mode(0o644).open(&file);
        open.map_err(|error| at(&file, &error))?;
        let spec = json!({
            "cdiVersion": "0.5.0",
            "kind": format!("{}/metadata", self.driver),
            "devices": [{
                "name": key.to_string(),
                "containerEdits": {"mounts": [{
                    "hostPath": file,
                    "containerPath": metadata::path_in_container(&self.driver, plan),
                    "options": ["ro", "bind"],
                }]},
            }],
        });
        let path = self.spec(&key);
        files::replace(&path, &spec.to_string()).map_err(|error| at(&path, &error))
    }

    /// Writes the `records` of a pod into its files. A file that changes gets the next generation.
    ///
    /// # Errors
    /// When a file is not current afterwards.
    pub fn write_all(&self, records: &[Record]) -> io::Result<()> {
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

    /// Removes the file of a request and its spec, if they exist.
    ///
    /// # Errors
    /// When one of them exists afterwards.
    pub fn remove(&self, key: &RequestKey) -> io::Result<()> {
        // The spec first: it must not mount a file that is gone.
        [self.spec(key), self.file(key)].iter().try_for_each(|path| files::remove(path))
    }

    /// Removes the files and specs of all other requests.
    ///
    /// # Errors
    /// When a directory cannot be read or a file cannot be removed.
    pub fn retain(&self, keys: &BTreeSet<RequestKey>) -> io::Result<()> {
        let files: BTreeSet<PathBuf> = keys.iter().flat_map(|key| [self.spec(key), self.file(key)]).collect();
        let prefix = self.spec_prefix();
        for dir in [&self.cdi_dir, &self.dir] {
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if (*dir == self.dir || name.starts_with(&prefix)) && !files.contains(&path) {
                    fs::remove_file(&path)?;
                }
            }
        }
        Ok(())
    }

    fn file(&self, key: &RequestKey) -> PathBuf {
        self.dir.join(format!("{key}.json"))
    }

    fn spec_prefix(&self) -> String {
        format!("{}_metadata_", self.driver)
    }

    fn spec(&self, key: &RequestKey) -> PathBuf {
        self.cdi_dir.join(format!("{}{key}.json", self.spec_prefix()))
    }
}

/// Adds the file's path to an error.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use netclaim_driver::attach::Phase;
    use serde_json::Value;

    use super::*;
    use crate::fixtures::{attached, record};

    fn files(dir: &tempfile::TempDir) -> MetadataFiles {
        fs::create_dir_all(dir.path().join("cdi")).unwrap();
        MetadataFiles::new(&dir.path().join("files"), &dir.path().join("cdi"), "netclaim.dev").unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_that_is_mounted_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir);
        let planned = record("u1", Phase::Planned);
        files.provide(&planned.plan).unwrap();
        assert_eq!(files.device(&planned.plan), "netclaim.dev/metadata=u1_net");
        let spec = fs::read(dir.path().join("cdi/netclaim.dev_metadata_u1_net.json")).unwrap();
        let spec: Value = serde_json::from_slice(&spec).unwrap();
        let device = &spec["devices"][0];
        assert_eq!((&spec["kind"], &device["name"]), (&json!("netclaim.dev/metadata"), &json!("u1_net")));
        let mounted = PathBuf::from(device["containerEdits"]["mounts"][0]["hostPath"].as_str().unwrap());
        let inode = fs::metadata(&mounted).unwrap().ino();
        for (sandbox, generation) in [("s1", 1), ("s1", 1)] {
            files.write_all(&[attached("u1", sandbox)]).unwrap();
            let text = fs::read_to_string(&mounted).unwrap();
            assert_eq!(metadata::generation(&text), Some(generation));
        }
        let mut renamed = attached("u1", "s2");
        renamed.plan.spec.if_name = "n".parse().unwrap();
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
    fn files_of_released_claims_are_removed_and_files_of_other_drivers_stay() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir);
        let (kept, gone) = (record("u1", Phase::Planned).plan, record("u2", Phase::Planned).plan);
        files.provide(&kept).unwrap();
        files.provide(&gone).unwrap();
        fs::write(dir.path().join("cdi/other.json"), "{}").unwrap();
        files.retain(&BTreeSet::from([RequestKey::of(&kept)])).unwrap();
        assert_eq!(names(&dir.path().join("files")), ["u1_net.json"]);
        assert_eq!(names(&dir.path().join("cdi")), ["netclaim.dev_metadata_u1_net.json", "other.json"]);
        files.remove(&RequestKey::of(&kept)).unwrap();
        files.remove(&RequestKey::of(&kept)).unwrap();
        assert_eq!(names(&dir.path().join("files")), [""; 0]);
    }
}
