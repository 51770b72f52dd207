//! The parent's end of the kubelet's calls: passes them to the agent that works.
//!
//! ```text
//!   kubelet ── gRPC ──> parent ── one JSON line each way, one connection a call ──> RUN_DIR/agent.sock ──> agent
//! ```
//!
//! * A call without an answer is sent again to the next agent: the agent has died, ends, or is not there yet.
//!   Both calls are idempotent by claim UID. The kubelet itself would retry after 60 to 90 s.
//! * Each agent is asked once for the devices' health and then reports it line by line. Its regular reports
//!   show that it is alive, and the parent reports nothing to the kubelet without them.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use super::wire::{Message, read_line, write_line};
use crate::dra::{CallFailure, ClaimRef, NodeResources, PreparedDevice, REFRESH, Report};

/// Timeout of a call: less than the kubelet's (45 s), so that the kubelet gets the reason.
const CALL_TIMEOUT: Duration = Duration::from_secs(43);
/// Delay before a call is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(25);
/// Delay before an agent is told of a registration again.
const TELL_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Delay before an agent is asked for health again: the kubelet has time.
const HEALTH_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Why a call has failed.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("the node's agent has not answered within {} s ({source}): see its log", CALL_TIMEOUT.as_secs())]
    NoAnswer { source: io::Error },
    #[error("the node's agent has not answered within {} s (it is still at work): see its log", CALL_TIMEOUT.as_secs())]
    AtWork,
}

/// The parent's end.
#[derive(Debug, Clone)]
pub(super) struct Relay {
    socket: PathBuf,
    under_way: TaskTracker,
}

impl Relay {
    /// Passes calls to the agent that listens at `socket`, now or later.
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket, under_way: TaskTracker::new() }
    }

    /// Waits until no call is under way, at most for `time`.
    pub(super) async fn quiet_within(&self, time: Duration) {
        self.under_way.close();
        let _ = timeout(time, self.under_way.wait()).await;
    }

    async fn ask<T: DeserializeOwned>(&self, message: Message) -> Result<T, CallError> {
        let end = Instant::now() + CALL_TIMEOUT;
        let asking = async {
            loop {
                let error = match timeout_at(end, self.ask_once(&message)).await {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(source)) => CallError::NoAnswer { source },
                    Err(_) => CallError::AtWork,
                };
                if Instant::now() + RETRY_DELAY >= end {
                    return Err(error);
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        self.under_way.track_future(asking).await
    }

    async fn ask_once<T: DeserializeOwned>(&self, message: &Message) -> io::Result<T> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        write_line(&mut stream, message).await?;
        read_line(&mut BufReader::new(stream)).await
    }

    /// Tells the agent that works that the kubelet has registered the driver, once there is one. An agent of
    /// an earlier version does not understand it.
    pub(super) async fn tell_registered(&self) {
        let told = async {
            while self.ask_once::<()>(&Message::Registered).await.is_err() {
                tokio::time::sleep(TELL_RETRY_DELAY).await;
            }
        };
        if timeout(CALL_TIMEOUT, told).await.is_err() {
            tracing::debug!("no agent wants to know of the registration");
        }
    }

    /// Keeps `reports` up to date with the reports of the agent that works; `None` while there is none.
    pub(super) async fn watch_health(&self, reports: watch::Sender<Option<Report>>) {
        loop {
            if let Err(error) = self.watch_health_of_one(&reports).await {
                tracing::debug!(%error, "no agent reports the health of devices");
            }
            reports.send_replace(None);
            tokio::time::sleep(HEALTH_RETRY_DELAY).await;
        }
    }

    async fn watch_health_of_one(&self, reports: &watch::Sender<Option<Report>>) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        write_line(&mut stream, &Message::WatchHealth).await?;
        let mut lines = BufReader::new(stream);
        loop {
            // An agent that hangs keeps its connections.
            let report: Report = timeout(3 * REFRESH, read_line::<Vec<_>>(&mut lines)).await??.into();
            // An agent that has not looked yet reports no devices.
            reports.send_replace(Some(report).filter(|report| !report.is_empty()));
        }
    }
}

