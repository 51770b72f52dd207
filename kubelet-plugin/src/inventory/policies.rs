//! Which version of each UplinkPolicy is in force: the last valid one. Pure.
//!
//! A policy that becomes invalid must not publish links that it withheld. Its last valid version stays in
//! force. Where this agent has seen none, for example after a restart, the policy withholds what it selects
//! ([`UplinkPolicySpec::instead_of`]). The controller reports it in the policy's status and by an event.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use kube::runtime::watcher::Event;
use netclaim_api::Invalid;
use netclaim_api::node_selector::selects_node;
use netclaim_api::uplink_policy::UplinkPolicySpec;
use serde_json::Value;

use super::objects::Objects;

/// The version of one policy that is in force.
#[derive(Debug, Clone, PartialEq)]
struct InForce {
    uid: Option<String>,
    spec: Arc<UplinkPolicySpec>,
    /// `false` where it replaces an invalid one.
    is_valid: bool,
    /// The version that was read, valid or not.
    generation: Option<i64>,
}

/// The policies by name.
#[derive(Debug, Default)]
pub(super) struct Policies(Objects<InForce>);

impl Policies {
    /// Takes an event of the watch. Returns whether other versions are in force now.
    pub(super) fn update(&mut self, event: Event<DynamicObject>) -> bool {
        self.0.update(event, |policy, before| in_force(&policy, before))
    }

    /// Returns the policies for a node with these labels, by name; `None` before all are known.
    pub(super) fn of_node(
        &self,
        labels: &BTreeMap<String, String>,
    ) -> Option<BTreeMap<String, Arc<UplinkPolicySpec>>> {
        let specs = self.0.known()?.iter().map(|(name, policy)| (name.clone(), Arc::clone(&policy.spec)));
        Some(specs.filter(|(_, spec)| selects_node(spec.node_selector.as_ref(), labels)).collect())
    }
}

/// Returns the version of a policy that is in force after `before`.
fn in_force(policy: &DynamicObject, before: Option<&InForce>) -> Option<InForce> {
    let (name, uid, generation) = (policy.name_any(), policy.uid(), policy.metadata.generation);
    let is_same = |before: &&InForce| before.uid == uid && before.generation == generation;
    if let Some(before) = before.filter(is_same).filter(|_| generation.is_some()) {
        return Some(before.clone());
    }
    let spec = policy.data.get("spec").unwrap_or(&Value::Null);
    let problems = match UplinkPolicySpec::read(spec) {
        Ok(stored) => {
            if !stored.unknown.is_empty() {
                tracing::warn!(policy = name, fields = ?stored.unknown, "a policy of a newer version has unknown fields, ignoring them");
            }
            return Some(InForce { uid, spec: stored.value.into(), is_valid: true, generation });
        }
        Err(problems) => Invalid::list(&problems),
    };
    if let Some(before) = before.filter(|before| before.is_valid && before.uid == uid) {
        tracing::warn!(policy = name, problems, "a policy is invalid, its last valid version stays in force");
        return Some(InForce { generation, ..before.clone() });
    }
    let instead = UplinkPolicySpec::instead_of(spec);
    tracing::warn!(policy = name, problems, never = ?instead.as_ref().map(|spec| &spec.links), "a policy is invalid, withholding what it selects");
    Some(InForce { uid, spec: instead?.into(), is_valid: false, generation })
}

#[cfg(test)]
mod tests {
    use netclaim_api::uplink_policy::Publish;
    use serde_json::json;

    use super::*;

