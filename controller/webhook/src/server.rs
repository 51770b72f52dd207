//! The webhook over HTTPS, for everybody who reaches the address.
//!
//! API servers do not say who they are, so that anybody may ask who knows the path. Clients share bounded
//! connections ([`CONNECTIONS`]), memory ([`MAX_BODY`], [`BODIES`], [`REVIEWS`]) and time
//! ([`HANDSHAKE_TIMEOUT`], [`ANSWER_TIMEOUT`], [`REVIEW_TIMEOUT`], [`IDLE_TIMEOUT`]).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use netclaim_process::connections::accept;
use netclaim_validation::Limit;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{Error, ServerConfig};

use crate::admission::{self, Answer, Kind, Outcome, Unanswerable};
use crate::certificate::{Served, provider};
use crate::metrics::Metrics;
use crate::path::SecretPath;

/// Connections at once: an API server keeps up to 25 idle ones.
const CONNECTIONS: usize = 64;
/// Reviews at once, each of which may need many times the memory of its request.
const REVIEWS: usize = 2;
/// Most bytes of a request's head.
const HEAD: usize = 16 * 1024;
/// Most bytes of a request's body: an object and its older version, which the API server stores up to 1.5
/// MiB.
const MAX_BODY: usize = 3 * 1024 * 1024;
/// Most KiB of all bodies that are read or reviewed. Objects are small, so that a few large ones do not keep
/// others waiting.
const BODIES: u32 = 8 * 1024;
/// The longest time of a review, which ends itself then.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(2);
/// How long all reviews run when something is wrong with them.
const STUCK: Duration = Duration::from_secs(10);
/// The longest time of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time from a request's head to its answer. API servers wait for the `timeoutSeconds` of the
/// configuration.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time without a request. API servers close idle connections after 90 s, so that none is closed
/// under a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Permits to review an object, at most [`REVIEWS`] at once. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Permits {
    free: Arc<Semaphore>,
    /// When the permits that are taken began.
    begun: Arc<Mutex<Vec<Instant>>>,
}

impl Default for Permits {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(REVIEWS)), begun: Arc::default() }
    }
}

impl Permits {
    async fn take(&self) -> Result<Permit, AcquireError> {
        let permit = Arc::clone(&self.free).acquire_owned().await?;
        let at = Instant::now();
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).push(at);
        Ok(Permit { at, begun: Arc::clone(&self.begun), _permit: permit })
    }

    /// Returns whether all permits are taken and none ends.
    pub(crate) fn are_stuck(&self, now: Instant) -> bool {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.len() == REVIEWS && begun.iter().all(|at| now.saturating_duration_since(*at) > STUCK)
    }
}

struct Permit {
    at: Instant,
    begun: Arc<Mutex<Vec<Instant>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = begun.iter().position(|at| *at == self.at) {
            begun.swap_remove(index);
        }
    }
}

/// Answers reviews of objects for one driver.
#[derive(Debug, Clone)]
pub(crate) struct Reviewer {
    driver: Arc<str>,
    path: SecretPath,
    metrics: Metrics,
    /// KiB that may be read.
    memory: Arc<Semaphore>,
    permits: Permits,
}

/// Why a request gets no review.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the body is longer than {MAX_BODY} bytes")]
    TooLong,
    #[error("the body ended early")]
    Body,
    #[error("the body did not come or was not reviewed within {} s", ANSWER_TIMEOUT.as_secs())]
    Late,
    #[error(transparent)]
    Unanswerable(#[from] Unanswerable),
    #[error("the review failed")]
    Review,
}

