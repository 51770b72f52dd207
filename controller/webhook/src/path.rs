//! The path of the webhook, which only API servers know: other clients of the address get nothing read,
//! parsed or reviewed.
//!
//! ```text
//!   look: ValidatingWebhookConfiguration
//!     our webhooks have a path that cannot be guessed ──> answer there
//!     they have none ──> answer at the path of before, or at a new one, and write it into all of them
//! ```
//!
//! The configuration is the only place of the path, so that all replicas have the same one, also after a
//! restart, and need no Secret. A user who may read it can ask. An API server tells the path to a user who
//! writes an object that it cannot ask about, in its error: so the path keeps work away, and nothing relies
//! on it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error};
use netclaim_process::kubernetes::answered;
use serde_json::{Value, json};
use thiserror::Error as ThisError;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::Names;
use crate::certificate::provider;

/// From one look to the next.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Time between a failed look and the next one.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time until the next look when another writer was faster, such as another replica.
const LOST: Duration = Duration::from_secs(1);

/// The prefix of a path.
const PREFIX: &str = "/review/";
/// Random bytes of a path.
const RANDOM: usize = 32;

/// The path at which the webhook answers. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecretPath(Arc<watch::Sender<Option<String>>>);

impl SecretPath {
    /// Returns whether there is no path yet, so that no client is answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_none()
    }

    /// Returns whether a request is for this path, in a time that does not tell how much of it is right.
    pub(crate) fn is(&self, path: &str) -> bool {
        let own = self.0.borrow();
        let Some(own) = own.as_deref().filter(|own| own.len() == path.len()) else { return false };
        own.bytes().zip(path.bytes()).fold(0, |differ, (a, b)| std::hint::black_box(differ | (a ^ b))) == 0
    }

    /// Answers at this path from now on.
    pub(crate) fn set(&self, path: &str) {
        if !self.is(path) {
            tracing::info!("answering at another path");
            self.0.send_replace(Some(path.to_owned()));
        }
    }

    /// Returns the path; a new one if there is none yet.
    fn get_or_make(&self) -> Result<String, LookError> {
        if let Some(path) = self.0.borrow().clone() {
            return Ok(path);
        }
        let mut random = [0; RANDOM];
        provider().secure_random.fill(&mut random).map_err(|_| LookError::Random)?;
        Ok(random.iter().fold(PREFIX.to_owned(), |path, byte| format!("{path}{byte:02x}")))
    }
}

/// Why a look failed. No message has the path.
#[derive(Debug, ThisError)]
enum LookError {
    #[error("another writer was faster")]
    Lost,
    #[error("cannot {verb} ValidatingWebhookConfiguration {name}")]
    Request { verb: &'static str, name: String, source: Error },
    #[error("there is no randomness")]
    Random,
}

/// Keeps the path in the configuration, until dropped.
pub(crate) async fn keep(client: Client, names: Names, path: SecretPath) -> Infallible {
    let configurations = Api::all(client);
    loop {
        let pause = match look(&configurations, &names, &path).await {
            Ok(()) => LOOK_INTERVAL,
            Err(LookError::Lost) => LOST,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot keep the webhook's path, will retry");
                RETRY_DELAY
            }
        };
        sleep(pause).await;
    }
}

async fn look(
    configurations: &Api<ValidatingWebhookConfiguration>,
    names: &Names,
    path: &SecretPath,
) -> Result<(), LookError> {
    let failed = |verb| {
        move |source| match source {
            Error::Api(status) if verb != "get" && [404, 409, 422].contains(&status.code) => LookError::Lost,
            source => LookError::Request { verb, name: names.name.clone(), source },
        }
    };
    let configuration = answered(configurations.get_opt(&names.name)).await.map_err(failed("get"))?;
    let Some(configuration) = configuration else {
        path.set(&path.get_or_make()?);
        return Ok(());
    };
    let chosen = match written(&configuration, names) {
        Some(written) => written.to_owned(),
        None => path.get_or_make()?,
    };
    // Before an API server knows it.
    path.set(&chosen);
    let Some(patch) = patch(&configuration, names, &chosen) else { return Ok(()) };
    let patch = serde_json::from_value(patch).map(Patch::<()>::Json).map_err(Error::SerdeError);
    let patch = patch.map_err(failed("patch"))?;
    let params = PatchParams::default();
    answered(configurations.patch(&names.name, &params, &patch)).await.map_err(failed("patch"))?;
    tracing::info!(configuration = names.name, "wrote the webhook's path");
    Ok(())
}

