//! Markers: one empty file for each sandbox to which everything is attached.
//!
//! A reboot clears the directory's file system, as it ends the sandboxes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netclaim_cni::ContainerId;

use netclaim_process::files;

/// The directory of markers.
#[derive(Debug, Clone)]
pub(crate) struct Markers {
    dir: PathBuf,
}

impl Markers {
    /// Creates `dir` where it is missing.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Opens the gate of a sandbox for hooks that start later.
    ///
    /// # Errors
    /// When the marker does not exist afterwards.
    pub(crate) fn set(&self, sandbox_id: &str) -> io::Result<()> {
        fs::write(self.path(sandbox_id)?, "")
    }

    /// Closes the gate of a sandbox, if it is open.
    ///
    /// # Errors
    /// When the marker exists afterwards.
    pub(crate) fn clear(&self, sandbox_id: &str) -> io::Result<()> {
        files::remove(&self.path(sandbox_id)?)
    }

    fn path(&self, sandbox_id: &str) -> io::Result<PathBuf> {
        let id: ContainerId =
            sandbox_id.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(self.dir.join(id.as_str()))
    }

    /// Removes the markers of all other sandboxes.
    ///
    /// # Errors
    /// When the directory cannot be read or a marker cannot be removed.
    pub(crate) fn retain(&self, sandbox_ids: &BTreeSet<String>) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            if !name.to_str().is_some_and(|name| sandbox_ids.contains(name)) {
                fs::remove_file(self.dir.join(name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_id_that_is_a_path_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let markers = Markers::new(&dir.path().join("ready")).expect("made");
        fs::write(dir.path().join("kept"), "").expect("written");
        for id in ["../kept", "/kept", "..", ".", "", "a/b", "a\0"] {
            markers.set(id).expect_err(id);
            markers.clear(id).expect_err(id);
        }
        assert!(dir.path().join("kept").exists());
        markers.set("s1").expect("set");
        markers.clear("s1").expect("cleared");
    }
}
