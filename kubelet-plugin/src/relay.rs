//! The kubelet's calls on their way from the parent, which the kubelet knows, to the agent that works.
//!
//! ```text
//!   kubelet ── gRPC ──> parent ── one JSON line each way, one connection a call ──> RUN_DIR/agent.sock ──> agent
//! ```
//!
//! * The socket is that of the one agent that owns the journal; parents of other agents use it as well. So during a
//!   rolling update it does not matter which of two parents the kubelet asks.
//! * A call that is not answered, because the agent has died, ends, or is not there yet, is asked again of the next one.
//!   Both calls are idempotent by claim UID, so that is safe. The kubelet itself would wait for 60 to 90 s.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::dra::{ClaimRef, NodeResources, PreparedDevice};
use crate::sockets;

/// Less than the kubelet waits (45 s), so that it hears from us why.
const PATIENCE: Duration = Duration::from_secs(43);
/// Pause before an agent that is not there is looked for again.
const BEAT: Duration = Duration::from_millis(25);
/// More than the claims of a pod and their devices ever take, in bytes.
const MAX_LINE: u64 = 4 << 20;

type Prepared = Vec<Result<Vec<PreparedDevice>, String>>;
type Unprepared = Result<(), String>;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Call {
    Prepare(Vec<ClaimRef>),
    Unprepare(ClaimRef),
}

/// The parent's end.
#[derive(Debug, Clone)]
pub(crate) struct Relay {
    socket: PathBuf,
    under_way: TaskTracker,
}

impl Relay {
    /// To the agent that listens at `socket`, now or later.
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket, under_way: TaskTracker::new() }
    }

    /// Waits until no call is under way, at most for `time`.
    pub(crate) async fn quiet_within(&self, time: Duration) {
        self.under_way.close();
        let _ = tokio::time::timeout(time, self.under_way.wait()).await;
    }

    async fn ask<T: DeserializeOwned>(&self, call: Call) -> Result<T, String> {
        let end = Instant::now() + PATIENCE;
        let asking = async {
            loop {
                let error = match tokio::time::timeout_at(end, self.ask_once(&call)).await {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "it is at work still".to_owned(),
                };
                if Instant::now() + BEAT >= end {
                    let limit = PATIENCE.as_secs();
                    return Err(format!(
                        "the node's agent has not answered within {limit} s ({error}): see its log"
                    ));
                }
                tokio::time::sleep(BEAT).await;
            }
        };
        self.under_way.track_future(asking).await
    }

    async fn ask_once<T: DeserializeOwned>(&self, call: &Call) -> io::Result<T> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        write_line(&mut stream, call).await?;
        read_line(&mut stream).await
    }
}

