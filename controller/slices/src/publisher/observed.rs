//! The known slices of the scope: what the watch reported, and before that what the publisher's own writes
//! returned.
//!
//! A stale view does no harm, because the API server refuses to update or delete what has changed and to
//! create what exists.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{ResourceExt as _, runtime::watcher::Event};

#[derive(Debug, Default)]
pub(super) struct Observed {
    slices: BTreeMap<String, ResourceSlice>,
    /// The list in progress.
    listed: BTreeMap<String, ResourceSlice>,
    /// UIDs of slices that the publisher deleted and the watch may still report.
    gone: BTreeSet<String>,
    /// Whether the first list is complete.
    ready: bool,
}

impl Observed {
    /// Whether all slices are known. Before that, nothing may be planned.
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Returns the slices of a pool.
    pub(super) fn pool(&self, name: &str) -> Vec<&ResourceSlice> {
        self.all().filter(|slice| slice.spec.pool.name == name).collect()
    }

    /// Returns all slices.
    pub(super) fn all(&self) -> impl Iterator<Item = &ResourceSlice> {
        self.slices.values()
    }

    /// Takes in an event. Returns whether it is an update, which the echo of the publisher's own write is
    /// not.
    pub(super) fn watched(&mut self, event: Event<ResourceSlice>) -> bool {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(slice) => {
                self.listed.insert(slice.name_any(), slice);
            }
            Event::InitDone => {
                let mut listed = std::mem::take(&mut self.listed);
                self.gone.retain(|uid| listed.values().any(|slice| slice.metadata.uid.as_ref() == Some(uid)));
                listed.retain(|_, slice| !self.is_gone(slice));
                for (name, known) in std::mem::take(&mut self.slices) {
                    if listed.get(&name).is_some_and(|slice| is_echo(slice, &known)) {
                        listed.insert(name, known);
                    }
                }
                self.slices = listed;
                self.ready = true;
                return true;
            }
            Event::Apply(slice) => {
                let name = slice.name_any();
                let echo = self.slices.get(&name).is_some_and(|known| is_echo(&slice, known));
                if echo || self.is_gone(&slice) {
                    return false;
                }
                self.slices.insert(name, slice);
                return true;
            }
            Event::Delete(slice) => {
                if let Some(uid) = &slice.metadata.uid {
                    self.gone.remove(uid);
                }
                let name = slice.name_any();
                // A late event of the predecessor does not concern the slice that replaced it.
                if self.slices.get(&name).is_some_and(|known| known.metadata.uid == slice.metadata.uid) {
                    self.slices.remove(&name);
                    return true;
                }
            }
        }
        false
    }

    /// Takes in a slice that the publisher wrote.
    pub(super) fn stored(&mut self, slice: ResourceSlice) {
        self.slices.insert(slice.name_any(), slice);
    }

    /// Removes a slice that the publisher deleted, or that no longer exists.
    pub(super) fn deleted(&mut self, slice: &ResourceSlice) {
        self.gone.extend(slice.metadata.uid.clone());
        self.slices.remove(&slice.name_any());
    }

    fn is_gone(&self, slice: &ResourceSlice) -> bool {
        slice.metadata.uid.as_ref().is_some_and(|uid| self.gone.contains(uid))
    }
}

/// Whether `seen` is the same object as `known` and not newer. Resource versions are comparable (KEP-5504).
fn is_echo(seen: &ResourceSlice, known: &ResourceSlice) -> bool {
    let version = |slice: &ResourceSlice| slice.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    seen.metadata.uid == known.metadata.uid
        && version(seen).zip(version(known)).is_some_and(|(seen, known)| seen <= known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(uid: &str, version: u32) -> ResourceSlice {
        let mut slice = ResourceSlice::default();
        slice.metadata.name = Some("s".into());
        slice.metadata.uid = Some(uid.into());
        slice.metadata.resource_version = Some(version.to_string());
        slice
    }

    fn version(observed: &Observed) -> Option<&str> {
        observed.slices.get("s")?.metadata.resource_version.as_deref()
    }

    #[test]
    fn slices_are_ready_when_the_first_list_is_complete() {
        let mut observed = Observed::default();
        observed.watched(Event::Init);
        observed.watched(Event::InitApply(slice("a", 1)));
        assert!(!observed.is_ready());
        assert!(observed.watched(Event::InitDone));
        assert!(observed.is_ready());
        assert_eq!(version(&observed), Some("1"));
    }

    #[test]
    fn the_echo_of_a_write_is_not_an_update() {
        let mut observed = Observed::default();
        observed.stored(slice("a", 10));
        assert!(!observed.watched(Event::Apply(slice("a", 9))));
        assert!(!observed.watched(Event::Apply(slice("a", 10))));
        assert_eq!(version(&observed), Some("10"));
        assert!(observed.watched(Event::Apply(slice("a", 11))));
    }

    #[test]
    fn a_late_event_of_a_deleted_slice_does_not_bring_it_back() {
        let mut observed = Observed::default();
        observed.stored(slice("a", 10));
        observed.deleted(&slice("a", 10));
        assert!(!observed.watched(Event::Apply(slice("a", 10))));
        observed.stored(slice("b", 12));
        assert!(!observed.watched(Event::Delete(slice("a", 11))));
        assert_eq!(version(&observed), Some("12"));
        assert!(observed.watched(Event::Delete(slice("b", 13))));
        assert_eq!(version(&observed), None);
    }

    #[test]
    fn a_list_replaces_all_but_later_writes() {
        let mut observed = Observed::default();
        observed.stored(slice("a", 10));
        observed.watched(Event::Init);
        observed.watched(Event::InitApply(slice("a", 9)));
        observed.watched(Event::InitDone);
        assert_eq!(version(&observed), Some("10"));
        observed.watched(Event::Init);
        observed.watched(Event::InitDone);
        assert_eq!(version(&observed), None);
    }
}
