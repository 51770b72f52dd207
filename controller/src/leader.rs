//! Which of several replicas is the active one: the holder of a lease.
//!
//! Invariant: from [`Candidate::elected`] until [`Candidate::lost`] this process holds the lease, or could not yet
//! know better. The end of it is final: the process is to exit, since nothing is as sure to have stopped.
//!
//! The times in a lease are for people. A holder is alive as long as its lease changes, which every replica measures by
//! a clock of its own that nobody sets: replicas whose wall clocks differ by days elect a leader as others do.
//!
//! Two leaders for a moment would do no harm, for all they write is derived from what the API server has; the lease
//! spares them to undo each other's work.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Config};
use thiserror::Error;
use tokio::time::{Instant, sleep, sleep_until};

/// How long the lease of a leader that is silent is respected.
const DURATION: Duration = Duration::from_secs(20);

/// Between renewals.
const BEAT: Duration = Duration::from_secs(10);

/// How often a replica that waits looks at the lease.
const LOOK: Duration = Duration::from_secs(4);

/// A request about the lease that takes longer counts as failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Between a failure and the next try.
const PAUSE: Duration = Duration::from_secs(1);

const CONFLICT: u16 = 409;

/// Which lease, and by which name.
#[derive(Debug, Clone)]
pub(crate) struct Candidacy {
    /// Namespace of the lease.
    pub(crate) namespace: String,
    /// Name of the lease; it is created where there is none.
    pub(crate) lease: String,
    /// Name of this replica; no two may have the same.
    pub(crate) identity: String,
}

/// Why this process does not lead.
#[derive(Debug, Error)]
pub enum LeaderError {
    /// No client for the API server.
    #[error("cannot set up the client for the lease")]
    Client(#[source] kube::Error),
    /// The lease cannot be read or created.
    #[error(
        "cannot use lease {namespace}/{lease}: get, create and update on leases of coordination.k8s.io are needed"
    )]
    Lease {
        /// Its namespace.
        namespace: String,
        /// Its name.
        lease: String,
        /// The answer.
        #[source]
        source: kube::Error,
    },
    /// Another replica has the lease now.
    #[error("another replica took over the lease")]
    TakenOver,
    /// The lease ran out.
    #[error("the lease could not be renewed in time")]
    NotRenewed(#[source] kube::Error),
}

/// A replica that leads, or waits for its turn.
pub(crate) struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// As it was last read or written.
    lease: Lease,
    /// When that was first seen; of what this replica has written, when it began to.
    since: Instant,
}

impl Candidate {
    /// Becomes a candidate. `config` says how to reach the API server.
    ///
    /// # Errors
    /// [`LeaderError::Client`], which is final, or [`LeaderError::Lease`], which may pass.
    pub(crate) async fn register(mut config: Config, candidacy: &Candidacy) -> Result<Self, LeaderError> {
        // A client of its own: watches must wait for minutes, and a renewal must not.
        config.connect_timeout = Some(REQUEST_TIMEOUT);
        config.read_timeout = Some(REQUEST_TIMEOUT);
        config.write_timeout = Some(REQUEST_TIMEOUT);
        config.default_retry = false;
        Self::with(Client::try_from(config).map_err(LeaderError::Client)?, candidacy).await
    }

    async fn with(client: Client, candidacy: &Candidacy) -> Result<Self, LeaderError> {
        let Candidacy { namespace, lease, identity } = candidacy.clone();
        let api = Api::namespaced(client, &namespace);
        match read(&api, &lease).await {
            Ok(found) => Ok(Self { api, name: lease, identity, lease: found, since: Instant::now() }),
            Err(source) => Err(LeaderError::Lease { namespace, lease, source }),
        }
    }

    /// Waits until this replica leads, however long that takes.
    pub(crate) async fn elected(&mut self) {
        loop {
            // A replica that has died and come back does not wait for itself.
            let free = self.holder().is_none_or(|holder| *holder == self.identity);
            if (free || self.since.elapsed() >= DURATION) && self.take().await {
                return;
            }
            sleep(LOOK).await;
            self.look().await.unwrap_or_else(|error| warn(&error, "cannot read the lease"));
        }
    }

