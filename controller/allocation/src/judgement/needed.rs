//! What of the slices of thousands of nodes has to be in memory.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::judge::Question;
use crate::pool::network_of;

/// The devices that matter to the requests of some questions, as far as these name the driver.
#[derive(Debug, Default)]
pub struct Needed {
    networks: BTreeSet<String>,
    /// A request does not say of which ClaimNetworks its devices are.
    all: bool,
}

impl Needed {
    /// Adds what a question needs.
    pub fn add(&mut self, question: &Question) {
        match question.only_networks() {
            Some(networks) => self.networks.extend(networks.into_iter().map(str::to_owned)),
            None => self.all = true,
        }
    }

    /// Removes from a slice what matters to none of the questions. Devices with counters stay: they may
    /// exclude others.
    pub fn trim(&self, slice: &mut ResourceSlice) {
        slice.metadata = ObjectMeta { name: slice.metadata.name.take(), ..ObjectMeta::default() };
        let is_needed = |device: &Device| {
            self.all
                || device.consumes_counters.as_ref().is_some_and(|consumptions| !consumptions.is_empty())
                || network_of(device).is_some_and(|network| self.networks.contains(network))
        };
        if let Some(devices) = &mut slice.spec.devices {
            devices.retain(is_needed);
            devices.shrink_to_fit();
        }
    }
}
