//! Whether attachments may use one link at once. Pure.
//!
//! Counters in the slices have the scheduler see to it. It cannot where the API server does not store them and what is
//! published of a link has changed since a pod got it, nor for Networks of scope `Cluster`, which are in pools of their
//! own. The kernel would refuse some of it, and take a NIC away below the macvlan links of other pods.

use netclaim_api::attributes;
use netclaim_api::network::{LinkUse, link_use_of};
use netclaim_driver::attach::record::Plan;
use serde_json::Value;

/// The first of `others` that excludes `plan`.
pub fn obstacle<'a>(plan: &Plan, mut others: impl Iterator<Item = &'a Plan>) -> Option<&'a Plan> {
    let (link, link_use) = use_of(plan)?;
    others.find(|other| {
        use_of(other).is_some_and(|(on, other)| on == link && (other != link_use || other == LinkUse::Nic))
    })
}

/// Why `plan` has to wait for `other`, for the user.
pub fn refusal(plan: &Plan, other: &Plan) -> String {
    let link = use_of(plan).map(|(link, _)| link).unwrap_or_default();
    format!(
        "request {:?} of ResourceClaim {}: link {link} is in another use by pod {} (device {:?} of ResourceClaim {}), which \
         excludes device {:?}: the pod starts when that one is gone; delete it to have it scheduled anew",
        plan.device.request, plan.claim, other.pod, other.device.device, other.claim, plan.device.device
    )
}

/// The link that is used in a way that excludes others, and the way.
fn use_of(plan: &Plan) -> Option<(&str, LinkUse)> {
    let attribute = |name: &str| plan.attributes.get(name)?.get("string")?.as_str();
    let link = attribute(attributes::UPLINK).filter(|link| !link.is_empty())?;
    // A whole NIC is its pod's, whatever the class's plugins make of it.
    if attribute(attributes::MODE) == Some("nic") {
        return Some((link, LinkUse::Nic));
    }
    let plugins = plan.conflist.get("plugins").and_then(Value::as_array).into_iter().flatten();
    Some((link, link_use_of(plugins.filter_map(Value::as_object))?))
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
        let shared = [("macvlan", "macvlan"), ("ipvlan", "ipvlan"), ("vlan", "nic"), ("nic", "vlan")];
        let exclusive =
            [("macvlan", "ipvlan"), ("nic", "macvlan"), ("ipvlan", "host-device"), ("nic", "nic")];
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
    fn a_refusal_names_link_pod_and_the_way_out() {
        let text = refusal(&plan("eth1", "nic"), &plan("eth1", "macvlan"));
        for words in ["link eth1", "pod default/p", "ResourceClaim default/macvlan", "delete it"] {
            assert!(text.contains(words), "{text}");
        }
    }
}
