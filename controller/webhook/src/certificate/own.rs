//! The certificate that netclaim makes itself, in a Secret that all replicas share.
//!
//! ```text
//!   look: ValidatingWebhookConfiguration, then Secret
//!     empty, damaged or due ──> make a generation ──> update the Secret; who loses looks again
//!     caBundle is not that of the Secret ──> patch it
//!     another certificate than the one that is served ──> wait until API servers know its CA, serve it
//! ```
//!
//! Every replica does this, and none leads. The chart makes the Secret: a right to create one cannot be for
//! one name or type, and a Secret can be made that gets the token of any ServiceAccount of the namespace.
//! Invariants:
//! * A certificate is served when its CA has been in `caBundle` for [`PROPAGATION`], or when there is none to
//!   serve meanwhile.
//! * A bundle is never replaced by one of an older Secret: the patch is for the configuration that was read
//!   before the Secret.
//! * The CA of what a replica serves stays in `caBundle` for [`generation::OVERLAP`]. While the Secret is
//!   empty, `caBundle` says which it is.
//!
//! [`generation::OVERLAP`]: super::generation::OVERLAP

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use netclaim_process::kubernetes::answered;
use serde_json::{Value, json};
use thiserror::Error as ThisError;
use tokio::time::sleep;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::generation::{Data, Generation};
use super::{CAS, Served, certificates};
use crate::Names;

/// From one look to the next.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Time between a failed look and the next one.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time until the next look when another writer was faster, such as another replica.
const LOST: Duration = Duration::from_secs(1);
/// API servers learn of a new bundle by their watches.
const PROPAGATION: Duration = Duration::from_secs(5);
/// Most CAs of earlier certificates beside a new one. With each Secret that is lost, there may be one more.
const MAX_PREVIOUS: usize = 3;

/// Why a look failed.
#[derive(Debug, ThisError)]
enum LookError {
    #[error("another writer was faster")]
    Lost,
    #[error("there is no Secret {0}: upgrade the chart with webhook.enabled=true, which makes it")]
    Absent(String),
    #[error("cannot {verb} {kind} {name}")]
    Request { verb: &'static str, kind: &'static str, name: String, source: Error },
    #[error("cannot make a certificate for {dns}")]
    Make { dns: String, source: rcgen::Error },
}

/// Keeps a certificate in the Secret, and serves it.
pub(crate) struct Keeper {
    secrets: Api<Secret>,
    configurations: Api<ValidatingWebhookConfiguration>,
    names: Names,
    served: Served,
    /// What is served.
    current: Option<(Data, Generation)>,
}

impl Keeper {
    pub(crate) fn new(client: Client, names: Names, served: Served) -> Self {
        let secrets = Api::namespaced(client.clone(), &names.namespace);
        Self { secrets, configurations: Api::all(client), names, served, current: None }
    }

    /// Looks again and again, until dropped.
    pub(crate) async fn keep(mut self) -> Infallible {
        loop {
            let pause = match self.look(Timestamp::now()).await {
                Ok(()) => LOOK_INTERVAL,
                Err(LookError::Lost) => {
                    tracing::info!(
                        "another writer has changed the webhook's certificate or bundle, looking again"
                    );
                    LOST
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot keep the webhook's certificate, will retry");
                    RETRY_DELAY
                }
            };
            sleep(pause).await;
        }
    }