    fn policy(uid: &str, spec: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicy", "metadata": {"name": "p", "uid": uid}, "spec": spec,
        }))
        .expect("an object")
    }

    fn never() -> Value {
        json!({"links": {"names": ["eth3"]}, "publish": "Never"})
    }

    /// Makes it invalid only by an attribute that is reserved for the driver.
    fn invalid(mut spec: Value) -> Value {
        spec["attributes"] = json!({"mtu": {"int": 1500}});
        spec
    }

    /// The policies in force after these events, one after another.
    fn in_force_after(seen: &[(&str, Value)]) -> Vec<UplinkPolicySpec> {
        let mut policies = Policies::default();
        policies.update(Event::Init);
        assert_eq!(policies.of_node(&BTreeMap::new()), None);
        policies.update(Event::InitDone);
        for (uid, spec) in seen {
            policies.update(Event::Apply(policy(uid, spec.clone())));
        }
        policies.of_node(&BTreeMap::new()).expect("known").into_values().map(Arc::unwrap_or_clone).collect()
    }

    #[test]
    fn the_last_valid_version_stays_in_force() {
        let good: UplinkPolicySpec = serde_json::from_value(never()).expect("a policy");
        let faulty = invalid(json!({"links": {"names": ["eth9"]}}));
        let after = in_force_after(&[("1", never()), ("1", faulty.clone()), ("1", json!({"links": 7}))]);
        assert_eq!(after, [good]);
        // A new object of that name has no valid version, and withholds nothing.
        assert_eq!(in_force_after(&[("1", never()), ("2", faulty)]), []);
    }

    #[test]
    fn a_new_list_keeps_the_last_valid_version() {
        let mut policies = Policies::default();
        policies.update(Event::Apply(policy("1", json!({"links": {}, "modes": ["macvlan"]}))));
        for event in [
            Event::Init,
            Event::InitApply(policy("1", json!({"links": {}, "modes": ["vdpa"]}))),
            Event::InitDone,
        ] {
            policies.update(event);
        }
        let known = policies.of_node(&BTreeMap::new()).expect("known");
        assert_eq!(
            known.values().map(|policy| (policy.publish, policy.modes.len())).collect::<Vec<_>>(),
            [(Publish::Auto, 1)]
        );
        policies.update(Event::Delete(policy("1", Value::Null)));
        assert_eq!(policies.of_node(&BTreeMap::new()), Some(BTreeMap::new()));
    }

    #[test]
    fn a_policy_without_a_valid_version_withholds_what_it_selects_until_it_has_one() {
        let withheld = in_force_after(&[("1", invalid(never()))]);
        let meant: UplinkPolicySpec = serde_json::from_value(never()).expect("a policy");
        assert_eq!(withheld, [meant]);
        let unreadable = in_force_after(&[("1", json!({"links": {"names": 7}, "publish": "Never"}))]);
        assert_eq!((unreadable[0].publish, &unreadable[0].links), (Publish::Never, &Default::default()));
        // Its replacement is not valid version.
        let then = in_force_after(&[("1", invalid(never())), ("1", invalid(json!({"links": {}})))]);
        assert_eq!(then, []);
        let mended = json!({"links": {"names": ["eth3"]}, "modes": ["macvlan"]});
        let good: UplinkPolicySpec = serde_json::from_value(mended.clone()).expect("a policy");
        assert_eq!(in_force_after(&[("1", invalid(never())), ("1", mended)]), [good]);
    }

    /// How many policies nodes of two racks follow, if there is one with this selector and this `publish`.
    fn followed(selector: Value, publish: &str) -> [Option<usize>; 2] {
        let spec = json!({"links": {"names": ["eth3"]}, "nodeSelector": selector, "publish": publish});
        let mut policies = Policies::default();
        policies.update(Event::Apply(policy("1", spec)));
        ["a", "b"].map(|rack| {
            policies.of_node(&[("rack".to_owned(), rack.to_owned())].into()).map(|known| known.len())
        })
    }

    #[test]
    fn a_policy_applies_to_the_nodes_that_it_selects() {
        let expression = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "rack", "operator": operator, "values": values}]});
        for (selector, expected) in [
            (Value::Null, [Some(1), Some(1)]),
            (json!({"matchLabels": {"rack": "a"}}), [Some(1), Some(0)]),
            (expression("In", &["b", "c"]), [Some(0), Some(1)]),
            (expression("NotIn", &["b"]), [Some(1), Some(0)]),
            (expression("Exists", &[]), [Some(1), Some(1)]),
            (expression("DoesNotExist", &[]), [Some(0), Some(0)]),
        ] {
            assert_eq!(followed(selector.clone(), "Auto"), expected, "{selector}");
        }
    }

    #[test]
    fn a_selector_that_cannot_be_read_publishes_nothing_and_withholds_everywhere() {
        assert_eq!(followed(json!({"rack": "a"}), "Always"), [Some(0), Some(0)]);
        assert_eq!(followed(json!({"rack": "a"}), "Never"), [Some(1), Some(1)]);
    }
}
