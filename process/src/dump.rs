//! What a program knows at this moment, for a person who looks for a fault: the flag `--dump-state` of the program prints it.
//!
//! Whoever connects to the socket, which only root and the program's user can, gets one JSON document.

use std::io;
use std::os::unix::net::{SocketAddr, UnixStream as StdStream};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::sockets;

/// How long a reader or a program may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer: many times those of a large cluster.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;

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
/// When no program answers, one of another user does, or the answer is too long.
pub fn read(socket: &SocketAddr) -> io::Result<String> {
    let stream = StdStream::connect_addr(socket)?;
    stream.set_nonblocking(true)?;
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let stream = UnixStream::from_std(stream)?;
        sockets::check_peer(&stream)?;
        timeout(TIMEOUT, read_up_to(stream, MAX_ANSWER)).await?
    })
}

async fn read_up_to(answer: impl AsyncRead + Unpin, max: u64) -> io::Result<String> {
    let mut text = String::new();
    answer.take(max + 1).read_to_string(&mut text).await?;
    if text.len() as u64 > max {
        let problem = format!("the answer has more than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_without_an_end_is_refused() {
        assert_eq!(read_up_to(&b"12345"[..], 5).await.expect("fits"), "12345");
        let error = read_up_to(tokio::io::repeat(b'x'), 1000).await.expect_err("has no end");
        assert_eq!(error.to_string(), "the answer has more than 1000 bytes");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_program_of_the_own_user_is_read() {
        use std::os::linux::net::SocketAddrExt as _;

        let name = format!("netclaim-dump-{}", std::process::id());
        let listener = sockets::listen_abstract(&name).expect("listens");
        tokio::spawn(serve(listener, || async { serde_json::json!({"a": 1}) }));
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let text = tokio::task::spawn_blocking(move || read(&address)).await.expect("ends").expect("reads");
        assert_eq!(text, "{\n  \"a\": 1\n}\n");
    }
}