    async fn look(&mut self, now: Timestamp) -> Result<(), LookError> {
        let (name, dns) = (self.names.name.clone(), self.names.dns());
        let configuration = answered(self.configurations.get_opt(&name)).await;
        let configuration = configuration.map_err(|source| self.failed("get", CONFIGURATION, source))?;
        let secret = answered(self.secrets.get_opt(&name)).await;
        let secret = secret.map_err(|source| self.failed("get", SECRET, source))?;
        let secret = secret.ok_or_else(|| LookError::Absent(name.clone()))?;

        let data = secret.data.clone().unwrap_or_default();
        let (data, generation) = match Generation::read(&data, &dns, now) {
            Ok(generation) if !generation.is_due(now) => (data, generation),
            Ok(due) => match self.renew(secret, due.own_ca(), now).await {
                // It is still valid.
                Err(LookError::Request { verb, kind, name, source }) => {
                    tracing::warn!(
                        error = &source as &dyn std::error::Error,
                        "cannot {verb} {kind} {name}, will retry"
                    );
                    (data, due)
                }
                renewed => renewed?,
            },
            Err(unusable) => {
                if !data.is_empty() {
                    let error = &unusable as &dyn std::error::Error;
                    tracing::warn!(secret = name, error, "replacing the content of the Secret");
                }
                let previous = self.previous(configuration.as_ref());
                self.renew(secret, &previous, now).await?
            }
        };
        if let Some(configuration) = configuration {
            self.trust(&configuration, &generation, now).await?;
        }
        if self.current.as_ref().is_none_or(|(served, _)| *served != data) {
            if self.current.is_some() {
                sleep(PROPAGATION).await;
            }
            self.served.serve(&generation.certificate);
            self.current = Some((data, generation));
        }
        Ok(())
    }

    /// Returns the CAs of what replicas may serve while the Secret does not say it: this replica's, and those
    /// of the configuration, which is all that a replica knows that has just started.
    fn previous(
        &self,
        configuration: Option<&ValidatingWebhookConfiguration>,
    ) -> Vec<CertificateDer<'static>> {
        let own = self.current.iter().flat_map(|(_, generation)| generation.own_ca().to_vec());
        let trusted =
            configuration.map(|configuration| trusted(configuration, &self.names)).unwrap_or_default();
        let mut previous = Vec::new();
        for ca in own.chain(trusted) {
            if !previous.contains(&ca) {
                previous.push(ca);
            }
        }
        previous.truncate(MAX_PREVIOUS);
        previous
    }

    /// Writes the next generation into the Secret that was read.
    async fn renew(
        &self,
        mut secret: Secret,
        previous: &[CertificateDer<'static>],
        now: Timestamp,
    ) -> Result<(Data, Generation), LookError> {
        let dns = self.names.dns();
        let data = Generation::make(&dns, previous, now);
        let data = data.map_err(|source| LookError::Make { dns: dns.clone(), source })?;
        secret.data = Some(data);
        // With the resource version of the Secret that was read.
        let params = PostParams::default();
        let written = answered(self.secrets.replace(&self.names.name, &params, &secret)).await;
        let written = written.map_err(|source| self.failed("update", SECRET, source))?;
        tracing::info!(secret = self.names.name, "made a certificate");
        let data = written.data.unwrap_or_default();
        match Generation::read(&data, &dns, now) {
            Ok(generation) => Ok((data, generation)),
            // Another writer changes what is written.
            Err(_) => Err(LookError::Lost),
        }
    }

    /// Writes the CAs of a generation into the configuration, where they are not there yet.
    async fn trust(
        &self,
        configuration: &ValidatingWebhookConfiguration,
        generation: &Generation,
        now: Timestamp,
    ) -> Result<(), LookError> {
        let Some(patch) = bundle_patch(configuration, &self.names, generation, now) else { return Ok(()) };
        let patch = serde_json::from_value(patch).map(Patch::<()>::Json).map_err(Error::SerdeError);
        let patch = patch.map_err(|source| self.failed("patch", CONFIGURATION, source))?;
        let params = PatchParams::default();
        let patched = answered(self.configurations.patch(&self.names.name, &params, &patch)).await;
        patched.map_err(|source| self.failed("patch", CONFIGURATION, source))?;
        tracing::info!(configuration = self.names.name, "wrote the CA bundle");
        Ok(())
    }

    fn failed(&self, verb: &'static str, kind: &'static str, source: Error) -> LookError {
        match source {
            // A conflict of versions, an object that is gone, or a test of the patch.
            Error::Api(status) if verb != "get" && [404, 409, 422].contains(&status.code) => LookError::Lost,
            source => LookError::Request { verb, kind, name: self.names.name.clone(), source },
        }
    }
}

