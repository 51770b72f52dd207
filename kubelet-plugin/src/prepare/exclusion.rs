//! Whether attachments may use one link at once. Pure.
//!
//! Counters in the slices have the scheduler see to it. It cannot where the API server does not store them and what is
//! published of a link has changed since a pod got it, nor for Networks of scope `Cluster`, which are in pools of their
//! own. The kernel would refuse some of it, and take a NIC away below the macvlan links and VLANs of other pods.

use netclaim_api::conflist::link_use_of;
use netclaim_api::{LinkUse, attributes};
use netclaim_driver::attach::record::Plan;
use serde_json::Value;

/// Whether two uses of one link exclude each other; `None` is what is stacked on the link without taking its receive
/// handler, such as a VLAN, or what passes through it as a port. It goes with the link when that is handed away.
pub fn exclude(one: Option<LinkUse>, other: Option<LinkUse>) -> bool {
    match (one, other) {
        (Some(LinkUse::Nic), _) | (_, Some(LinkUse::Nic)) => true,
        (Some(one), Some(other)) => one != other,
        (None, _) | (_, None) => false,
    }
}

/// The first of `others` that excludes `plan`.
pub fn obstacle<'a>(plan: &Plan, mut others: impl Iterator<Item = &'a Plan>) -> Option<&'a Plan> {
    let own = Use::of(plan)?;
    others.find(|other| Use::of(other).is_some_and(|other| own.excludes(&other)))
}

/// Why `plan` has to wait for `other`, for the user.
pub fn refusal(plan: &Plan, other: &Plan) -> String {
    let link = Use::of(plan).map(|its| its.link).unwrap_or_default();
    format!(
        "request {:?} of ResourceClaim {}: link {link} is in another use by pod {} (device {:?} of ResourceClaim {}), which \
         excludes device {:?}: the pod starts when that one is gone; delete it to have it scheduled anew",
        plan.device.request, plan.claim, other.pod, other.device.device, other.claim, plan.device.device
    )
}

/// What an attachment makes of a link.
struct Use<'a> {
    link: &'a str,
    /// Where the link is a virtual function: its physical one.
    physical_function: Option<&'a str>,
    link_use: Option<LinkUse>,
}

impl<'a> Use<'a> {
    /// `None` for what is on no link.
    fn of(plan: &'a Plan) -> Option<Self> {
        let attribute = |name: &str| {
            let text = plan.attributes.get(name)?.get("string")?.as_str()?;
            Some(text).filter(|text| !text.is_empty())
        };
        let plugins = plan.conflist.get("plugins").and_then(Value::as_array).into_iter().flatten();
        // A whole NIC is its pod's, whatever the class's plugins make of it.
        let is_nic = attribute(attributes::MODE) == Some(LinkUse::Nic.as_str());
        Some(Self {
            link: attribute(attributes::UPLINK)?,
            physical_function: attribute(attributes::PHYSICAL_FUNCTION),
            link_use: if is_nic {
                Some(LinkUse::Nic)
            } else {
                link_use_of(plugins.filter_map(Value::as_object))
            },
        })
    }

    fn excludes(&self, other: &Self) -> bool {
        let is_above = |one: &Self, other: &Self| {
            other.link_use == Some(LinkUse::Nic) && one.physical_function == Some(other.link)
        };
        (self.link == other.link && exclude(self.link_use, other.link_use))
            || is_above(self, other)
            || is_above(other, self)
    }
}

#[cfg(test)]
mod tests {
    use netclaim_driver::attach::record::Phase;
    use serde_json::json;

    use super::*;
    use crate::fixtures::record;

    fn plan(link: &str, mode: &str) -> Plan {
        let mut plan = record(mode, Phase::Planned).plan;
        plan.attributes = json!({"uplink": {"string": link}, "mode": {"string": mode}})
            .as_object()
            .cloned()
            .unwrap_or_default();
        let plugin = if mode == "nic" { "host-device" } else { mode };
        plan.conflist.insert("plugins".into(), json!([{"type": plugin}, {"type": "tuning"}]));
        plan
    }

    #[test]
    fn one_link_is_used_in_one_way_and_a_nic_once() {
        let shared = [("macvlan", "macvlan"), ("ipvlan", "ipvlan"), ("vlan", "macvlan"), ("vlan", "vlan")];
        let exclusive = [
            ("macvlan", "ipvlan"),
            ("nic", "macvlan"),
            ("ipvlan", "host-device"),
            ("nic", "nic"),
            ("vlan", "nic"),
            ("nic", "bridge"),
        ];
        for (one, other) in shared {
            assert_eq!(
                obstacle(&plan("eth1", one), [&plan("eth1", other)].into_iter()),
                None,
                "{one}, {other}"
            );
        }
        for (one, other) in exclusive {
            let (one, other) = (plan("eth1", one), plan("eth1", other));
            assert_eq!(obstacle(&one, [&other].into_iter()), Some(&other));
            assert_eq!(
                obstacle(&one, [&Plan { attributes: plan("eth2", "x").attributes, ..other }].into_iter()),
                None
            );
        }
    }

    #[test]
    fn a_card_that_is_given_away_whole_excludes_its_virtual_functions() {
        let card = plan("eth1", "nic");
        let mut function = plan("eth7", "nic");
        function.attributes.insert("physicalFunction".into(), json!({"string": "eth1"}));
        assert!(obstacle(&card, [&function].into_iter()).is_some());
        assert!(obstacle(&function, [&card].into_iter()).is_some());
        assert!(obstacle(&function, [&plan("eth1", "macvlan")].into_iter()).is_none());
    }

    #[test]
    fn a_refusal_names_link_pod_and_the_way_out() {
        let text = refusal(&plan("eth1", "nic"), &plan("eth1", "macvlan"));
        for words in ["link eth1", "pod default/p", "ResourceClaim default/macvlan", "delete it"] {
            assert!(text.contains(words), "{text}");
        }
    }
}
