//! The OCI `createRuntime` hook that holds a container until its pod's networks are attached.
//!
//! The container runtime runs it on the host, before the container's process starts, with the OCI state on
//! stdin and an empty environment:
//!
//! ```text
//! netclaim-hook GATE-SOCKET MARKER-DIR [POD REFUSAL]
//! ```
//!
//! * A claim's CDI device adds POD, the UID of the pod that the claim is attached to, and REFUSAL. The hook
//!   refuses a container of another pod with that text, whatever is attached to its sandbox.
//! * The hook returns at once when MARKER-DIR has a file named like the sandbox: all is attached, whether or
//!   not the agent is alive.
//! * Otherwise it asks the agent and waits, also for an agent that is away.
//! * It fails only when the outcome is final: the claim is another pod's, the pod is being deleted, or the
//!   hook has timed out. A hook that fails ends a pod with `restartPolicy: Never`.
//! * It ends with its parent: a runtime that is restarted forgets its hooks and starts new ones.
//!
//! Several hooks may run for one pod.
#![forbid(unsafe_code)]

use std::error::Error as _;
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Less than the timeout in the CDI spec (100 s), so that the user reads the hook's error and not the
/// runtime's.
const TIMEOUT: Duration = Duration::from_secs(90);
/// How often to look for the marker, the agent and the parent.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The largest OCI state, in bytes.
const MAX_STATE: u64 = 1 << 20;

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error("usage: netclaim-hook GATE-SOCKET MARKER-DIR [POD REFUSAL]")]
    Usage,
    #[error("cannot read the OCI state")]
    Read(#[source] io::Error),
    #[error("cannot parse the OCI state")]
    Parse(#[source] serde_json::Error),
    #[error("the OCI state does not name the pod's sandbox: this container runtime is not supported")]
    NoSandbox,
    /// The claim is another pod's. The agent has written the text.
    #[error("{0}")]
    Refused(String),
    #[error("the container runtime went away")]
    Orphaned,
    #[error(
        "the pod's networks were not ready within {} s: see the pod's events and its ResourceClaims",
        TIMEOUT.as_secs()
    )]
    TimedOut,
    /// The pod goes away. The agent has sent the text.
    #[error("{0}")]
    Gone(String),
}

/// The relevant part of the OCI runtime state (runtime-spec, "State"). CRI-O and containerd use different
/// annotations for the container's sandbox.
#[derive(Deserialize)]
struct State {
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "io.kubernetes.cri.sandbox-id", alias = "io.kubernetes.cri-o.SandboxID")]
    sandbox: Option<String>,
    #[serde(rename = "io.kubernetes.cri.sandbox-uid", alias = "io.kubernetes.pod.uid")]
    pod: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Question {
    sandbox: String,
    pod: String,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            // The runtime shows this to the user as part of the pod's event.
            let _ = writeln!(io::stderr(), "netclaim: {error}{cause}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), HookError> {
    let mut args = std::env::args_os().skip(1);
    let (Some(socket), Some(markers)) = (args.next(), args.next()) else { return Err(HookError::Usage) };
    let owner = match (args.next(), args.next(), args.next()) {
        (None, ..) => None,
        (Some(pod), Some(refusal), None) => Some((pod, refusal)),
        _ => return Err(HookError::Usage),
    };
    let mut state = String::new();
    io::stdin().take(MAX_STATE).read_to_string(&mut state).map_err(HookError::Read)?;
    let question = question(&state)?;
    if let Some((pod, refusal)) = owner {
        check_owner(&pod, &refusal, &question)?;
    }
    let marker = Path::new(&markers).join(&question.sandbox);
    wait(&question, Path::new(&socket), &marker)
}

/// Fails with `refusal` when the container is not of the claim's pod.
fn check_owner(pod: &OsStr, refusal: &OsStr, question: &Question) -> Result<(), HookError> {
    if pod == question.pod.as_str() {
        Ok(())
    } else {
        Err(HookError::Refused(refusal.to_string_lossy().into_owned()))
    }
}

fn question(state: &str) -> Result<Question, HookError> {
    let state: State = serde_json::from_str(state).map_err(HookError::Parse)?;
    match (state.annotations.sandbox, state.annotations.pod) {
        (Some(sandbox), Some(pod))
            if !matches!(sandbox.as_str(), "" | "." | "..") && !sandbox.contains(['/', '\0']) =>
        {
            Ok(Question { sandbox, pod })
        }
        _ => Err(HookError::NoSandbox),
    }
}

/// Returns when the sandbox has its marker or the agent answers that it is ready.
fn wait(question: &Question, socket: &Path, marker: &Path) -> Result<(), HookError> {
    let parent = parent_id();
    let end = Instant::now() + TIMEOUT;
    let mut connection = None;
    while Instant::now() < end {
        if marker.exists() {
            return Ok(());
        }
        if parent_id() != parent {
            return Err(HookError::Orphaned);
        }
        let Some(mut asked) = connection.take().or_else(|| Connection::ask(question, socket).ok()) else {
            std::thread::sleep(POLL_INTERVAL);
            continue;
        };
        match asked.listen() {
            Answer::Open => return Ok(()),
            Answer::Gone(reason) => return Err(HookError::Gone(reason)),
            Answer::NotYet => connection = Some(asked),
            // The agent went away: ask the next one.
            Answer::Lost => std::thread::sleep(POLL_INTERVAL),
        }
    }
    Err(HookError::TimedOut)
}

/// A connection to the agent, and what has arrived on it so far.
struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
}

