//! Leader election: one of several replicas holds a lease and does the work.
//!
//! Invariant: from [`Candidate::elected`] until [`Candidate::lost`] this process holds the lease, or cannot
//! know yet that it does not. A lost lease is final: the process exits, because only an exit surely stops its
//! work.
//!
//! The times in a lease are for people. Each replica measures with its own monotonic clock how long a lease
//! has not changed, so replicas elect a leader even if their wall clocks differ by days.
//!
//! Two leaders at once would do no harm, because all they write follows from what the API server stores. The
//! lease keeps them from undoing each other's writes.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Config};
use netclaim_process::kubernetes;
use thiserror::Error;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Candidates respect a lease for this long after its last change.
const LEASE_DURATION: Duration = Duration::from_secs(20);

/// The leader renews the lease this often.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// Candidates read the lease this often.
const READ_INTERVAL: Duration = Duration::from_secs(4);

/// A request for the lease that takes longer counts as failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Time between a failed request and the next try.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// How long a lease that does not exist is waited for. Manifests and chart bring it, and their installation
/// fails if it appears between their look and their write.
const INSTALLATION: Duration = Duration::from_secs(5);

/// A lease, and the name by which this replica holds it.
#[derive(Debug, Clone)]
pub(crate) struct Candidacy {
    /// Namespace of the lease.
    pub(crate) namespace: String,
    /// Name of the lease, which is created if it does not exist.
    pub(crate) lease: String,
    /// Name of this replica; no two may have the same.
    pub(crate) identity: String,
}

/// Why a leader stopped leading.
#[derive(Debug, Error)]
pub enum LostLease {
    /// Another replica holds the lease.
    #[error("another replica took over the lease")]
    TakenOver,
    /// The lease expires before another renewal could succeed.
    #[error("the lease could not be renewed in time")]
    NotRenewed(#[source] kube::Error),
}

/// A replica that leads or waits to lead.
pub(crate) struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// The lease as last read or written.
    lease: Lease,
    /// When the lease was first seen as it is; for this replica's own writes, when the request began.
    since: Instant,
}

impl Candidate {
    /// Waits until the lease can be read, and returns a candidate for it.
    ///
    /// # Errors
    /// `config` makes no client.
    pub(crate) async fn register(mut config: Config, candidacy: &Candidacy) -> kube::Result<Self> {
        // A client of its own: watches must wait for minutes, and a renewal must not.
        config.connect_timeout = Some(REQUEST_TIMEOUT);
        config.read_timeout = Some(REQUEST_TIMEOUT);
        config.write_timeout = Some(REQUEST_TIMEOUT);
        config.default_retry = false;
        Ok(Self::with(kubernetes::client(config)?, candidacy).await)
    }

