//! Tells the waker of the kubelet's calls.

use std::sync::Arc;

use super::{Event, Released, Waker};
use crate::dra::{CallFailure, ClaimRef, NodeResources, PreparedDevice};
use crate::pods::owner::ObjectRef;

/// The agent's answers to the kubelet, of which the waker hears.
pub(crate) struct Observed<N, H> {
    pub(crate) node: Arc<N>,
    pub(crate) waker: Waker,
    /// Returns the pod that has the claim with this UID.
    pub(crate) holder: H,
}

impl<N: NodeResources, H: Fn(&str) -> Option<ObjectRef> + Send + Sync + 'static> NodeResources
    for Observed<N, H>
{
    async fn prepare(&self, claims: Vec<ClaimRef>) -> Vec<Result<Vec<PreparedDevice>, CallFailure>> {
        let names = claims.iter().map(|claim| (claim.namespace.clone(), claim.name.clone()));
        self.waker.tell(Event::Asked(names.collect()));
        self.node.prepare(claims).await
    }

    async fn unprepare(&self, claim: ClaimRef) -> Result<(), CallFailure> {
        let name = (claim.namespace.clone(), claim.name.clone());
        let holder = (self.holder)(&claim.uid).map(|pod| pod.uid);
        self.waker.tell(Event::Releasing(name.clone()));
        let result = self.node.unprepare(claim).await;
        if result.is_ok() {
            self.waker.tell(Event::Released(Released { claim: name, holder }));
        }
        result
    }

    fn was_late(&self, claims: Vec<ClaimRef>) {
        // They are claims of one pod.
        if let Some(pod) = claims.iter().find_map(|claim| (self.holder)(&claim.uid)) {
            self.waker.tell(Event::Late(pod));
        }
    }

    fn registered(&self) {
        self.waker.tell(Event::Registered);
    }
}
