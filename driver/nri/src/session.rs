//! One connection to the runtime, from connecting to its end.

use std::convert::Infallible;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;

use prost::Message as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, watch};

use crate::events::Events;
use crate::handler::Handler;
use crate::identity::Identity;
use crate::mux::{self, Connection};
use crate::received::Received;
use crate::session_end::{REGISTRATION_TIMEOUT, SessionEnd};
use crate::{proto, ttrpc};

/// Full name of the runtime's service.
pub(crate) const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// How many answers may wait for the socket. The runtime makes its calls one by one and never needs as many.
pub(crate) const OUTBOX: usize = 16;

/// Connects, registers, and serves the runtime's calls until the connection ends. `connected` becomes true
/// after the synchronization. The caller makes it false, and may drop this future at any time.
pub(crate) async fn attend<H: Handler>(
    socket: &Path,
    identity: Identity,
    events: &Arc<Events<H>>,
    connected: &watch::Sender<bool>,
) -> SessionEnd {
    match serve(socket, identity, events, connected).await {
        Ok(never) => match never {},
        Err(end) => end,
    }
}

async fn serve<H: Handler>(
    socket: &Path,
    identity: Identity,
    events: &Arc<Events<H>>,
    connected: &watch::Sender<bool>,
) -> Result<Infallible, SessionEnd> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| SessionEnd::Connect { path: socket.to_owned(), source })?;
    let (reader, writer) = stream.into_split();
    let (outbox, outgoing) = mpsc::channel(OUTBOX);
    let registered = Notify::new();
    tokio::select! {
        end = read(reader, events, &outbox, &registered) => end,
        end = write(writer, outgoing) => end,
        end = establish(identity, &outbox, &registered, events, connected) => end,
    }
}

/// Registers, and sets `connected` after the synchronization.
async fn establish<H: Handler>(
    identity: Identity,
    outbox: &mpsc::Sender<Vec<u8>>,
    registered: &Notify,
    events: &Events<H>,
    connected: &watch::Sender<bool>,
) -> Result<Infallible, SessionEnd> {
    let plugin = proto::RegisterPluginRequest {
        plugin_name: identity.name.to_owned(),
        plugin_idx: format!("{:02}", identity.index),
    };
    // The number is free: the plugin makes no other call.
    let request =
        ttrpc::request(1, RUNTIME_SERVICE, "RegisterPlugin", plugin.encode_to_vec(), REGISTRATION_TIMEOUT)?;
    // Cannot fail: the receiving end lives as long as this future.
    let _ = outbox.send(mux::frames(Connection::Runtime, &request)).await;
    tokio::time::timeout(REGISTRATION_TIMEOUT, registered.notified())
        .await
        .map_err(|_| SessionEnd::RegistrationTimeout)?;
    events.synchronized().await;
    connected.send_replace(true);
    pending().await
}

async fn read<H: Handler>(
    trunk: OwnedReadHalf,
    events: &Arc<Events<H>>,
    outbox: &mpsc::Sender<Vec<u8>>,
    registered: &Notify,
) -> Result<Infallible, SessionEnd> {
    let mut received = Received::from(trunk);
    loop {
        match received.next().await? {
            (Connection::Plugin, call) if call.is_request() => {
                tokio::spawn(answer(call, Arc::clone(events), outbox.clone()));
            }
            (Connection::Plugin, _) => {}
            (Connection::Runtime, answer) => {
                ttrpc::outcome(answer).map_err(SessionEnd::Refused)?;
                registered.notify_one();
            }
        }
    }
}

/// Runs as a task of its own: the handler goes on even if the connection ends.
async fn answer<H: Handler>(call: ttrpc::Message, events: Arc<Events<H>>, outbox: mpsc::Sender<Vec<u8>>) {
    let response = ttrpc::answer(&*events, call).await;
    // Fails once the connection has ended; then no runtime waits for the answer.
    let _ = outbox.send(mux::frames(Connection::Plugin, &response)).await;
}

pub(crate) async fn write(
    mut trunk: OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Vec<u8>>,
) -> Result<Infallible, SessionEnd> {
    while let Some(frames) = outgoing.recv().await {
        trunk.write_all(&frames).await.map_err(SessionEnd::Write)?;
    }
    pending().await
}
