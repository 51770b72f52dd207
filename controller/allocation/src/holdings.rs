//! What claims hold of devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use netclaim_kubernetes::quantity::billionths;
use serde::Serialize;

/// A device's name in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct DeviceId {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// A claim that has a device, and the pods that it is reserved for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// The claim, as `NAMESPACE/NAME`.
    pub claim: String,
    /// The pods, as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

impl Holder {
    fn of(claim: &ResourceClaim) -> Self {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        let pods = reserved.filter(|consumer| consumer.resource == "pods");
        Self {
            claim: format!("{namespace}/{name}"),
            pods: pods.map(|pod| format!("{namespace}/{}", pod.name)).collect(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claim {}", self.claim)?;
        match self.pods.as_slice() {
            [] => Ok(()),
            [pod] => write!(f, " (pod {pod})"),
            pods => write!(f, " (pods {})", pods.join(", ")),
        }
    }
}

/// One claim's part of a device.
#[derive(Debug, Clone)]
pub(crate) struct HeldShare {
    pub(crate) holder: Holder,
    /// The amounts of each capacity that a share takes, in billionths, if that can be read; `None` is the
    /// whole device.
    pub(crate) share: Option<BTreeMap<String, Option<i128>>>,
}

/// What all claims hold, by device.
#[derive(Debug, Clone, Default)]
pub struct Holdings {
    devices: BTreeMap<DeviceId, Vec<HeldShare>>,
    is_partial: bool,
}

impl Holdings {
    /// Says that the claims of other namespaces are not among those that are added. Then nothing is known to
    /// be free.
    pub fn partial() -> Self {
        Self { is_partial: true, ..Self::default() }
    }

    /// Whether there may be claims that are not added.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Adds what the claim has been allocated. A result with admin access takes nothing.
    pub fn add(&mut self, claim: &ResourceClaim) {
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
        for result in results.into_iter().flatten().filter(|result| result.admin_access != Some(true)) {
            let DeviceRequestAllocationResult { driver, pool, device, .. } = result;
            let id = DeviceId { driver: driver.clone(), pool: pool.clone(), device: device.clone() };
            let amounts = result.consumed_capacity.iter().flatten();
            let share = result
                .share_id
                .is_some()
                .then(|| amounts.map(|(name, amount)| (name.clone(), billionths(&amount.0).ok())).collect());
            self.devices.entry(id).or_default().push(HeldShare { holder: Holder::of(claim), share });
        }
    }

    /// What claims have of a device.
    pub(crate) fn of(&self, device: &DeviceId) -> &[HeldShare] {
        self.devices.get(device).map(Vec::as_slice).unwrap_or_default()
    }
}

/// What shares of other claims take of a capacity; `None` if one of them cannot be read.
pub(crate) fn used(held: &[HeldShare], capacity: &str) -> Option<i128> {
    let mut shares = held.iter().filter_map(|held| held.share.as_ref()?.get(capacity));
    shares.try_fold(0_i128, |sum, amount| Some(sum.saturating_add((*amount)?)))
}

/// Whether a share takes some of a capacity.
pub(crate) fn takes(held: &HeldShare, capacity: &str) -> bool {
    held.share
        .as_ref()
        .is_some_and(|share| share.get(capacity).is_some_and(|taken| taken.is_none_or(|taken| taken > 0)))
}

/// The most claims that a cause lists.
const HOLDERS: usize = 16;

/// The claims, each once, the first ones by name.
pub(crate) fn holders<'a>(held: impl Iterator<Item = &'a HeldShare>) -> Vec<Holder> {
    let holders: BTreeSet<&Holder> = held.map(|held| &held.holder).collect();
    holders.into_iter().take(HOLDERS).cloned().collect()
}
