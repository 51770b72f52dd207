//! How long pods are attached.

use netclaim_process::metrics::Registry;
use prometheus_client::metrics::histogram::Histogram;

use crate::gate::metrics::WAIT_SECONDS;

/// Registers what measures how long attaching takes.
pub(crate) fn attach_seconds(registry: &mut Registry) -> Histogram {
    registry.add_seconds(
        "attach_duration",
        "From the sandbox's event to its last attachment, or to the first that failed",
        [],
        Histogram::new(WAIT_SECONDS),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attach_of_30_s_is_in_a_finite_bucket() {
        let mut registry = Registry::new("netclaim");
        attach_seconds(&mut registry).observe(30.0);
        let text = registry.render();
        assert!(text.contains("netclaim_attach_duration_seconds_bucket{le=\"10.0\"} 0"), "{text}");
        assert!(text.contains("netclaim_attach_duration_seconds_bucket{le=\"30.0\"} 1"), "{text}");
    }
}
