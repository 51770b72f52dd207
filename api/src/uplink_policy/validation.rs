//! Validation of policies, and what nodes do instead of following an invalid one.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::admission::{ALWAYS_EVERY_LINK, NEVER_SHARED, SHARED_WHOLE};
use super::{MAX_MODES, NodeLinks, Publish, UplinkPolicySpec};
use crate::decode::decode;
use crate::node_selector::{self, NodeSelector};
use crate::stored::{Stored, read_stored};
use crate::{Invalid, LinkUse, Quantity, attribute};

impl UplinkPolicySpec {
    /// Reads the spec of a stored policy and leaves out fields that this version does not know. An unknown
    /// field of `links` or `nodeSelector` is an error: without it, the policy would select too many links or
    /// nodes.
    ///
    /// # Errors
    /// Every problem of the spec.
    pub fn read(spec: &Value) -> Result<Stored<Self>, Vec<Invalid>> {
        let stored = read_stored::<Self>(spec).map_err(|problem| vec![problem.within("spec")])?;
        let selects = |path: &&String| path.starts_with("links.") || path.starts_with("nodeSelector.");
        let unknown = stored.unknown.iter().filter(selects);
        let mut problems: Vec<Invalid> =
            unknown.map(|path| Invalid::new(format!("spec.{path}"), "unknown field")).collect();
        problems.extend(stored.value.problems());
        if problems.is_empty() { Ok(stored) } else { Err(problems) }
    }

    /// Reads the spec of a policy that a user is about to write.
    ///
    /// # Errors
    /// Everything that is wrong with it, unknown fields too.
    pub fn read_strictly(spec: &Value) -> Result<Self, Vec<Invalid>> {
        let spec: Self = decode(spec)
            .map_err(|errors| errors.into_iter().map(|error| error.within("spec")).collect::<Vec<_>>())?;
        let problems = spec.problems();
        if problems.is_empty() { Ok(spec) } else { Err(problems) }
    }

    /// Returns every likely mistake in a policy without problems.
    pub fn warnings(&self) -> Vec<Invalid> {
        let is_never = self.publish == Publish::Never;
        let every_link = (is_never && self.links.is_empty()).then(|| {
            let problem = "selects every link: none of the nodes that the policy selects publishes any";
            Invalid::new("spec.links", problem)
        });
        let without_effect = [
            ("spec.modes", !self.modes.is_empty()),
            ("spec.attributes", !self.attributes.is_empty()),
            ("spec.capacity.bandwidth", self.capacity.bandwidth.is_some()),
        ];
        let without_effect = without_effect.into_iter().filter(|(_, written)| is_never && *written);
        let problem = "has no effect, because publish: Never makes no device of the links: remove it";
        every_link.into_iter().chain(without_effect.map(|(field, _)| Invalid::new(field, problem))).collect()
    }

    /// Returns the policy that nodes follow instead of an invalid one. A policy that restricts what is
    /// published becomes `publish: Never` for the links that it selects, or for all links if its selectors
    /// cannot be read. `None` if it restricts nothing.
    pub fn instead_of(spec: &Value) -> Option<Self> {
        fn readable<T: DeserializeOwned>(spec: &Value, field: &str) -> Option<T> {
            Some(read_stored(spec.get(field)?).ok()?.value)
        }
        let restricts = |field: &str, harmless: &[Value]| {
            spec.get(field).is_some_and(|value| !value.is_null() && !harmless.contains(value))
        };
        let publishes_less = !spec.is_object()
            || restricts("publish", &[json!("Auto"), json!("Always")])
            || restricts("modes", &[json!([])]);
        publishes_less.then(|| Self {
            node_selector: readable(spec, "nodeSelector")
                .filter(|selector: &NodeSelector| selector.problems().is_empty()),
            links: readable(spec, "links").unwrap_or_default(),
            publish: Publish::Never,
            ..Self::default()
        })
    }

