//! What the controller thinks of a Network: whether it is accepted, and the status that says so. Pure.
//!
//! A Network is read as JSON first, so that one that this version cannot decode gets its verdict like all others
//! instead of stopping the watch.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DynamicObject, ResourceExt as _};
use netclaim_api::network::{NetworkSpec, NetworkStatus, Scope};
use netclaim_api::{Invalid, NetworkName, Quantity, shorten};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::nodes::OnNodes;

/// Type of the condition that says whether pods can claim something, and its reason where nothing is to be said.
pub(crate) const ACCEPTED: &str = "Accepted";

/// Type of the condition that says where a Network can be used now.
const AVAILABLE: &str = "Available";

/// How many nodes a message names.
const NAMED: usize = 5;

/// Reason of the condition where the Network can be used, and something in it may not be meant.
pub(crate) const ACCEPTED_WITH_WARNINGS: &str = "AcceptedWithWarnings";

/// Reason of the condition where the Network cannot be used.
pub(crate) const INVALID: &str = "Invalid";

/// The longest message that a condition may have, in bytes (`metav1.Condition`).
const MAX_MESSAGE: usize = 32768;

/// What was thought of one Network.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Name and spec, or everything that is wrong with them.
    pub(crate) accepted: Result<(NetworkName, NetworkSpec), Vec<Invalid>>,
    /// What may not be meant, where it is accepted.
    pub(crate) warnings: Vec<Invalid>,
    generation: Option<i64>,
    before: NetworkStatus,
}

impl Verdict {
    /// Judges a Network as the API server has it.
    pub(crate) fn of(network: &DynamicObject) -> Self {
        let spec = network.data.get("spec").unwrap_or(&Value::Null);
        let status = network.data.get("status").unwrap_or(&Value::Null);
        let name = network.name_any();
        let accepted = judge(&name, spec);
        Self {
            warnings: accepted.as_ref().map(|(_, spec)| spec.warnings(&name)).unwrap_or_default(),
            accepted,
            generation: network.metadata.generation,
            // One that cannot be decoded is not ours, and is overwritten.
            before: serde_json::from_value(status.clone()).unwrap_or_default(),
        }
    }

    fn condition(&self) -> Option<&Condition> {
        self.before.conditions.iter().find(|condition| condition.type_ == ACCEPTED)
    }

    /// Whether the status tells more than on which nodes the Network is.
    pub(crate) fn is_more_than_nodes(&self, status: &NetworkStatus) -> bool {
        let accepted = status.conditions.iter().find(|condition| condition.type_ == ACCEPTED);
        self.condition() != accepted || self.before.observed_generation != status.observed_generation
    }

    /// Whether `condition` tells people something that the Network's status did not tell yet.
    pub(crate) fn is_news(&self, condition: &Condition) -> bool {
        let told = |c: &Condition| (c.status.clone(), c.message.clone());
        self.condition().map(told) != Some(told(condition))
    }

    /// The status that the Network should have; `None` if it has it. `nodes` are those that publish it.
    pub(crate) fn status(&self, nodes: &OnNodes, now: Time) -> Option<NetworkStatus> {
        let (status, reason, message) = match &self.accepted {
            Ok(_) if self.warnings.is_empty() => ("True", ACCEPTED, "pods can claim the network".to_owned()),
            Ok(_) => {
                let warnings = Invalid::list(&self.warnings);
                (
                    "True",
                    ACCEPTED_WITH_WARNINGS,
                    format!("pods can claim the network, but look at {warnings}"),
                )
            }
            Err(problems) => ("False", INVALID, Invalid::list(problems)),
        };
        let mut conditions = vec![self.changed(ACCEPTED, (status, reason, message), &now)];
        // A device of the cluster is on no node, which says nothing about where it can be used.
        let of_cluster = matches!(&self.accepted, Ok((_, spec)) if spec.scope == Scope::Cluster);
        if let Ok((_, spec)) = &self.accepted
            && !of_cluster
        {
            conditions.push(self.changed(AVAILABLE, availability(spec, nodes), &now));
        }
        let nodes = (!of_cluster).then_some(nodes.count());
        let known = |condition: &Condition| self.before.conditions.contains(condition);
        // One of ours that does not apply any more goes with the next write.
        let ours = |condition: &&Condition| [ACCEPTED, AVAILABLE].contains(&condition.type_.as_str());
        let same = conditions.iter().all(known)
            && self.before.conditions.iter().filter(ours).count() == conditions.len()
            && self.before.observed_generation == self.generation
            && self.before.nodes == nodes;
        (!same).then_some(NetworkStatus { observed_generation: self.generation, nodes, conditions })
    }

