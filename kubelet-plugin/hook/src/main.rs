//! The OCI `createRuntime` hook that holds a container until its pod's networks are there.
//!
//! The container runtime runs it on the host, before the container's process starts, with the OCI state on stdin
//! and an empty environment:
//!
//! ```text
//! netclaim-hook GATE-SOCKET MARKER-DIR [POD REFUSAL]
//! ```
//!
//! * Where it comes by a claim's CDI device, POD is the UID of the pod that the claim is attached to: another pod's
//!   container is refused with the words REFUSAL, whatever else its sandbox has.
//! * It leaves at once when MARKER-DIR has a file named like the sandbox: all attached, whether or not the agent
//!   lives.
//! * Else it asks the agent and waits, also for an agent that is away.
//! * It exits non-zero only when the outcome is final (the claim is another pod's, the pod goes away, or patience has
//!   run out), because that fails a pod with `restartPolicy: Never` for good.
//! * It ends with its parent: a runtime that is restarted forgets its hooks and starts new ones.
//!
//! Several may run for one pod; it changes nothing.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Less than the timeout in the CDI spec (100 s), so that the user reads our words and not the runtime's.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often to look for the marker, the agent and the parent.
const BEAT: Duration = Duration::from_millis(250);
/// The OCI state is small; what is longer is something else.
const MAX_STATE: u64 = 1 << 20;

/// The part of the OCI runtime state (runtime-spec, "State") that matters. CRI-O and containerd annotate the
/// container with its sandbox each in its own words.
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
        Err(reason) => {
            // The runtime shows this to the user as part of the pod's event.
            let _ = writeln!(io::stderr(), "netclaim: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut args = std::env::args_os().skip(1);
    let usage = || "usage: netclaim-hook GATE-SOCKET MARKER-DIR [POD REFUSAL]".to_owned();
    let (Some(socket), Some(markers)) = (args.next(), args.next()) else { return Err(usage()) };
    let owner = match (args.next(), args.next(), args.next()) {
        (None, ..) => None,
        (Some(pod), Some(refusal), None) => Some((pod, refusal)),
        _ => return Err(usage()),
    };
    let mut state = String::new();
    io::stdin()
        .take(MAX_STATE)
        .read_to_string(&mut state)
        .map_err(|e| format!("cannot read the OCI state: {e}"))?;
    let question = question(&state)?;
    if let Some((pod, refusal)) = owner {
        is_of(&pod, &refusal, &question)?;
    }
    let marker = Path::new(&markers).join(&question.sandbox);
    if marker.exists() {
        return Ok(());
    }
    wait(&question, Path::new(&socket), &marker)
}

/// Fails with `refusal` unless the claim's pod is the one that asks.
fn is_of(pod: &OsStr, refusal: &OsStr, question: &Question) -> Result<(), String> {
    if pod == question.pod.as_str() { Ok(()) } else { Err(refusal.to_string_lossy().into_owned()) }
}

fn question(state: &str) -> Result<Question, String> {
    let state: State =
        serde_json::from_str(state).map_err(|e| format!("the OCI state is unreadable: {e}"))?;
    match (state.annotations.sandbox, state.annotations.pod) {
        (Some(sandbox), Some(pod))
            if !matches!(sandbox.as_str(), "" | "." | "..") && !sandbox.contains(['/', '\0']) =>
        {
            Ok(Question { sandbox, pod })
        }
        _ => Err("the OCI state does not name the pod's sandbox: this container runtime is not supported"
            .to_owned()),
    }
}

fn wait(question: &Question, socket: &Path, marker: &Path) -> Result<(), String> {
    let parent = parent_id();
    let end = Instant::now() + PATIENCE;
    let mut agent = None;
    while Instant::now() < end {
        if marker.exists() {
            return Ok(());
        }
        if parent_id() != parent {
            return Err("the container runtime went away".to_owned());
        }
        agent = match agent.or_else(|| ask(question, socket).ok()) {
            Some(agent) => listen(agent)?,
            None => {
                std::thread::sleep(BEAT);
                None
            }
        };
        if agent.as_ref().is_some_and(|agent: &Asked| agent.open) {
            return Ok(());
        }
    }
    Err(format!(
        "the pod's networks were not ready within {} s: see the pod's events and its ResourceClaims",
        PATIENCE.as_secs()
    ))
}

/// A connection to the agent, and what it has said so far.
struct Asked {
    stream: UnixStream,
    said: Vec<u8>,
    open: bool,
}

fn ask(question: &Question, socket: &Path) -> io::Result<Asked> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(BEAT))?;
    stream.set_write_timeout(Some(BEAT))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    Ok(Asked { stream, said: Vec::new(), open: false })
}