    /// Renews the lease, and returns when it is lost.
    pub(crate) async fn lost(&mut self) -> LeaderError {
        loop {
            sleep_until(self.since + BEAT).await;
            while let Err(error) = self.write(|spec| spec.renew_time = Some(now())).await {
                if is_conflict(&error) && self.look().await.is_ok() {
                    if self.holder() != Some(&self.identity) {
                        return LeaderError::TakenOver;
                    }
                    // Somebody has put a label on it, or an earlier try has come through.
                    break;
                }
                warn(&error, "cannot renew the lease");
                // The last try that can still be in time is the one that is over before the lease is.
                if self.since.elapsed() + PAUSE + REQUEST_TIMEOUT > DURATION {
                    return LeaderError::NotRenewed(error);
                }
                sleep(PAUSE).await;
            }
        }
    }

    /// Gives the lease back, so that the next leader need not wait for its end.
    pub(crate) async fn resign(mut self) {
        if let Err(error) = self.write(|spec| spec.holder_identity = None).await {
            warn(&error, "cannot give the lease back");
        }
    }

    fn holder(&self) -> Option<&String> {
        self.lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
    }

    async fn take(&mut self) -> bool {
        let identity = self.identity.clone();
        let taken = self.write(|spec| {
            let now = now();
            *spec = LeaseSpec {
                acquire_time: Some(now.clone()),
                holder_identity: Some(identity),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                lease_transitions: Some(spec.lease_transitions.unwrap_or_default().saturating_add(1)),
                renew_time: Some(now),
                ..LeaseSpec::default()
            };
        });
        match taken.await {
            Ok(()) => true,
            // Another one was faster.
            Err(error) if is_conflict(&error) => false,
            Err(error) => {
                warn(&error, "cannot take the lease");
                false
            }
        }
    }

    /// Reads the lease.
    async fn look(&mut self) -> Result<(), kube::Error> {
        let lease = read(&self.api, &self.name).await?;
        if lease.spec != self.lease.spec {
            self.since = Instant::now();
        }
        self.lease = lease;
        Ok(())
    }

    /// Writes the lease, if it is as it was when it was last read or written.
    async fn write(&mut self, change: impl FnOnce(&mut LeaseSpec)) -> Result<(), kube::Error> {
        let mut lease = self.lease.clone();
        change(lease.spec.get_or_insert_default());
        let begin = Instant::now();
        self.lease = self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        self.since = begin;
        Ok(())
    }
}

/// The lease, which is created where there is none.
async fn read(api: &Api<Lease>, name: &str) -> Result<Lease, kube::Error> {
    if let Some(lease) = api.get_opt(name).await? {
        return Ok(lease);
    }
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    match api.create(&PostParams::default(), &Lease { metadata, spec: None }).await {
        Err(error) if is_conflict(&error) => api.get(name).await,
        created => created,
    }
}

fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == CONFLICT)
}

