//! An authorizer that the API server asks before its own, and that refuses a kubelet each claim's first read.
//! The Node authorizer does so where the kubelet hears of a pod first, which a test cannot bring about.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// The API server may open a connection and ask nothing.
const IDLE: Duration = Duration::from_secs(60);
/// A claim that does not exist, and whose first read tells whether the API server asks this authorizer.
const PROBE: &str = "resourceclaims.resource.k8s.io/probe";

/// The authorizer, for claims of the scenario's namespace.
pub struct FirstReadRefused {
    configuration: PathBuf,
    before: String,
}

impl FirstReadRefused {
    /// Starts it, and returns when the API server asks it.
    pub fn start(test: &Test<'_>) -> Result<Self> {
        let configuration = test.cluster.dir().join("authorization.yaml");
        let before = fs::read_to_string(&configuration)
            .with_context(|| format!("cannot read {}", configuration.display()))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let server = format!("http://{}", listener.local_addr()?);
        thread::spawn(move || answer_all(&listener));
        let clients = configuration.with_file_name("authorizer.conf");
        let client = json!({"apiVersion": "v1", "kind": "Config", "current-context": "authorizer",
            "clusters": [{"name": "authorizer", "cluster": {"server": server}}],
            "users": [{"name": "apiserver", "user": {}}],
            "contexts": [{"name": "authorizer", "context": {"cluster": "authorizer", "user": "apiserver"}}]});
        fs::write(&clients, client.to_string())?;
        let is_read_by_kubelet = format!(
            "has(request.resourceAttributes) && request.resourceAttributes.resource == 'resourceclaims' && \
             request.resourceAttributes.namespace == '{}' && request.user.startsWith('system:node:')",
            test.namespace()
        );
        let webhook = json!({"connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": clients},
            "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
            "matchConditions": [{"expression": is_read_by_kubelet}],
            "cacheAuthorizedRequests": false, "cacheUnauthorizedRequests": false,
            "authorizedTTL": "1s", "unauthorizedTTL": "1s", "timeout": "3s",
            // A scenario that does not end must not keep the next ones' pods waiting.
            "failurePolicy": "NoOpinion"});
        let first = json!({"type": "Webhook", "name": "first-read-refused", "webhook": webhook});
        let authorizers =
            [first, json!({"type": "Node", "name": "node"}), json!({"type": "RBAC", "name": "rbac"})];
        let changed = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
            "authorizers": authorizers});
        fs::write(&configuration, changed.to_string())?;
        let started = Self { configuration, before };
        let kubelet = ["--as=system:node:node0", "--as-group=system:nodes"];
        eventually(10, "the API server asks the authorizer", || {
            let answer = test.kubectl(&[["auth", "can-i", "get", PROBE].as_slice(), &kubelet].concat());
            ensure!(answer.is_err(), "a kubelet may read any claim at once");
            Ok(())
        })?;
        Ok(started)
    }
}

impl Drop for FirstReadRefused {
    /// The file of a cluster that is gone need not be put back.
    fn drop(&mut self) {
        let _ = fs::write(&self.configuration, &self.before);
    }
}

/// Serves connections until the program ends.
fn answer_all(listener: &TcpListener) {
    let refused = Arc::new(Mutex::new(BTreeSet::new()));
    for connection in listener.incoming().flatten() {
        let refused = Arc::clone(&refused);
        // To the API server, an error is a connection that ends without an answer: no opinion.
        thread::spawn(move || answer_one(connection, &refused));
    }
}

fn answer_one(mut connection: TcpStream, refused: &Mutex<BTreeSet<String>>) -> Result<()> {
    connection.set_read_timeout(Some(IDLE))?;
    let mut lines = BufReader::new(connection.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) =
            line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            length = value.trim().parse().with_context(|| format!("{name} is {value:?}"))?;
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body)?;
    let review: Value = serde_json::from_slice(&body)?;
    let claim = review["spec"]["resourceAttributes"]["name"].as_str().context("no name")?;
    let is_first = refused.lock().unwrap_or_else(PoisonError::into_inner).insert(claim.to_owned());
    let answer = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "status": {"allowed": false, "denied": is_first, "reason": "it is the first read of this claim"}})
    .to_string();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
    write!(connection, "{head}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len())?;
    Ok(())
}
