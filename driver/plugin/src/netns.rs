//! The network namespace in which a plugin works.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::{Failure, required, variable};

/// Enters the network namespace of the call, `CNI_NETNS`. Returns its path.
pub fn enter_required() -> Result<String, Failure> {
    let path = required("CNI_NETNS")?;
    match enter(&path)? {
        Some(()) => Ok(path),
        None => Err(Failure::environment("CNI_NETNS", format!("{path} is not a network namespace"))),
    }
}

/// Enters the network namespace of a DEL; `false` if it is gone, and what was in it with it.
pub fn enter_if_there() -> Result<bool, Failure> {
    match variable("CNI_NETNS") {
        Some(path) => Ok(enter(&path)?.is_some()),
        None => Ok(false),
    }
}

/// Enters the network namespace at `path`; `None` if there is none. The process has one thread only.
///
/// The plugin's own namespace is refused unless the runtime sets `CNI_NETNS_OVERRIDE`, as the CNI library
/// does: a container's operation there would change the node.
fn enter(path: &str) -> Result<Option<()>, Failure> {
    let failed = |source| Failure::Namespace { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file.map_err(failed)?,
    };
    let id = |metadata: Metadata| (metadata.dev(), metadata.ino());
    if id(file.metadata().map_err(failed)?) == id(std::fs::metadata("/proc/self/ns/net").map_err(failed)?) {
        return match variable("CNI_NETNS_OVERRIDE").as_deref() {
            Some("1" | "true" | "TRUE" | "True") => Ok(Some(())),
            _ => Err(Failure::environment(
                "CNI_NETNS",
                format!("{path} is the plugin's own network namespace"),
            )),
        };
    }
    match setns(&file, CloneFlags::CLONE_NEWNET) {
        // Unmounting a namespace leaves an empty file.
        Err(Errno::EINVAL) => Ok(None),
        entered => entered.map(Some).map_err(|errno| failed(errno.into())),
    }
}