/// Returns the first path of our webhooks that cannot be guessed.
fn written<'a>(configuration: &'a ValidatingWebhookConfiguration, names: &Names) -> Option<&'a str> {
    let ours = configuration.webhooks.iter().flatten().filter(|webhook| names.are_of(webhook));
    let paths = ours.filter_map(|webhook| webhook.client_config.service.as_ref()?.path.as_deref());
    let is_secret = |path: &&str| {
        let random = path.strip_prefix(PREFIX).unwrap_or_default();
        random.len() == 2 * RANDOM && random.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
    };
    paths.into_iter().find(is_secret)
}

/// Returns the JSON patch that writes the path into our webhooks; `None` if they have it.
fn patch(configuration: &ValidatingWebhookConfiguration, names: &Names, path: &str) -> Option<Value> {
    names.patch(configuration, "service/path", &json!(path), |config| {
        config.service.as_ref().and_then(|service| service.path.as_deref()) == Some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names { namespace: "netclaim-system".into(), name: "netclaim-webhook".into() }
    }

    fn configuration(paths: &[(&str, Option<&str>)]) -> ValidatingWebhookConfiguration {
        let webhook = |(name, path): &(&str, Option<&str>)| {
            json!({"name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"service": {"namespace": "netclaim-system", "name": name, "path": path}}})
        };
        let webhooks: Vec<Value> = paths.iter().map(webhook).collect();
        serde_json::from_value(
            json!({"metadata": {"name": "netclaim-webhook", "resourceVersion": "7"}, "webhooks": webhooks}),
        )
        .unwrap()
    }

    const OURS: &str = "netclaim-webhook";

    #[test]
    fn a_new_path_cannot_be_guessed_and_is_kept() {
        let [one, other] = [SecretPath::default(), SecretPath::default()];
        let made = one.get_or_make().unwrap();
        assert!(made.len() == PREFIX.len() + 64 && made != other.get_or_make().unwrap(), "{made}");
        assert!(one.is_empty() && !one.is(&made) && !one.is(""));
        one.set(&made);
        assert!(!one.is_empty() && one.is(&made) && one.get_or_make().unwrap() == made);
        let wrong = made.replace(&made[20..21], if &made[20..21] == "0" { "1" } else { "0" });
        assert!(!one.is(&wrong) && !one.is(PREFIX) && !one.is(&made[..40]) && !one.is(&format!("{made}0")));
    }

    #[test]
    fn replicas_take_the_path_that_is_written_for_all_of_our_webhooks() {
        let (a, b) = (format!("{PREFIX}{}", "0a".repeat(32)), format!("{PREFIX}{}", "0b".repeat(32)));
        let stored =
            configuration(&[("other", Some(&b)), (OURS, Some("/review")), (OURS, Some(&a)), (OURS, None)]);
        assert_eq!(written(&stored, &names()), Some(a.as_str()), "it is not that of another service");
        let patch = patch(&stored, &names(), &a).unwrap();
        let add = |index: usize| json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/service/path"), "value": a});
        assert_eq!(
            patch,
            json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}, add(1), add(3)])
        );
        let stored = configuration(&[("other", None), (OURS, Some(&a))]);
        assert_eq!(super::patch(&stored, &names(), &a), None, "nothing is written while all is well");
    }

    #[test]
    fn a_path_that_could_be_guessed_is_replaced() {
        for path in [
            "/review",
            "/",
            "/review/",
            "/review/00",
            &format!("/review/{}", "0A".repeat(32)),
            &format!("/{}", "0a".repeat(32)),
        ] {
            assert_eq!(written(&configuration(&[(OURS, Some(path))]), &names()), None, "{path}");
        }
    }
}
