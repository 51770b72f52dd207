//! The agent's end of the kubelet's calls.
//!
//! The socket belongs to the one agent that owns the journal, and the parents of other agents use it too. So
//! during a rolling update it does not matter which of two parents the kubelet calls.

use std::io;
use std::sync::Arc;

use netclaim_process::sockets;
use tokio::io::{AsyncReadExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::wire::{Message, read_line, write_line};
use crate::dra::{CallFailure, NodeResources, REFRESH, Report};

/// The health of all devices; empty until the agent has looked.
pub(crate) type Health = watch::Receiver<Report>;

/// Takes calls until dropped. Calls under way are still answered then, as long as the process lives.
pub(crate) async fn serve<N: NodeResources>(listener: UnixListener, node: Arc<N>, health: Health) {
    sockets::serve(listener, |stream| answer(stream, Arc::clone(&node), health.clone())).await;
}

async fn answer<N: NodeResources>(mut stream: UnixStream, node: Arc<N>, health: Health) -> io::Result<()> {
    let panicked = || CallFailure("the driver failed unexpectedly: see its log".to_owned());
    // In tasks of their own: they finish even if the caller goes away, and the next call finds the result.
    match read_line(&mut BufReader::new(&mut stream)).await? {
        Message::Prepare(claims) => {
            let (agent, asked) = (Arc::clone(&node), claims.clone());
            let answer = tokio::spawn(async move { agent.prepare(claims).await }).await;
            let answer = answer.unwrap_or_else(|_| vec![Err(panicked()); asked.len()]);
            // The parent closes the connection when the kubelet is about to give up.
            write_line(&mut stream, &answer).await.inspect_err(|_| node.was_late(asked))
        }
        Message::Unprepare(claim) => {
            let answer = tokio::spawn(async move { node.unprepare(claim).await }).await;
            write_line(&mut stream, &answer.unwrap_or_else(|_| Err(panicked()))).await
        }
        Message::Registered => {
            node.registered();
            write_line(&mut stream, &()).await
        }
        Message::WatchHealth => report_health(stream, health).await,
    }
}

/// Reports the devices' health at once, at every change and every [`REFRESH`], until either end goes away.
async fn report_health(mut stream: UnixStream, mut health: Health) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    loop {
        let report = Arc::clone(&health.borrow_and_update());
        write_line(&mut writer, &*report).await?;
        tokio::select! {
            changed = health.changed() => if changed.is_err() {
                return Ok(());
            },
            () = tokio::time::sleep(REFRESH) => {}
            // The parent sends nothing more, so this is its end.
            _ = reader.read_u8() => return Ok(()),
        }
    }
}
