//! How well the node's devices are, as the kubelet is told of them.

use netclaim_api::taints::Trouble;

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Name of its pool.
    pub pool: String,
    /// Its name there.
    pub device: String,
    /// What is wrong with it; `None` when it is well.
    pub trouble: Option<Trouble>,
}
