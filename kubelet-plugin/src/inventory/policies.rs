//! Which version of each UplinkPolicy is in force: the last good one. Pure.
//!
//! A policy that becomes one that cannot be followed must not publish what it withheld. Its last good version stays in
//! force; where this agent has seen none, be it that it started since, the policy withholds what it selects
//! ([`UplinkPolicySpec::instead_of`]). The controller says so in its status and by an event.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use kube::runtime::watcher::Event;
use netclaim_api::Invalid;
use netclaim_api::labels::has_all;
use netclaim_api::uplink_policy::UplinkPolicySpec;
use serde_json::Value;

/// What is in force of one policy object.
#[derive(Debug, Clone, PartialEq)]
struct InForce {
    uid: Option<String>,
    spec: UplinkPolicySpec,
    /// Not in place of one that cannot be followed.
    is_good: bool,
}

/// The policies by name.
#[derive(Debug, Default)]
pub struct Policies {
    /// `None` until the first list is complete.
    known: Option<BTreeMap<String, InForce>>,
    /// Of a list that is not complete yet.
    listing: BTreeMap<String, InForce>,
}

impl Policies {
    /// Takes in what the watch has seen.
    pub fn seen(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(policy) => {
                let name = policy.name_any();
                let before = self.known.as_ref().and_then(|known| known.get(&name));
                self.listing.extend(in_force(&policy, before).map(|now| (name, now)));
            }
            Event::InitDone => self.known = Some(std::mem::take(&mut self.listing)),
            Event::Apply(policy) => {
                let (name, known) = (policy.name_any(), self.known.get_or_insert_default());
                match in_force(&policy, known.get(&name)) {
                    Some(now) => known.insert(name, now),
                    None => known.remove(&name),
                };
            }
            Event::Delete(policy) => {
                self.known.get_or_insert_default().remove(&policy.name_any());
            }
        }
    }

    /// Those that are for a node with these labels, by name; `None` before all are known.
    pub fn of_node(&self, labels: &BTreeMap<String, String>) -> Option<Vec<UplinkPolicySpec>> {
        let specs = self.known.as_ref()?.values().map(|policy| &policy.spec);
        Some(specs.filter(|spec| has_all(&spec.node_selector, labels)).cloned().collect())
    }
}

/// What is in force of a policy of which this was `before`.
fn in_force(policy: &DynamicObject, before: Option<&InForce>) -> Option<InForce> {
    let (name, uid) = (policy.name_any(), policy.uid());
    let spec = policy.data.get("spec").unwrap_or(&Value::Null);
    let problems = match UplinkPolicySpec::read(spec) {
        Ok(stored) => {
            if !stored.unknown.is_empty() {
                tracing::warn!(policy = name, fields = ?stored.unknown, "of a newer version, followed without");
            }
            return Some(InForce { uid, spec: stored.value, is_good: true });
        }
        Err(problems) => Invalid::list(&problems),
    };
    if let Some(before) = before.filter(|before| before.is_good && before.uid == uid) {
        tracing::warn!(policy = name, problems, "cannot be followed: its last good version stays in force");
        return Some(before.clone());
    }
    let instead = UplinkPolicySpec::instead_of(spec);
    tracing::warn!(policy = name, problems, never = ?instead.as_ref().map(|spec| &spec.links), "cannot be followed");
    Some(InForce { uid, spec: instead?, is_good: false })
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

    /// One that the issue was seen with: nothing about it but an attribute that the driver keeps to itself.
    fn with_a_fault(mut spec: Value) -> Value {
        spec["attributes"] = json!({"mtu": {"int": 1500}});
        spec
    }

    /// What is in force after these objects were seen one after another.
    fn in_force_after(seen: &[(&str, Value)]) -> Vec<UplinkPolicySpec> {
        let mut policies = Policies::default();
        policies.seen(Event::Init);
        assert_eq!(policies.of_node(&BTreeMap::new()), None);
        policies.seen(Event::InitDone);
        for (uid, spec) in seen {
            policies.seen(Event::Apply(policy(uid, spec.clone())));
        }
        policies.of_node(&BTreeMap::new()).expect("known")
    }

    #[test]
    fn the_last_good_version_stays_in_force() {
        let good: UplinkPolicySpec = serde_json::from_value(never()).expect("a policy");
        let faulty = with_a_fault(json!({"links": {"names": ["eth9"]}}));
        let after = in_force_after(&[("1", never()), ("1", faulty.clone()), ("1", json!({"links": 7}))]);
        assert_eq!(after, [good]);
        // Another object of that name was never good, and withholds nothing.
        assert_eq!(in_force_after(&[("1", never()), ("2", faulty)]), []);
    }

    #[test]
    fn a_new_list_does_not_forget_the_last_good_version() {
        let mut policies = Policies::default();
        policies.seen(Event::Apply(policy("1", json!({"links": {}, "modes": ["macvlan"]}))));
        for event in [
            Event::Init,
            Event::InitApply(policy("1", json!({"links": {}, "modes": ["vdpa"]}))),
            Event::InitDone,
        ] {
            policies.seen(event);
        }
        let known = policies.of_node(&BTreeMap::new()).expect("known");
        assert_eq!(
            known.iter().map(|policy| (policy.publish, policy.modes.len())).collect::<Vec<_>>(),
            [(Publish::Auto, 1)]
        );
        policies.seen(Event::Delete(policy("1", Value::Null)));
        assert_eq!(policies.of_node(&BTreeMap::new()), Some(Vec::new()));
    }

    #[test]
    fn one_that_never_was_good_withholds_what_it_selects_until_it_is_good() {
        let withheld = in_force_after(&[("1", with_a_fault(never()))]);
        let meant: UplinkPolicySpec = serde_json::from_value(never()).expect("a policy");
        assert_eq!(withheld, [meant]);
        let unreadable = in_force_after(&[("1", json!({"links": {"names": 7}, "publish": "Never"}))]);
        assert_eq!((unreadable[0].publish, &unreadable[0].links), (Publish::Never, &Default::default()));
        // What stands in for it is no good version.
        let then = in_force_after(&[("1", with_a_fault(never())), ("1", with_a_fault(json!({"links": {}})))]);
        assert_eq!(then, []);
        let mended = json!({"links": {"names": ["eth3"]}, "modes": ["macvlan"]});
        let good: UplinkPolicySpec = serde_json::from_value(mended.clone()).expect("a policy");
        assert_eq!(in_force_after(&[("1", with_a_fault(never())), ("1", mended)]), [good]);
    }

    #[test]
    fn a_policy_is_for_the_nodes_that_it_selects() {
        let mut policies = Policies::default();
        policies.seen(Event::Apply(policy("1", json!({"links": {}, "nodeSelector": {"rack": "a"}}))));
        let of = |rack: &str| {
            policies.of_node(&[("rack".to_owned(), rack.to_owned())].into()).map(|known| known.len())
        };
        assert_eq!((of("a"), of("b")), (Some(1), Some(0)));
    }
}
