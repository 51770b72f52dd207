//! The programs that come with the agent: the hook and the CNI plugins, installed on the host. With them the
//! configuration by which the runtime asks for primary networks.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netclaim_cni::error_chain;
use netclaim_cni::{BANDWIDTH_PLUGIN, ROUTE_PLUGIN};
use nix::sys::statvfs::{FsFlags, statvfs};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use crate::args::Args;
use crate::runtime::primary;

/// The setting that says where the hook is.
const STATE_DIR: &str = "agent.stateDir of the chart (--state-dir)";

/// From one try to install programs to the next.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Why no container with a claim can be created with the programs that are there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramsError {
    #[error("cannot find the agent's own executable")]
    OwnPath(#[source] io::Error),
    #[error("cannot read the directory of the agent's CNI plugins, {}", dir.display())]
    Plugins {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot install the hook as {}: set {STATE_DIR} to a directory of the node that can be written", to.display())]
    NoHook {
        to: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the container runtime cannot run the hook {}: its file system is mounted noexec. Set {STATE_DIR} to a directory of the node on \
         another file system, or mount this one without",
        hook.display()
    )]
    NoExec { hook: PathBuf },
}

/// What is installed, and its path on the host.
#[derive(Clone)]
pub(crate) struct Programs {
    hook: (PathBuf, PathBuf),
    plugins: Vec<(PathBuf, PathBuf)>,
    /// The runtime's CNI configuration for primary networks, which names the last of the plugins.
    configuration: Option<(String, PathBuf)>,
}

impl Programs {
    /// Finds the programs of this installation.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(crate) fn find(args: &Args) -> Result<Self, ProgramsError> {
        let own = std::env::current_exe().map_err(ProgramsError::OwnPath)?;
        let hook = args.hook.clone().unwrap_or_else(|| own.with_file_name("netclaim-hook"));
        let dir = own.with_file_name("../libexec/cni");
        let plugins = plugins_in(&dir).map_err(|source| ProgramsError::Plugins { dir, source })?;
        let to = |plugin: &PathBuf| args.installed_plugins().join(plugin.file_name().unwrap_or_default());
        let plugins = plugins.into_iter().map(|plugin| (plugin.clone(), to(&plugin)));
        let primary =
            args.primary.then(|| (own.with_file_name("netclaim-primary"), args.installed_primary()));
        let conflist =
            args.primary.then(|| (primary::conflist(&args.primary_socket()), args.primary_conflist()));
        Ok(Self {
            hook: (hook, args.installed_hook()),
            plugins: plugins.chain(primary).collect(),
            configuration: conflist,
        })
    }

    /// Installs the programs; `false` when the agent uses programs of an earlier agent for now. It does so
    /// because it must detach pods on a full disk too.
    ///
    /// # Errors
    /// When there is no hook on the host then, or none that can be run: no container could be created.
    pub(crate) fn install(&self) -> Result<bool, ProgramsError> {
        let mut all_current = true;
        for (from, to) in std::iter::once(&self.hook).chain(&self.plugins) {
            let Err(error) = fs::read(from).and_then(|program| install(&program, to, 0o755)) else {
                continue;
            };
            let (from, path) = (from.display(), to.display());
            tracing::warn!(%from, to = %path, %error, "cannot install a program, using the one of an earlier agent");
            all_current = false;
            if *to == self.hook.1 && !to.exists() {
                return Err(ProgramsError::NoHook { to: to.clone(), source: error });
            }
        }
        // The runtime would fail by one that names a plugin that is not there.
        if all_current
            && let Some((text, to)) = &self.configuration
            && let Err(error) = install(text.as_bytes(), to, 0o600)
        {
            let to = to.display();
            tracing::warn!(%to, %error, "cannot install the configuration of primary networks: without it, pods with one do not start");
            all_current = false;
        }
        // A host's mount options hold in the agent's mount of it, too.
        let hook = &self.hook.1;
        if statvfs(hook).is_ok_and(|found| found.flags().contains(FsFlags::ST_NOEXEC)) {
            return Err(ProgramsError::NoExec { hook: hook.clone() });
        }
        Ok(all_current)
    }

    /// Installs the programs, and says in `reason` why no container with a claim can be created. Returns
    /// whether all are current.
    pub(crate) fn install_or_say(&self, reason: &watch::Sender<Option<String>>) -> bool {
        let installed = self.install();
        let found = installed.as_ref().err().map(|error| error_chain(error));
        reason.send_if_modified(|before| {
            let is_new = *before != found;
            if let (true, Some(found)) = (is_new, &found) {
                tracing::error!("no claim is prepared on this node: {found}");
            }
            *before = found;
            is_new
        });
        matches!(installed, Ok(true))
    }

    /// Retries until all programs are installed.
    pub(crate) async fn keep_installing(
        self,
        mut all_current: bool,
        reason: watch::Sender<Option<String>>,
        outdated: Gauge,
    ) {
        loop {
            outdated.set(i64::from(!all_current));
            if all_current {
                return std::future::pending().await;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
            let (programs, reason) = (self.clone(), reason.clone());
            let installed = tokio::task::spawn_blocking(move || programs.install_or_say(&reason)).await;
            all_current = matches!(installed, Ok(true));
        }
    }
}

