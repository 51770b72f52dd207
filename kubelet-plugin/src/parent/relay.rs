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
//! * The health of devices is asked once of each agent, which then tells it line by line: at once, at every change, and
//!   on a beat by which the parent knows that it is alive. The parent tells the kubelet nothing that no agent told it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::devices::health::DeviceHealth;
use crate::dra::{ClaimRef, DeviceReport, NodeResources, PreparedDevice, REFRESH, Report};
use crate::process::sockets;

/// Less than the kubelet waits (45 s), so that it hears from us why.
const PATIENCE: Duration = Duration::from_secs(43);
/// Pause before an agent that is not there is looked for again.
const BEAT: Duration = Duration::from_millis(25);
/// Pause before an agent that tells of no health is asked again: the kubelet has time.
const HEALTH_BEAT: Duration = Duration::from_millis(500);
/// More than the claims of a pod, or all devices of a node, ever take in bytes.
const MAX_LINE: u64 = 4 << 20;

type Prepared = Vec<Result<Vec<PreparedDevice>, String>>;
type Unprepared = Result<(), String>;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Call {
    Prepare(Vec<ClaimRef>),
    Unprepare(ClaimRef),
    WatchHealth,
}

/// The health of all devices, as the agent knows it; empty until it has looked.
pub(crate) type Health = watch::Receiver<Arc<Vec<DeviceHealth>>>;

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
        read_line(&mut BufReader::new(stream)).await
    }

    /// Keeps `reports` what the agent that works tells of the devices; `None` while none does.
    pub(crate) async fn watch_health(&self, reports: watch::Sender<Option<Report>>) {
        loop {
            if let Err(error) = self.watch_health_of_one(&reports).await {
                tracing::debug!(%error, "no agent tells how well devices are");
            }
            reports.send_replace(None);
            tokio::time::sleep(HEALTH_BEAT).await;
        }
    }

    async fn watch_health_of_one(&self, reports: &watch::Sender<Option<Report>>) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        write_line(&mut stream, &Call::WatchHealth).await?;
        let mut lines = BufReader::new(stream);
        loop {
            // An agent that hangs keeps its connections.
            let report: Vec<DeviceReport> =
                tokio::time::timeout(3 * REFRESH, read_line(&mut lines)).await??;
            // Nothing is known of devices that the agent has not come to yet.
            reports.send_replace(Some(report).filter(|report| !report.is_empty()).map(Into::into));
        }
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
pub(crate) async fn serve<N: NodeResources>(listener: UnixListener, node: Arc<N>, health: Health) {
    sockets::serve(listener, |stream| answer(stream, Arc::clone(&node), health.clone())).await;
}

async fn answer<N: NodeResources>(mut stream: UnixStream, node: Arc<N>, health: Health) -> io::Result<()> {
    let bug = || "the driver failed unexpectedly: see its log".to_owned();
    // In tasks of their own: whoever asked may go away, and what was begun is finished and found by the next call.
    match read_line(&mut BufReader::new(&mut stream)).await? {
        Call::Prepare(claims) => {
            let count = claims.len();
            let answer = tokio::spawn(async move { node.prepare(claims).await }).await;
            write_line(&mut stream, &answer.unwrap_or_else(|_| vec![Err(bug()); count])).await
        }
        Call::Unprepare(claim) => {
            let answer = tokio::spawn(async move { node.unprepare(claim).await }).await;
            write_line(&mut stream, &answer.unwrap_or_else(|_| Err(bug()))).await
        }
        Call::WatchHealth => tell_health(stream, health).await,
    }
}

/// Tells the devices' health until nobody listens any more, or nobody knows it.
async fn tell_health(mut stream: UnixStream, mut health: Health) -> io::Result<()> {
    let (mut asker, mut teller) = stream.split();
    loop {
        let report = report(&health.borrow_and_update());
        write_line(&mut teller, &report).await?;
        tokio::select! {
            changed = health.changed() => if changed.is_err() {
                return Ok(());
            },
            () = tokio::time::sleep(REFRESH) => {}
            // They say nothing more: they are gone.
            _ = asker.read_u8() => return Ok(()),
        }
    }
}