impl NodeResources for Relay {
    async fn prepare(&self, claims: Vec<ClaimRef>) -> Vec<Result<Vec<PreparedDevice>, CallFailure>> {
        let count = claims.len();
        let answer = self.ask(Message::Prepare(claims)).await;
        answer.unwrap_or_else(|error| vec![Err(CallFailure(error.to_string())); count])
    }

    async fn unprepare(&self, claim: ClaimRef) -> Result<(), CallFailure> {
        self.ask(Message::Unprepare(claim)).await.map_err(|error| CallFailure(error.to_string()))?
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use netclaim_process::sockets::listen;
    use tokio::sync::Notify;

    use super::*;
    use crate::dra::DeviceHealth;
    use crate::dra::fixtures::prepared;
    use crate::parent::agent_socket::serve;

    /// A fake driver, which prepares claims of the name "good", panics at "bug", waits for ever at "slow" and
    /// until it is called at "late".
    #[derive(Default)]
    struct Fake {
        asked: AtomicU32,
        called: Notify,
        late: Notify,
        registered: Notify,
    }

    impl NodeResources for Fake {
        async fn prepare(&self, claims: Vec<ClaimRef>) -> Vec<Result<Vec<PreparedDevice>, CallFailure>> {
            if claims.iter().any(|claim| claim.name == "late") {
                self.called.notified().await;
            }
            let prepare = |claim: ClaimRef| match claim.name.as_str() {
                "good" => Ok(vec![prepared(&claim)]),
                "bug" => panic!("a bug"),
                name => Err(CallFailure(format!("{name} is not good"))),
            };
            claims.into_iter().map(prepare).collect()
        }

        async fn unprepare(&self, claim: ClaimRef) -> Result<(), CallFailure> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.called.notify_one();
            match claim.name.as_str() {
                "slow" => std::future::pending().await,
                "good" => Ok(()),
                _ => Err(CallFailure("not yet".into())),
            }
        }

        fn was_late(&self, claims: Vec<ClaimRef>) {
            assert_eq!(claims, [claim("late")]);
            self.late.notify_one();
        }

        fn registered(&self) {
            self.registered.notify_one();
        }
    }

