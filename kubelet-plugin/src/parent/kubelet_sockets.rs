//! The sockets of this driver for the kubelet: one for its calls, and one for registration, by which it finds
//! the first.
//!
//! Both names contain the instance (the pod's UID), so that the two agents of a rolling update have their
//! own. The kubelet knows several instances of a driver and calls the newest one (KEP-4381, "Seamless
//! upgrades").

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netclaim_process::sockets::{listen, remove_dead};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::dra::{self, Registration};
use crate::parent::relay::Relay;
use netclaim_process::files;

/// How long a parent without an agent waits for calls under way, which another agent may be answering.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// The two sockets.
pub(super) struct KubeletSockets {
    driver: String,
    calls: PathBuf,
    registration: PathBuf,
    started: PathBuf,
    relay: Relay,
    announced: bool,
    cancel: CancellationToken,
}

impl KubeletSockets {
    /// Listens for calls; the kubelet cannot find the socket yet.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub(super) fn new(args: &Args) -> Result<Self> {
        let sockets = Self {
            driver: args.driver_name.clone(),
            calls: args.calls_socket(),
            registration: args.registration_socket(),
            started: args.started_note(),
            relay: Relay::new(args.agent_socket()),
            announced: false,
            cancel: CancellationToken::new(),
        };
        remove_files([&sockets.started, &sockets.registration]);
        sockets.remove_those_of_killed_instances();
        let listener = listen(&sockets.calls);
        let listener = listener.with_context(|| format!("cannot listen on {}", sockets.calls.display()))?;
        let (reports, health) = watch::channel(None);
        let relay = sockets.relay.clone();
        tokio::spawn(async move { relay.watch_health(reports).await });
        let (relay, cancel) = (sockets.relay.clone(), sockets.cancel.clone());
        tokio::spawn(async move {
            if let Err(error) = dra::serve(listener, relay, health, cancel).await {
                tracing::error!(%error, "serving the kubelet failed");
            }
        });
        Ok(sockets)
    }

    /// Returns whether the kubelet can find the sockets.
    pub(super) fn are_announced(&self) -> bool {
        self.announced
    }

    /// Creates the registration socket, by which the kubelet finds the driver.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub(super) fn announce(&mut self) -> Result<()> {
        let listener = listen(&self.registration)
            .with_context(|| format!("cannot listen on {}", self.registration.display()))?;
        self.announced = true;
        let (registered, seen) = watch::channel(false);
        let registration = Registration::new(&self.driver, self.calls.clone(), registered);
        let cancel = self.cancel.clone();
        tokio::spawn(async move {
            if let Err(error) = dra::register(listener, registration, cancel).await {
                tracing::error!(%error, "registering with the kubelet failed");
            }
        });
        tokio::spawn(tell_each_time(seen.clone(), self.relay.clone()));
        tokio::spawn(note_when(seen, self.started.clone()));
        Ok(())
    }

    /// Removes the sockets. Waits for calls under way first, which the kubelet drops with the connection.
    pub(super) async fn withdraw(self) {
        self.relay.quiet_within(LAST_CALLS).await;
        remove_files([&self.registration, &self.started]);
        self.cancel.cancel();
        remove_files([&self.calls]);
        // This instance may be the last one on the node.
        self.remove_those_of_killed_instances();
    }

    /// Killed instances leave sockets, and the kubelet would keep calling them. A signal to end kills an
    /// instance, too, if it comes in the first milliseconds of the container: the kernel drops it, and the
    /// kubelet sends SIGKILL after the grace period.
    fn remove_those_of_killed_instances(&self) {
        for dir in [&self.registration, &self.calls].into_iter().filter_map(|socket| socket.parent()) {
            remove_dead(dir, |name| Registration::is_of(&self.driver, name) || Args::is_calls_socket(name));
        }
        remove_files(&self.stale_notes());
    }

    /// Returns the startup files of instances that were killed: they have no registration socket.
    fn stale_notes(&self) -> Vec<PathBuf> {
        let socket = |instance: &str| {
            self.registration.with_file_name(Registration::socket_name(&self.driver, instance))
        };
        let notes = self.started.parent().and_then(|dir| dir.read_dir().ok());
        let stale =
            |note: &fs::DirEntry| !note.file_name().to_str().is_some_and(|name| socket(name).exists());
        notes.into_iter().flatten().flatten().filter(stale).map(|note| note.path()).collect()
    }
}

/// Creates the startup probe's file when the kubelet has registered the driver.
async fn note_when(mut registered: watch::Receiver<bool>, note: PathBuf) {
    let write = || fs::create_dir_all(note.parent().unwrap_or(&note)).and_then(|()| fs::write(&note, ""));
    if registered.wait_for(|registered| *registered).await.is_ok()
        && let Err(error) = write()
    {
        tracing::error!(path = %note.display(), %error, "cannot create the startup probe's file");
    }
}

/// Tells the agent of each registration: a kubelet that restarts registers the driver again.
async fn tell_each_time(mut registered: watch::Receiver<bool>, relay: Relay) {
    while registered.changed().await.is_ok() {
        if *registered.borrow_and_update() {
            relay.tell_registered().await;
        }
    }
}

fn remove_files<'a>(files: impl IntoIterator<Item = &'a PathBuf>) {
    for file in files {
        if let Err(error) = files::remove(file) {
            tracing::warn!(path = %file.display(), %error, "cannot remove a file of an agent that has ended");
        }
    }
}
