//! Changes of the installed plugins.

use std::io;
use std::path::PathBuf;

use super::dir_changes::{Coverage, Watches, watch};
use super::launcher::Launcher;

/// A subscription to changes in the directories that are searched for plugins, where the plugins run: see
/// [`DirChanges`](super::dir_changes::DirChanges).
#[derive(Debug)]
pub struct BinChanges {
    launcher: Launcher,
    dirs: Vec<PathBuf>,
    watches: Watches,
}

impl BinChanges {
    pub(super) fn subscribe(launcher: Launcher, dirs: Vec<PathBuf>) -> io::Result<Self> {
        let watches = watches(&launcher, &dirs)?;
        Ok(Self { launcher, dirs, watches })
    }

    /// Waits for the next change. Cancel safe.
    ///
    /// # Errors
    /// When the directories cannot be watched any more: subscribe and look again.
    pub async fn tick(&mut self) -> io::Result<()> {
        if self.watches.tick().await? == Coverage::Partial {
            self.watches = watches(&self.launcher, &self.dirs)?;
        }
        Ok(())
    }
}

fn watches(launcher: &Launcher, dirs: &[PathBuf]) -> io::Result<Watches> {
    let dirs = dirs.to_vec();
    Watches::start(launcher.look(move || watch(&dirs))?)
}
