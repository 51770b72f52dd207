//! What the kubelet sees of this driver: a socket for its calls, and a socket by which it finds that one.
//!
//! Both have names of this instance (the pod's UID), so that the agents of a rolling update have their own. The kubelet
//! knows several instances of a driver and asks the one that came last (KEP-4381, "Seamless upgrades").

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::dra::{self, Registration};
use crate::parent::relay::Relay;
use crate::process::args::Args;
use crate::process::files;
use crate::process::sockets::{listen, remove_dead};

/// How long calls that are under way may keep a parent that has no agent any more: another one may be answering them.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// The kubelet's side of the parent.
pub(crate) struct Front {
    driver: String,
    calls: PathBuf,
    registration: PathBuf,
    started: PathBuf,
    relay: Relay,
    shown: bool,
    cancel: CancellationToken,
}

impl Front {
    /// Takes calls, of which the kubelet does not know yet.
    ///
    /// # Errors
    /// Which socket cannot be made.
    pub(crate) fn new(args: &Args) -> Result<Self> {
        let front = Self {
            driver: args.driver_name.clone(),
            calls: args.calls_socket(),
            registration: args.registration_socket(),
            started: args.started_note(),
            relay: Relay::new(args.agent_socket()),
            shown: false,
            cancel: CancellationToken::new(),
        };
        remove_files([&front.started, &front.registration]);
        // Left by instances that were killed: the kubelet would go on calling at the first for ever.
        for dir in [&front.registration, &front.calls].into_iter().filter_map(|socket| socket.parent()) {
            remove_dead(dir, |name| {
                Registration::is_of(&args.driver_name, name) || Args::is_calls_socket(name)
            });
        }
        remove_files(&stale_notes(args));
        let listener = listen(&front.calls);
        let listener = listener.with_context(|| format!("cannot listen on {}", front.calls.display()))?;
        let (reports, health) = watch::channel(None);
        let relay = front.relay.clone();
        tokio::spawn(async move { relay.watch_health(reports).await });
        let (relay, cancel) = (front.relay.clone(), front.cancel.clone());
        tokio::spawn(async move {
            if let Err(error) = dra::serve(listener, relay, health, cancel).await {
                tracing::error!(%error, "serving the kubelet failed");
            }
        });
        Ok(front)
    }

    /// Whether the kubelet can find us.
    pub(crate) fn is_shown(&self) -> bool {
        self.shown
    }

    /// Lets the kubelet find us.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn show(&mut self) -> Result<()> {
        let listener = listen(&self.registration)
            .with_context(|| format!("cannot listen on {}", self.registration.display()))?;
        self.shown = true;
        let (registered, seen) = watch::channel(false);
        let registration = Registration::new(&self.driver, self.calls.clone(), registered);
        let cancel = self.cancel.clone();
        tokio::spawn(async move {
            if let Err(error) = dra::register(listener, registration, cancel).await {
                tracing::error!(%error, "registering with the kubelet failed");
            }
        });
        tokio::spawn(note_when(seen, self.started.clone()));
        Ok(())
    }

    /// Goes out of the kubelet's sight. Calls that are under way come first: it drops them with the connection.
    pub(crate) async fn withdraw(self) {
        self.relay.quiet_within(LAST_CALLS).await;
        remove_files([&self.registration, &self.started]);
        self.cancel.cancel();
        remove_files([&self.calls]);
    }
}

/// Leaves a note for the startup probe when the kubelet knows us.
async fn note_when(mut registered: watch::Receiver<bool>, note: PathBuf) {
    if registered.wait_for(|registered| *registered).await.is_ok()
        && let Err(error) = write_note(&note)
    {
        tracing::error!(path = %note.display(), %error, "the startup probe will not hear that the agent has started");
    }
}

/// Notes of instances that the kubelet no longer finds: they were killed.
fn stale_notes(args: &Args) -> Vec<PathBuf> {
    let found = |instance: &str| {
        args.registry_dir().join(Registration::socket_name(&args.driver_name, instance)).exists()
    };
    let notes = args.started_note().parent().and_then(|dir| dir.read_dir().ok());
    let stale = |note: &fs::DirEntry| !note.file_name().to_str().is_some_and(found);
    notes.into_iter().flatten().flatten().filter(stale).map(|note| note.path()).collect()
}

fn write_note(note: &Path) -> io::Result<()> {
    if let Some(dir) = note.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(note, "")
}

fn remove_files<'a>(files: impl IntoIterator<Item = &'a PathBuf>) {
    for file in files {
        if let Err(error) = files::remove(file) {
            tracing::warn!(path = %file.display(), %error, "cannot remove a file of an ended agent");
        }
    }
}
