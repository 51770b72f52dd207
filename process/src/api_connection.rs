//! The connection to the API server: one, by HTTP/2, for all requests and watches of a program.
//!
//! kube speaks HTTP/1.1, where each watch has a connection of its own, and a burst of requests opens more. On
//! thousands of nodes the API server pays for them. Its own clients in Go share one connection, too.

use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tower::retry::RetryLayer;
use tower::util::BoxService;
use tower::{BoxError, ServiceBuilder};

/// From one sign of life of a connection to the question for the next. A lost network closes no connection:
/// without the question, a watch would wait for its own end, minutes later.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long the answer may take. Then every request on the connection fails, and the next one opens another.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// What sends requests to the API server.
type Connection = BoxService<Request<Body>, hyper::Response<Incoming>, BoxError>;

/// Whether kube's own connection is needed: it knows proxies, and certificates that a program prints.
fn needs_kube(config: &Config) -> bool {
    config.proxy_url.is_some() || config.auth_info.exec.is_some()
}

/// Returns the builder of a client that speaks HTTP/2 where the API server does. `None` if only kube's own
/// connection will do.
///
/// # Errors
/// The configuration makes no client.
pub(crate) fn builder(config: &Config) -> kube::Result<Option<ClientBuilder<Connection>>> {
    if needs_kube(config) {
        return Ok(None);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_nodelay(true);
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(|error| kube::Error::Service(Box::new(error)))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let client: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(tls.enable_all_versions().wrap_connector(tcp));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(Some(ClientBuilder::new(BoxService::new(service), config.default_namespace.clone())))
}
