//! The socket over which waiting hooks ask whether their sandbox is ready.
//!
//! One line each way over a Unix socket that only root reaches. The hook sends `{"sandbox":…,"pod":…}`. The
//! agent answers when the outcome is final: `open`, or `gone REASON` when the pod is being deleted. A hook
//! whose connection ends without an answer asks the next agent.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::metrics::{WaitEnd, WaitMetrics};
use crate::pods::owner::PodState;
use netclaim_cni::ContainerId;
use netclaim_driver::attach::{Attach, Attacher, Gate};
use netclaim_process::sockets;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::gate::keeper::GateKeeper;
use crate::json_lines::read_line;
use crate::pods::NodePods;

/// The answer that lets the container start.
const OPEN: &str = "open\n";
/// The longest question, in bytes.
const MAX_QUESTION: u64 = 4096;
/// How long a hook may take to ask.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the agent looks whether the pod of a waiting hook is being deleted: deletion does not interrupt
/// a hook.
const LOOK_INTERVAL: Duration = Duration::from_secs(3);

#[derive(Deserialize)]
struct Question {
    /// Parsed because it becomes part of a path.
    sandbox: ContainerId,
    pod: String,
}

/// The input of the answers.
pub(crate) trait Source: Send + Sync + 'static {
    /// Returns the state of a pod's attachments; `None` when it has none.
    fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>>;

    /// Notes how long a container has waited, and how that ended.
    fn waited(&self, end: WaitEnd, took: Duration);

    /// Whether the pod is gone or being deleted. Errors count as no.
    fn is_being_deleted(&self, namespace: &str, name: &str, uid: &str) -> impl Future<Output = bool> + Send;
}

/// The agent's knowledge about pods.
pub(crate) struct GateSource<N> {
    pub(crate) attacher: Arc<Attacher<N, GateKeeper>>,
    pub(crate) pods: Arc<NodePods>,
    pub(crate) waits: WaitMetrics,
}

impl<N: Attach> Source for GateSource<N> {
    fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>> {
        self.attacher.watch(pod_uid)
    }

    fn waited(&self, end: WaitEnd, took: Duration) {
        self.waits.observe(end, took);
    }

    async fn is_being_deleted(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let found = self.pods.metadata(namespace, name, uid).await;
        found.is_some_and(|pod| pod.is_none_or(|metadata| metadata.deletion_timestamp.is_some()))
    }
}

/// Answers hooks until dropped.
pub(crate) async fn serve<S: Source>(listener: UnixListener, source: Arc<S>) {
    sockets::serve(listener, |stream| answer(stream, Arc::clone(&source))).await;
}

async fn answer<S: Source>(mut stream: UnixStream, source: Arc<S>) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let question: Question =
        tokio::time::timeout(ASK_TIMEOUT, read_line(&mut reader, MAX_QUESTION)).await??;
    let asked = Instant::now();
    let outcome = tokio::select! {
        outcome = outcome(&question, &*source) => outcome,
        // A hook sends nothing more, so the end of its stream is the end of its process.
        _ = reader.read_u8() => {
            source.waited(WaitEnd::Lost, asked.elapsed());
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    };
    let end = match outcome.as_deref() {
        Some(OPEN) => WaitEnd::Open,
        Some(_) => WaitEnd::Gone,
        None => WaitEnd::Lost,
    };
    source.waited(end, asked.elapsed());
    writer.write_all(outcome.unwrap_or_default().as_bytes()).await
}

