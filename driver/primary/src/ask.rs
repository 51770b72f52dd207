//! One question to the agent, and for how long it is asked.
//!
//! ```text
//!   -> {"command":"ADD","sandbox":"ID","netns":"PATH","pod":"UID"}
//!   <- {"result":{...}}  or  {"error":{"code":11,"msg":"..."}}
//! ```
//!
//! Each is a line, and a connection is for one question. An agent that ends does so without an answer, or
//! within one. The next agent has the same journal, and gets the question again.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netclaim_plugin::Failure;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// From one try to the next.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest answer, in bytes.
pub(crate) const MAX_ANSWER: u64 = 1 << 20;
/// The code of an answer that makes no sense.
const NO_ANSWER: u32 = 101;

#[derive(Debug, Serialize)]
pub(crate) struct Question<'a> {
    pub(crate) command: &'static str,
    pub(crate) sandbox: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) netns: Option<&'a str>,
    /// The pod's UID.
    pub(crate) pod: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    result: Option<Box<RawValue>>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    code: u32,
    msg: String,
}

/// How long an agent is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// One that works, until it answers.
    pub(crate) busy: Duration,
    /// None that is there.
    pub(crate) away: Duration,
}

/// Asks until an agent answers, as long as there is `patience`. Returns the result, unchanged to the byte.
pub(crate) fn ask(path: &str, question: &Question<'_>, patience: Patience) -> Result<String, Failure> {
    let Patience { busy, away } = patience;
    let (end, gone) = (Instant::now() + busy, Instant::now() + away);
    let mut line = serde_json::to_vec(question).map_err(|error| no_answer(path, error))?;
    line.push(b'\n');
    loop {
        let lost = match open(path) {
            Ok(stream) => match exchange(&stream, &line, end) {
                Ok(answer) => return read(path, &answer),
                Err(error) => match error.kind() {
                    io::ErrorKind::InvalidData => return Err(no_answer(path, error)),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err(is_slow(busy)),
                    _ => error,
                },
            },
            Err(error) if is_away(&error) => error,
            Err(error) => {
                return Err(Failure::config("socket", format!("cannot connect to {path}: {error}")));
            }
        };
        let Ok(left) = left(gone) else { return Err(is_gone(path, away, &lost)) };
        sleep(PAUSE.min(left));
    }
}

/// Connects. A plain `connect` would wait without an end for an agent that accepts no more connections.
fn open(path: &str) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let unconnected = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(unconnected.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(unconnected);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether no agent listens, or one that accepts no more connections for now.
fn is_away(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | ConnectionRefused | WouldBlock)
}

/// Sends the question and returns the line of the answer.
fn exchange(mut stream: &UnixStream, question: &[u8], end: Instant) -> io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(left(end)?))?;
    stream.write_all(question)?;
    let mut answer = Vec::new();
    BufReader::new(Until { stream, end }).take(MAX_ANSWER).read_until(b'\n', &mut answer)?;
    if answer.ends_with(b"\n") {
        Ok(answer)
    } else if answer.len() as u64 == MAX_ANSWER {
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {MAX_ANSWER} bytes")))
    } else {
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the agent has ended before its answer"))
    }
}

/// Reads until a moment, however slowly the bytes come.
struct Until<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.end)?))?;
        self.stream.read(buffer)
    }
}

/// The time until a moment, which is not zero.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads an answer. Returns its result, `null` if it has none.
fn read(path: &str, line: &[u8]) -> Result<String, Failure> {
    let answer: Answer = serde_json::from_slice(line).map_err(|error| no_answer(path, error))?;
    match answer.error {
        Some(Refusal { code, msg }) => Err(Failure::State { code, problem: msg }),
        None => Ok(answer.result.map_or_else(|| "null".to_owned(), |result| result.get().to_owned())),
    }
}

/// What came is not an answer.
pub(crate) fn no_answer(path: &str, problem: impl std::fmt::Display) -> Failure {
    let problem = format!(
        "what netclaim's agent answers at {path} is not an answer: {problem}; restart the agent of this node, and report it with the \
         agent's log"
    );
    Failure::State { code: NO_ANSWER, problem }
}

/// No agent has answered.
fn is_gone(path: &str, patience: Duration, error: &io::Error) -> Failure {
    let problem = format!(
        "netclaim's agent has not answered at {path} for {patience:?}: {error}; look at the agent's pod on this node, and set \
         primary.enabled of the chart if it is off"
    );
    Failure::State { code: Failure::TRY_AGAIN, problem }
}

/// An agent has the question and works.
fn is_slow(patience: Duration) -> Failure {
    let problem = format!(
        "netclaim's agent has not finished its work on the pod's network within {patience:?}: look at the events of the pod and the \
         status of its ResourceClaims"
    );
    Failure::State { code: Failure::TRY_AGAIN, problem }
}