impl NodeResources for Relay {
    async fn prepare(&self, claims: Vec<ClaimRef>) -> Prepared {
        let count = claims.len();
        self.ask(Call::Prepare(claims)).await.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn unprepare(&self, claim: ClaimRef) -> Unprepared {
        self.ask(Call::Unprepare(claim)).await?
    }
}

/// The agent's end: takes calls until dropped. Those that are under way then are answered as long as the process lives.
pub(crate) async fn serve<N: NodeResources>(listener: UnixListener, node: Arc<N>) {
    sockets::serve(listener, |stream| answer(stream, Arc::clone(&node))).await;
}

async fn answer<N: NodeResources>(mut stream: UnixStream, node: Arc<N>) -> io::Result<()> {
    let bug = || "the driver failed unexpectedly: see its log".to_owned();
    // In tasks of their own: whoever asked may go away, and what was begun is finished and found by the next call.
    match read_line(&mut stream).await? {
        Call::Prepare(claims) => {
            let count = claims.len();
            let answer = tokio::spawn(async move { node.prepare(claims).await }).await;
            write_line(&mut stream, &answer.unwrap_or_else(|_| vec![Err(bug()); count])).await
        }
        Call::Unprepare(claim) => {
            let answer = tokio::spawn(async move { node.unprepare(claim).await }).await;
            write_line(&mut stream, &answer.unwrap_or_else(|_| Err(bug()))).await
        }
    }
}

async fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

async fn read_line<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_LINE)).read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the line is not whole"));
    }
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::sockets::listen;

    /// A fake driver: prepares what is called "good", panics at what is called "bug", waits for ever at what is called
    /// "slow".
    #[derive(Default)]
    struct Fake {
        asked: AtomicU32,
        called: Notify,
    }

    impl NodeResources for Fake {
        async fn prepare(&self, claims: Vec<ClaimRef>) -> Prepared {
            let prepare = |claim: ClaimRef| match claim.name.as_str() {
                "good" => Ok(vec![PreparedDevice {
                    request: "net".into(),
                    pool: "node0".into(),
                    device: "net-storage".into(),
                    cdi_devices: vec![format!("netclaim.dev/claim={}", claim.uid)],
                    share_id: Some("share".into()),
                }]),
                "bug" => panic!("a bug"),
                name => Err(format!("{name} is not good")),
            };
            claims.into_iter().map(prepare).collect()
        }

        async fn unprepare(&self, claim: ClaimRef) -> Unprepared {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.called.notify_one();
            match claim.name.as_str() {
                "slow" => std::future::pending().await,
                "good" => Ok(()),
                _ => Err("not yet".into()),
            }
        }
    }

    fn claim(name: &str) -> ClaimRef {
        ClaimRef { namespace: "default".into(), name: name.into(), uid: format!("{name}-uid") }
    }

    fn agent(socket: &Path) -> (Arc<Fake>, tokio::task::JoinHandle<()>) {
        let node = Arc::new(Fake::default());
        let listener = listen(socket).unwrap();
        (Arc::clone(&node), tokio::spawn(serve(listener, node)))
    }

    #[tokio::test]
    async fn calls_and_answers_arrive_as_they_were_sent() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (node, _agent) = agent(&socket);
        let relay = Relay::new(socket);
        let claims = vec![claim("good"), claim("bad")];
        assert_eq!(relay.prepare(claims.clone()).await, node.prepare(claims).await);
        assert_eq!(relay.unprepare(claim("good")).await, Ok(()));
        assert_eq!(relay.unprepare(claim("bad")).await, Err("not yet".to_owned()));
    }

    #[tokio::test]
    async fn a_bug_is_an_error_for_each_claim_and_not_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (_node, _agent) = agent(&socket);
        let answers = Relay::new(socket).prepare(vec![claim("good"), claim("bug")]).await;
        assert!(answers.len() == 2, "{answers:?}");
        assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(|e| e.contains("see its log"))));
    }

    #[tokio::test]
    async fn a_call_waits_for_an_agent_and_outlives_one_that_dies() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let relay = Relay::new(socket.clone());
        let asked = relay.clone();
        let call = tokio::spawn(async move { asked.unprepare(claim("good")).await });
        tokio::time::sleep(3 * BEAT).await;
        assert!(!call.is_finished(), "there is no agent");
        // One that accepts the call and dies of it.
        let dying = listen(&socket).unwrap();
        drop(dying.accept().await.unwrap());
        drop(dying);
        let (_node, _agent) = agent(&socket);
        assert_eq!(call.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_ends_before_the_kubelet_gives_up() {
        let dir = tempfile::tempdir().unwrap();
        let relay = Relay::new(dir.path().join("agent.sock"));
        let begin = Instant::now();
        let error = relay.unprepare(claim("good")).await.unwrap_err();
        assert!(error.contains("has not answered within 43 s"), "{error}");
        assert!(begin.elapsed() <= PATIENCE);
    }

    #[tokio::test]
    async fn a_parent_that_ends_waits_for_the_calls_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (node, serving) = agent(&socket);
        let relay = Relay::new(socket.clone());
        let asked = relay.clone();
        let call = tokio::spawn(async move { asked.unprepare(claim("slow")).await });
        node.called.notified().await;
        relay.quiet_within(3 * BEAT).await;
        assert!(!call.is_finished() && node.asked.load(Ordering::SeqCst) == 1);
        call.abort();
        serving.abort();
        relay.quiet_within(PATIENCE).await;
    }
}
