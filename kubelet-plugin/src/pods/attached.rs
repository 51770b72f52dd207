//! The attachments that are made, and where they are.

use std::sync::Arc;

use netclaim_driver::attach::{Attach, Attacher, Observer, Phase, Sandbox};

use super::owner::{ObjectRef, Owner, Plan};

/// A pod with attachments that are made.
pub(crate) struct AttachedPod {
    pub(crate) sandbox: Sandbox,
    /// At least one.
    pub(crate) plans: Vec<Arc<Plan>>,
}

/// Returns the attachments that `selects` selects, by their pods.
pub(crate) fn attached<A: Attach, O: Observer<Owner = Owner>>(
    attacher: &Attacher<A, O>,
    selects: impl Fn(&Plan) -> bool,
) -> Vec<AttachedPod> {
    let mut pods = Vec::new();
    attacher.for_each_pod(|state| {
        let attached = state.attachments().filter_map(|record| match &record.phase {
            Phase::Attached { sandbox, .. } if selects(&record.plan) => Some((sandbox, &record.plan)),
            _ => None,
        });
        let (sandboxes, plans): (Vec<_>, Vec<_>) = attached.map(|(s, plan)| (s, Arc::clone(plan))).unzip();
        let sandbox = sandboxes.first().map(|sandbox| (*sandbox).clone());
        pods.extend(sandbox.map(|sandbox| AttachedPod { sandbox, plans }));
    });
    pods
}

/// Returns the first attachment of a pod that `is_it`, and where it is.
pub(crate) fn attachment_of<A: Attach, O: Observer<Owner = Owner>>(
    attacher: &Attacher<A, O>,
    namespace: &str,
    name: &str,
    is_it: impl Fn(&Plan) -> bool,
) -> Option<(Sandbox, Arc<Plan>)> {
    let of_pod = |ObjectRef { namespace: of, name: pod, .. }: &ObjectRef| of == namespace && pod == name;
    let found = attached(attacher, |plan| of_pod(&plan.owner.pod) && is_it(plan)).into_iter().next()?;
    Some((found.sandbox, found.plans.into_iter().next()?))
}
