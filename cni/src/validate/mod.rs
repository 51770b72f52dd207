//! Finds everything that is wrong with a network configuration, without running anything.
//!
//! [`validate`] checks the frame that the specification defines (section 1), the keys and values of the
//! reference plugins (release 1.9.1), and relations between them: the order of a chain, address ranges,
//! settings that exclude each other. Unknown plugins are checked by the specification alone.
//!
//! It does not look whether interfaces and binaries exist. Whatever [`NetworkList`](crate::NetworkList)
//! refuses is an error here. The reverse does not hold: some errors only make a plugin fail.

mod chain;
mod finding;
mod form;
mod frame;
mod ipam_rules;
mod node;
mod plugins;
mod rules;
mod template;

use crate::placeholder::PlaceholderValue;
use finding::Report;
use frame::{as_list, frame, is_single, repeated_keys};
use node::Node;
use template::KnownValues;

pub use finding::{Finding, MAX_FINDINGS, Severity};
pub use rules::{BANDWIDTH_PLUGIN, LINK_PLUGIN, ROUTE_PLUGIN};
pub use template::UnknownPlaceholder;

/// Checks a network configuration list, or a single plugin's configuration. The findings are in the order of
/// the document, at most [`MAX_FINDINGS`] of each severity.
pub fn validate(json: &[u8]) -> Vec<Finding> {
    check(json, Report::default(), |node, _| node)
}

/// As [`validate`], for a list whose first plugin gets the result of another list.
pub fn validate_after(json: &[u8]) -> Vec<Finding> {
    check(json, after(), |node, _| node)
}

/// Checks a configuration with placeholders; `known` returns the possible values of each by its name. A
/// problem with every possible value is an error, a problem with some of them a warning.
pub fn validate_template(
    json: &[u8],
    known: &dyn Fn(&str) -> Result<PlaceholderValue, UnknownPlaceholder>,
) -> Vec<Finding> {
    check_template(json, Report::default(), known)
}

/// As [`validate_template`], for a list whose first plugin gets the result of another list.
pub fn validate_template_after(
    json: &[u8],
    known: &dyn Fn(&str) -> Result<PlaceholderValue, UnknownPlaceholder>,
) -> Vec<Finding> {
    check_template(json, after(), known)
}

fn after() -> Report {
    let mut report = Report::default();
    report.has_prev = true;
    report
}

fn check_template(
    json: &[u8],
    report: Report,
    known: &dyn Fn(&str) -> Result<PlaceholderValue, UnknownPlaceholder>,
) -> Vec<Finding> {
    let mut known = KnownValues::new(known);
    check(json, report, |node, report| {
        node.map_texts("", &mut |text, at| template::open(text, at, &mut known, report))
    })
}

fn check(json: &[u8], mut report: Report, prepare: impl FnOnce(Node, &mut Report) -> Node) -> Vec<Finding> {
    match serde_json::from_slice::<Node>(json).map(|node| prepare(node, &mut report)) {
        Ok(Node::Object(list)) => {
            if is_single(&list)
                && let Err(error) = serde_json::from_str::<Node>(&as_list(&String::from_utf8_lossy(json)))
            {
                report.error("", format!("cannot become a list of one: {error}"), "nest it less deeply");
            }
            repeated_keys(&list, "", &mut report);
            frame(&list, &mut report);
        }
        Ok(other) => report.error("", format!("must be an object, not {}", other.kind()), "write a conflist"),
        Err(error) => report.error("", format!("is not JSON: {error}"), "correct the syntax"),
    }
    report.findings
}