const SECRET: &str = "Secret";
const CONFIGURATION: &str = "ValidatingWebhookConfiguration";

/// Returns the CAs in the bundles of our webhooks, newest first. Another program may have written them: what
/// cannot be used is left out.
fn trusted(configuration: &ValidatingWebhookConfiguration, names: &Names) -> Vec<CertificateDer<'static>> {
    let ours = configuration.webhooks.iter().flatten().filter(|webhook| names.are_of(webhook));
    let bundles = ours.filter_map(|webhook| webhook.client_config.ca_bundle.as_ref());
    let cas = bundles.flat_map(|bundle| certificates(CAS, &bundle.0).unwrap_or_default());
    cas.filter(|ca| RootCertStore::empty().add(ca.clone()).is_ok()).collect()
}

/// Returns the JSON patch by which the webhooks of our Service trust this generation; `None` if they do.
fn bundle_patch(
    configuration: &ValidatingWebhookConfiguration,
    names: &Names,
    generation: &Generation,
    now: Timestamp,
) -> Option<Value> {
    let bundle = generation.trusted(now);
    names
        .patch(configuration, "caBundle", &json!(bundle), |config| config.ca_bundle.as_ref() == Some(&bundle))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response, StatusCode};
    use k8s_openapi::ByteString;
    use k8s_openapi::jiff::SignedDuration;
    use kube::client::Body;
    use tokio::time::Instant;
    use tower_test::mock;

    use super::super::CHAIN;
    use super::super::generation::OVERLAP;
    use super::*;
    use crate::metrics::{Metrics, Source};

    /// An API server with a Secret and a ValidatingWebhookConfiguration. A fake: it knows JSON patches as
    /// they are sent here.
    #[derive(Clone)]
    struct Server(Arc<Mutex<State>>);

    struct State {
        secret: Option<Value>,
        configuration: Option<Value>,
        version: u64,
        secrets_made: usize,
        patches: usize,
        /// Whether another writer changes the configuration when it has been read.
        is_busy: bool,
        /// Whether the replicas have no right to write.
        is_read_only: bool,
    }

    impl State {
        fn versioned(&mut self, mut object: Value) -> Value {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            object
        }

        fn answer(&mut self, method: &Method, path: &str, sent: Value) -> Result<Value, StatusCode> {
            let is_secret = path.contains("/secrets");
            let stored = if is_secret { self.secret.clone() } else { self.configuration.clone() };
            match (method.as_str(), stored) {
                ("GET", Some(object)) => {
                    if self.is_busy && !is_secret {
                        self.configuration = Some(self.versioned(object.clone()));
                    }
                    Ok(object)
                }
                ("POST", _) => Err(StatusCode::FORBIDDEN),
                ("PUT" | "PATCH", _) if self.is_read_only => Err(StatusCode::FORBIDDEN),
                ("PUT", Some(secret)) if is_secret => {
                    let fits = secret["metadata"]["resourceVersion"] == sent["metadata"]["resourceVersion"];
                    if fits { Ok(self.put(sent)) } else { Err(StatusCode::CONFLICT) }
                }
                ("PATCH", Some(configuration)) => self.patch(configuration, &sent),
                _ => Err(StatusCode::NOT_FOUND),
            }
        }

        fn put(&mut self, secret: Value) -> Value {
            self.secrets_made += 1;
            let secret = self.versioned(secret);
            self.secret = Some(secret.clone());
            secret
        }

        fn patch(&mut self, mut object: Value, operations: &Value) -> Result<Value, StatusCode> {
            for operation in operations.as_array().unwrap() {
                let path = operation["path"].as_str().unwrap();
                match operation["op"].as_str().unwrap() {
                    "test" if object.pointer(path) == Some(&operation["value"]) => {}
                    "test" => return Err(StatusCode::UNPROCESSABLE_ENTITY),
                    "add" => {
                        let (parent, key) = path.rsplit_once('/').unwrap();
                        object.pointer_mut(parent).unwrap()[key] = operation["value"].clone();
                    }
                    other => panic!("{other}"),
                }
            }
            self.patches += 1;
            let object = self.versioned(object);
            self.configuration = Some(object.clone());
            Ok(object)
        }
    }

    impl Server {
        fn new() -> Self {
            let service = json!({"name": "netclaim-webhook", "namespace": "netclaim-system"});
            let other = json!({"name": "other", "namespace": "netclaim-system"});
            let webhook = |name: &str, service: &Value| {
                json!({"name": name, "clientConfig": {"service": service}, "sideEffects": "None",
                    "admissionReviewVersions": ["v1"]})
            };
            let webhooks = [webhook("a", &service), webhook("b", &other), webhook("c", &service)];
            let configuration = json!({"metadata": {"name": "netclaim-webhook", "uid": "u", "resourceVersion": "0"}, "webhooks": webhooks});
            Self(Arc::new(Mutex::new(State {
                // As the chart makes it.
                secret: Some(
                    json!({"metadata": {"name": "netclaim-webhook", "resourceVersion": "7"}, "type": "Opaque"}),
                ),
                configuration: Some(configuration),
                version: 0,
                secrets_made: 0,
                patches: 0,
                is_busy: false,
                is_read_only: false,
            })))
        }

        /// Removes what the Secret has, as an admin could.
        fn loses_its_data(&self) {
            self.0.lock().unwrap().secret.as_mut().unwrap()["data"] = Value::Null;
        }

        /// Writes the bundle of a webhook, as an admin could.
        fn has_bundle(&self, index: usize, text: &str) {
            let configuration = &mut self.0.lock().unwrap().configuration;
            let bundle = ByteString(text.as_bytes().to_vec());
            configuration.as_mut().unwrap()["webhooks"][index]["clientConfig"]["caBundle"] = json!(bundle);
        }

        fn replica(&self) -> Keeper {
            let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
            let server = self.clone();
            tokio::spawn(async move {
                while let Some((request, reply)) = requests.next_request().await {
                    let (head, body) = request.into_parts();
                    let body = body.collect_bytes().await.unwrap();
                    let sent = serde_json::from_slice(&body).unwrap_or_default();
                    let answer = server.0.lock().unwrap().answer(&head.method, head.uri.path(), sent);
                    let (status, answer) = answer.map_or_else(
                        |code| {
                            let reason = code.canonical_reason().unwrap().replace(' ', "");
                            (code, json!({"status": "Failure", "code": code.as_u16(), "reason": reason}))
                        },
                        |object| (StatusCode::OK, object),
                    );
                    let answer = Body::from(answer.to_string().into_bytes());
                    reply.send_response(Response::builder().status(status).body(answer).unwrap());
                }
            });
            let names = Names { namespace: "netclaim-system".into(), name: "netclaim-webhook".into() };
            let served = Served::new(Source::Own, Metrics::default());
            Keeper::new(Client::new(service, "default"), names, served)
        }

        /// The Secret's certificates of this name.
        fn stored(&self, name: &'static str) -> Vec<CertificateDer<'static>> {
            let secret: Secret =
                serde_json::from_value(self.0.lock().unwrap().secret.clone().unwrap()).unwrap();
            certificates(name, &secret.data.unwrap()[name].0).unwrap()
        }

        /// The CAs that a webhook trusts.
        fn trusted(&self, index: usize) -> Vec<CertificateDer<'static>> {
            let configuration = self.0.lock().unwrap().configuration.clone().unwrap();
            let configuration: ValidatingWebhookConfiguration =
                serde_json::from_value(configuration).unwrap();
            let bundle = configuration.webhooks.unwrap()[index].client_config.ca_bundle.clone();
            certificates(CAS, &bundle.unwrap_or_default().0).unwrap()
        }

        fn counts(&self) -> (usize, usize) {
            let state = self.0.lock().unwrap();
            (state.secrets_made, state.patches)
        }
    }

    fn served(replica: &Keeper) -> CertificateDer<'static> {
        replica.served.certificate.borrow().as_ref().unwrap().cert[0].clone()
    }

    fn start() -> Timestamp {
        "2026-11-23T12:00:00Z".parse().unwrap()
    }

    fn renewal() -> Timestamp {
        start() + SignedDuration::from_hours(60 * 24)
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_that_start_together_share_one_certificate() {
        let server = Server::new();
        let (mut a, mut b) = (server.replica(), server.replica());
        let (first, second) = tokio::join!(a.look(start()), b.look(start()));
        assert!(first.is_ok() != second.is_ok(), "one is faster: {first:?}, {second:?}");
        for replica in [&mut a, &mut b] {
            replica.look(start()).await.unwrap();
        }
        assert_eq!(server.counts(), (1, 1));
        assert_eq!(served(&a), served(&b));
        assert_eq!([served(&a)], *server.stored(CHAIN));
        assert_eq!(server.trusted(0), server.stored(CAS));
        assert_eq!(server.trusted(2), server.stored(CAS));
        assert_eq!(server.trusted(1), [], "it is of another service");
        assert_eq!(server.0.lock().unwrap().secret.as_ref().unwrap()["type"], "Opaque", "the rest stays");
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_gone_is_left_to_the_chart_and_the_certificate_is_served_on() {
        let server = Server::new();
        let mut replica = server.replica();
        replica.look(start()).await.unwrap();
        let (certificate, counts) = (served(&replica), server.counts());
        server.0.lock().unwrap().secret = None;
        let mut started = server.replica();
        for replica in [&mut replica, &mut started] {
            let looked = replica.look(start()).await;
            assert!(matches!(looked, Err(LookError::Absent(_))), "{looked:?}");
        }
        assert_eq!(served(&replica), certificate);
        assert!(started.served.is_empty());
        assert_eq!(server.counts(), counts);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_while_all_is_well() {
        let server = Server::new();
        let mut replica = server.replica();
        for minute in 0..100 {
            replica.look(start() + SignedDuration::from_mins(minute)).await.unwrap();
        }
        assert_eq!(server.counts(), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_trusted_before_it_is_served_and_the_old_ca_goes_when_all_serve_it() {
        let server = Server::new();
        let (mut a, mut b) = (server.replica(), server.replica());
        a.look(start()).await.unwrap();
        b.look(start()).await.unwrap();
        let (old, old_ca) = (served(&a), server.stored(CAS)[0].clone());

        let begin = Instant::now();
        a.look(renewal()).await.unwrap();
        assert!(begin.elapsed() >= PROPAGATION, "the API servers had no time to learn of the CA");
        assert_ne!(served(&a), old);
        assert_eq!(served(&b), old, "it has not looked yet");
        let both = server.trusted(0);
        assert!(both.len() == 2 && both[1] == old_ca, "{}", both.len());

        b.look(renewal()).await.unwrap();
        assert_eq!(served(&a), served(&b));
        assert_eq!(server.counts().0, 2);
        b.look(renewal() + SignedDuration::from_hours(1)).await.unwrap();
        assert_eq!(server.trusted(0), [both[0].clone()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_cannot_be_renewed_is_served_until_it_ends() {
        let server = Server::new();
        server.replica().look(start()).await.unwrap();
        server.0.lock().unwrap().is_read_only = true;
        let mut restarted = server.replica();
        restarted.look(renewal()).await.unwrap();
        assert_eq!([served(&restarted)], *server.stored(CHAIN));
        assert!(server.replica().look(start() + SignedDuration::from_hours(91 * 24)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_two_renewals_at_once_is_kept() {
        let server = Server::new();
        let (mut a, mut b) = (server.replica(), server.replica());
        a.look(start()).await.unwrap();
        b.look(start()).await.unwrap();
        let (first, second) = tokio::join!(a.look(renewal()), b.look(renewal()));
        assert!(first.is_ok() != second.is_ok(), "one is faster: {first:?}, {second:?}");
        for replica in [&mut a, &mut b] {
            replica.look(renewal()).await.unwrap();
        }
        assert_eq!(server.counts().0, 2);
        assert_eq!(served(&a), served(&b));
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_emptied_or_damaged_is_filled_without_an_interruption() {
        for data in [Value::Null, json!({}), json!({"tls.crt": ""})] {
            let server = Server::new();
            let mut replica = server.replica();
            replica.look(start()).await.unwrap();
            let (old, old_ca) = (served(&replica), server.stored(CAS)[0].clone());
            server.0.lock().unwrap().secret.as_mut().unwrap()["data"] = data;
            replica.look(start()).await.unwrap();
            assert_ne!(served(&replica), old);
            assert_eq!(server.trusted(0)[1], old_ca, "another replica may still serve the old one");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_starts_when_the_secret_is_empty_keeps_what_others_serve_trusted() {
        let server = Server::new();
        let mut old = server.replica();
        old.look(start()).await.unwrap();
        let (served_by_old, old_ca) = (served(&old), server.stored(CAS)[0].clone());

        server.loses_its_data();
        let mut started = server.replica();
        started.look(start()).await.unwrap();
        assert_eq!(served(&old), served_by_old, "it has not looked yet");
        assert_ne!(served(&started), served_by_old);
        let both = server.trusted(0);
        assert!(both.len() == 2 && both[1] == old_ca, "{}", both.len());

        old.look(start()).await.unwrap();
        assert_eq!(served(&old), served(&started));
        assert_eq!(server.counts().0, 2, "one certificate for both");
        old.look(start() + OVERLAP).await.unwrap();
        assert_eq!(server.trusted(0), [both[0].clone()]);
    }

    #[tokio::test(start_paused = true)]
    async fn two_emptied_secrets_in_a_row_leave_every_replica_trusted() {
        let server = Server::new();
        let (mut a, mut b, mut late) = (server.replica(), server.replica(), server.replica());
        for replica in [&mut a, &mut b, &mut late] {
            replica.look(start()).await.unwrap();
        }
        let first = server.stored(CAS)[0].clone();
        server.loses_its_data();
        a.look(start()).await.unwrap();
        let second = server.stored(CAS)[0].clone();
        server.loses_its_data();
        b.look(start()).await.unwrap();
        let trusted = server.trusted(0);
        assert_eq!(trusted, server.stored(CAS));
        assert_eq!(trusted[1..], [first, second], "a serves the second, and late the first");

        for _ in 0..5 {
            server.loses_its_data();
            b.look(start()).await.unwrap();
        }
        assert_eq!(server.trusted(0).len(), 1 + MAX_PREVIOUS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bundle_that_cannot_be_used_is_replaced() {
        let no_certificate = "-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n";
        let no_pem = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        for bundle in ["garbage", no_certificate, no_pem] {
            let server = Server::new();
            server.has_bundle(0, bundle);
            let mut replica = server.replica();
            replica.look(start()).await.unwrap();
            assert_eq!(server.stored(CAS).len(), 1, "{bundle}");
            assert_eq!(server.trusted(0), server.stored(CAS), "{bundle}");
            assert!(!replica.served.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bundle_that_is_reset_is_written_again() {
        let server = Server::new();
        let mut replica = server.replica();
        replica.look(start()).await.unwrap();
        let certificate = served(&replica);
        server.0.lock().unwrap().configuration = Server::new().0.lock().unwrap().configuration.clone();
        replica.look(start()).await.unwrap();
        assert_eq!(server.trusted(0), server.stored(CAS));
        assert_eq!(served(&replica), certificate);
    }

    #[tokio::test(start_paused = true)]
    async fn a_configuration_that_has_changed_since_is_not_patched() {
        let server = Server::new();
        server.0.lock().unwrap().is_busy = true;
        let mut replica = server.replica();
        assert!(matches!(replica.look(start()).await, Err(LookError::Lost)));
        assert!(replica.served.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_configuration_the_certificate_is_served_all_the_same() {
        let server = Server::new();
        server.0.lock().unwrap().configuration = None;
        let mut replica = server.replica();
        replica.look(start()).await.unwrap();
        assert!(!replica.served.is_empty());
    }
}
