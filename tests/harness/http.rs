//! Requests to HTTP servers that only a node's own network reaches.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CloneFlags, setns};

/// A server that hangs must not make a scenario hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Reads `path` from the server at this address of a network namespace; returns the headers, too.
pub(crate) fn get(netns: &Path, address: &str, path: &str) -> Result<String> {
    let namespace = File::open(netns).with_context(|| format!("cannot open {}", netns.display()))?;
    thread::scope(|scope| {
        // A namespace is the thread's: this one ends with the request.
        let request = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(LIMIT))?;
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
        });
        let answer = request.join().map_err(|_| anyhow!("the request panicked"))?;
        answer.with_context(|| format!("cannot read http://{address}{path}"))
    })
}
