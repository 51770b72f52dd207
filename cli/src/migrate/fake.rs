//! A fake API server that keeps objects, for tests: it lists, reads and applies them, and knows nothing of
//! managers.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::pair;

use crate::mock::status;

/// The server, which tests change and look into.
#[derive(Clone, Default)]
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// By plural, namespace and name.
    objects: BTreeMap<Key, Value>,
    /// How often something has changed.
    revision: usize,
    /// What is answered to requests of this method and beginning of a path.
    refused: BTreeMap<(&'static str, String), (u16, Value)>,
    requests: Vec<String>,
}

type Key = (String, String, String);

impl Fake {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Creates or replaces an object.
    pub(super) fn put(&self, plural: &str, object: &Value) -> Value {
        let text = |field: &str| object.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = (plural.to_owned(), text("/metadata/namespace"), text("/metadata/name"));
        self.change(key, object.clone())
    }

    fn change(&self, key: Key, mut object: Value) -> Value {
        let mut state = self.state.lock().unwrap();
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        state.objects.insert(key, object.clone());
        object
    }

    pub(super) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.state.lock().unwrap().objects.get(&key).cloned()
    }

    /// Answers requests of this method whose path begins so with an error, or as before.
    pub(super) fn refuse(&self, method: &'static str, path: &str, answer: Option<(u16, &str)>) {
        let mut state = self.state.lock().unwrap();
        let key = (method, path.to_owned());
        match answer {
            Some((code, reason)) => drop(state.refused.insert(key, status(code, reason))),
            None => drop(state.refused.remove(&key)),
        }
    }

    /// Returns the requests since the last call that are not reads, and those that list.
    pub(super) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    pub(super) fn client(&self) -> Client {
        let (service, mut requests) = pair::<Request<Body>, Response<Body>>();
        let fake = self.clone();
        tokio::spawn(async move {
            while let Some((request, answered)) = requests.next_request().await {
                let (method, uri) = (request.method().to_string(), request.uri().to_string());
                let written = request.into_body().collect_bytes().await.unwrap_or_default();
                let written = serde_json::from_slice(&written).unwrap_or_default();
                let (code, body) = fake.answer(&method, &uri, written);
                let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
                answered.send_response(response.unwrap());
            }
        });
        Client::new(service, "shop")
    }

    fn answer(&self, method: &str, uri: &str, written: Value) -> (u16, String) {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let query: BTreeMap<&str, &str> =
            query.split('&').filter_map(|parameter| parameter.split_once('=')).collect();
        let key = key(path);
        let is_list = method == "GET" && key.2.is_empty();
        if let Some((code, body)) = self.refusal(method, path, is_list) {
            return (code, body.to_string());
        }
        if !is_list {
            let before = self.get(&key.0, &key.1, &key.2);
            if method == "GET" {
                return before
                    .map_or_else(|| text(status(404, "NotFound")), |object| (200, object.to_string()));
            }
            assert_eq!((method, query.get("fieldManager")), ("PATCH", Some(&"netclaimctl-migrate")));
            assert_eq!(query.get("force"), None, "conflicts are not forced");
            return text(match before {
                Some(before) if same(&before, &written) => (200, before),
                Some(_) => (200, self.change(key, written)),
                None => (201, self.change(key, written)),
            });
        }
        let state = self.state.lock().unwrap();
        let items: Vec<&Value> =
            state.objects.iter().filter(|(of, _)| of.0 == key.0).map(|(_, object)| object).collect();
        let metadata = json!({"resourceVersion": state.revision.to_string()});
        text((200, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})))
    }

    fn refusal(&self, method: &str, path: &str, is_list: bool) -> Option<(u16, Value)> {
        let mut state = self.state.lock().unwrap();
        if is_list || method != "GET" {
            state.requests.push(format!("{method} {path}"));
        }
        let mut refused = state.refused.iter();
        let found = refused.find(|((of, begin), _)| *of == method && path.starts_with(begin));
        found.map(|(_, answer)| answer.clone())
    }
}

fn text((code, body): (u16, Value)) -> (u16, String) {
    (code, body.to_string())
}

/// Whether objects are equal but for their revisions.
fn same(one: &Value, other: &Value) -> bool {
    let without_revision = |object: &Value| {
        let mut object = object.clone();
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        object
    };
    without_revision(one) == without_revision(other)
}

/// Returns plural, namespace and name of a path; no name for a list.
fn key(path: &str) -> Key {
    let of_group = path.strip_prefix("/apis/").and_then(|path| path.split_once('/'));
    let path = of_group.map_or_else(|| path.trim_start_matches("/api/"), |(_, path)| path);
    let mut words = path.split('/').skip(1).map(str::to_owned);
    let first = words.next().unwrap();
    let (namespace, plural) = match first.as_str() {
        "namespaces" => (words.next().unwrap(), words.next().unwrap()),
        _ => (String::new(), first),
    };
    (plural, namespace, words.next().unwrap_or_default())
}
