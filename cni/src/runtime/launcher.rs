//! Starts plugin processes in the mount namespace of this program, or in another one.
//!
//! In a container, a plugin sees the container's files: perhaps no `iptables`, shell or libc, and not the
//! host's `/run` and `/var/lib`. A process starts in the mount namespace of the *thread* that starts it. So
//! one thread in the host's namespace is enough: no helper program, and the plugin is still a child of this
//! process.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

const OWN: &str = "/proc/self/ns/mnt";

/// Looks at files, and starts processes, in one mount namespace.
#[derive(Clone, Debug, Default)]
pub(crate) enum Launcher {
    /// This program's.
    #[default]
    Here,
    /// That of a thread which runs the tasks it gets.
    Elsewhere(Sender<Task>),
}

pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// A mount namespace that cannot be entered.
#[derive(Debug, thiserror::Error)]
#[error(
    "the mount namespace {} cannot be entered; that takes CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE, and the \
     host's process ids (`hostPID`) to find it",
    path.display()
)]
pub struct MountNamespaceError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Launcher {
    /// A launcher in the mount namespace at `path`, such as `/proc/1/ns/mnt`.
    pub(crate) fn in_namespace(path: &Path) -> Result<Self, MountNamespaceError> {
        let failed = |source| MountNamespaceError { path: path.to_owned(), source };
        let namespace = File::open(path).map_err(failed)?;
        let (there, here) =
            (namespace.metadata().map_err(failed)?, Path::new(OWN).metadata().map_err(failed)?);
        if (there.dev(), there.ino()) == (here.dev(), here.ino()) {
            return Err(failed(io::Error::other(
                "it is this program's own: does it share the host's process ids?",
            )));
        }
        let (tasks, received) = channel();
        let (entered, outcome) = channel();
        let work = move || {
            // A thread that shares root and working directory may not change its mount namespace.
            let there =
                unshare(CloneFlags::CLONE_FS).and_then(|()| setns(&namespace, CloneFlags::CLONE_NEWNS));
            drop(namespace);
            let is_there = there.is_ok();
            let _ = entered.send(there.map_err(io::Error::from));
            if is_there {
                serve(&received);
            }
        };
        thread::Builder::new().name("cni-launcher".to_owned()).spawn(work).map_err(failed)?;
        outcome.recv().map_err(|_| failed(io::Error::other("its thread died")))?.map_err(failed)?;
        Ok(Self::Elsewhere(tasks))
    }

    /// Returns the metadata of the file at `path`. Blocks.
    pub(crate) fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let path = path.to_owned();
        self.look(move || path.metadata())
    }

    /// Runs `look` in this mount namespace. Blocks until it returns.
    pub(crate) fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let Self::Elsewhere(tasks) = self else { return look() };
        let (sender, receiver) = channel();
        let task = move || {
            let _ = sender.send(look());
        };
        tasks.send(Box::new(task)).map_err(|_| gone())?;
        receiver.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Starts a process.
    pub(crate) async fn spawn(&self, mut command: Command) -> io::Result<Child> {
        let Self::Elsewhere(tasks) = self else { return command.spawn() };
        let (sender, receiver) = oneshot::channel();
        // The process is waited for where the caller is.
        let handle = Handle::current();
        let task = move || {
            if sender.is_closed() {
                return;
            }
            let _entered = handle.enter();
            // If no caller waits any more, the child is dropped here, and killed.
            let _ = sender.send(command.spawn());
        };
        tasks.send(Box::new(task)).map_err(|_| gone())?;
        receiver.await.unwrap_or_else(|_| Err(gone()))
    }
}

fn serve(tasks: &Receiver<Task>) {
    while let Ok(task) = tasks.recv() {
        task();
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread in the other mount namespace is gone: restart this program")
}
