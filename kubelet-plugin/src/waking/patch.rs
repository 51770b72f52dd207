//! Wakes one pod: writes the annotation, if one of the pod's claims is this driver's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use kube::{Api, Client, Error};

use super::metrics::WakeOutcome;
use super::schedule::{ClaimName, Wake};
use crate::pods::owner::ObjectRef;
use crate::pods::{RETRY, annotate};

/// How long the API server may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The HTTP status of a request that is not allowed.
const FORBIDDEN: u16 = 403;
/// Those that say that the pod is gone, or another one has its name.
const GONE: [u16; 3] = [404, 409, 422];

/// The outcome of a wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The annotation is written.
    Woken,
    /// None of the pod's claims has devices of this driver.
    NotOurs,
    /// A claim is not reserved for the pod yet, as for pods that are bound by hand: no Prepare would come.
    NotReserved,
    /// The pod is gone.
    Gone,
    /// The agent may not wake pods.
    Forbidden,
    /// The API server gave no answer, or another one.
    Failed,
}

impl Outcome {
    /// Whether another wake of the pod is of no use.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::NotOurs | Self::Gone | Self::Forbidden)
    }

    /// As what it is counted; pods of other drivers are not.
    pub(super) fn counted(self) -> Option<WakeOutcome> {
        match self {
            Self::Woken => Some(WakeOutcome::Ok),
            Self::NotOurs | Self::NotReserved => None,
            Self::Gone => Some(WakeOutcome::Gone),
            Self::Forbidden => Some(WakeOutcome::Forbidden),
            Self::Failed => Some(WakeOutcome::Error),
        }
    }

    fn of(error: &Error) -> Self {
        match error {
            Error::Api(status) if status.code == FORBIDDEN => Self::Forbidden,
            Error::Api(status) if GONE.contains(&status.code) => Self::Gone,
            _ => Self::Failed,
        }
    }
}

/// Writes the annotation.
#[derive(Clone)]
pub(crate) struct Patcher {
    client: Client,
    driver: String,
    has_warned: Arc<AtomicBool>,
}

impl Patcher {
    /// Wakes pods whose claims have devices of `driver`.
    pub(crate) fn new(client: Client, driver: &str) -> Self {
        Self { client, driver: driver.to_owned(), has_warned: Arc::default() }
    }

    pub(super) async fn wake(&self, wake: &Wake) -> Outcome {
        let outcome = tokio::time::timeout(TIMEOUT, self.wake_ours(wake)).await.unwrap_or(Outcome::Failed);
        let (pod, cause) = (&wake.pod, wake.cause);
        match outcome {
            Outcome::Woken => tracing::info!(%pod, pod.uid = pod.uid, ?cause, "woke a pod that waits"),
            Outcome::Forbidden => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %pod,
                        "the agent may not wake pods that wait: the kubelet looks at them again within 90 s. It needs the right \
                         to patch pods/status, or --wake-pods=false"
                    );
                }
            }
            Outcome::NotOurs | Outcome::NotReserved | Outcome::Gone | Outcome::Failed => {
                tracing::debug!(%pod, pod.uid = pod.uid, ?cause, ?outcome, "did not wake a pod");
            }
        }
        outcome
    }

    async fn wake_ours(&self, wake: &Wake) -> Outcome {
        if wake.claims.is_empty() {
            return self.patch(wake).await;
        }
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &wake.pod.namespace);
        let mut is_ours = false;
        for name in &wake.claims {
            let claim = match claims.get_opt(name).await {
                Ok(Some(claim)) => claim,
                Ok(None) => return Outcome::NotReserved,
                Err(_) => return Outcome::Failed,
            };
            if !is_reserved(&claim, &wake.pod.uid) {
                return Outcome::NotReserved;
            }
            is_ours |= self.is_ours(&claim);
        }
        if is_ours { self.patch(wake).await } else { Outcome::NotOurs }
    }

    fn is_ours(&self, claim: &ResourceClaim) -> bool {
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
        let mut results = devices.and_then(|devices| devices.results.as_ref()).into_iter().flatten();
        results.any(|device| device.driver == self.driver)
    }

    /// Returns the pods for which a claim is reserved that `holder` had.
    pub(super) async fn next_pods(
        &self,
        (namespace, name): &ClaimName,
        holder: Option<&str>,
    ) -> Vec<ObjectRef> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        let Ok(Ok(Some(claim))) = tokio::time::timeout(TIMEOUT, claims.get_opt(name)).await else {
            return Vec::new();
        };
        let users = claim.status.and_then(|status| status.reserved_for).unwrap_or_default();
        let next =
            users.into_iter().filter(|user| user.resource == "pods" && Some(user.uid.as_str()) != holder);
        next.map(|user| ObjectRef { namespace: namespace.clone(), name: user.name, uid: user.uid }).collect()
    }

    async fn patch(&self, wake: &Wake) -> Outcome {
        let number = wake.number.unwrap_or_else(some_number).to_string();
        match annotate(&self.client, &wake.pod, (RETRY, &number), None).await {
            Ok(()) => Outcome::Woken,
            Err(error) => Outcome::of(&error),
        }
    }
}