fn report(devices: &[DeviceHealth]) -> Vec<DeviceReport> {
    let report = |device: &DeviceHealth| DeviceReport {
        pool: device.pool.clone(),
        device: device.device.clone(),
        trouble: device.trouble.as_ref().map(ToString::to_string),
    };
    devices.iter().map(report).collect()
}

async fn write_line(stream: &mut (impl AsyncWrite + Unpin), value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

async fn read_line<T: DeserializeOwned>(lines: &mut (impl AsyncBufRead + Unpin)) -> io::Result<T> {
    let mut line = Vec::new();
    lines.take(MAX_LINE).read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the line is not whole"));
    }
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use netclaim_api::taints::{Trouble, TroubleKind};
    use tokio::sync::Notify;

    use super::*;
    use crate::process::sockets::listen;

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
        agent_with(socket, watch::channel(Arc::default()).1)
    }

    fn agent_with(socket: &Path, health: Health) -> (Arc<Fake>, tokio::task::JoinHandle<()>) {
        let node = Arc::new(Fake::default());
        let listener = listen(socket).unwrap();
        (Arc::clone(&node), tokio::spawn(serve(listener, node, health)))
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
    fn devices(trouble: Option<&str>) -> Arc<Vec<DeviceHealth>> {
        let trouble = trouble.map(|message| Trouble::new(TroubleKind::LinkDown, message));
        Arc::new(vec![DeviceHealth { pool: "node0".into(), device: "net-lab".into(), trouble }])
    }

    async fn told(reports: &mut watch::Receiver<Option<Report>>, wanted: Option<&str>) {
        let is_it = |report: &Option<Report>| {
            report.as_ref().is_some_and(|report| report[0].trouble.as_deref() == wanted)
        };
        reports.wait_for(is_it).await.unwrap();
    }

    #[tokio::test]
    async fn the_health_of_devices_is_told_at_every_change_and_by_the_next_agent_too() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (reports, mut seen) = watch::channel(None);
        let relay = Relay::new(socket.clone());
        tokio::spawn(async move { relay.watch_health(reports).await });
        // As it is before the agent has looked at its devices.
        let (known, health) = watch::channel(Arc::default());
        let (_node, serving) = agent_with(&socket, health);
        known.send_replace(devices(None));
        told(&mut seen, None).await;
        known.send_replace(devices(Some("eth1 is down")));
        told(&mut seen, Some("eth1 is down")).await;
        serving.abort();
        drop(known);
        seen.wait_for(Option::is_none).await.unwrap();
        let (_known, health) = watch::channel(devices(Some("eth2 is down")));
        let (_node, _serving) = agent_with(&socket, health);
        told(&mut seen, Some("eth2 is down")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn health_is_told_again_though_nothing_changes_and_not_of_an_agent_that_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (reports, mut seen) = watch::channel(None);
        let relay = Relay::new(socket.clone());
        let (_known, health) = watch::channel(devices(None));
        let (_node, _serving) = agent_with(&socket, health);
        let parent = tokio::spawn(async move { relay.watch_health(reports).await });
        for _ in 0..3 {
            seen.changed().await.unwrap();
            assert!(seen.borrow_and_update().is_some());
        }
        parent.abort();

        let hanging = listen(&socket).unwrap();
        let (reports, seen) = watch::channel(None);
        let relay = Relay::new(socket);
        let parent = tokio::spawn(async move { relay.watch_health(reports).await });
        let (mut first, _) = hanging.accept().await.unwrap();
        write_line(&mut first, &report(&devices(None))).await.unwrap();
        let (_second, _) = hanging.accept().await.unwrap();
        assert!(seen.borrow().is_none(), "it was asked again, and nothing is known meanwhile");
        parent.abort();
    }
}
