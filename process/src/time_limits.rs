//! Limits the time of each request to the API server, its answer included. kube waits for as long as the
//! connection seems to live: for a quarter of an hour after the network is lost, and for ever for an answer
//! that does not end.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::{Request, Response};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tower::{BoxError, Layer, Service};

/// How long requests may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimits {
    /// From the request to the end of its answer; of a watch, to the begin of its answer.
    pub(crate) request: Duration,
    /// From the request for a watch to its end. The API server ends watches before.
    pub(crate) watch: Duration,
}

impl Default for TimeLimits {
    /// The API server's own limit for requests, and a minute more than the longest watch of kube.
    fn default() -> Self {
        Self { request: Duration::from_secs(60), watch: Duration::from_secs(350) }
    }
}

/// Why a request was given up.
#[derive(Debug, thiserror::Error)]
#[error("the API server's answer did not end within {} s", .0.as_secs())]
struct TooLong(Duration);

impl<S> Layer<S> for TimeLimits {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limits: *self }
    }
}

/// A client whose requests take only so long.
pub(crate) struct Limited<S> {
    inner: S,
    limits: TimeLimits,
}

impl<S, A, B> Service<Request<A>> for Limited<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<LimitedBody<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let TimeLimits { request: to_begin, watch } = self.limits;
        let limit = if is_watch(request.uri().query()) { watch } else { to_begin };
        let now = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let Ok(answer) = timeout_at(now + to_begin, answer).await else {
                return Err(TooLong(to_begin).into());
            };
            let end = Box::pin(sleep_until(now + limit));
            Ok(answer.map_err(Into::into)?.map(|body| LimitedBody { body, end, limit }))
        })
    }
}

fn is_watch(query: Option<&str>) -> bool {
    let mut parameters = query.unwrap_or_default().split('&');
    parameters.any(|parameter| ["watch=true", "watch=1"].contains(&parameter))
}

/// The body of an answer that has to end in time.
pub(crate) struct LimitedBody<B> {
    body: B,
    end: Pin<Box<Sleep>>,
    limit: Duration,
}

impl<B> Body for LimitedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // First: a body that always has another frame ends, too.
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(TooLong(self.limit).into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::ErrorKind;

    use kube::Config;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::kubernetes::client_within;

    const LIMITS: TimeLimits =
        TimeLimits { request: Duration::from_millis(300), watch: Duration::from_millis(900) };

    /// Answers with a body that does not end, or not at all.
    async fn serve(mut stream: TcpStream, begins: bool) -> std::io::Result<Infallible> {
        let mut buffer = [0; 4096];
        if stream.read(&mut buffer).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if !begins {
            std::future::pending::<()>().await;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await?;
        loop {
            stream.write_all(b"1\r\n \r\n").await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn time_of(path: &str, begins: bool) -> (Duration, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, begins));
            }
        });
        let client = client_within(Config::new(url.parse().unwrap()), LIMITS).unwrap();
        let request = Request::get(path).body(Vec::new()).unwrap();
        let start = Instant::now();
        let text = tokio::time::timeout(Duration::from_secs(10), client.request_text(request)).await;
        let error = text.expect("it is given up").expect_err("the answer does not end");
        server.abort();
        let mut words = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            words += &format!(": {error}");
            source = error.source();
        }
        (start.elapsed(), words)
    }

    #[tokio::test]
    async fn an_answer_that_does_not_end_is_given_up() {
        let (time, words) = time_of("/api/v1/nodes/a", true).await;
        assert!(time >= LIMITS.request && time < LIMITS.watch, "{time:?}");
        assert!(words.contains("did not end"), "{words}");
        let (time, _) = time_of("/api/v1/nodes?&watch=true&resourceVersion=1", true).await;
        assert!(time >= LIMITS.watch, "{time:?}");
    }

    #[tokio::test]
    async fn an_answer_that_does_not_begin_is_given_up_even_for_a_watch() {
        let (time, _) = time_of("/api/v1/nodes?watch=1", false).await;
        assert!(time >= LIMITS.request && time < LIMITS.watch, "{time:?}");
    }
}