fn warn(error: &kube::Error, what: &str) {
    tracing::warn!(error = error as &dyn std::error::Error, "{what}");
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::time::timeout;
    use tower_test::mock;

    use super::*;

    /// An API server with one lease.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        lease: Option<Value>,
        version: u64,
        away: bool,
    }

    impl Server {
        fn answer(&self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
            let (lease, away) = {
                let state = self.0.lock().unwrap();
                (state.lease.clone(), state.away)
            };
            let fails = |code: StatusCode| {
                let reason = code.canonical_reason().unwrap().replace(' ', "");
                (code, json!({"status": "Failure", "code": code.as_u16(), "reason": reason}))
            };
            let sent = || serde_json::from_slice::<Value>(body).unwrap();
            match (method.as_str(), lease) {
                _ if away => fails(StatusCode::SERVICE_UNAVAILABLE),
                ("GET", Some(lease)) => (StatusCode::OK, lease),
                ("POST", None) => (StatusCode::CREATED, self.put(sent())),
                ("PUT", Some(lease))
                    if sent()["metadata"]["resourceVersion"] == lease["metadata"]["resourceVersion"] =>
                {
                    (StatusCode::OK, self.put(sent()))
                }
                ("PUT" | "POST", Some(_)) => fails(StatusCode::CONFLICT),
                _ => fails(StatusCode::NOT_FOUND),
            }
        }

        fn put(&self, mut lease: Value) -> Value {
            let mut state = self.0.lock().unwrap();
            state.version += 1;
            lease["metadata"]["resourceVersion"] = json!(state.version.to_string());
            state.lease = Some(lease.clone());
            lease
        }

        /// Another replica writes; its wall clock is its own affair.
        fn held_by(&self, holder: &str, renewed: &str) {
            let spec = json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 20, "leaseTransitions": 3});
            self.put(json!({"metadata": {"name": "lease"}, "spec": spec}));
        }

        fn holder(&self) -> Value {
            self.0.lock().unwrap().lease.as_ref().unwrap()["spec"]["holderIdentity"].clone()
        }

        async fn candidate(&self, identity: &str) -> Candidate {
            let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
            let server = self.clone();
            tokio::spawn(async move {
                while let Some((request, reply)) = requests.next_request().await {
                    let (head, body) = request.into_parts();
                    let body = body.collect_bytes().await.unwrap();
                    let (status, answer) = server.answer(&head.method, &body);
                    let answer =
                        Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
                    reply.send_response(answer.unwrap());
                }
            });
            let candidacy =
                Candidacy { namespace: "default".into(), lease: "lease".into(), identity: identity.into() };
            Candidate::with(Client::new(service, "default"), &candidacy).await.unwrap()
        }
    }

    const PAST: &str = "2001-01-01T00:00:00.000000Z";
    const FUTURE: &str = "2999-01-01T00:00:00.000000Z";

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_is_silent_is_respected_for_as_long_whatever_its_clock_said() {
        for stamp in [PAST, FUTURE] {
            let server = Server::default();
            server.held_by("dead", stamp);
            let (begin, mut candidate) = (Instant::now(), server.candidate("me").await);
            candidate.elected().await;
            assert!((DURATION..=DURATION + LOOK).contains(&begin.elapsed()), "{:?}", begin.elapsed());
            assert_eq!(server.holder(), "me");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_renews_is_respected_whatever_its_clock_says() {
        let server = Server::default();
        server.held_by("alive", PAST);
        let mut candidate = server.candidate("me").await;
        let renewing = async {
            for minute in 0..10 {
                sleep(BEAT).await;
                server.held_by("alive", &format!("2001-01-01T00:{minute:02}:00.000000Z"));
            }
        };
        tokio::select! {
            () = candidate.elected() => panic!("elected beside a leader that lives"),
            () = renewing => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_free_or_ones_own_is_taken_at_once() {
        let server = Server::default();
        for identity in ["first", "first", "second"] {
            let (begin, mut candidate) = (Instant::now(), server.candidate(identity).await);
            candidate.elected().await;
            assert_eq!(begin.elapsed(), Duration::ZERO);
            assert_eq!(server.holder(), identity);
            if identity == "first" && server.0.lock().unwrap().version > 2 {
                candidate.resign().await;
                assert_eq!(server.holder(), Value::Null);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_renews_until_another_one_has_the_lease() {
        let server = Server::default();
        let mut leader = server.candidate("me").await;
        leader.elected().await;
        assert!(timeout(10 * DURATION, leader.lost()).await.is_err(), "lost what it renews");
        // A label is nobody's claim to the lease.
        let mut lease = server.0.lock().unwrap().lease.clone().unwrap();
        lease["metadata"]["labels"] = json!({"a": "b"});
        server.put(lease);
        assert!(timeout(10 * DURATION, leader.lost()).await.is_err(), "lost what it renews");
        server.held_by("other", FUTURE);
        let lost = timeout(BEAT + PAUSE, leader.lost()).await;
        assert!(matches!(lost, Ok(LeaderError::TakenOver)), "{lost:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_has_stopped_before_another_one_begins() {
        let server = Server::default();
        let mut leader = server.candidate("me").await;
        leader.elected().await;
        let begin = Instant::now();
        server.0.lock().unwrap().away = true;
        let lost = leader.lost().await;
        assert!(matches!(lost, LeaderError::NotRenewed(_)), "{lost:?}");
        assert!((BEAT..DURATION).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }
}