    fn changed(&self, type_: &str, verdict: (&str, &str, String), now: &Time) -> Condition {
        let before = self.before.conditions.iter().find(|condition| condition.type_ == type_);
        condition(type_, before, self.generation, verdict, now.clone())
    }
}

/// Where an accepted Network can be used now: status, reason and message.
fn availability(spec: &NetworkSpec, nodes: &OnNodes) -> (&'static str, &'static str, String) {
    let all = nodes.bandwidth.len() + nodes.missing.len();
    let troubled: BTreeSet<&str> = nodes.troubled.values().flatten().map(String::as_str).collect();
    let why = nodes.troubled.iter().map(|(taint, nodes)| format!("{taint} on {}", named(nodes.iter())));
    let missing = (!nodes.missing.is_empty()).then(|| {
        format!("not on {} (no uplink for it, or see the node's events)", named(nodes.missing.iter()))
    });
    let why = why.chain(missing).collect::<Vec<_>>().join(", ");
    let (status, reason, mut message) = match (all, troubled.len() + nodes.missing.len()) {
        _ if nodes.bandwidth.is_empty() => {
            ("False", "NoNode", "none of the nodes that it selects has its uplink".to_owned())
        }
        (_, 0) => ("True", "Everywhere", format!("on {all} nodes")),
        (_, some) if some < all => {
            ("True", "NotEverywhere", format!("on {} of {all} nodes: {why}", all - some))
        }
        _ => ("False", "Nowhere", format!("on none of {all} nodes: {why}")),
    };
    let less =
        |bandwidth: &Option<Quantity>| spec.capacity.bandwidth.is_some_and(|asked| *bandwidth < Some(asked));
    let reduced: Vec<&String> =
        nodes.bandwidth.iter().filter(|(_, bandwidth)| less(bandwidth)).map(|(node, _)| node).collect();
    if !reduced.is_empty() {
        let nodes = named(reduced.into_iter());
        message += &format!("; the uplink has less bandwidth left than spec.capacity.bandwidth on {nodes}");
    }
    (status, reason, message)
}

/// The first of these nodes, and how many there are besides.
fn named<'a>(nodes: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = nodes.len().saturating_sub(NAMED);
    let first = nodes.take(NAMED).cloned().collect::<Vec<_>>().join(" ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

/// A condition with status, reason and message. It changed now, unless its status was the same `before`.
pub(crate) fn condition(
    type_: &str,
    before: Option<&Condition>,
    generation: Option<i64>,
    (status, reason, message): (&str, &str, String),
    now: Time,
) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: shorten(message, MAX_MESSAGE),
        observed_generation: generation,
        last_transition_time: before
            .filter(|condition| condition.status == status)
            .map_or(now, |condition| condition.last_transition_time.clone()),
    }
}

/// A spec, or where and why it cannot be decoded.
pub(crate) fn decode<S: DeserializeOwned>(spec: &Value) -> Result<S, Vec<Invalid>> {
    serde_path_to_error::deserialize(spec).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "" } else { &path };
        vec![Invalid::new(path, error.inner().to_string()).within("spec")]
    })
}

