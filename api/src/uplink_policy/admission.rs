//! Rules by which the API server refuses a policy.

use serde_json::{Value, json};

use crate::quantity::amount_rule;

/// The problems of a [policy](super::UplinkPolicySpec::problems) that one line of CEL can find.
pub(super) fn admission_rules() -> Value {
    let selects = ["names", "drivers", "pciIDs", "pciBusIDs", "macs", "addresses", "minSpeed"];
    let selects = selects.map(|field| format!("has(self.links.{field})")).join(" || ");
    let shares = "self.nodeLinks == 'Share'";
    json!([
        {"rule": format!("self.publish != 'Always' || {selects}"), "message": ALWAYS_EVERY_LINK},
        {"rule": format!("self.publish != 'Never' || !({shares})"), "message": NEVER_SHARED},
        {"rule": format!("!({shares}) || !has(self.modes) || self.modes != ['nic']"), "message": SHARED_WHOLE},
    ])
}

/// For the links.
pub(super) fn links_rules() -> Value {
    json!([amount_rule("minSpeed", 0, "must be a speed such as 25G")])
}

/// For the capacity.
pub(super) fn capacity_rules() -> Value {
    json!([amount_rule("bandwidth", 1, "must be an amount of more than 0, such as 10G")])
}

pub(super) const ALWAYS_EVERY_LINK: &str =
    "selects every link, the pods' own included: say which links are to be published Always";
pub(super) const NEVER_SHARED: &str = "nodeLinks: Share has no meaning with publish: Never";
pub(super) const SHARED_WHOLE: &str = "a link cannot be shared and given away whole: allow macvlan or ipvlan";
