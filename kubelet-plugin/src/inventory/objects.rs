//! The objects of one kind by name, as a watch reports them. Pure.

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

impl<T> Objects<T> {
    /// Takes an event of the watch. `read` gets an object and its last known value, and returns `None` to leave it out.
    pub(super) fn update(
        &mut self,
        event: Event<DynamicObject>,
        read: impl Fn(DynamicObject, Option<&T>) -> Option<T>,
    ) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(object) => {
                let name = object.name_any();
                let before = self.known.as_ref().and_then(|known| known.get(&name));
                self.listing.extend(read(object, before).map(|now| (name, now)));
            }
            Event::InitDone => self.known = Some(std::mem::take(&mut self.listing)),
            Event::Apply(object) => {
                let (name, known) = (object.name_any(), self.known.get_or_insert_default());
                match read(object, known.get(&name)) {
                    Some(now) => known.insert(name, now),
                    None => known.remove(&name),
                };
            }
            Event::Delete(object) => {
                self.known.get_or_insert_default().remove(&object.name_any());
            }
        }
    }

    /// Returns all objects by name; `None` until the first list is complete.
    pub(super) fn known(&self) -> Option<&BTreeMap<String, T>> {
        self.known.as_ref()
    }
}
