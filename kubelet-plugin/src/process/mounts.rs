//! What a container takes away from CNI plugins, and how much of it is given back.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

/// Plugins set sysctls of the pod's network (`disable_ipv6`, `arp_notify` …), and fail where `/proc/sys` is
/// read-only, as container runtimes mount it for containers that are not privileged. Remounts it in our own mount
/// namespace, which `CAP_SYS_ADMIN` allows; on a host there is nothing to do.
///
/// # Errors
/// When it is read-only and stays so.
pub fn make_sysctls_writable() -> io::Result<()> {
    let path = Path::new("/proc/sys");
    if !statvfs(path)?.flags().contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    let none: Option<&str> = None;
    let flags =
        MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(none, path, none, flags, none)?)
}

/// Where `tuning` keeps what it changed, unless its configuration says otherwise.
const TUNING_DIR: &str = "/run/cni/tuning";

/// `tuning` makes its folder with a mode (0600) that only `CAP_DAC_OVERRIDE` gets past, and then fails for `mtu`, `mac`
/// and the other settings that it restores. Makes the folder, or mends its mode.
///
/// # Errors
/// When it can be neither made nor changed.
pub fn make_room_for_tuning() -> io::Result<()> {
    fs::create_dir_all(TUNING_DIR)?;
    fs::set_permissions(TUNING_DIR, Permissions::from_mode(0o700))
}