fn is_reserved(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    // A group of pods is taken for the pod's.
    let is_its = |user: &ResourceClaimConsumerReference| user.uid == pod_uid || user.resource != "pods";
    reserved.is_some_and(|reserved| reserved.iter().any(is_its))
}

/// A number of four digits that the pod has hardly: only a change wakes it.
fn some_number() -> u16 {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() % 9000);
    u16::try_from(seconds).unwrap_or_default() + 1000
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, ApiServer};
    use crate::waking::metrics::WakeCause;

    fn patcher() -> (Patcher, ApiServer) {
        let (client, server) = fixtures::api_server();
        (Patcher::new(client, "netclaim.dev"), server)
    }

    fn wake(claims: &[&str], number: Option<u16>) -> Wake {
        Wake {
            pod: ObjectRef { namespace: "ns".into(), name: "p".into(), uid: "u".into() },
            claims: claims.iter().map(|&name| name.to_owned()).collect(),
            cause: WakeCause::Registered,
            number,
        }
    }

    fn claim(driver: &str, pod_uid: &str) -> Value {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {}, "status": {
            "allocation": {"devices": {"results": [{"request": "net", "driver": driver, "pool": "node0", "device": "d"}]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": pod_uid}]}})
    }

    /// Answers the next request; returns its method, its path and its body.
    async fn answer(server: &mut ApiServer, code: u16, body: Value) -> (Method, String, Value) {
        let (head, sent) = fixtures::answer(server, code, &body).await;
        (head.method, head.uri.path().to_owned(), sent.unwrap_or_default())
    }

    fn refusal(code: u16) -> Value {
        let reason = if code == 404 { "NotFound" } else { "Test" };
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": "no"})
    }

    fn pod() -> Value {
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "p"}})
    }

    #[tokio::test]
    async fn a_pod_with_a_claim_of_ours_gets_the_annotation_and_nothing_else() {
        let (patcher, mut server) = patcher();
        let wake = wake(&["a", "b"], Some(2));
        let answers = async {
            answer(&mut server, 200, claim("other.dev", "u")).await;
            answer(&mut server, 200, claim("netclaim.dev", "u")).await;
            answer(&mut server, 200, pod()).await
        };
        let (outcome, (method, path, body)) = tokio::join!(patcher.wake(&wake), answers);
        assert_eq!((outcome, method), (Outcome::Woken, Method::PATCH));
        assert_eq!(path, "/api/v1/namespaces/ns/pods/p/status");
        assert_eq!(body, json!({"metadata": {"uid": "u", "annotations": {"netclaim.dev/retry": "2"}}}));
    }

    #[tokio::test]
    async fn a_pod_without_a_claim_of_ours_is_left_alone() {
        for (code, other, expected) in [
            (200, claim("other.dev", "u"), Outcome::NotOurs),
            (200, claim("netclaim.dev", "another pod"), Outcome::NotReserved),
            (200, json!({"metadata": {}, "spec": {}}), Outcome::NotReserved),
            (404, refusal(404), Outcome::NotReserved),
        ] {
            let (patcher, mut server) = patcher();
            let wake = wake(&["a"], None);
            let (outcome, _) = tokio::join!(patcher.wake(&wake), answer(&mut server, code, other));
            assert_eq!((outcome, outcome.is_final()), (expected, expected == Outcome::NotOurs), "{code}");
        }
    }

    #[tokio::test]
    async fn the_next_pod_of_a_claim_is_any_but_the_one_that_had_it() {
        for (holder, expected) in [(None, 1), (Some("another"), 1), (Some("u"), 0)] {
            let (patcher, mut server) = patcher();
            let name = ("ns".to_owned(), "c".to_owned());
            let (pods, _) = tokio::join!(
                patcher.next_pods(&name, holder),
                answer(&mut server, 200, claim("netclaim.dev", "u"))
            );
            assert_eq!(pods.len(), expected, "{holder:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_ends_it_and_a_busy_api_server_does_not() {
        for (code, expected) in [
            (403, Outcome::Forbidden),
            (404, Outcome::Gone),
            (409, Outcome::Gone),
            (422, Outcome::Gone),
            (500, Outcome::Failed),
        ] {
            let (patcher, mut server) = patcher();
            let wake = wake(&[], None);
            let (outcome, (_, _, body)) =
                tokio::join!(patcher.wake(&wake), answer(&mut server, code, refusal(code)));
            assert_eq!((outcome, outcome.is_final()), (expected, code != 500));
            let number = body["metadata"]["annotations"][RETRY].as_str().expect("a number");
            assert!(number.len() == 4 && number.parse::<u16>().is_ok(), "{number}");
        }
    }
}
