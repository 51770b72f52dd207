//! What the driver reads of the claim and the pod that an attachment is made for.

use netclaim_driver::attach;

use super::owner::{Owner, Plan};
use crate::devices::Kind;

impl attach::Owner for Owner {
    type Kind = Kind;

    fn kind(plan: &Plan) -> Kind {
        Kind::of(plan)
    }

    fn pod_uid(&self) -> &str {
        &self.pod.uid
    }

    fn group(&self) -> &str {
        &self.claim.uid
    }

    fn group_name(&self) -> &str {
        self.network_attachment.as_ref().map_or(&self.claim.name, |by| &by.name)
    }

    fn tenant(&self) -> &str {
        // The claim of a NetworkAttachment is in netclaim's namespace.
        &self.pod.namespace
    }

    fn hot(&self) -> Option<attach::Hot<'_>> {
        if let Some(by) = &self.network_attachment {
            return Some(attach::Hot { sandbox_id: &by.sandbox_id, since: &by.created });
        }
        self.has_claim_elsewhere().then_some(attach::Hot { sandbox_id: "", since: "" })
    }
}
