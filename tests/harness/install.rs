//! Installs netclaim on a cluster, as a user would.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::agent::{AGENT, CONTROLLER, FAILPOINTS};
use crate::cluster::{Cluster, SYSTEM, project};
use crate::command::output;
use crate::helm::{self, Helm};
use crate::release::Release;

/// Seconds that CNI plugins get on this cluster: a plugin that hangs must not make the tests hang.
const CNI_TIMEOUT: u32 = 10;
/// Seconds between STATUS calls of a plugin. Most scenarios' networks have a CNI version without STATUS.
const STATUS_PERIOD: u32 = 3;

/// Seconds between two looks for a node autoscaler.
const AUTOSCALER_PERIOD: u32 = 5;

/// Seconds after which the blocks of addresses of a deleted node go to others: scenarios cannot wait for 10
/// minutes.
const NODE_GONE_AFTER: u32 = 40;

/// What docs/install.md says for a cluster with IPv6 alone.
pub const FOR_IPV6: &str =
    "agent.metricsAddress=[::]:9177,controller.metricsAddress=[::]:9178,webhook.address=[::]:9443";

/// Whether netclaim runs as users have it (`$NETCLAIM_AS_RELEASED`): without fail points, and with its own
/// times.
pub fn as_released() -> bool {
    std::env::var_os("NETCLAIM_AS_RELEASED").is_some()
}

impl Cluster {
    pub(crate) fn install(&self, image: Option<&Path>) -> Result<()> {
        let busybox = output(Command::new("bash").args(["-c", "command -v busybox"]))?;
        self.program("busybox", &std::fs::read(busybox.trim())?)?;
        let installed = self.kubectl(&["get", "-n", SYSTEM, AGENT]).is_ok();
        let release = Release::given()?;
        let archives = match (&release, image) {
            (Some(release), _) => release.images()?,
            (None, image) => image.map(Path::to_owned).into_iter().collect(),
        };
        let sum = output(Command::new("sha256sum").args(&archives))?;
        let known = self.dir().join("image.sha256");
        let new_image = std::fs::read_to_string(&known).ok() != Some(sum.clone());
        if new_image && let Some(release) = &release {
            release.load(self)?;
            release.netclaimctl(&self.dir().join("usr"))?;
        } else if new_image && let Some(image) = image {
            self.load_image(image)?;
            self.unpack_netclaimctl(image)?;
        }
        match self.stack()?.as_str() {
            "ipv4" => {
                eprintln!("==> installing netclaim: kubectl apply of its manifests");
                self.manifests("apply")?;
            }
            stack => self.install_chart(stack)?,
        }
        if !as_released() {
            self.shorten_waits()?;
        }
        if installed && new_image {
            // The images have the tags of those before.
            self.kubectl(&["rollout", "restart", "-n", SYSTEM, AGENT, CONTROLLER])?;
        }
        std::fs::write(known, sum)?;
        self.agent_ready()?;
        self.controller_ready()
    }

    /// Installs the chart with the webhook and what a cluster of this stack needs.
    fn install_chart(&self, stack: &str) -> Result<()> {
        let mut values = "webhook.enabled=true".to_owned();
        if stack == "ipv6" {
            values = format!("{values},{FOR_IPV6}");
        }
        eprintln!("==> installing netclaim: helm upgrade --install --set {values}");
        let args = ["--install", "--create-namespace", "--set", &values];
        Helm::new(self)?.release_of(&helm::chart(), "dev", "upgrade", &args).map(drop)
    }

    /// Gives the programs shorter times than users have, and the agent its fail points.
    fn shorten_waits(&self) -> Result<()> {
        let (period, gone) = (
            format!("NETCLAIM_AUTOSCALER_PERIOD={AUTOSCALER_PERIOD}"),
            format!("NETCLAIM_NODE_GONE_AFTER={NODE_GONE_AFTER}"),
        );
        let mut of_controller = vec!["set", "env", "-n", SYSTEM, CONTROLLER, &period];
        if self.nodes().len() > 1 {
            self.set_agent_env(&[&gone])?;
            of_controller.push(&gone);
        }
        self.kubectl(&of_controller)?;
        self.set_agent_env(&[
            &format!("NETCLAIM_CNI_TIMEOUT={CNI_TIMEOUT}"),
            &format!("NETCLAIM_STATUS_PERIOD={STATUS_PERIOD}"),
            &format!("NETCLAIM_FAILPOINTS={FAILPOINTS}"),
            "NETCLAIM_LOG=info,netclaim_driver=debug,netclaim_nri=debug",
        ])
    }

