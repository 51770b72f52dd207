//! Reads what pods ask for, and what the scheduler could give them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use netclaim_allocation::{Holdings, Needed};
use netclaim_api::DRIVER_NAME;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::objects::listing::each;

/// Time between two reads of one object, at least.
const INTERVAL: Duration = Duration::from_millis(50);

/// The most claims and classes that are read for a pod or a group of pods. One claim may name 256 classes.
const MAX_OBJECTS: usize = 64;

/// Slices in one answer of the API server. One may have 128 devices, and 100 kB.
const SLICES: u32 = 100;

/// Claims in one answer of the API server.
const CLAIMS: u32 = 500;

/// Classes in one answer of the API server.
const CLASSES: u32 = 500;

/// Classes by name; `None` if there is none of the name.
pub(crate) type Classes = BTreeMap<String, Option<DeviceClass>>;

/// What nodes offer of what is asked for, and what claims have of it.
#[derive(Debug)]
pub(super) struct Offers {
    pub(super) slices: Vec<ResourceSlice>,
    pub(super) holdings: Holdings,
}

/// Reads objects, one request after the other.
pub(crate) struct Reader {
    client: Client,
    pace: Interval,
}

impl Reader {
    pub(crate) fn new(client: Client) -> Self {
        let mut pace = interval(INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { client, pace }
    }

    /// Returns the claims, named as the pod names them, and adds their classes; `None` if a claim does not
    /// exist, or if there are more than are read.
    pub(crate) async fn claims(
        &mut self,
        namespace: &str,
        names: &BTreeMap<String, String>,
        classes: &mut Classes,
    ) -> kube::Result<Option<Vec<ResourceClaim>>> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        let class_api: Api<DeviceClass> = Api::all(self.client.clone());
        let mut claims = Vec::new();
        let mut left = MAX_OBJECTS;
        let mut may_read = || {
            let may_read = left > 0;
            left = left.saturating_sub(1);
            may_read
        };
        for (name_of_pod, name) in names {
            if !may_read() {
                return Ok(None);
            }
            self.pace.tick().await;
            let Some(mut claim) = api.get_opt(name).await? else { return Ok(None) };
            for class in classes_of(&claim) {
                if let Entry::Vacant(unread) = classes.entry(class) {
                    if !may_read() {
                        return Ok(None);
                    }
                    self.pace.tick().await;
                    let found = class_api.get_opt(unread.key()).await?;
                    unread.insert(found);
                }
            }
            claim.metadata.name = Some(name_of_pod.clone());
            claims.push(claim);
        }
        Ok(Some(claims))
    }

    /// Adds all classes: limits do not say by which name a class serves them.
    pub(crate) async fn all_classes(&mut self, classes: &mut Classes) -> kube::Result<()> {
        self.pace.tick().await;
        let params = ListParams::default().limit(CLASSES);
        each(Api::all(self.client.clone()), params, |class: DeviceClass| {
            classes.insert(class.name_any(), Some(class));
        })
        .await
    }

    /// Reads the slices and claims of all nodes and namespaces.
    pub(super) async fn offers(&self, needed: &Needed) -> kube::Result<Offers> {
        let mut slices = Vec::new();
        let of_driver = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}"));
        each(Api::all(self.client.clone()), of_driver.limit(SLICES), |mut slice: ResourceSlice| {
            needed.trim(&mut slice);
            slices.push(slice);
        })
        .await?;
        let devices: HashSet<(&str, &str)> = slices.iter().flat_map(devices_of).collect();
        let mut holdings = Holdings::default();
        each(
            Api::all(self.client.clone()),
            ListParams::default().limit(CLAIMS),
            |mut claim: ResourceClaim| {
                keep_only(&mut claim, &devices);
                holdings.add(&claim);
            },
        )
        .await?;
        Ok(Offers { slices, holdings })
    }
}

/// The devices of a slice, each with its pool.
fn devices_of(slice: &ResourceSlice) -> impl Iterator<Item = (&str, &str)> {
    let devices = slice.spec.devices.iter().flatten();
    devices.map(|device| (slice.spec.pool.name.as_str(), device.name.as_str()))
}

/// Drops what the claim has of other devices.
fn keep_only(claim: &mut ResourceClaim, devices: &HashSet<(&str, &str)>) {
    let allocation = claim.status.as_mut().and_then(|status| status.allocation.as_mut());
    let allocated = allocation.and_then(|allocation| allocation.devices.as_mut());
    if let Some(results) = allocated.and_then(|allocated| allocated.results.as_mut()) {
        results.retain(|result| {
            result.driver == DRIVER_NAME && devices.contains(&(result.pool.as_str(), result.device.as_str()))
        });
    }
}

/// The classes that the requests of a claim and their alternatives name.
fn classes_of(claim: &ResourceClaim) -> BTreeSet<String> {
    let devices = claim.spec.iter().filter_map(|spec| spec.devices.as_ref());
    let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    let names = requests.flat_map(|request| {
        let exactly = request.exactly.iter().map(|exactly| &exactly.device_class_name);
        let alternatives = request.first_available.iter().flatten();
        exactly.chain(alternatives.map(|alternative| &alternative.device_class_name))
    });
    names.cloned().collect()
}
