//! What a program knows at this moment, for a person who looks for a fault: the flag `--dump-state` of the program prints it.
//!
//! Whoever connects to the socket, which only root and the program's user can, gets one JSON document.

use std::io::{self, Read as _};
use std::os::unix::net::{SocketAddr, UnixStream as StdStream};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::sockets;

/// How long a reader or a program may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Answers with `state` until dropped.
pub async fn serve<S>(listener: UnixListener, state: impl Fn() -> S)
where
    S: Future<Output = Value> + Send + 'static,
{
    let answer = |mut stream: UnixStream| {
        let state = state();
        async move {
            let text = format!("{:#}\n", state.await);
            timeout(TIMEOUT, stream.write_all(text.as_bytes())).await?
        }
    };
    sockets::serve(listener, answer).await;
}

/// Returns what the program that listens on `socket` answers.
///
/// # Errors
/// When no program answers.
pub fn read(socket: &SocketAddr) -> io::Result<String> {
    let mut stream = StdStream::connect_addr(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
