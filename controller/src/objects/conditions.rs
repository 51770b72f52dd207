//! What the status of ClaimNetworks and UplinkPolicies has in common: conditions, and how they are written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DynamicObject, Patch, PatchParams, ResourceExt as _};
use kube::{Api, Resource};
use netclaim_api::addresses::AddressPoolStatus;
use netclaim_api::network::ClaimNetworkStatus;
use netclaim_api::reasons::{AcceptedReason, ConditionReason};
use netclaim_api::shorten;
use netclaim_api::uplink_policy::UplinkPolicyStatus;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// Field manager of the status, and the reporter of events.
pub(crate) const CONTROLLER: &str = "netclaim-controller";

/// The longest message of a condition, in bytes (`metav1.Condition`).
const MAX_MESSAGE: usize = 32768;

/// A message names this many nodes.
const NAMED_NODES: usize = 5;

/// The status of an object that is accepted or not.
pub(crate) trait Status: Serialize + DeserializeOwned + Default {
    fn conditions(&self) -> &[Condition];

    fn observed_generation(&self) -> Option<i64>;

    /// Returns the condition `Accepted`.
    fn accepted(&self) -> Option<&Condition> {
        find(self.conditions(), AcceptedReason::TYPE)
    }

    /// Whether the other one says more than what changes by itself, such as the number of nodes.
    fn differs_for_people(&self, other: &Self) -> bool {
        self.accepted() != other.accepted() || self.observed_generation() != other.observed_generation()
    }
}

macro_rules! statuses {
    ($($status:ty),*) => {$(
        impl Status for $status {
            fn conditions(&self) -> &[Condition] {
                &self.conditions
            }

            fn observed_generation(&self) -> Option<i64> {
                self.observed_generation
            }
        }
    )*};
}

statuses!(ClaimNetworkStatus, AddressPoolStatus, UplinkPolicyStatus);

/// What a condition of the type of its reasons says.
#[derive(Debug, Clone)]
pub(crate) struct Finding<R> {
    pub(crate) reason: R,
    pub(crate) message: String,
}

impl<R: ConditionReason> Finding<R> {
    pub(crate) fn new(reason: R, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Returns the condition that says this. Its transition time is `now`, unless it replaces one of the same
    /// status.
    pub(crate) fn condition(self, before: &[Condition], generation: Option<i64>, now: &Time) -> Condition {
        let status = self.reason.status_text();
        let since = find(before, R::TYPE).filter(|condition| condition.status == status);
        Condition {
            type_: R::TYPE.to_owned(),
            status: status.to_owned(),
            reason: self.reason.as_str().to_owned(),
            message: shorten(self.message, MAX_MESSAGE),
            observed_generation: generation,
            last_transition_time: since.map_or(now, |condition| &condition.last_transition_time).clone(),
        }
    }
}

/// Returns the condition of this type.
pub(crate) fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the status of an object. The controller did not write one that cannot be decoded; it is
/// overwritten.
pub(crate) fn stored_status<T: DeserializeOwned + Default>(object: &DynamicObject) -> T {
    object.data.get("status").and_then(|status| T::deserialize(status).ok()).unwrap_or_default()
}

/// Lists the first of these nodes, and says how many more there are.
pub(crate) fn named<'a>(nodes: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = nodes.len().saturating_sub(NAMED_NODES);
    let first = nodes.take(NAMED_NODES).cloned().collect::<Vec<_>>().join(" ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

/// Applies the status of `object`, a `K`. Returns `false` if the object does not exist any more.
///
/// # Errors
/// The API server refuses the status or cannot be reached.
pub(crate) async fn apply<K: Resource<DynamicType = ()>>(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    status: &impl Serialize,
) -> kube::Result<bool> {
    let name = object.name_any();
    let patch = json!({
        "apiVersion": netclaim_api::API_VERSION,
        "kind": K::kind(&()),
        // The UID protects a newer object of the same name.
        "metadata": {"name": name, "uid": object.metadata.uid},
        "status": status,
    });
    match api.patch_status(&name, &PatchParams::apply(CONTROLLER).force(), &Patch::Apply(patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
