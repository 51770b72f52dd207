//! What CEL selectors ask of the driver's devices.

use netclaim_allocation::selector::{Read, Reads, Selector};
use netclaim_api::{NetworkName, attributes};
use serde_json::Value;

use crate::Review;

/// Attributes that every device of the driver has.
const EVERYWHERE: [&str; 8] = [
    attributes::NETWORK,
    attributes::UPLINK,
    attributes::MODE,
    attributes::MAC,
    attributes::MTU,
    attributes::SPEED,
    attributes::DRIVER,
    attributes::PHYSICAL_FUNCTION,
];

/// Capacities that devices can have.
const CAPACITIES: [&str; 4] =
    [attributes::BANDWIDTH, attributes::ADDRESSES, attributes::INTERFACES, attributes::SEGMENTS];

/// The selectors of a class or request.
pub(crate) struct Selectors {
    /// Each with the path of its expression.
    all: Vec<(String, Selector)>,
}

impl Selectors {
    /// Compiles the selectors of a list at `field`.
    pub(crate) fn of(list: &Value, field: &str) -> Self {
        let compile = |(index, selector): (usize, &Value)| {
            let expression = selector["cel"]["expression"].as_str()?;
            Some((format!("{field}[{index}].cel.expression"), Selector::new(expression)))
        };
        Self { all: list.as_array().into_iter().flatten().enumerate().filter_map(compile).collect() }
    }

    /// Whether one of them names the driver.
    pub(crate) fn name(&self, driver: &str) -> bool {
        self.all.iter().any(|(_, selector)| selector.names(driver))
    }

    /// Whether they tell devices of one driver from each other.
    pub(crate) fn narrow(&self) -> bool {
        self.all.iter().any(|(_, selector)| selector.problem().is_some() || selector.reads().narrows)
    }

    /// The path of the first one that names the driver.
    pub(crate) fn naming(&self, driver: &str) -> Option<&str> {
        self.all.iter().find(|(_, selector)| selector.names(driver)).map(|(field, _)| field.as_str())
    }

    /// The Network that every device must have; an empty text for a link's own devices.
    pub(crate) fn network(&self, driver: &str) -> Option<&str> {
        self.all.iter().find_map(|(_, selector)| selector.network(driver))
    }

    /// Adds what the expressions may not mean.
    pub(crate) fn review(&self, driver: &str, review: &mut Review) {
        for (field, selector) in &self.all {
            if let Some(problem) = selector.problem() {
                review.warn(field, format!("cannot be read here: {problem}"));
                continue;
            }
            if !selector.names(driver) {
                continue;
            }
            let network = selector.network(driver);
            if let Some(name) = network.filter(|name| !name.is_empty())
                && name.parse::<NetworkName>().is_err()
            {
                let problem = format!("selects no device: no Network can have the name {name:?}");
                review.warn(field, problem);
            }
            let Reads { values, .. } = selector.reads();
            let mut warned = Vec::new();
            for read in values {
                // A device of another Network does not get to the rest of the conjunction.
                let is_guarded = read.is_optional || network.is_some();
                if let Some(problem) = unpublished(&read, is_guarded, driver)
                    && !warned.contains(&read)
                {
                    review.warn(field, problem);
                    warned.push(read);
                }
            }
        }
    }
}

/// Returns what is wrong with the name of an attribute or capacity that not every device has.
fn unpublished(read: &Read, is_guarded: bool, driver: &str) -> Option<String> {
    let Read { is_capacity, domain, name, .. } = read;
    if domain == driver {
        if !is_capacity && EVERYWHERE.contains(&name.as_str()) {
            return None;
        }
        if let Some(instead) = retired(name).filter(|_| !is_capacity) {
            return Some(format!("reads attribute {name:?}, which no device has any more: {instead}"));
        }
        let is_known = !is_capacity || is_capacity_name(name);
        if !is_known {
            return Some(format!("reads capacity {name:?}, which no device has: {}", known_capacities()));
        }
    }
    if is_guarded {
        return None;
    }
    let (kind, fields) = if *is_capacity { ("capacity", "capacity") } else { ("attribute", "attributes") };
    Some(format!(
        "reads {kind} \"{domain}/{name}\", which not every device has, so that the scheduler stops at one without it and the \
         pod stays Pending: write device.{fields}[\"{domain}\"].?{name}.orValue(…)"
    ))
}

/// Returns what to use instead of an attribute of earlier versions.
pub(crate) fn retired(name: &str) -> Option<&'static str> {
    match name {
        "ifName" => Some("use uplink"),
        "linkState" => Some("leave it out, since links that are down are tainted"),
        "pluginTypes" => Some("use mode, the type of the first plugin"),
        _ => None,
    }
}

/// Whether a device can have a capacity of this name.
pub(crate) fn is_capacity_name(name: &str) -> bool {
    CAPACITIES.contains(&name) || attributes::id_of_segment(name).is_some()
}

/// Says which capacities there are.
pub(crate) fn known_capacities() -> String {
    format!("use one of {}, segmentID", CAPACITIES.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_of_earlier_versions_has_something_instead() {
        assert!(attributes::RETIRED.into_iter().all(|name| retired(name).is_some()));
    }
}
