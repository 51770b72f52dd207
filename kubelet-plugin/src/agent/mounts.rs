//! Undoes what containers restrict and CNI plugins need.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

/// Where the plugin `tuning` keeps what it changed, unless its configuration names another directory.
const TUNING_DIR: &str = "/run/cni/tuning";

/// Gives CNI plugins writable sysctls and a usable directory for `tuning`. Logs what it cannot do.
pub(crate) fn prepare_for_plugins() {
    if let Err(error) = make_sysctls_writable() {
        tracing::warn!(%error, "/proc/sys stays read-only: plugins that set sysctls will fail");
    }
    if let Err(error) = make_tuning_dir() {
        tracing::warn!(%error, "the plugin tuning will fail where it sets MTU or MAC address");
    }
}

/// Remounts `/proc/sys` in the agent's mount namespace, which needs `CAP_SYS_ADMIN`. Plugins set sysctls of
/// the pod's network, and container runtimes mount `/proc/sys` read-only in unprivileged containers.
fn make_sysctls_writable() -> io::Result<()> {
    let path = Path::new("/proc/sys");
    if !statvfs(path)?.flags().contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    let none: Option<&str> = None;
    let flags =
        MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(none, path, none, flags, none)?)
}

/// Creates the directory of `tuning`, or corrects its mode. `tuning` itself creates it with mode 0600, which
/// needs `CAP_DAC_OVERRIDE`, and then fails for `mtu`, `mac` and the other settings that it restores.
fn make_tuning_dir() -> io::Result<()> {
    fs::create_dir_all(TUNING_DIR)?;
    fs::set_permissions(TUNING_DIR, Permissions::from_mode(0o700))
}
