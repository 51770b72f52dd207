//! The objects of one kind by name, as a watch reports them. Pure.
//!
//! An update says whether anything has changed that was read, so that a write of a status costs a
//! node nothing more.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use kube::runtime::watcher::Event;

#[derive(Debug)]
pub(super) struct Objects<T> {
    /// `None` until the first list is complete.
    known: Option<BTreeMap<String, T>>,
    /// Objects of a list that is not complete yet.
    listing: BTreeMap<String, T>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self { known: None, listing: BTreeMap::new() }
    }
}

impl<T: PartialEq> Objects<T> {
    /// Takes an event of the watch. `read` gets an object and its last known value, and returns `None` to
    /// leave it out. Returns whether the known objects are others now.
    pub(super) fn update(
        &mut self,
        event: Event<DynamicObject>,
        read: impl Fn(DynamicObject, Option<&T>) -> Option<T>,
    ) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(object) => {
                let name = object.name_any();
                let before = self.known.as_ref().and_then(|known| known.get(&name));
                self.listing.extend(read(object, before).map(|now| (name, now)));
                false
            }
            Event::InitDone => {
                let listed = Some(std::mem::take(&mut self.listing));
                let is_new = self.known != listed;
                self.known = listed;
                is_new
            }
            Event::Apply(object) => {
                let (name, is_first) = (object.name_any(), self.known.is_none());
                let known = self.known.get_or_insert_default();
                let now = read(object, known.get(&name));
                if !is_first && known.get(&name) == now.as_ref() {
                    return false;
                }
                match now {
                    Some(now) => known.insert(name, now),
                    None => known.remove(&name),
                };
                true
            }
            Event::Delete(object) => {
                let is_first = self.known.is_none();
                self.known.get_or_insert_default().remove(&object.name_any()).is_some() || is_first
            }
        }
    }
}

impl<T> Objects<T> {
    /// Returns all objects by name; `None` until the first list is complete.
    pub(super) fn known(&self) -> Option<&BTreeMap<String, T>> {
        self.known.as_ref()
    }
}