    /// Loads the images of an archive into the container runtimes of all nodes.
    pub fn load_image(&self, archive: &Path) -> Result<()> {
        self.script("image.sh", &[&archive.to_string_lossy()]).map(drop)
    }

    /// Applies or deletes netclaim's manifests: those of the release under test, or of the work tree.
    pub fn manifests(&self, verb: &str) -> Result<()> {
        let release = Release::given()?;
        let (kind, path) = match &release {
            Some(release) => ("-f", release.file("netclaim.yaml")),
            None => ("-k", project("deploy/manifests")),
        };
        let path = path.to_string_lossy();
        let mut args = vec![verb, kind, &path];
        args.extend((verb == "delete").then_some("--timeout=120s"));
        self.kubectl(&args).map(drop)
    }

    /// Applies or deletes a kustomization of the project with kubectl.
    pub fn kustomization(&self, verb: &str, path: &str) -> Result<()> {
        let path = project(path);
        let path = path.to_string_lossy();
        let mut args = vec![verb, "-k", &path];
        args.extend((verb == "delete").then_some("--timeout=120s"));
        self.kubectl(&args).map(drop)
    }

    /// Deletes what there is of a kustomization of the project.
    pub fn kustomization_gone(&self, path: &str) -> Result<()> {
        let path = project(path);
        self.kubectl(&["delete", "-k", &path.to_string_lossy(), "--ignore-not-found", "--timeout=120s"])
            .map(drop)
    }

    /// Shows netclaim's pods, their events and the agent's log.
    pub(crate) fn report_system(&self) {
        for args in [
            ["get", "pods", "-o", "wide"],
            ["get", "events", "-o", "wide"],
            ["logs", AGENT, "--tail=30", "--prefix"],
        ] {
            let shown = self.kubectl(&[["-n", SYSTEM].as_slice(), args.as_slice()].concat());
            eprintln!(
                "--- kubectl {}\n{}",
                args.join(" "),
                shown.unwrap_or_else(|error| format!("{error:#}"))
            );
        }
    }
}

/// Returns the archive of both images: `$NETCLAIM_IMAGE`, or one built with Cargo's profile
/// `$NETCLAIM_PROFILE` (`quick`); none where a release brings its own.
pub(crate) fn image() -> Result<Option<PathBuf>> {
    if Release::given()?.is_some() {
        return Ok(None);
    }
    if let Some(path) = std::env::var_os("NETCLAIM_IMAGE") {
        return Ok(Some(path.into()));
    }
    let (name, settings): (_, &[_]) = if as_released() {
        ("target/netclaim-released.tar", &[])
    } else {
        ("target/netclaim-failpoints.tar", &[("NETCLAIM_FEATURES", "netclaim-kubelet-plugin/failpoints")])
    };
    let path = project(name);
    // Lanes that start together build the same file.
    let lock = File::create(path.with_extension("lock"))?;
    lock.lock()?;
    build_image(&project("."), &path, "localhost/netclaim:dev", settings)?;
    Ok(Some(path))
}

/// Cargo's profile of images, `$NETCLAIM_PROFILE`.
pub(crate) fn profile() -> String {
    std::env::var("NETCLAIM_PROFILE").unwrap_or_else(|_| "quick".to_owned())
}

/// Builds the images of a version that is checked out in this folder as an archive, with Cargo's profile
/// `$NETCLAIM_PROFILE` (`quick`) and these environment variables. `name` is `localhost/netclaim:TAG`.
pub(crate) fn build_image(
    version: &Path,
    archive: &Path,
    name: &str,
    settings: &[(&str, &str)],
) -> Result<()> {
    eprintln!("==> building the images {}", archive.display());
    let mut build = Command::new(version.join("deploy/image/build.sh"));
    build.current_dir(version).env("NETCLAIM_PROFILE", profile()).arg(archive).arg(name);
    // With the variables that cargo sets for a test, ring and everything that needs TLS would be built again.
    let of_package = |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(of_package) {
        build.env_remove(name);
    }
    let built = build.envs(settings.iter().copied()).status()?;
    ensure!(built.success(), "{} failed: see above", version.join("deploy/image/build.sh").display());
    Ok(())
}
