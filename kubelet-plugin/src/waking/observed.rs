//! Tells the waker of the kubelet's calls.

use std::sync::Arc;

use super::{Event, Waker};
use crate::dra::{CallFailure, ClaimRef, NodeResources, PreparedDevice};

/// The agent's answers to the kubelet, of which the waker hears.
pub(crate) struct Observed<N> {
    pub(crate) node: Arc<N>,
    pub(crate) waker: Waker,
}

impl<N: NodeResources> NodeResources for Observed<N> {
    async fn prepare(&self, claims: Vec<ClaimRef>) -> Vec<Result<Vec<PreparedDevice>, CallFailure>> {
        let names = claims.iter().map(|claim| (claim.namespace.clone(), claim.name.clone()));
        self.waker.tell(Event::Asked(names.collect()));
        self.node.prepare(claims).await
    }

    async fn unprepare(&self, claim: ClaimRef) -> Result<(), CallFailure> {
        let name = (claim.namespace.clone(), claim.name.clone());
        self.waker.tell(Event::Releasing(name.clone()));
        let result = self.node.unprepare(claim).await;
        if result.is_ok() {
            self.waker.tell(Event::Released(name));
        }
        result
    }

    fn registered(&self) {
        self.waker.tell(Event::Registered);
    }
}
