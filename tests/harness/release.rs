//! The files of a release, as `make release` writes and the workflow publishes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::command::output;

/// The variable with the folder that has them.
const FOLDER: &str = "NETCLAIM_RELEASE";
/// How the archive with `deploy/` is called, around the version.
const DEPLOY: (&str, &str) = ("netclaim-", "-deploy.tar.gz");

/// What is installed instead of this work tree, if `$NETCLAIM_RELEASE` is set.
pub struct Release {
    folder: PathBuf,
    version: String,
    /// Where its images are going to be.
    registry: String,
}

impl Release {
    /// The release to test, or `None` where the tests are of the work tree.
    pub fn given() -> Result<Option<Self>> {
        std::env::var_os(FOLDER).map(|folder| Self::read(folder.into())).transpose()
    }

    fn read(folder: PathBuf) -> Result<Self> {
        let names = crate::names(&folder)?;
        let version = names.iter().find_map(|name| name.strip_prefix(DEPLOY.0)?.strip_suffix(DEPLOY.1));
        let version = version.with_context(|| format!("no release is in {}", folder.display()))?.to_owned();
        let manifests = std::fs::read_to_string(folder.join("netclaim.yaml"))?;
        let image = format!("/netclaim-agent:{version}");
        let registry = manifests.lines().find_map(|line| {
            let (registry, end) = line.trim().strip_prefix("image: ")?.split_once(&image)?;
            end.is_empty().then_some(registry)
        });
        let registry = registry.with_context(|| format!("netclaim.yaml names no image {image}"))?.to_owned();
        Ok(Self { folder, version, registry })
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// One of its files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The chart's archive.
    pub fn chart(&self) -> PathBuf {
        self.file(&format!("netclaim-{}.tgz", self.version))
    }

    /// The reference of one of netclaim's images.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}:{}", self.registry, self.version)
    }

    /// The archives of all images.
    pub fn images(&self) -> Result<Vec<PathBuf>> {
        let names = crate::names(&self.folder)?;
        let archives: Vec<PathBuf> =
            names.iter().filter(|name| name.ends_with(".oci.tar")).map(|name| self.file(name)).collect();
        ensure!(archives.len() == 3, "the images are {archives:?}");
        Ok(archives)
    }

    /// The reference of the image with the CNI plugins, whose version is that of the plugins.
    pub fn plugins(&self) -> Result<String> {
        let names = crate::names(&self.folder)?;
        let version =
            names.iter().find_map(|name| name.strip_prefix("cni-plugins-")?.strip_suffix(".oci.tar"));
        Ok(format!("{}/cni-plugins:{}", self.registry, version.context("no image of CNI plugins")?))
    }

    /// Unpacks `deploy/` into a folder; returns the path of it there.
    pub fn deploy(&self, into: &Path) -> Result<PathBuf> {
        self.unpack(&format!("{}{}{}", DEPLOY.0, self.version, DEPLOY.1), into)?;
        Ok(into.join("deploy"))
    }

    /// Unpacks netclaimctl for this machine into `into/bin`.
    pub(crate) fn netclaimctl(&self, into: &Path) -> Result<()> {
        let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        self.unpack(&format!("netclaimctl-linux-{arch}.tar.gz"), into)
    }

    fn unpack(&self, archive: &str, into: &Path) -> Result<()> {
        std::fs::create_dir_all(into)?;
        output(Command::new("tar").arg("-xzf").arg(self.file(archive)).arg("-C").arg(into)).map(drop)
    }

    /// Loads its images into the runtimes of all nodes. The work tree's manifests, which other scenarios
    /// apply, find them under their own names, too.
    pub(crate) fn load(&self, cluster: &Cluster) -> Result<()> {
        for archive in self.images()? {
            cluster.load_image(&archive)?;
        }
        for image in ["netclaim-agent", "netclaim-controller"] {
            cluster.tag_image(&self.image(image), &format!("localhost/{image}:dev"))?;
        }
        Ok(())
    }
}

impl Cluster {
    /// Gives an image that all nodes have another name, too.
    pub fn tag_image(&self, image: &str, name: &str) -> Result<()> {
        for node in self.nodes() {
            self.on(&node.name(), &["ctr", "-n", "k8s.io", "images", "tag", "--force", image, name])?;
        }
        Ok(())
    }
}
