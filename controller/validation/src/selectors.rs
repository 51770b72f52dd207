//! What CEL selectors ask of the driver's devices.

use std::cell::Cell;

use netclaim_allocation::selector::{Read, Reads, Selector};
use netclaim_api::attributes::{ATTRIBUTES, Attribute, CAPACITIES, SEGMENT_ID};
use netclaim_api::{NetworkName, attributes};
use serde_json::Value;

use crate::review::Review;

/// How many selectors of a list are compiled. The API server takes no more.
const MAX_SELECTORS: usize = 32;

/// How many bytes of an object's selectors are compiled, so that a review of any object takes a fraction of a
/// second.
const MAX_TEXT: usize = 64 * 1024;

const TOO_MUCH: &str = "no more than 32 selectors of a list are read, and 64 KiB of those of an object";

/// Bytes of an object's selectors that may still be compiled.
pub(crate) struct Budget(Cell<usize>);

impl Default for Budget {
    fn default() -> Self {
        Self(Cell::new(MAX_TEXT))
    }
}

impl Budget {
    /// Compiles the selector of this index in its list, as far as there is budget.
    fn selector(&self, index: usize, expression: &str) -> Selector {
        match self.0.get().checked_sub(expression.len()) {
            Some(left) if index < MAX_SELECTORS => {
                self.0.set(left);
                Selector::new(expression)
            }
            _ => Selector::unread(expression, TOO_MUCH),
        }
    }
}

/// The selectors of a class or request.
pub(crate) struct Selectors {
    /// Each with the path of its expression.
    all: Vec<(String, Selector)>,
}

impl Selectors {
    /// Compiles the selectors of a list at `field`, within what is left of the object's budget.
    pub(crate) fn of(list: &Value, field: &str, budget: &Budget) -> Self {
        let compile = |(index, selector): (usize, &Value)| {
            let expression = selector["cel"]["expression"].as_str()?;
            Some((format!("{field}[{index}].cel.expression"), budget.selector(index, expression)))
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

    /// The ClaimNetwork that every device must have; an empty text for a link's own devices.
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
                let problem = format!("selects no device: no ClaimNetwork can have the name {name:?}");
                review.warn(field, problem);
            }
            let Reads { values, .. } = selector.reads();
            let mut warned = Vec::new();
            for read in values {
                // A device of another ClaimNetwork does not get to the rest of the conjunction.
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
        let is_it = |attribute: &Attribute| attribute.is_everywhere() && attribute.name == name.as_str();
        if !is_capacity && ATTRIBUTES.iter().any(is_it) {
            return None;
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

/// Whether a device can have a capacity of this name.
pub(crate) fn is_capacity_name(name: &str) -> bool {
    let is_counted = name != SEGMENT_ID && CAPACITIES.iter().any(|capacity| capacity.name == name);
    is_counted || attributes::id_of_segment(name).is_some()
}

/// Says which capacities there are.
pub(crate) fn known_capacities() -> String {
    let names: Vec<&str> = CAPACITIES.iter().map(|capacity| capacity.name).collect();
    format!("use one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A list of selectors with this text.
    fn list(count: usize, text: &str) -> Value {
        vec![json!({"cel": {"expression": text}}); count].into()
    }

    fn compiled(selectors: &Selectors) -> usize {
        selectors.all.iter().filter(|(_, selector)| selector.problem().is_none()).count()
    }

    #[test]
    fn no_more_selectors_are_compiled_than_the_api_server_takes() {
        let selectors = Selectors::of(&list(2000, "true"), "spec.selectors", &Budget::default());
        assert_eq!((selectors.all.len(), compiled(&selectors)), (2000, MAX_SELECTORS));
        let mut review = Review::default();
        selectors.review("netclaim.dev", &mut review);
        assert_eq!(review.warnings[0].field, "spec.selectors[32].cel.expression");
        assert!(review.warnings[0].problem.contains(TOO_MUCH), "{:?}", review.warnings[0]);
    }

    #[test]
    fn the_lists_of_an_object_share_a_budget() {
        let (budget, long) = (Budget::default(), format!("'{}' == 'x'", "x".repeat(MAX_TEXT / 8)));
        let counts = [5, 5, 5].map(|count| compiled(&Selectors::of(&list(count, &long), "", &budget)));
        assert_eq!(counts, [5, 2, 0]);
        let small = Selectors::of(&list(1, "true"), "", &budget);
        assert_eq!(compiled(&small), 1, "what is small still fits");
    }
}
