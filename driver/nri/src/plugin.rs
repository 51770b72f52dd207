//! Keeps the plugin connected to the runtime.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::events::Events;
use crate::handler::Handler;
use crate::identity::Identity;
use crate::session;
use crate::session_end::SessionEnd;

/// Default path of the runtime's NRI socket.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";

/// Shortest delay before reconnecting. Jitter adds up to as much again, so that the agents of a rack that
/// lost power do not reconnect at once.
const MIN_DELAY: Duration = Duration::from_millis(50);

/// Longest delay before reconnecting; with jitter 5 s.
const MAX_DELAY: Duration = Duration::from_millis(2500);

/// Keeps the plugin connected to `socket` and passes events to `handler`, until `cancel`.
///
/// `connected` is true while the runtime reports everything: from the end of the synchronization until the
/// connection ends. Reconnects for ever, with delays of 50 ms to 5 s. Handlers that still run when this
/// returns go on.
pub async fn run<H: Handler>(
    socket: PathBuf,
    identity: Identity,
    handler: Arc<H>,
    connected: watch::Sender<bool>,
    cancel: CancellationToken,
) {
    let mut delays = delays();
    let mut reported = false;
    loop {
        let events = Arc::new(Events::new(Arc::clone(&handler)));
        let ended = cancel.run_until_cancelled(session::attend(&socket, identity, &events, &connected)).await;
        let was_connected = connected.send_replace(false);
        let Some(error) = ended else { return };
        report(&socket, &error, was_connected, reported);
        reported = true;
        if was_connected {
            delays = self::delays();
        }
        let delay = tokio::time::sleep(delays.next().unwrap_or(MAX_DELAY));
        if cancel.run_until_cancelled(delay).await.is_none() {
            return;
        }
    }
}

/// Logs once per change of state: a runtime may be away for hours.
fn report(socket: &Path, error: &SessionEnd, was_connected: bool, reported: bool) {
    let (socket, error) = (socket.display(), error as &dyn std::error::Error);
    if was_connected {
        tracing::warn!(%socket, error, "lost the container runtime, connecting to it again");
    } else if !reported {
        tracing::warn!(%socket, error, "cannot connect to the container runtime, trying again");
    } else {
        tracing::debug!(%socket, error, "still no connection to the container runtime");
    }
}

fn delays() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(MIN_DELAY)
        .with_max_delay(MAX_DELAY)
        .without_max_times()
        .with_jitter()
        .build()
}
