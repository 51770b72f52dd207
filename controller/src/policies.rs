//! Whether nodes follow an UplinkPolicy, and the status that says so. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::DynamicObject;
use netclaim_api::Invalid;
use netclaim_api::node_selector::{NodeSelector, selects_node};
use netclaim_api::reasons::AcceptedReason;
use netclaim_api::stored::Stored;
use netclaim_api::uplink_policy::{
    LinkSelector, PolicyNodes, UplinkPolicy, UplinkPolicySpec, UplinkPolicyStatus,
};
use serde_json::Value;

use crate::objects::catalog::Review;
use crate::objects::conditions::{Finding, Status as _, stored_status};
use crate::objects::nodes::Nodes;

/// Whether nodes follow one UplinkPolicy.
#[derive(Debug)]
pub(crate) struct PolicyAcceptance {
    finding: Finding<AcceptedReason>,
    /// The nodes of a policy that is followed: `None` within for all.
    selects: Option<Option<NodeSelector>>,
    generation: Option<i64>,
    /// The status in the API server.
    before: UplinkPolicyStatus,
}

impl Review for PolicyAcceptance {
    type Kind = UplinkPolicy;
    type Status = UplinkPolicyStatus;

    fn of(policy: &DynamicObject) -> Self {
        let spec = policy.data.get("spec").unwrap_or(&Value::Null);
        let (finding, selects) = match UplinkPolicySpec::read(spec) {
            Ok(stored) => (accepted(&stored), Some(stored.value.node_selector)),
            Err(problems) => (Finding::new(AcceptedReason::Invalid, refusal(spec, &problems)), None),
        };
        Self { finding, selects, generation: policy.metadata.generation, before: stored_status(policy) }
    }

    fn before(&mut self) -> &mut UplinkPolicyStatus {
        &mut self.before
    }

    /// Nodes follow a policy that has only warnings.
    fn is_for_people(accepted: &Condition) -> bool {
        accepted.status == "False"
    }
}

impl PolicyAcceptance {
    /// Returns the status that the policy should have, or `None` if it has it. `followers` returns how many
    /// links of a node follow the policy; `None` where its agent publishes nothing.
    pub(crate) fn status(
        &self,
        nodes: &Nodes,
        followers: impl Fn(&str) -> Option<u32>,
        now: &Time,
    ) -> Option<UplinkPolicyStatus> {
        let Self { finding, selects, generation, before } = self;
        let counts = selects.as_ref().map(|selector| {
            let selected = nodes.iter().filter(|(_, facts)| selects_node(selector.as_ref(), &facts.labels));
            let (mut nodes, mut links) = (PolicyNodes::default(), 0);
            for (node, _) in selected {
                let followers = followers(node);
                nodes.selected += 1;
                nodes.following += i64::from(followers.is_some());
                links += i64::from(followers.unwrap_or_default());
            }
            (nodes, links)
        });
        let (nodes, links) = counts.unzip();
        let condition = finding.clone().condition(&before.conditions, *generation, now);
        let same = before.accepted() == Some(&condition)
            && before.observed_generation == *generation
            && (before.nodes, before.links) == (nodes, links);
        let conditions = vec![condition];
        (!same).then_some(UplinkPolicyStatus { observed_generation: *generation, nodes, links, conditions })
    }
}

fn accepted(stored: &Stored<UplinkPolicySpec>) -> Finding<AcceptedReason> {
    let mut message = "nodes that it selects follow it".to_owned();
    let unknown: Vec<String> = stored.unknown.iter().map(|path| format!("spec.{path}")).collect();
    if !unknown.is_empty() {
        message += &format!(", but for what this version of netclaim does not know: {}", unknown.join(", "));
    }
    let warnings = stored.value.warnings();
    if !warnings.is_empty() {
        message += &format!(
            "{} look at {}",
            if unknown.is_empty() { ", but" } else { ";" },
            Invalid::list(&warnings)
        );
    }
    let is_plain = unknown.is_empty() && warnings.is_empty();
    let reason = if is_plain { AcceptedReason::Accepted } else { AcceptedReason::AcceptedWithWarnings };
    Finding::new(reason, message)
}

