//! How many pods were woken, and why.

use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

label_values! {
    /// Why a pod is woken.
    pub(crate) enum WakeCause {
        /// The kubelet has registered the driver.
        Registered = "Registered",
        /// A claim of the pod has been released by its earlier pod.
        Released = "Released",
        /// The node has got addresses, after a claim of the pod was refused one.
        Supplied = "Supplied",
        /// A Prepare of the pod ended after the kubelet had given it up.
        Late = "Late",
        /// The kubelet has the pod, and asks for no claim of it.
        NotPrepared = "NotPrepared",
        /// The networks of the pod are there, after a container was refused for lack of them.
        Attached = "Attached",
    }
}

label_values! {
    /// The outcome of a wake.
    pub(crate) enum WakeOutcome {
        /// The kubelet was told to look at the pod.
        Ok = "Ok",
        /// The agent may not wake pods.
        Forbidden = "Forbidden",
        /// The pod was gone.
        Gone = "Gone",
        /// The API server did not answer.
        Error = "Error",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WakeLabels {
    cause: WakeCause,
    outcome: WakeOutcome,
}

/// Counts pods that were woken.
#[derive(Clone)]
pub(crate) struct WakeMetrics(Family<WakeLabels, Counter>);

impl WakeMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self(registry.add(
            "pods_woken",
            "Requests to the kubelet to look again at a pod that waits, by the reason",
            [Label::one_of("cause", WakeCause::VALUES), Label::one_of("outcome", WakeOutcome::VALUES)],
            Family::default(),
        ))
    }

    /// Counts a pod that was woken, or was to be woken.
    pub(crate) fn woken(&self, cause: WakeCause, outcome: WakeOutcome) {
        self.0.get_or_create(&WakeLabels { cause, outcome }).inc();
    }
}
