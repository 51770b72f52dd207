//! Claims and devices for the tests of this crate.

use super::{ClaimRef, PreparedDevice};

/// A device of the claim.
pub(crate) fn prepared(claim: &ClaimRef) -> PreparedDevice {
    PreparedDevice {
        request: "net".into(),
        pool: "node0".into(),
        device: "net-storage".into(),
        cdi_devices: vec![format!("netclaim.dev/claim={}", claim.uid)],
        share_id: Some("share".into()),
    }
}
