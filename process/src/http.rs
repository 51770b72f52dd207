//! Metrics and probes over HTTP, for everybody who reaches the address.
//!
//! Clients share bounded descriptors ([`CONNECTIONS`]), time ([`LIFE`]) and memory ([`BUFFER`]). When there
//! are too many connections, a new one ends the oldest of the client that has the most, so idle clients
//! do not block others. A connection serves one request, so none has a reason to stay.

use std::convert::Infallible;
use std::fmt::Display;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::connections::accept;

/// Connections at once: a Prometheus or two, the kubelet and a person need fewer.
pub const CONNECTIONS: usize = 32;
/// The longest time from a connection's first byte to the last of its answer.
pub const LIFE: Duration = Duration::from_secs(10);
/// Most bytes of a request's head.
pub const BUFFER: usize = 16 * 1024;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The text of a metrics registry.
    Metrics(String),
    /// A probe that succeeds.
    Ok,
    /// A probe that fails, and why.
    Unavailable(String),
}

impl Answer {
    /// Returns the answer of a probe.
    pub fn probe(result: Result<(), impl Display>) -> Self {
        result.map_or_else(|error| Self::Unavailable(error.to_string()), |()| Self::Ok)
    }

    fn response(self) -> Response<Full<Bytes>> {
        const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
        const METRICS: HeaderValue =
            HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        match self {
            Self::Metrics(text) => response(StatusCode::OK, METRICS, text),
            Self::Ok => response(StatusCode::OK, TEXT, "ok".to_owned()),
            Self::Unavailable(reason) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, reason),
        }
    }
}

fn response(status: StatusCode, kind: HeaderValue, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Answers GET requests for every path that `answer` knows, until dropped.
pub async fn serve<A, F>(listener: TcpListener, answer: A) -> Infallible
where
    A: Fn(String) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Option<Answer>> + Send + 'static,
{
    let serve = move |stream| {
        let connection = tokio::time::timeout(LIFE, connection(stream, answer.clone()));
        async {
            // Only the client cares how its connection ended.
            let _ = connection.await;
        }
    };
    accept(listener, CONNECTIONS, serve).await
}

async fn connection<F>(stream: TcpStream, answer: impl Fn(String) -> F) -> hyper::Result<()>
where
    F: Future<Output = Option<Answer>>,
{
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(request.uri().path().to_owned());
        async move { Ok::<_, Infallible>(respond(&request, answer.await)) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(BUFFER).serve_connection(TokioIo::new(stream), service).await
}

fn respond<B>(request: &Request<B>, answer: Option<Answer>) -> Response<Full<Bytes>> {
    let status = match answer {
        Some(answer) if request.method() == Method::GET => return answer.response(),
        Some(_) => StatusCode::METHOD_NOT_ALLOWED,
        None => StatusCode::NOT_FOUND,
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinHandle;
    use tokio::time::{sleep, timeout};

    use super::*;

    async fn server() -> (SocketAddr, JoinHandle<Infallible>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answer = async |path: String| match &*path {
            "/metrics" => Some(Answer::Metrics("# EOF\n".repeat(100_000))),
            "/readyz" => Some(Answer::probe(Err("not yet"))),
            _ => None,
        };
        (address, tokio::spawn(serve(listener, answer)))
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.expect("written");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("an answer");
        text
    }

    #[tokio::test]
    async fn the_server_answers_known_paths_only() {
        let (address, _server) = server().await;
        let metrics = ask(address, "GET /metrics").await;
        assert!(metrics.starts_with("HTTP/1.1 200 OK") && metrics.contains("application/openmetrics-text"));
        assert_eq!(metrics.matches("# EOF").count(), 100_000);
        let ready = ask(address, "GET /readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("not yet"), "{ready}");
        assert!(ask(address, "GET /").await.starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics").await.starts_with("HTTP/1.1 405"));
        assert!(ask(address, &format!("GET /{}", "x".repeat(2 * BUFFER))).await.starts_with("HTTP/1.1 4"));
    }

    #[tokio::test]
    async fn idle_connections_block_no_client() {
        let (address, _server) = server().await;
        let mut idle = Vec::new();
        for _ in 0..300 {
            idle.push(TcpStream::connect(address).await.expect("a connection"));
        }
        let answer = timeout(Duration::from_secs(5), ask(address, "GET /metrics")).await.expect("in time");
        assert!(answer.starts_with("HTTP/1.1 200 OK"));
        sleep(Duration::from_millis(100)).await;
        let open = idle.iter().filter(|stream| stream.try_read(&mut [0]).is_err()).count();
        assert!(open <= CONNECTIONS, "{open} of 300 are open");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_drips_its_request_is_cut_off() {
        let (address, _server) = server().await;
        let mut slow = TcpStream::connect(address).await.expect("a connection");
        let drip = async {
            while slow.write_all(b"G").await.is_ok() {
                sleep(Duration::from_millis(200)).await;
            }
        };
        timeout(LIFE + Duration::from_secs(2), drip).await.expect("the connection is closed");
    }
}
