//! An earlier version of netclaim, built from a revision of this repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::{Cluster, project};
use crate::command::output;
use crate::helm::has_one_image;
use crate::install::{build_image, profile};

/// A revision of this repository: its chart, and its images on the cluster's nodes.
pub struct Earlier {
    folder: PathBuf,
    tag: String,
}

impl Earlier {
    /// Checks out and builds a revision.
    pub fn build(cluster: &Cluster, revision: &str) -> Result<Self> {
        let named = output(git().args(["rev-parse", "--short=12", &format!("{revision}^{{commit}}")]))?;
        let tag = named.trim().to_owned();
        let folder = project("target/upgrade").join(&tag);
        let archive = folder.with_extension(format!("{}.tar", profile()));
        if !archive.exists() {
            check_out(&tag, &folder)?;
            // One for all earlier versions: their dependencies are the same, but for a few.
            let target = project("target/upgrade/target");
            let settings = [("CARGO_TARGET_DIR", &*target.to_string_lossy())];
            let name = format!("localhost/netclaim:{tag}");
            build_image(&folder, &archive, &name, &settings)?;
        }
        cluster.load_image(&archive)?;
        Ok(Self { folder, tag })
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The tag of its images, and its name: twelve digits of the revision.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The image of its agents.
    pub fn agent_image(&self) -> Result<String> {
        let name = if has_one_image(&self.folder.join("deploy/helm/netclaim"))? { "" } else { "-agent" };
        Ok(format!("localhost/netclaim{name}:{}", self.tag))
    }
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(project("."));
    git
}

fn check_out(revision: &str, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut archive = git().args(["archive", revision]).stdout(Stdio::piped()).spawn()?;
    let files = archive.stdout.take().context("no output")?;
    let unpacked = Command::new("tar").arg("-x").current_dir(folder).stdin(files).status()?;
    ensure!(archive.wait()?.success() && unpacked.success(), "cannot check out {revision}");
    Ok(())
}
