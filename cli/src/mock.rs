//! A fake API server, for tests.

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::pair;

/// The code of a request that is never answered.
pub(crate) const HANGS: u16 = 0;

/// Returns a client of an API server that answers each URI with a status code and an object.
pub(crate) fn api_server(answer: impl Fn(&str) -> (u16, Value) + Send + 'static) -> Client {
    api_server_of_writes(move |_, uri, _| answer(uri))
}

/// As [`api_server`], for clients that write: method, URI and object.
pub(crate) fn api_server_of_writes(
    answer: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + 'static,
) -> Client {
    let (service, mut requests) = pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        let mut unanswered = Vec::new();
        while let Some((request, answered)) = requests.next_request().await {
            let (method, uri) = (request.method().to_string(), request.uri().to_string());
            let written = request.into_body().collect_bytes().await.unwrap_or_default();
            let written = serde_json::from_slice(&written).unwrap_or_default();
            let (code, body) = answer(&method, &uri, &written);
            if code == HANGS {
                unanswered.push(answered);
                continue;
            }
            // Logs are texts.
            let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            answered.send_response(response.expect("a response"));
        }
    });
    Client::new(service, "shop")
}

/// The answer with an error.
pub(crate) fn status(code: u16, reason: &str) -> (u16, Value) {
    let message = format!("{reason} is why");
    (code, json!({"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}))
}

/// The answer with a list of one page.
pub(crate) fn items(items: impl IntoIterator<Item = Value>) -> (u16, Value) {
    let items: Vec<Value> = items.into_iter().collect();
    (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}))
}
