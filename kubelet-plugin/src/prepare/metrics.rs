//! How many claims were prepared and unprepared.

use netclaim_process::label_values;
use netclaim_process::metrics::{Label, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

label_values! {
    /// A call of the kubelet.
    pub(crate) enum KubeletCall {
        Prepare = "Prepare",
        Unprepare = "Unprepare",
    }
}

label_values! {
    /// The outcome of a call for one claim.
    pub(crate) enum CallOutcome {
        Ok = "Ok",
        Error = "Error",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: KubeletCall,
    outcome: CallOutcome,
}

/// Counts the kubelet's calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallMetrics(Family<CallLabels, Counter>);

impl CallMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        Self(registry.add(
            "claims",
            "Claims that the kubelet asked to prepare or unprepare",
            [Label::one_of("call", KubeletCall::VALUES), Label::one_of("outcome", CallOutcome::VALUES)],
            Family::default(),
        ))
    }

    /// Counts the outcome of a call for a claim.
    pub(crate) fn call(&self, call: KubeletCall, ok: bool) {
        let outcome = if ok { CallOutcome::Ok } else { CallOutcome::Error };
        self.0.get_or_create(&CallLabels { call, outcome }).inc();
    }
}