impl Refused {
    const fn status(&self) -> StatusCode {
        match self {
            Self::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late | Self::Unanswerable(Unanswerable::Late(_)) => StatusCode::REQUEST_TIMEOUT,
            Self::Body | Self::Unanswerable(_) => StatusCode::BAD_REQUEST,
            Self::Review => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl Reviewer {
    pub(crate) fn new(driver: &str, path: SecretPath, permits: Permits, metrics: Metrics) -> Self {
        let memory = Arc::new(Semaphore::new(BODIES as usize));
        Self { driver: driver.into(), path, metrics, memory, permits }
    }

    async fn respond(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if !self.path.is(request.uri().path()) {
            return response(StatusCode::NOT_FOUND, String::new());
        }
        if request.method() != Method::POST {
            return response(StatusCode::METHOD_NOT_ALLOWED, String::new());
        }
        let begun = Instant::now();
        let answer = timeout(ANSWER_TIMEOUT, self.review(request.into_body())).await;
        self.metrics.took(begun.elapsed());
        match answer.unwrap_or(Err(Refused::Late)) {
            Ok(Answer { kind, outcome, json }) => {
                self.metrics.request(kind, outcome);
                response(StatusCode::OK, json)
            }
            Err(error) => {
                self.metrics.request(Kind::Other, Outcome::Error);
                tracing::debug!(error = &error as &dyn std::error::Error, "cannot answer a review");
                response(error.status(), error.to_string())
            }
        }
    }

    async fn review(&self, body: Incoming) -> Result<Answer, Refused> {
        let size = body.size_hint();
        if size.lower() > MAX_BODY as u64 {
            return Err(Refused::TooLong);
        }
        let bytes = size.upper().map_or(MAX_BODY as u64, |upper| upper.min(MAX_BODY as u64));
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(BODIES);
        let memory = Arc::clone(&self.memory).acquire_many_owned(kib).await.map_err(|_| Refused::Review)?;
        let body = Limited::new(body, MAX_BODY).collect().await;
        let body = body
            .map_err(|error| if error.is::<LengthLimitError>() { Refused::TooLong } else { Refused::Body })?;
        let permit = self.permits.take().await.map_err(|_| Refused::Review)?;
        let (driver, body) = (Arc::clone(&self.driver), body.to_bytes());
        // A review keeps its memory and permit until it ends, which is soon, also when the client has gone.
        let review = tokio::task::spawn_blocking(move || {
            let _until_the_end = (memory, &permit);
            let is_over = || permit.at.elapsed() > REVIEW_TIMEOUT;
            let limit = Limit::new(&is_over);
            admission::answer(&body, |object| netclaim_validation::review_within(object, &driver, &limit))
        });
        Ok(review.await.map_err(|_| Refused::Review)??)
    }
}

fn response(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    if status == StatusCode::OK {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    response
}

/// How the server speaks TLS.
///
/// # Errors
/// The provider has neither version.
pub(crate) fn tls(served: Served) -> Result<ServerConfig, Error> {
    let versions = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])?;
    let mut config = versions.with_no_client_auth().with_cert_resolver(Arc::new(served));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A session that is resumed would not see a new certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Serves until dropped.
pub(crate) async fn serve(listener: TcpListener, tls: ServerConfig, reviewer: Reviewer) -> Infallible {
    let tls = TlsAcceptor::from(Arc::new(tls));
    accept(listener, CONNECTIONS, move |stream| connection(stream, tls.clone(), reviewer.clone())).await
}

/// Only the client cares how its connection ended.
async fn connection(stream: TcpStream, tls: TlsAcceptor, reviewer: Reviewer) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await else { return };
    let service = service_fn(move |request| {
        let response = reviewer.clone().respond(request);
        async { Ok::<_, Infallible>(response.await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(HEAD);
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

    use super::*;
    use crate::certificate::testing::{self, DNS};
    use crate::metrics::Source;

    struct Server {
        address: SocketAddr,
        served: Served,
        metrics: Metrics,
    }

    const PATH: &str = "/review/0123";

    async fn server() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Metrics::default();
        let served = Served::new(Source::Own, metrics.clone());
        let path = SecretPath::default();
        path.set(PATH);
        let reviewer = Reviewer::new("netclaim.dev", path, Permits::default(), metrics.clone());
        tokio::spawn(serve(listener, tls(served.clone()).unwrap(), reviewer));
        Server { address, served, metrics }
    }

    impl Server {
        /// Serves a new certificate, and returns what a client trusts then.
        fn renew(&self) -> RootCertStore {
            let (certificate, roots) = testing::certificate(Timestamp::now());
            self.served.serve(&certificate);
            roots
        }

        async fn connect(
            &self,
            roots: RootCertStore,
            version: &'static SupportedProtocolVersion,
        ) -> std::io::Result<TlsStream<TcpStream>> {
            let config = ClientConfig::builder_with_provider(Arc::new(provider()))
                .with_protocol_versions(&[version])
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            let stream = TcpStream::connect(self.address).await?;
            TlsConnector::from(Arc::new(config)).connect(DNS.try_into().unwrap(), stream).await
        }
    }

    fn post(path: &str, body: &str) -> String {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    /// The request of the API server for an object that is not netclaim's.
    fn review() -> String {
        let request = json!({"uid": "1", "kind": {"group": "resource.k8s.io", "kind": "ResourceClaim"},
            "operation": "CREATE", "object": {"spec": {}}});
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
            .to_string()
    }

    /// Sends a request and reads the beginning of its answer.
    async fn ask(stream: &mut TlsStream<TcpStream>, request: &str) -> String {
        // The server may answer before it has read all.
        let _ = stream.write_all(request.as_bytes()).await;
        let _ = stream.flush().await;
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).await.unwrap_or_default();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    #[tokio::test]
    async fn a_review_is_answered_by_both_versions_of_tls() {
        let server = server().await;
        let roots = server.renew();
        for version in [&TLS12, &TLS13] {
            let mut stream = server.connect(roots.clone(), version).await.unwrap();
            for _ in 0..2 {
                let answer = ask(&mut stream, &post(PATH, &review())).await;
                assert!(
                    answer.starts_with("HTTP/1.1 200 OK") && answer.contains("application/json"),
                    "{answer}"
                );
                assert!(answer.contains(r#""allowed":true"#) && answer.contains(r#""uid":"1""#), "{answer}");
            }
        }
        let mut registry = netclaim_process::metrics::Registry::new("netclaim_controller");
        server.metrics.register(&mut registry);
        let text = registry.render();
        assert!(text.contains(r#"requests_total{kind="ResourceClaim",outcome="Allowed"} 4"#), "{text}");
    }

    #[tokio::test]
    async fn new_connections_get_the_new_certificate_and_old_ones_go_on() {
        let server = server().await;
        let old = server.renew();
        let mut stream = server.connect(old.clone(), &TLS13).await.unwrap();
        let new = server.renew();
        assert!(server.connect(old, &TLS13).await.is_err());
        server.connect(new, &TLS13).await.unwrap();
        assert!(ask(&mut stream, &post(PATH, &review())).await.starts_with("HTTP/1.1 200 OK"));
    }

    #[tokio::test]
    async fn without_a_certificate_no_client_connects() {
        let server = server().await;
        let (_, roots) = testing::certificate(Timestamp::now());
        assert!(server.connect(roots, &TLS13).await.is_err());
        assert!(server.served.is_empty());
        let mut registry = netclaim_process::metrics::Registry::new("netclaim_controller");
        server.metrics.register(&mut registry);
        let text = registry.render();
        assert!(text.contains(r#"certificate_expiry_timestamp_seconds{source="Own"} 0"#), "{text}");
    }

    #[tokio::test]
    async fn a_request_that_is_not_a_review_is_refused() {
        let server = server().await;
        let roots = server.renew();
        let long = format!("POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", MAX_BODY + 1);
        for (request, status) in [
            (post("/", &review()), 404),
            (post("/review", &review()), 404),
            (post("/review/0124", &review()), 404),
            (format!("GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n"), 405),
            (post(PATH, "{}"), 400),
            (post(PATH, ""), 400),
            (long, 413),
        ] {
            let mut stream = server.connect(roots.clone(), &TLS13).await.unwrap();
            let answer = ask(&mut stream, &request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.40}: {answer}");
        }
    }

    #[tokio::test]
    async fn bodies_that_do_not_come_leave_memory_for_small_ones() {
        let server = server().await;
        let roots = server.renew();
        let mut waiting = Vec::new();
        for _ in 0..2 {
            let mut stream = server.connect(roots.clone(), &TLS13).await.unwrap();
            let head = format!("POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY}\r\n\r\n{{");
            stream.write_all(head.as_bytes()).await.unwrap();
            waiting.push(stream);
        }
        let mut stream = server.connect(roots, &TLS13).await.unwrap();
        let answer = timeout(ANSWER_TIMEOUT / 2, ask(&mut stream, &post(PATH, &review()))).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }

    #[tokio::test]
    async fn turns_are_stuck_when_all_of_them_are_taken_for_long() {
        let permits = Permits::default();
        let later = || Instant::now() + STUCK + Duration::from_secs(1);
        let first = permits.take().await.unwrap();
        assert!(!permits.are_stuck(later()), "another one is free");
        let second = permits.take().await.unwrap();
        assert!(permits.are_stuck(later()) && !permits.are_stuck(Instant::now()));
        drop(first);
        assert!(!permits.are_stuck(later()));
        drop(second);
        assert!(permits.begun.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn idle_connections_block_no_client() {
        let server = server().await;
        let roots = server.renew();
        let mut idle = Vec::new();
        for _ in 0..3 * CONNECTIONS {
            idle.push(TcpStream::connect(server.address).await.unwrap());
        }
        let mut stream = server.connect(roots, &TLS13).await.unwrap();
        assert!(ask(&mut stream, &post(PATH, &review())).await.starts_with("HTTP/1.1 200 OK"));
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_given_up() {
        let server = server().await;
        let roots = server.renew();
        let mut stream = server.connect(roots, &TLS13).await.unwrap();
        let request = format!("POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nbegin");
        stream.write_all(request.as_bytes()).await.unwrap();
        // The clock stands still from when the server has the head.
        tokio::time::sleep(Duration::from_millis(200)).await;
        tokio::time::pause();
        let answer = timeout(2 * ANSWER_TIMEOUT, ask(&mut stream, "")).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
}