/// Lists the plugins in `dir`, which an agent that is run by hand does not have.
fn plugins_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match dir.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::warn!(dir = %dir.display(), "the agent's CNI plugins are missing: {BANDWIDTH_PLUGIN} and {ROUTE_PLUGIN} are not installed");
            Ok(Vec::new())
        }
        found => found?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// Writes a file unless it is there already. Processes that run the old one keep it.
fn install(new: &[u8], to: &Path, mode: u32) -> io::Result<()> {
    let has_mode = |file: fs::Metadata| file.permissions().mode() & mode == mode;
    if fs::read(to).is_ok_and(|known| known == new) && fs::metadata(to).is_ok_and(has_mode) {
        return Ok(());
    }
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    let tmp = to.with_extension("new");
    let put = fs::write(&tmp, new)
        .and_then(|()| fs::set_permissions(&tmp, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&tmp, to));
    put.inspect_err(|_| drop(fs::remove_file(&tmp)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn an_agent_on_a_full_disk_uses_the_programs_of_an_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("image/hook"), dir.path().join("state/bin/hook"));
        let programs =
            Programs { hook: (from.clone(), to.clone()), plugins: Vec::new(), configuration: None };
        write(&from, "1");
        assert!(programs.install().unwrap());
        // A directory in the way of the new file: works for root too, unlike permissions.
        let obstacle = to.with_extension("new");
        fs::create_dir(&obstacle).unwrap();
        assert!(programs.install().unwrap(), "the same program needs no space");
        write(&from, "2");
        assert!(!programs.install().unwrap());
        assert_eq!(fs::read_to_string(&to).unwrap(), "1");
        fs::remove_file(&to).unwrap();
        let reason = watch::Sender::new(None);
        assert!(!programs.install_or_say(&reason), "no container could be created");
        let why = reason.borrow().clone().unwrap();
        assert!(why.contains("state/bin/hook: set agent.stateDir") && why.contains("directory"), "{why}");
        fs::remove_dir(&obstacle).unwrap();
        assert!(programs.install_or_say(&reason));
        assert_eq!(*reason.borrow(), None);
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o755);
    }
    #[test]
    #[ignore = "needs root"]
    fn an_agent_whose_hook_cannot_be_run_says_so() {
        use nix::mount::{MsFlags, mount};
        use nix::sched::{CloneFlags, unshare};

        // The mounts of this thread alone.
        let of_thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let dir = tempfile::tempdir().unwrap();
            mount(Some("none"), dir.path(), Some("tmpfs"), MsFlags::MS_NOEXEC, none).unwrap();
            let (from, to) = (dir.path().join("image/hook"), dir.path().join("state/bin/hook"));
            write(&from, "1");
            let programs = Programs { hook: (from, to), plugins: Vec::new(), configuration: None };
            let reason = watch::Sender::new(None);
            assert!(!programs.install_or_say(&reason), "containers would fail for good");
            reason.borrow().clone()
        });
        let reason = of_thread.join().unwrap().unwrap();
        assert!(
            reason.contains("state/bin/hook: its file system is mounted noexec. Set agent.stateDir"),
            "{reason}"
        );
    }
}