/// Says what is wrong with a policy, and what nodes do instead of following it.
fn refusal(spec: &Value, problems: &[Invalid]) -> String {
    let instead = match UplinkPolicySpec::instead_of(spec) {
        None => "does without the policy",
        Some(never) if never.links == LinkSelector::default() => "publishes no link at all",
        Some(_) => "publishes none of the links that it selects",
    };
    let problems = Invalid::list(problems);
    format!(
        "{problems}; a node follows the last good version that its agent has seen, and {instead} if there is none"
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::objects::nodes::NodeFacts;

    fn policy(spec: Value, status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicy", "metadata": {"name": "p", "generation": 2},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn status(policy: &DynamicObject, now: &Time) -> Option<UplinkPolicyStatus> {
        PolicyAcceptance::of(policy).status(&Nodes::new(), |_| Some(1), now)
    }

    fn reviewed(spec: Value) -> (String, String) {
        let status = status(&policy(spec, Value::Null), &Time(Timestamp::UNIX_EPOCH)).unwrap();
        let condition = status.conditions.into_iter().next().unwrap();
        (condition.status, condition.message)
    }

    #[test]
    fn a_policy_is_accepted_or_its_status_has_every_problem() {
        assert_eq!(reviewed(json!({"links": {"names": ["eth*"]}})).0, "True");
        let (status, message) =
            reviewed(json!({"links": {}, "publish": "Always", "capacity": {"bandwidth": 0}}));
        assert_eq!(status, "False");
        assert!(
            message.contains("spec.links: ") && message.contains("spec.capacity.bandwidth: "),
            "{message}"
        );
        assert!(message.ends_with("and does without the policy if there is none"), "{message}");
        let (status, message) = reviewed(json!({"links": {"nams": []}}));
        assert_eq!(status, "False");
        assert!(message.contains("spec.links.nams: unknown field"), "{message}");
    }

    #[test]
    fn a_policy_that_is_not_followed_says_what_nodes_do_instead() {
        let (_, message) = reviewed(json!({"links": {"names": ["eth3"]}, "publish": "Never",
            "attributes": {"mtu": {"int": 1500}}}));
        let instead = "a node follows the last good version that its agent has seen, and publishes none of the links that it \
                       selects if there is none";
        assert!(message.contains("spec.attributes.mtu: ") && message.ends_with(instead), "{message}");
        let (_, message) = reviewed(json!({"links": {"names": [7]}, "modes": ["macvlan"]}));
        assert!(message.ends_with("and publishes no link at all if there is none"), "{message}");
    }

    #[test]
    fn a_policy_of_a_newer_version_is_followed_as_far_as_it_is_known() {
        let (status, message) =
            reviewed(json!({"links": {"names": ["eth3"]}, "publish": "Never", "drainFirst": true}));
        assert_eq!(status, "True");
        assert!(message.ends_with("does not know: spec.drainFirst"), "{message}");
    }

    #[test]
    fn a_policy_with_a_probable_mistake_is_followed_with_a_warning() {
        let (status, message) =
            reviewed(json!({"links": {"names": ["eth3"]}, "publish": "Never", "modes": ["nic"]}));
        assert_eq!(status, "True");
        assert!(
            message.starts_with("nodes that it selects follow it, but look at spec.modes: has no effect"),
            "{message}"
        );
    }

    #[test]
    fn a_policy_counts_the_nodes_that_it_selects_those_with_an_agent_and_their_links() {
        let rack = |rack: &str| NodeFacts {
            labels: [("rack".to_owned(), rack.to_owned())].into(),
            ..NodeFacts::default()
        };
        let nodes: Nodes =
            [("n1", "a"), ("n2", "a"), ("n3", "b")].map(|(node, of)| (node.to_owned(), rack(of))).into();
        let counts = |spec: Value| {
            let policy = PolicyAcceptance::of(&policy(spec, Value::Null));
            let followers = |node: &str| (node != "n2").then_some(4);
            let status = policy.status(&nodes, followers, &Time(Timestamp::UNIX_EPOCH)).unwrap();
            status.nodes.zip(status.links)
        };
        let all = json!({"links": {"names": ["eth1"]}});
        assert_eq!(counts(all), Some((PolicyNodes { selected: 3, following: 2 }, 8)));
        let of_rack = json!({"links": {"names": ["eth1"]}, "nodeSelector": {"matchLabels": {"rack": "a"}}});
        assert_eq!(counts(of_rack), Some((PolicyNodes { selected: 2, following: 1 }, 4)));
        assert_eq!(counts(json!({"links": 7})), None);
    }

    #[test]
    fn a_correct_status_is_not_written_again() {
        let spec = json!({"links": {"names": ["eth1"]}});
        let written = status(&policy(spec.clone(), Value::Null), &Time(Timestamp::UNIX_EPOCH)).unwrap();
        let later = Time(Timestamp::from_second(60).unwrap());
        assert_eq!(status(&policy(spec, serde_json::to_value(written).unwrap()), &later), None);
    }
}
