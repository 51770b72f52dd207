//! What is wrong with a network configuration, all of it at once, without running anything.
//!
//! [`validate`] looks at the frame that the specification gives (section 1), at the keys and values of the reference
//! plugins (release 1.9.1), and at what hangs together: a chain's order, address ranges, settings that exclude each
//! other. Of a plugin that is not known only what the specification says is checked.
//!
//! Pure: whether interfaces and binaries exist is for those who can look. What [`NetworkList`](crate::NetworkList)
//! refuses to parse is always an error here; an error here may still be accepted there, and is then the plugin's to
//! refuse.

mod chain;
mod finding;
mod form;
mod frame;
mod node;
mod plugins;
mod rules;
mod template;

use crate::placeholder::PlaceholderValue;
use finding::Report;
use frame::{as_list, frame, is_single, repeated_keys};
use node::Node;

pub use finding::{Finding, Severity};
pub use rules::BANDWIDTH_PLUGIN;
pub use template::UnknownPlaceholder;

/// Everything that is wrong with a network configuration list, or a single plugin's configuration, in the order of
/// the document's parts. Empty if nothing is.
pub fn validate(json: &[u8]) -> Vec<Finding> {
    check(json, |node, _| node)
}

/// As [`validate`], for a configuration with placeholders; `known` says what is known of each by its name. What every
/// value that may come there makes wrong is an error, what only some of them do a warning.
pub fn validate_template(
    json: &[u8],
    known: &dyn Fn(&str) -> Result<PlaceholderValue, UnknownPlaceholder>,
) -> Vec<Finding> {
    check(json, |node, report| node.map_texts("", &mut |text, at| template::open(text, at, known, report)))
}

fn check(json: &[u8], prepare: impl FnOnce(Node, &mut Report) -> Node) -> Vec<Finding> {
    let mut report = Report::default();
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
        Err(error) => report.error("", format!("is no JSON: {error}"), "correct the syntax"),
    }
    report.findings
}