    /// Longer than any test waits unless it fails.
    const LONG: Duration = Duration::from_secs(10);

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(LONG, future).await.expect("did not happen in time")
    }

    fn claim(name: &str) -> ClaimRef {
        ClaimRef { namespace: "default".into(), name: name.into(), uid: format!("{name}-uid") }
    }

    fn agent(socket: &Path) -> (Arc<Fake>, tokio::task::JoinHandle<()>) {
        agent_with(socket, watch::channel(Report::default()).1)
    }

    fn agent_with(
        socket: &Path,
        health: watch::Receiver<Report>,
    ) -> (Arc<Fake>, tokio::task::JoinHandle<()>) {
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
        assert_eq!(soon(relay.prepare(claims.clone())).await, node.prepare(claims).await);
        assert_eq!(soon(relay.unprepare(claim("good"))).await, Ok(()));
        assert_eq!(soon(relay.unprepare(claim("bad"))).await, Err(CallFailure("not yet".to_owned())));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_for_each_claim_and_the_agent_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (_node, _agent) = agent(&socket);
        let answers = soon(Relay::new(socket).prepare(vec![claim("good"), claim("bug")])).await;
        assert!(answers.len() == 2, "{answers:?}");
        assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(|e| e.0.contains("see its log"))));
    }

    #[tokio::test]
    async fn a_call_waits_for_an_agent_and_survives_one_that_dies() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let relay = Relay::new(socket.clone());
        let asked = relay.clone();
        let call = tokio::spawn(async move { asked.unprepare(claim("good")).await });
        tokio::time::sleep(3 * RETRY_DELAY).await;
        assert!(!call.is_finished(), "there is no agent");
        // An agent that accepts the call and dies.
        let dying = listen(&socket).unwrap();
        drop(soon(dying.accept()).await.unwrap());
        drop(dying);
        let (_node, _agent) = agent(&socket);
        assert_eq!(soon(call).await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn an_agent_hears_that_its_answer_to_a_prepare_came_too_late() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (node, _agent) = agent(&socket);
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        write_line(&mut stream, &Message::Prepare(vec![claim("late")])).await.unwrap();
        drop(stream);
        node.called.notify_one();
        soon(node.late.notified()).await;
    }

    #[tokio::test]
    async fn an_agent_hears_of_a_registration_that_an_earlier_one_did_not_understand() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let relay = Relay::new(socket.clone());
        let telling = tokio::spawn(async move { relay.tell_registered().await });
        let earlier = listen(&socket).unwrap();
        drop(soon(earlier.accept()).await.unwrap());
        drop(earlier);
        let (node, _agent) = agent(&socket);
        soon(node.registered.notified()).await;
        soon(telling).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_ends_before_the_kubelet_gives_up() {
        let dir = tempfile::tempdir().unwrap();
        let relay = Relay::new(dir.path().join("agent.sock"));
        let begin = Instant::now();
        let error = relay.unprepare(claim("good")).await.unwrap_err();
        assert!(error.0.contains("has not answered within 43 s"), "{error}");
        assert!(begin.elapsed() <= CALL_TIMEOUT);
    }

    #[tokio::test]
    async fn a_parent_that_ends_waits_for_the_calls_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (node, serving) = agent(&socket);
        let relay = Relay::new(socket.clone());
        let asked = relay.clone();
        let call = tokio::spawn(async move { asked.unprepare(claim("slow")).await });
        soon(node.called.notified()).await;
        relay.quiet_within(3 * RETRY_DELAY).await;
        assert!(!call.is_finished() && node.asked.load(Ordering::SeqCst) == 1);
        call.abort();
        serving.abort();
        relay.quiet_within(CALL_TIMEOUT).await;
    }

    fn devices(unhealthy: Option<&str>) -> Report {
        let unhealthy = unhealthy.map(str::to_owned);
        [DeviceHealth { pool: "node0".into(), device: "net-lab".into(), unhealthy, stops_traffic: false }]
            .into()
    }

    async fn reported(reports: &mut watch::Receiver<Option<Report>>, wanted: Option<&str>) {
        let is_it = |report: &Option<Report>| {
            report.as_ref().is_some_and(|report| report[0].unhealthy.as_deref() == wanted)
        };
        soon(reports.wait_for(is_it)).await.unwrap();
    }

    #[tokio::test]
    async fn health_is_reported_at_every_change_and_by_the_next_agent_too() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (reports, mut seen) = watch::channel(None);
        let relay = Relay::new(socket.clone());
        tokio::spawn(async move { relay.watch_health(reports).await });
        // The state before the agent has looked at its devices.
        let (known, health) = watch::channel(Report::default());
        let (_node, serving) = agent_with(&socket, health);
        known.send_replace(devices(None));
        reported(&mut seen, None).await;
        known.send_replace(devices(Some("eth1 is down")));
        reported(&mut seen, Some("eth1 is down")).await;
        serving.abort();
        drop(known);
        soon(seen.wait_for(Option::is_none)).await.unwrap();
        let (_known, health) = watch::channel(devices(Some("eth2 is down")));
        let (_node, _serving) = agent_with(&socket, health);
        reported(&mut seen, Some("eth2 is down")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn health_is_repeated_without_a_change_and_dropped_when_the_agent_hangs() {
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
        write_line(&mut first, &*devices(None)).await.unwrap();
        let (_second, _) = hanging.accept().await.unwrap();
        assert!(seen.borrow().is_none(), "the agent was asked again, and the health is unknown meanwhile");
        parent.abort();
    }
}
