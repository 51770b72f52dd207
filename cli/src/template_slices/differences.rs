//! How devices of other nodes differ from those of a template. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::Device;
use netclaim_allocation::nodes_in_words;

use super::offers::SHOWN_NODES;
use crate::printable::printable;

/// Properties of a device, by the words for them.
type Fields = BTreeMap<String, String>;

/// Returns a sentence for each value of other nodes that the template has not. Both have their devices as a
/// template would.
pub(super) fn differences<'a>(
    template: &[Device],
    others: impl Iterator<Item = (&'a str, Vec<Device>)>,
) -> Vec<String> {
    let fields = |devices: &[Device]| devices.iter().flat_map(fields).collect::<Fields>();
    let ours = fields(template);
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (node, devices) in others {
        let mut theirs = fields(&devices);
        for field in ours.keys() {
            theirs.entry(field.clone()).or_insert_with(|| NONE.to_owned());
        }
        theirs.retain(|field, value| ours.get(field).map_or(NONE, String::as_str) != value);
        for different in theirs {
            found.entry(different).or_default().push(node.to_owned());
        }
    }
    let sentence = |((field, value), nodes): (&(String, String), &Vec<String>)| {
        let here = ours.get(field).map_or(NONE, String::as_str);
        let nodes = nodes_in_words(nodes, SHOWN_NODES);
        printable(&format!("{field} is {here} in the template, and {value} on {nodes}"))
    };
    found.iter().map(sentence).collect()
}

/// The value of what a device has not.
const NONE: &str = "not set";

fn fields(device: &Device) -> Fields {
    let of = |what: &str, name: &str, value: String| (format!("{what} {name} of {}", device.name), value);
    let attributes = device.attributes.iter().flatten().map(|(name, value)| {
        let text = value.string.clone().or_else(|| value.version.clone()).map(|text| format!("{text:?}"));
        let number = value.int.map(|number| number.to_string());
        let flag = value.bool.map(|flag| flag.to_string());
        of("attribute", name, text.or(number).or(flag).unwrap_or_default())
    });
    let capacities = device.capacity.iter().flatten();
    let capacities = capacities.map(|(name, capacity)| of("capacity", name, capacity.value.0.clone()));
    let shared = device.allow_multiple_allocations == Some(true);
    let shared = of("field", "allowMultipleAllocations", shared.to_string());
    attributes.chain(capacities).chain([shared]).collect()
}