fn judge(name: &str, spec: &Value) -> Result<(NetworkName, NetworkSpec), Vec<Invalid>> {
    let spec: NetworkSpec = decode(spec)?;
    let problems = spec.problems(name);
    match name.parse() {
        Ok(name) if problems.is_empty() => Ok((name, spec)),
        _ => Err(problems),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn network(change: impl FnOnce(&mut Value)) -> Verdict {
        let mut network = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "Network", "metadata": {"name": "storage", "generation": 3},
            "spec": {"uplink": {"interfaces": ["eth1"]}, "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.ifName}"}]}},
        });
        change(&mut network);
        Verdict::of(&serde_json::from_value(network).unwrap())
    }

    /// So many nodes, with 10G each.
    fn on(count: usize) -> OnNodes {
        let bandwidth = (1..=count).map(|n| (format!("n{n}"), Some("10G".parse().unwrap())));
        OnNodes { bandwidth: bandwidth.collect(), ..OnNodes::default() }
    }

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn accepted(status: &NetworkStatus) -> (&str, &str, &str) {
        let accepted = status.conditions.iter().find(|condition| condition.type_ == ACCEPTED);
        let Some(Condition { status, reason, message, .. }) = accepted else { panic!("{status:?}") };
        (status, reason, message)
    }

    #[test]
    fn a_good_network_is_accepted() {
        let status = network(|_| {}).status(&on(2), at(0)).unwrap();
        assert_eq!(accepted(&status), ("True", "Accepted", "pods can claim the network"));
        assert_eq!((status.nodes, status.observed_generation), (Some(2), Some(3)));
        assert_eq!(status.conditions[0].observed_generation, Some(3));
    }

    #[test]
    fn every_problem_is_in_the_message() {
        let verdict = network(|network| {
            network["metadata"]["name"] = json!("a.b");
            network["spec"]["capacity"] = json!({"interfaces": 0});
        });
        let status = verdict.status(&on(0), at(0)).unwrap();
        let (status, reason, message) = accepted(&status);
        assert_eq!((status, reason), ("False", "Invalid"));
        assert!(message.contains("metadata.name: \"a.b\" cannot name a Network"), "{message}");
        assert!(message.contains("; spec.capacity.interfaces: is 0"), "{message}");
    }

    #[test]
    fn three_faults_in_the_conflist_are_all_in_the_message_with_what_to_do() {
        let verdict = network(|network| {
            network["spec"]["cni"]["plugins"] = json!([
                {"type": "macvlan", "master": "${uplink.ifName}", "mode": "bridged",
                 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24", "rangeStart": "10.21.0.5"}]]}},
                {"type": "tuning", "mtu": "1400"},
            ]);
        });
        let status = verdict.status(&on(0), at(0)).unwrap();
        assert_eq!(
            accepted(&status),
            (
                "False",
                "Invalid",
                "spec.cni.plugins[0].ipam.ranges[0][0].rangeStart: 10.21.0.5 is not in 10.20.0.0/24; write an address from \
                 10.20.0.0 to 10.20.0.255; \
                 spec.cni.plugins[0].mode: \"bridged\" is not known to the plugin; write one of `bridge`, `private`, `vepa`, \
                 `passthru`; \
                 spec.cni.plugins[1].mtu: must be a whole number, not a string; write it without quotes"
            )
        );
    }

    #[test]
    fn what_may_not_be_meant_is_told_and_accepted() {
        let verdict = network(|network| {
            network["spec"]["cni"]["plugins"][0]["mdoe"] = json!("vepa");
            network["spec"]["allow"] = json!({"mac": true});
        });
        assert!(verdict.accepted.is_ok());
        let status = verdict.status(&on(0), at(0)).unwrap();
        let (status, reason, message) = accepted(&status);
        assert_eq!((status, reason), ("True", "AcceptedWithWarnings"));
        let told = "pods can claim the network, but look at spec.cni.plugins[0].mdoe: plugin `macvlan` has no key `mdoe`: it \
                    has no effect; write `mode` if that is meant, else remove it; spec.allow.mac: no plugin takes it";
        assert!(message.starts_with(told), "{message}");
    }

    #[test]
    fn a_network_that_does_not_decode_is_told_which_field() {
        for (spec, expected) in [
            (
                json!({"cni": {}, "uplink": {"interfaces": ["eth1", 7]}}),
                "spec.uplink.interfaces[1]: invalid type: integer",
            ),
            (json!({"cni": {}, "uplnk": {}}), "spec.uplnk: unknown field `uplnk`"),
            (Value::Null, "spec: invalid type: null"),
        ] {
            let status = network(|network| network["spec"] = spec).status(&on(0), at(0)).unwrap();
            let (status, reason, message) = accepted(&status);
            assert_eq!((status, reason), ("False", "Invalid"));
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_status_that_is_right_is_not_written_again() {
        let written = network(|_| {}).status(&on(2), at(0)).unwrap();
        let again = |status: Value| network(|network| network["status"] = status);
        let as_written = serde_json::to_value(&written).unwrap();
        assert_eq!(again(as_written.clone()).status(&on(2), at(60)), None);
        assert_eq!(again(as_written).status(&on(3), at(60)).unwrap().nodes, Some(3));
        assert_eq!(again(json!({"nodes": "many"})).status(&on(2), at(0)), Some(written));
    }

    #[test]
    fn conditions_of_others_do_not_matter() {
        let written = network(|_| {}).status(&on(2), at(0)).unwrap();
        let mut status = serde_json::to_value(&written).unwrap();
        let other = json!({"type": "Other", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        status["conditions"].as_array_mut().unwrap().insert(0, other);
        assert_eq!(network(|network| network["status"] = status).status(&on(2), at(60)), None);
    }

    #[test]
    fn the_time_of_transition_changes_with_the_status_only() {
        let written = serde_json::to_value(network(|_| {}).status(&on(2), at(0)).unwrap()).unwrap();
        let newer = network(|network| {
            network["status"] = written.clone();
            network["metadata"]["generation"] = json!(4);
        });
        assert_eq!(newer.status(&on(2), at(60)).unwrap().conditions[0].last_transition_time, at(0));
        let invalid = network(|network| {
            network["status"] = written;
            network["spec"]["cni"] = json!({});
        });
        assert_eq!(invalid.status(&on(2), at(60)).unwrap().conditions[0].last_transition_time, at(60));
    }

    #[test]
    fn a_network_of_the_cluster_counts_no_nodes() {
        let status =
            network(|network| network["spec"]["scope"] = json!("Cluster")).status(&on(0), at(0)).unwrap();
        assert_eq!(status.nodes, None);
    }

    #[test]
    fn where_it_can_be_used_is_told_with_the_nodes_where_it_cannot() {
        let available = |nodes: &OnNodes, bandwidth: &str| {
            let verdict = network(|network| network["spec"]["capacity"] = json!({"bandwidth": bandwidth}));
            let condition = verdict.status(nodes, at(0)).unwrap().conditions.remove(1);
            assert_eq!(condition.type_, AVAILABLE);
            (condition.status, condition.reason, condition.message)
        };
        let told = |status: &str, reason: &str, message: &str| (status.into(), reason.into(), message.into());
        let mut nodes = on(7);
        assert_eq!(available(&nodes, "10G"), told("True", "Everywhere", "on 7 nodes"));
        let down = |count| (1..=count).map(|n| format!("n{n}")).collect();
        nodes.troubled.insert("netclaim.dev/link-down".into(), down(1));
        let message = "on 6 of 7 nodes: netclaim.dev/link-down on n1";
        assert_eq!(available(&nodes, "10G"), told("True", "NotEverywhere", message));
        nodes.troubled.insert("netclaim.dev/link-down".into(), down(7));
        let message = "on none of 7 nodes: netclaim.dev/link-down on n1 n2 n3 n4 n5 and 2 more";
        assert_eq!(available(&nodes, "10G"), told("False", "Nowhere", message));
        assert_eq!(available(&on(0), "10G").1, "NoNode");
        let some = OnNodes { missing: BTreeSet::from(["n8".into()]), ..on(2) };
        let message = "on 2 of 3 nodes: not on n8 (no uplink for it, or see the node's events)";
        assert_eq!(available(&some, "10G"), told("True", "NotEverywhere", message));
        let message = "on 1 nodes; the uplink has less bandwidth left than spec.capacity.bandwidth on n1";
        assert_eq!(available(&on(1), "20G"), told("True", "Everywhere", message));
    }
}