/// Listens for one beat. `None` when the agent went away or speaks in tongues: ask the next one.
fn listen(mut agent: Asked) -> Result<Option<Asked>, String> {
    let mut buffer = [0; 1024];
    let again = || {
        std::thread::sleep(BEAT);
        Ok(None)
    };
    match agent.stream.read(&mut buffer) {
        Ok(0) => return again(),
        Ok(n) => agent.said.extend(buffer.iter().take(n)),
        Err(e) => match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
            _ => return again(),
        },
    }
    let said = String::from_utf8_lossy(&agent.said);
    match said.split_once('\n').map(|(line, _)| line.split_once(' ').unwrap_or((line, ""))) {
        Some(("open", _)) => agent.open = true,
        Some(("gone", reason)) => return Err(reason.to_owned()),
        Some(_) => return again(),
        None => {}
    }
    Ok(Some(agent))
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
    fn both_runtimes_name_the_sandbox() {
        let containerd = r#"{"id":"c","annotations":{"io.kubernetes.cri.sandbox-id":"s1","io.kubernetes.cri.sandbox-uid":"p1"}}"#;
        let crio =
            r#"{"id":"c","annotations":{"io.kubernetes.cri-o.SandboxID":"s1","io.kubernetes.pod.uid":"p1"}}"#;
        assert_eq!(question(containerd), Ok(asking()));
        assert_eq!(question(crio), Ok(asking()));
        for bad in [
            "",
            "{}",
            r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"../x","io.kubernetes.cri.sandbox-uid":"p"}}"#,
        ] {
            assert!(question(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn another_pods_claim_is_refused() {
        assert_eq!(is_of("p1".as_ref(), "no".as_ref(), &asking()), Ok(()));
        assert_eq!(is_of("p2".as_ref(), "no".as_ref(), &asking()), Err("no".to_owned()));
    }

    #[test]
    fn a_marker_lets_through_without_an_agent() {
        let dir = tempfile::tempdir().expect("a directory");
        let marker = dir.path().join("s1");
        std::fs::write(&marker, "").expect("written");
        assert_eq!(wait(&asking(), &dir.path().join("no-socket"), &marker), Ok(()));
    }

    #[test]
    fn the_next_agent_is_asked_when_the_first_goes_away() {
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
        assert_eq!(wait(&asking(), &socket, &dir.path().join("s1")), Ok(()));
        assert_eq!(agent.join().expect("the agent").trim(), r#"{"sandbox":"s1","pod":"p1"}"#);
    }

    #[test]
    fn a_pod_that_goes_away_ends_the_wait_with_the_reason() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("gate.sock");
        let listener = UnixListener::bind(&socket).expect("bound");
        let agent = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a question");
            // Who closes a socket with something unread in it takes its own answer back.
            BufReader::new(&stream).read_line(&mut String::new()).expect("a line");
            (&stream).write_all(b"gone the pod is being deleted\n").expect("answered");
        });
        assert_eq!(
            wait(&asking(), &socket, &dir.path().join("s1")),
            Err("the pod is being deleted".to_owned())
        );
        agent.join().expect("the agent");
    }
}