    /// Returns every problem of the spec; none means that nodes follow it.
    pub fn problems(&self) -> Vec<Invalid> {
        let mut problems: Vec<Invalid> = node_selector::problems(self.node_selector.as_ref()).collect();
        problems.extend(self.links.problems().into_iter().map(|problem| problem.within("spec.links")));
        problems.extend(Invalid::too_many("spec.modes", self.modes.len(), MAX_MODES));
        if self.publish == Publish::Always && self.links.is_empty() {
            problems.push(Invalid::new("spec.links", ALWAYS_EVERY_LINK));
        }
        if self.publish == Publish::Never && self.node_links == NodeLinks::Share {
            problems.push(Invalid::new("spec.nodeLinks", NEVER_SHARED));
        }
        if self.node_links == NodeLinks::Share && self.modes.as_slice() == [LinkUse::Nic] {
            problems.push(Invalid::new("spec.modes", SHARED_WHOLE));
        }
        if self.capacity.bandwidth == Some(Quantity::new(0)) {
            problems.push(Invalid::new("spec.capacity.bandwidth", "is 0: leave it out, or publish Never"));
        }
        problems
            .extend(attribute::problems(&self.attributes).into_iter().map(|p| p.within("spec.attributes")));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(value: Value) -> UplinkPolicySpec {
        serde_json::from_value(value).expect("a policy")
    }

    #[test]
    fn a_policy_of_a_newer_version_is_read_without_what_is_new_unless_that_chooses_links() {
        let read = UplinkPolicySpec::read(&json!({"links": {"names": ["eth1"]}, "drainFirst": true}));
        assert_eq!(read.expect("readable").unknown, ["drainFirst"]);
        let read = UplinkPolicySpec::read(&json!({"links": {"names": ["eth*"], "switches": ["a"]}}));
        assert_eq!(
            read.expect_err("it would select more")[0].to_string(),
            "spec.links.switches: unknown field"
        );
    }

    #[test]
    fn a_stored_policy_selects_no_more_nodes_than_it_says() {
        let refused = |selector: Value| {
            let read =
                UplinkPolicySpec::read(&json!({"links": {"names": ["eth1"]}, "nodeSelector": selector}));
            read.expect_err("it would select more").iter().map(Invalid::to_string).collect::<Vec<_>>()
        };
        assert_eq!(refused(json!({"rack": "a"}))[0], "spec.nodeSelector.rack: unknown field");
        assert_eq!(
            refused(json!({"matchExpressions": [{"key": "a", "operator": "Exists", "fold": true}]})),
            ["spec.nodeSelector.matchExpressions[0].fold: unknown field"]
        );
        assert_eq!(
            refused(json!({"matchLabels": {"a": "b"}, "matchFields": [{"key": "metadata.name"}]})),
            ["spec.nodeSelector.matchFields: unknown field"]
        );
        assert_eq!(
            refused(json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]})).len(),
            1
        );
    }

    #[test]
    fn a_policy_that_cannot_be_followed_publishes_no_more_than_it_meant() {
        let instead = |spec: Value| {
            assert!(UplinkPolicySpec::read(&spec).is_err(), "{spec}");
            UplinkPolicySpec::instead_of(&spec)
        };
        let never = |rest: Value| {
            let mut spec = policy(rest);
            spec.publish = Publish::Never;
            Some(spec)
        };
        let bad = json!({"mtu": {"int": 1}});
        let (eth3, rack_a) = (json!({"names": ["eth3"]}), json!({"matchLabels": {"rack": "a"}}));
        for (field, value) in
            [("publish", json!("Never")), ("publish", json!("Perhaps")), ("modes", json!(["vdpa"]))]
        {
            let mut spec = json!({"links": eth3, "nodeSelector": rack_a, "attributes": bad});
            spec[field] = value;
            assert_eq!(instead(spec), never(json!({"links": eth3, "nodeSelector": rack_a})));
        }
        let misspelt = json!({"links": eth3, "nodeSelector": {"rack": "a"}, "publish": "Never"});
        assert_eq!(instead(misspelt), never(json!({"links": eth3})));
        // Where it cannot be read what it selects, it selects everything.
        for unread in [json!({"matchLabels": {"a b": "c"}}), json!({"a b": "c"}), json!({}), json!(["rack"])]
        {
            let unread = json!({"links": {"names": [7]}, "nodeSelector": unread, "publish": "Never"});
            assert_eq!(instead(unread), never(json!({"links": {}})));
        }
        assert_eq!(instead(Value::Null), never(json!({"links": {}})));
        // It gives more than there is without it, or says something only.
        for spec in [json!({"links": {}, "publish": "Always"}), json!({"links": eth3, "attributes": bad})] {
            assert_eq!(instead(spec), None);
        }
    }

    #[test]
    fn a_policy_that_cannot_be_meant_is_refused_by_field() {
        let fields = |value| policy(value).problems().into_iter().map(|p| p.field).collect::<Vec<_>>();
        assert_eq!(fields(json!({"links": {}, "publish": "Always"})), ["spec.links"]);
        assert_eq!(
            fields(json!({"links": {}, "nodeSelector": {"matchLabels": {"a b": "c"}}})),
            ["spec.nodeSelector.matchLabels"]
        );
        assert_eq!(fields(json!({"links": {}, "attributes": {"mtu": {"int": 1}}})), ["spec.attributes.mtu"]);
        assert_eq!(fields(json!({"links": {}, "nodeLinks": "Share", "modes": ["nic"]})), ["spec.modes"]);
        assert!(fields(json!({"links": {"names": ["dummy*"]}, "publish": "Always"})).is_empty());
    }
}
