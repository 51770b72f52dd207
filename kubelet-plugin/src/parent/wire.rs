//! The messages between a parent and the agent that works: one JSON line each way, one connection per call.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::dra::ClaimRef;

/// Longest line in bytes: more than the claims of a pod, or all devices of a node, ever take.
const MAX_LINE: u64 = 4 << 20;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Message {
    Prepare(Vec<ClaimRef>),
    Unprepare(ClaimRef),
    /// The kubelet has registered the driver.
    Registered,
    /// Answered with a line for each report.
    WatchHealth,
}

pub(super) async fn write_line(
    stream: &mut (impl AsyncWrite + Unpin),
    value: &(impl Serialize + ?Sized),
) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

pub(super) async fn read_line<T: DeserializeOwned>(lines: &mut (impl AsyncBufRead + Unpin)) -> io::Result<T> {
    let mut line = Vec::new();
    lines.take(MAX_LINE).read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the line is incomplete"));
    }
    Ok(serde_json::from_slice(&line)?)
}