/// Returns the final answer; `None` when the next agent has to give it.
async fn outcome<S: Source>(question: &Question, source: &S) -> Option<String> {
    let gone = |reason: &str| Some(format!("gone {reason}\n"));
    let Some(mut state) = source.watch(&question.pod) else {
        return gone("its ResourceClaims are no longer prepared on this node");
    };
    let mut look = tokio::time::interval_at(tokio::time::Instant::now() + LOOK_INTERVAL, LOOK_INTERVAL);
    loop {
        let pod = {
            let state = state.borrow_and_update();
            if state.gate(question.sandbox.as_str()) == Gate::Open {
                return Some(OPEN.to_owned());
            }
            if state.closing {
                return gone("its ResourceClaims are being released");
            }
            state.records.first().map(|record| record.plan.owner.pod.clone())
        };
        tokio::select! {
            changed = state.changed() => if changed.is_err() {
                // This agent ends, and the next one takes over the attachments that are left.
                let released = state.borrow().records.is_empty();
                return released.then(|| gone("its ResourceClaims were released")).flatten();
            },
            _ = look.tick() => {
                if let Some(pod) = pod && source.is_being_deleted(&pod.namespace, &pod.name, &pod.uid).await {
                    return gone("the pod is being deleted");
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use netclaim_driver::attach::Phase;
    use netclaim_process::sockets::listen;

    use super::*;
    use crate::fixtures::{attached, record};
    use crate::pods::owner::Record;

    /// A fake with one pod, whose state the test sends.
    struct Pod {
        state: watch::Receiver<PodState>,
        is_being_deleted: AtomicBool,
        /// How the waits ended.
        ends: Mutex<Vec<WaitEnd>>,
    }

    impl Pod {
        fn new(state: watch::Receiver<PodState>) -> Self {
            Self { state, is_being_deleted: AtomicBool::new(false), ends: Mutex::default() }
        }
    }

    impl Source for Pod {
        fn watch(&self, pod_uid: &str) -> Option<watch::Receiver<PodState>> {
            (pod_uid == "p").then(|| self.state.clone())
        }

        fn waited(&self, end: WaitEnd, _: Duration) {
            self.ends.lock().unwrap().push(end);
        }

        async fn is_being_deleted(&self, _: &str, _: &str, _: &str) -> bool {
            self.is_being_deleted.load(Ordering::Relaxed)
        }
    }

    fn state(record: Record) -> PodState {
        PodState { records: vec![record], ..PodState::default() }
    }

    fn question() -> Question {
        Question { sandbox: "s1".parse().expect("an id"), pod: "p".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_waits_until_its_own_sandbox_is_attached() {
        let (sender, receiver) = watch::channel(state(record("c", Phase::Planned)));
        let source = Pod::new(receiver);
        let question = question();
        let waiting = outcome(&question, &source);
        tokio::pin!(waiting);
        let moment = Duration::from_secs(20);
        assert!(tokio::time::timeout(moment, &mut waiting).await.is_err());
        sender.send_replace(state(attached("c", "s0")));
        assert!(tokio::time::timeout(moment, &mut waiting).await.is_err(), "another sandbox of the pod");
        sender.send_replace(state(attached("c", "s1")));
        assert_eq!(waiting.await.as_deref(), Some("open\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_ends_answers_no_hook_while_something_is_attached() {
        let (sender, receiver) = watch::channel(state(record("c", Phase::Planned)));
        let source = Pod::new(receiver);
        drop(sender);
        assert_eq!(outcome(&question(), &source).await, None);
        let (sender, receiver) = watch::channel(PodState::default());
        let source = Pod::new(receiver);
        drop(sender);
        let released = "gone its ResourceClaims were released\n";
        assert_eq!(outcome(&question(), &source).await.as_deref(), Some(released));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_of_a_deleted_pod_is_released() {
        let (_sender, receiver) = watch::channel(state(record("c", Phase::Planned)));
        let source = Pod { is_being_deleted: AtomicBool::new(true), ..Pod::new(receiver) };
        let deleted = "gone the pod is being deleted\n";
        assert_eq!(outcome(&question(), &source).await.as_deref(), Some(deleted));
        let unknown = Question { pod: "q".into(), ..question() };
        let unprepared = "gone its ResourceClaims are no longer prepared on this node\n";
        assert_eq!(outcome(&unknown, &source).await.as_deref(), Some(unprepared));
    }

    #[test]
    fn a_question_with_a_path_as_its_sandbox_id_is_refused() {
        let ask =
            |id: &str| serde_json::from_value::<Question>(serde_json::json!({"sandbox": id, "pod": "p"}));
        assert!(ask("0a1b").is_ok());
        for id in ["../s1", "/s1", "..", "", "a\nb"] {
            assert!(ask(id).is_err(), "{id}");
        }
    }

    #[tokio::test]
    async fn a_question_over_the_socket_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/gate.sock");
        let (_sender, receiver) = watch::channel(state(attached("c", "s1")));
        let source = Arc::new(Pod::new(receiver));
        let server = tokio::spawn(serve(listen(&path).unwrap(), Arc::clone(&source)));
        let mut hook = UnixStream::connect(&path).await.unwrap();
        hook.write_all(b"{\"sandbox\":\"s1\",\"pod\":\"p\"}\n").await.unwrap();
        let mut answer = String::new();
        hook.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "open\n");
        assert_eq!(*source.ends.lock().unwrap(), [WaitEnd::Open]);
        server.abort();
    }
}