enum Answer {
    Open,
    Gone(String),
    NotYet,
    /// The connection has ended, or the answer makes no sense.
    Lost,
}

impl Connection {
    fn ask(question: &Question, socket: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        stream.set_write_timeout(Some(POLL_INTERVAL))?;
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Waits for the answer for one interval.
    fn listen(&mut self) -> Answer {
        let mut buffer = [0; 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Answer::Lost,
            Ok(n) => self.received.extend(buffer.iter().take(n)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                _ => return Answer::Lost,
            },
        }
        let received = String::from_utf8_lossy(&self.received);
        match received.split_once('\n').map(|(line, _)| line.split_once(' ').unwrap_or((line, ""))) {
            Some(("open", _)) => Answer::Open,
            Some(("gone", reason)) => Answer::Gone(reason.to_owned()),
            Some(_) => Answer::Lost,
            None => Answer::NotYet,
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "tests")]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn asking() -> Question {
        Question { sandbox: "s1".into(), pod: "p1".into() }
    }

    #[test]
    fn the_sandbox_is_found_in_the_state_of_both_runtimes() {
        let containerd = r#"{"id":"c","annotations":{"io.kubernetes.cri.sandbox-id":"s1","io.kubernetes.cri.sandbox-uid":"p1"}}"#;
        let crio =
            r#"{"id":"c","annotations":{"io.kubernetes.cri-o.SandboxID":"s1","io.kubernetes.pod.uid":"p1"}}"#;
        assert_eq!(question(containerd).expect("a question"), asking());
        assert_eq!(question(crio).expect("a question"), asking());
        for bad in [
            "",
            "{}",
            r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"../x","io.kubernetes.cri.sandbox-uid":"p"}}"#,
        ] {
            assert!(question(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_container_of_another_pod_is_refused() {
        check_owner("p1".as_ref(), "no".as_ref(), &asking()).expect("its own claim");
        let refused = check_owner("p2".as_ref(), "no".as_ref(), &asking());
        assert_eq!(refused.expect_err("another pod's claim").to_string(), "no");
    }

    #[test]
    fn a_container_starts_by_its_marker_without_an_agent() {
        let dir = tempfile::tempdir().expect("a directory");
        let marker = dir.path().join("s1");
        std::fs::write(&marker, "").expect("written");
        wait(&asking(), &dir.path().join("no-socket"), &marker).expect("open");
    }

    #[test]
    fn a_hook_asks_the_next_agent_when_the_first_goes_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("gate.sock");
        let listener = UnixListener::bind(&socket).expect("bound");
        let agent = std::thread::spawn(move || {
            drop(listener.accept().expect("the first question"));
            let (stream, _) = listener.accept().expect("the second question");
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).expect("a line");
            (&stream).write_all(b"open\n").expect("answered");
            line
        });
        wait(&asking(), &socket, &dir.path().join("s1")).expect("open");
        assert_eq!(agent.join().expect("the agent").trim(), r#"{"sandbox":"s1","pod":"p1"}"#);
    }

    #[test]
    fn a_hook_of_a_deleted_pod_fails_with_the_reason() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("gate.sock");
        let listener = UnixListener::bind(&socket).expect("bound");
        let agent = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a question");
            // Closing a socket with unread data in it would discard the answer.
            BufReader::new(&stream).read_line(&mut String::new()).expect("a line");
            (&stream).write_all(b"gone the pod is being deleted\n").expect("answered");
        });
        let error = wait(&asking(), &socket, &dir.path().join("s1")).expect_err("the pod goes away");
        assert_eq!(error.to_string(), "the pod is being deleted");
        agent.join().expect("the agent");
    }
}
