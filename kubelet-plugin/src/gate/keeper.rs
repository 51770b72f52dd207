//! Keeps CDI specs and markers in step with what is attached, and passes the news on.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::{Mutex, PoisonError};

use netclaim_driver::attach::record::{Phase, Record};
use netclaim_driver::attach::{Gate, Observer, PodState};
use tokio::sync::mpsc;

use super::cdi::CdiSpecs;
use super::markers::Markers;

/// What has been put on disk for a pod.
#[derive(Default, PartialEq)]
struct OnDisk {
    specs: BTreeSet<String>,
    marker: Option<String>,
}

/// The observer of the attachments.
pub struct GateKeeper {
    specs: CdiSpecs,
    markers: Markers,
    pods: Mutex<HashMap<String, OnDisk>>,
    news: mpsc::UnboundedSender<(String, PodState)>,
}

impl GateKeeper {
    /// Takes over what an earlier agent left: `records` is what the journal holds. Specs and markers of anything
    /// that is not attached are withdrawn until its sandbox is in hand again.
    ///
    /// # Errors
    /// When the directories cannot be read or cleared: a spec too many would hold a container for minutes, a
    /// marker too many would let one through.
    pub fn take_over(
        specs: CdiSpecs,
        markers: Markers,
        records: &[Record],
        news: mpsc::UnboundedSender<(String, PodState)>,
    ) -> io::Result<Self> {
        let mut pods: HashMap<String, (OnDisk, bool)> = HashMap::new();
        for record in records {
            let (on_disk, complete) =
                pods.entry(record.plan.pod.uid.clone()).or_insert_with(|| (OnDisk::default(), true));
            on_disk.specs.insert(record.plan.claim.uid.clone());
            match &record.phase {
                Phase::Attached { sandbox, .. } => on_disk.marker = Some(sandbox.id.clone()),
                _ => *complete = false,
            }
        }
        let pods: HashMap<String, OnDisk> = pods
            .into_iter()
            .filter(|(_, (_, complete))| *complete)
            .map(|(uid, (on_disk, _))| (uid, on_disk))
            .collect();
        for claim in specs.claims()? {
            if !pods.values().any(|on_disk| on_disk.specs.contains(&claim)) {
                specs.remove(&claim)?;
            }
        }
        markers.retain(&pods.values().filter_map(|on_disk| on_disk.marker.clone()).collect())?;
        Ok(Self { specs, markers, pods: Mutex::new(pods), news })
    }

    /// The specs, for those who need their names.
    pub fn specs(&self) -> &CdiSpecs {
        &self.specs
    }

    fn put_on_disk(&self, pod_uid: &str, state: &PodState) -> io::Result<()> {
        let mut wanted = OnDisk::default();
        if let Some(sandbox) = &state.sandbox {
            wanted.specs.extend(state.records.iter().map(|record| record.plan.claim.uid.clone()));
            wanted.marker = (!state.records.is_empty() && state.gate(&sandbox.id) == Gate::Open)
                .then(|| sandbox.id.clone());
        }
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let on_disk = pods.entry(pod_uid.to_owned()).or_default();
        // Closing comes before opening.
        if let Some(old) = on_disk.marker.take_if(|old| wanted.marker.as_ref() != Some(old)) {
            self.markers.clear(&old)?;
        }
        for claim in on_disk.specs.difference(&wanted.specs) {
            self.specs.remove(claim)?;
        }
        for claim in wanted.specs.difference(&on_disk.specs) {
            self.specs.write(claim)?;
        }
        if let Some(sandbox) = wanted.marker.as_ref().filter(|_| on_disk.marker.is_none()) {
            self.markers.set(sandbox)?;
        }
        if wanted == OnDisk::default() {
            pods.remove(pod_uid);
        } else {
            *on_disk = wanted;
        }
        Ok(())
    }
}

impl Observer for GateKeeper {
    /// A few small files, most of them on a file system in memory.
    async fn observe(&self, pod_uid: &str, state: &PodState) {
        if let Err(error) = self.put_on_disk(pod_uid, state) {
            // Without its files the gate stays shut, which is the safe side; the next change tries again.
            tracing::error!(pod.uid = pod_uid, %error, "cannot write the CDI spec or marker: the pod waits");
        }
        let _ = self.news.send((pod_uid.to_owned(), state.clone()));
    }
}
