//! Values as lines of JSON on a socket.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Writes a value as a line.
///
/// # Errors
/// When the other end is gone.
pub(crate) async fn write_line(
    stream: &mut (impl AsyncWrite + Unpin),
    value: &(impl Serialize + ?Sized),
) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

/// Reads a line of at most `longest` bytes as a value.
///
/// # Errors
/// When the line is incomplete, too long, or another value.
pub(crate) async fn read_line<T: DeserializeOwned>(
    lines: &mut (impl AsyncBufRead + Unpin),
    longest: u64,
) -> io::Result<T> {
    let mut line = Vec::new();
    lines.take(longest).read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the line is incomplete"));
    }
    Ok(serde_json::from_slice(&line)?)
}