    async fn with(client: Client, candidacy: &Candidacy) -> Self {
        let Candidacy { namespace, lease: name, identity } = candidacy.clone();
        let api: Api<Lease> = Api::namespaced(client, &namespace);
        let installed = async {
            while let Ok(None) = api.get_opt(&name).await {
                sleep(RETRY_DELAY).await;
            }
        };
        // Without it, the lease is made below.
        let _ = timeout(INSTALLATION, installed).await;
        loop {
            match read(&api, &name).await {
                Ok(lease) => return Self { api, name, identity, lease, since: Instant::now() },
                Err(error) => {
                    warn(
                        &error,
                        &format!(
                            "cannot use lease {namespace}/{name}, will retry: get, create and update on leases of \
                             coordination.k8s.io are needed"
                        ),
                    );
                }
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Waits until this replica leads, however long that takes.
    pub(crate) async fn elected(&mut self) {
        loop {
            // A replica that has restarted does not wait for its own lease to expire.
            let free = self.holder().is_none_or(|holder| *holder == self.identity);
            if (free || self.since.elapsed() >= LEASE_DURATION) && self.acquire().await {
                return;
            }
            sleep(READ_INTERVAL).await;
            self.read().await.unwrap_or_else(|error| warn(&error, "cannot read the lease"));
        }
    }

    /// Renews the lease, and returns when it is lost.
    pub(crate) async fn lost(&mut self) -> LostLease {
        loop {
            sleep_until(self.since + RENEW_INTERVAL).await;
            while let Err(error) = self.write(|spec| spec.renew_time = Some(now())).await {
                if is_conflict(&error) && self.read().await.is_ok() {
                    if self.holder() != Some(&self.identity) {
                        return LostLease::TakenOver;
                    }
                    // Another program labelled the lease, or an earlier renewal succeeded after all.
                    break;
                }
                warn(&error, "cannot renew the lease");
                // Another try must end before the lease expires.
                if self.since.elapsed() + RETRY_DELAY + REQUEST_TIMEOUT > LEASE_DURATION {
                    return LostLease::NotRenewed(error);
                }
                sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Releases the lease, so that the next leader need not wait until it expires.
    pub(crate) async fn resign(mut self) {
        if let Err(error) = self.write(|spec| spec.holder_identity = None).await {
            warn(&error, "cannot release the lease");
        }
    }

    fn holder(&self) -> Option<&String> {
        self.lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
    }

    async fn acquire(&mut self) -> bool {
        let identity = self.identity.clone();
        let acquired = self.write(|spec| {
            *spec = LeaseSpec {
                acquire_time: Some(now()),
                holder_identity: Some(identity),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                lease_transitions: Some(spec.lease_transitions.unwrap_or_default().saturating_add(1)),
                renew_time: Some(now()),
                ..LeaseSpec::default()
            };
        });
        let acquired = acquired.await;
        // On a conflict, another replica was faster.
        if let Err(error) = acquired.as_ref()
            && !is_conflict(error)
        {
            warn(error, "cannot acquire the lease");
        }
        acquired.is_ok()
    }

    async fn read(&mut self) -> kube::Result<()> {
        let lease = read(&self.api, &self.name).await?;
        if lease.spec != self.lease.spec {
            self.since = Instant::now();
        }
        self.lease = lease;
        Ok(())
    }

    /// Writes the lease, unless it has changed since it was last read or written.
    async fn write(&mut self, change: impl FnOnce(&mut LeaseSpec)) -> kube::Result<()> {
        let mut lease = self.lease.clone();
        change(lease.spec.get_or_insert_default());
        let begin = Instant::now();
        self.lease = self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        self.since = begin;
        Ok(())
    }
}

/// Returns the lease, after creating it if it does not exist.
async fn read(api: &Api<Lease>, name: &str) -> kube::Result<Lease> {
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

/// Whether the object has changed, or exists, contrary to what the request assumed.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

fn warn(error: &kube::Error, message: &str) {
    tracing::warn!(error = error as &dyn std::error::Error, "{message}");
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower_test::mock;

    use super::*;

    /// An API server with one lease.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        lease: Option<Value>,
        version: u64,
        unavailable: bool,
    }

    impl Server {
        fn answer(&self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
            let (lease, unavailable) = {
                let state = self.0.lock().unwrap();
                (state.lease.clone(), state.unavailable)
            };
            let failure = |code: StatusCode| {
                let reason = code.canonical_reason().unwrap().replace(' ', "");
                (code, json!({"status": "Failure", "code": code.as_u16(), "reason": reason}))
            };
            let sent = || serde_json::from_slice::<Value>(body).unwrap();
            match (method.as_str(), lease) {
                _ if unavailable => failure(StatusCode::SERVICE_UNAVAILABLE),
                ("GET", Some(lease)) => (StatusCode::OK, lease),
                ("POST", None) => (StatusCode::CREATED, self.put(sent())),
                ("PUT", Some(lease))
                    if sent()["metadata"]["resourceVersion"] == lease["metadata"]["resourceVersion"] =>
                {
                    (StatusCode::OK, self.put(sent()))
                }
                ("PUT" | "POST", Some(_)) => failure(StatusCode::CONFLICT),
                _ => failure(StatusCode::NOT_FOUND),
            }
        }

        fn put(&self, mut lease: Value) -> Value {
            let mut state = self.0.lock().unwrap();
            state.version += 1;
            lease["metadata"]["resourceVersion"] = json!(state.version.to_string());
            state.lease = Some(lease.clone());
            lease
        }

        /// Lets another replica write, with any wall clock.
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
            Candidate::with(Client::new(service, "default"), &candidacy).await
        }
    }

    const PAST: &str = "2001-01-01T00:00:00.000000Z";
    const FUTURE: &str = "2999-01-01T00:00:00.000000Z";

    #[tokio::test(start_paused = true)]
    async fn a_silent_holder_is_respected_for_the_lease_duration_whatever_its_clock_said() {
        for stamp in [PAST, FUTURE] {
            let server = Server::default();
            server.held_by("dead", stamp);
            let (begin, mut candidate) = (Instant::now(), server.candidate("me").await);
            candidate.elected().await;
            assert!(
                (LEASE_DURATION..=LEASE_DURATION + READ_INTERVAL).contains(&begin.elapsed()),
                "{:?}",
                begin.elapsed()
            );
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
                sleep(RENEW_INTERVAL).await;
                server.held_by("alive", &format!("2001-01-01T00:{minute:02}:00.000000Z"));
            }
        };
        tokio::select! {
            () = candidate.elected() => panic!("elected beside a live leader"),
            () = renewing => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_the_installation_is_about_to_make_is_left_to_it() {
        let server = Server::default();
        let installation = async {
            sleep(INSTALLATION / 2).await;
            assert!(server.0.lock().unwrap().lease.is_none(), "made by the controller");
            server.put(json!({"metadata": {"name": "lease", "labels": {"a": "b"}}}));
        };
        let (mut candidate, ()) = tokio::join!(server.candidate("me"), installation);
        candidate.elected().await;
        assert_eq!(server.0.lock().unwrap().lease.as_ref().unwrap()["metadata"]["labels"], json!({"a": "b"}));
        let (begin, alone) = (Instant::now(), Server::default());
        alone.candidate("me").await.elected().await;
        assert!(
            (INSTALLATION..INSTALLATION + RETRY_DELAY).contains(&begin.elapsed()),
            "{:?}",
            begin.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_free_lease_or_the_replicas_own_is_acquired_at_once() {
        let server = Server::default();
        server.put(json!({"metadata": {"name": "lease"}}));
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
        assert!(timeout(10 * LEASE_DURATION, leader.lost()).await.is_err(), "lost a lease that it renews");
        // A label takes the lease from no replica.
        let mut lease = server.0.lock().unwrap().lease.clone().unwrap();
        lease["metadata"]["labels"] = json!({"a": "b"});
        server.put(lease);
        assert!(timeout(10 * LEASE_DURATION, leader.lost()).await.is_err(), "lost a lease that it renews");
        server.held_by("other", FUTURE);
        let lost = timeout(RENEW_INTERVAL + RETRY_DELAY, leader.lost()).await;
        assert!(matches!(lost, Ok(LostLease::TakenOver)), "{lost:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_stops_before_the_lease_expires() {
        let server = Server::default();
        let mut leader = server.candidate("me").await;
        leader.elected().await;
        let begin = Instant::now();
        server.0.lock().unwrap().unavailable = true;
        let lost = leader.lost().await;
        assert!(matches!(lost, LostLease::NotRenewed(_)), "{lost:?}");
        assert!((RENEW_INTERVAL..LEASE_DURATION).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }
}
