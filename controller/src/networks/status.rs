//! Whether a ClaimNetwork is accepted, where it can be used, and the status that says so. Pure.
//!
//! A ClaimNetwork is read as JSON first. One that this version cannot decode gets a status like all others,
//! instead of stopping the watch.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DynamicObject, ResourceExt as _};
use netclaim_allocation::counted;
use netclaim_api::addresses::AddressTotals;
use netclaim_api::network::{
    ClaimNetwork, ClaimNetworkSpec, ClaimNetworkStatus, MAX_WARNINGS, NodeCounts, Warning,
};
use netclaim_api::reasons::{
    AcceptedReason, AddressesReason, AvailableReason, ClassReason, ConditionReason as _, DefaultReason,
    NETWORK_CONDITIONS, NetworkCondition, PodsReason,
};
use netclaim_api::taints::Reason;
use netclaim_api::{Invalid, NetworkName};
use serde_json::Value;

use crate::addresses::leasing::Supply;
use crate::defaults::{Defaulted, DefaultsAreOff};
use crate::networks::nodes::NetworkNodes;
use crate::objects::catalog::Review;
use crate::objects::conditions::{Finding, find, named, stored_status};

const ADDRESSES_AVAILABLE: &str = AddressesReason::TYPE;

/// A condition names this many namespaces without a template.
const NAMED_NAMESPACES: usize = 5;

/// What others have found of a ClaimNetwork, once it is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found<'a> {
    /// Totals of the pool that it draws from.
    pub(crate) totals: Option<AddressTotals>,
    /// Whether there are some for its nodes.
    pub(crate) supply: Option<&'a Supply>,
    /// Who has it without asking.
    pub(crate) defaulted: Option<Result<&'a Defaulted, DefaultsAreOff>>,
}

/// Whether one ClaimNetwork is accepted.
#[derive(Debug)]
pub(crate) struct Acceptance {
    /// Name and spec, or everything that is wrong with them.
    pub(crate) result: Result<(NetworkName, ClaimNetworkSpec), Vec<Invalid>>,
    /// What an accepted ClaimNetwork may not mean as written, whatever else there is.
    warnings: Vec<Invalid>,
    generation: Option<i64>,
    /// The status in the API server.
    before: ClaimNetworkStatus,
}

impl Review for Acceptance {
    type Kind = ClaimNetwork;
    type Status = ClaimNetworkStatus;

    fn of(network: &DynamicObject) -> Self {
        let spec = network.data.get("spec").unwrap_or(&Value::Null);
        let name = network.name_any();
        let result = ClaimNetworkSpec::read(&name, spec);
        Self {
            warnings: result.as_ref().map(|(_, spec)| spec.warnings(&name)).unwrap_or_default(),
            result,
            generation: network.metadata.generation,
            before: stored_status(network),
        }
    }

    fn before(&mut self) -> &mut ClaimNetworkStatus {
        &mut self.before
    }
}

impl Acceptance {
    /// Returns what the status says of the last look through the ClaimNetwork's own ranges.
    pub(crate) fn surveyed(&self) -> Option<i64> {
        let is_present = self.before.observed_generation == self.generation;
        self.before.addresses.filter(|_| is_present)?.surveyed
    }

    /// Returns the status that the ClaimNetwork should have, or `None` if it has it. `nodes` publish the
    /// ClaimNetwork. What is not found yet stays as it was. `others` are the warnings that follow from other
    /// objects. `class` says whether it has its DeviceClasses, if it wants some.
    pub(crate) fn status(
        &self,
        nodes: &NetworkNodes,
        found: Found<'_>,
        others: Vec<Invalid>,
        class: Option<Finding<ClassReason>>,
        now: &Time,
    ) -> Option<ClaimNetworkStatus> {
        let mut warnings = self.warnings.clone();
        warnings.extend(others);
        let accepted = match &self.result {
            Ok(_) if warnings.is_empty() => {
                Finding::new(AcceptedReason::Accepted, "pods can claim the network")
            }
            Ok(_) => {
                let warnings = Invalid::list(&warnings);
                let message = format!("pods can claim the network, but look at {warnings}");
                Finding::new(AcceptedReason::AcceptedWithWarnings, message)
            }
            Err(problems) => Finding::new(AcceptedReason::Invalid, Invalid::list(problems)),
        };
        let mut conditions = vec![self.condition(accepted, now)];
        if let Ok((_, spec)) = &self.result {
            conditions.push(self.condition(availability(nodes, spec.node_selector.is_some()), now));
        }
        let warnings = warnings.iter().filter(|_| self.result.is_ok()).take(MAX_WARNINGS);
        let warnings: Vec<Warning> = warnings.map(written).collect();
        let draws = self.result.as_ref().ok().and_then(|(_, spec)| spec.addresses.as_ref());
        if draws.is_some() {
            let before = find(&self.before.conditions, ADDRESSES_AVAILABLE).cloned();
            let supply = found
                .supply
                .map(|supply| self.condition(availability_of_addresses(supply, found.totals), now));
            conditions.extend(supply.or(before));
        }
        if self.result.as_ref().is_ok_and(|(_, spec)| spec.default.is_some()) {
            let before = find(&self.before.conditions, DefaultReason::TYPE).cloned();
            let defaulted = found.defaulted.map(|defaulted| self.condition(of_default(defaulted), now));
            conditions.extend(defaulted.or(before));
        }
        let had = find(&self.before.conditions, PodsReason::TYPE).is_some();
        if self.result.is_ok() && (had || !nodes.older().is_empty()) {
            conditions.push(self.condition(of_pods(nodes.older()), now));
        }
        conditions.extend(class.map(|class| self.condition(class, now)));
        let of_own = draws.filter(|draws| draws.pool.is_none());
        let totals = of_own.and_then(|_| found.totals.or(self.before.addresses));
        let nodes = self.result.is_ok().then(|| nodes.counts());
        let known = |condition: &Condition| self.before.conditions.contains(condition);
        // The next write removes a condition of the controller's that does not apply any more.
        let ours = |condition: &&Condition| NETWORK_CONDITIONS.contains(&condition.type_.as_str());
        let same = conditions.iter().all(known)
            && self.before.conditions.iter().filter(ours).count() == conditions.len()
            && self.before.observed_generation == self.generation
            && self.before.nodes == nodes
            && self.before.warnings == warnings
            && self.before.addresses == totals;
        (!same).then_some(ClaimNetworkStatus {
            observed_generation: self.generation,
            nodes,
            addresses: totals,
            warnings,
            conditions,
        })
    }

    fn condition<R: NetworkCondition>(&self, finding: Finding<R>, now: &Time) -> Condition {
        finding.condition(&self.before.conditions, self.generation, now)
    }
}

/// Returns a warning as the status has it.
fn written(warning: &Invalid) -> Warning {
    Warning { field: warning.field.clone(), message: warning.problem.clone() }
}

/// Says where an accepted ClaimNetwork can be used now. Where it `selects` its nodes, each of them should
/// have it; otherwise it is wherever its uplink is.
fn availability(nodes: &NetworkNodes, selects: bool) -> Finding<AvailableReason> {
    let NodeCounts { publishing, available, .. } = nodes.counts();
    let missing = nodes.missing();
    let all = publishing + if selects { i64::try_from(missing.len()).unwrap_or(i64::MAX) } else { 0 };
    let tainted = nodes.tainted().iter().filter(|(taint, _)| Reason::is_problem(taint));
    let why = tainted.map(|(taint, nodes)| format!("{taint} on {}", named(nodes.iter())));
    let missing = (!missing.is_empty())
        .then(|| format!("not on {} (no uplink for it, or see the node's events)", named(missing.iter())));
    let why = why.chain(missing).collect::<Vec<_>>().join(", ");
    let mut finding = match available {
        _ if publishing == 0 => Finding::new(
            AvailableReason::NoNode,
            "none of the nodes that it selects has its uplink; where a link of that name is not offered, an event on the Node says why",
        ),
        0 => Finding::new(AvailableReason::Nowhere, format!("on none of {all} nodes: {why}")),
        some if some == all => {
            let why = if why.is_empty() { why } else { format!(", {why}") };
            Finding::new(AvailableReason::Everywhere, format!("on {all} nodes{why}"))
        }
        some => Finding::new(AvailableReason::NotEverywhere, format!("on {some} of {all} nodes: {why}")),
    };
    if let Some(nodes) = nodes.tainted().get(Reason::LinkInPod.key()) {
        finding.message += &format!("; a pod has the uplink on {}", named(nodes.iter()));
    }
    if !nodes.reduced().is_empty() {
        let nodes = named(nodes.reduced().iter());
        finding.message +=
            &format!("; the uplink has less bandwidth left than spec.capacity.bandwidth on {nodes}");
    }
    finding
}

/// Says how many pods run an older configuration. It does not name them: who may read ClaimNetworks may not
/// know the pods of all namespaces.
fn of_pods(older: &BTreeMap<String, u32>) -> Finding<PodsReason> {
    let pods: u64 = older.values().map(|pods| u64::from(*pods)).sum();
    let (one, many) = (pods == 1, older.len());
    let message = match pods {
        0 => "no pod is known to run an older configuration".to_owned(),
        _ => format!(
            "{pods} {} an older configuration, on {many} {}: {}. To update them, recreate them, for example by kubectl \
             rollout restart; netclaimctl status names them",
            if one { "pod runs" } else { "pods run" },
            if many == 1 { "node" } else { "nodes" },
            named(older.keys()),
        ),
    };
    Finding::new(if pods == 0 { PodsReason::UpToDate } else { PodsReason::OlderConfiguration }, message)
}

/// Says which pods have a default. It does not name those that lack it: who may read ClaimNetworks may not
/// know the pods of all namespaces.
fn of_default(defaulted: Result<&Defaulted, DefaultsAreOff>) -> Finding<DefaultReason> {
    let Ok(Defaulted { namespaces, lacking, lacking_in, refused }) = defaulted else {
        let message = "pods get the network by claims only: to give it to those of spec.default, set \
                       defaultNetworks.enabled=true in the values of netclaim's chart";
        return Finding::new(DefaultReason::Off, message);
    };
    if *namespaces == 0 {
        return Finding::new(DefaultReason::NoNamespace, "no namespace has the labels of spec.default");
    }
    let older = (*lacking > 0).then(|| {
        format!(
            "older than the default and without it: {} in {lacking_in} of {}; to give it to them, recreate them, for example \
             by kubectl -n NAMESPACE rollout restart deployments,statefulsets,daemonsets",
            counted(*lacking, "pod"),
            counted(*namespaces, "namespace"),
        )
    });
    if !refused.is_empty() {
        let shown =
            refused.iter().take(NAMED_NAMESPACES).map(|(namespace, why)| format!("{namespace}: {why}"));
        let shown = shown.collect::<Vec<_>>().join("; ");
        let more = refused.len().saturating_sub(NAMED_NAMESPACES);
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        let message = format!(
            "the claims have no template of netclaim in {} of {}: {shown}{more}",
            refused.len(),
            counted(*namespaces, "namespace")
        );
        return Finding::new(
            DefaultReason::NoTemplate,
            [Some(message), older].into_iter().flatten().collect::<Vec<_>>().join("; "),
        );
    }
    match older {
        Some(message) => Finding::new(DefaultReason::OlderPods, message),
        None => Finding::new(
            DefaultReason::AllPods,
            format!("pods of {} have it", counted(*namespaces, "namespace")),
        ),
    }
}

/// Says whether nodes have addresses for an accepted ClaimNetwork, or can get them.
fn availability_of_addresses(supply: &Supply, totals: Option<AddressTotals>) -> Finding<AddressesReason> {
    let AddressTotals { size, leased, used, free, .. } = totals.unwrap_or_default();
    let message = match supply {
        // Without numbers: every agent watches ClaimNetworks, and numbers change all the time.
        Supply::Free => "every node has the addresses that it wants".to_owned(),
        Supply::OnlyReserved => {
            "all addresses are reserved: claims get those that they ask for by ips".to_owned()
        }
        Supply::Exhausted(nodes) => format!(
            "no block of addresses is free for {}: nodes have leased {leased} of {size} addresses, of which pods have {used}, \
             and {free} are in no block; add a range",
            named(nodes.iter())
        ),
        Supply::PoolMissing(pool) => {
            format!(
                "no AddressPool {pool} is accepted: create or correct it; nodes keep the blocks that they have"
            )
        }
    };
    Finding::new(supply.reason(), message)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::networks::nodes::{NodeNow, OnNode};

    fn network(change: impl FnOnce(&mut Value)) -> Acceptance {
        let mut network = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": "storage", "generation": 3},
            "spec": {"uplink": {"links": ["eth1"]}, "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.name}"}]}},
        });
        change(&mut network);
        Acceptance::of(&serde_json::from_value(network).unwrap())
    }

    /// `count` nodes with 10G each.
    fn on(count: usize) -> NetworkNodes {
        on_asking(count, "10G")
    }

    /// `count` nodes with 10G each for a ClaimNetwork that asks for `bandwidth`.
    fn on_asking(count: usize, bandwidth: &str) -> NetworkNodes {
        let mut nodes = NetworkNodes::asking(Some(bandwidth.parse().unwrap()));
        (1..=count).for_each(|n| publishes(&mut nodes, n, &[]));
        nodes
    }

    /// Has a node publish the ClaimNetwork with 10G and these taints.
    fn publishes(nodes: &mut NetworkNodes, n: usize, taints: &[&str]) {
        let taints = taints.iter().map(ToString::to_string).collect();
        let published = Some(OnNode { bandwidth: Some("10G".parse().unwrap()), taints });
        nodes.set(&format!("n{n}"), NodeNow { published, is_selected: true, has_agent: true, older: 0 });
    }

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn accepted(status: &ClaimNetworkStatus) -> (&str, &str, &str) {
        let accepted = status.conditions.iter().find(|condition| condition.type_ == AcceptedReason::TYPE);
        let Some(Condition { status, reason, message, .. }) = accepted else { panic!("{status:?}") };
        (status, reason, message)
    }

    #[test]
    fn a_good_network_is_accepted() {
        let status = network(|_| {}).status(&on(2), Found::default(), Vec::new(), None, &at(0)).unwrap();
        assert_eq!(accepted(&status), ("True", "Accepted", "pods can claim the network"));
        let counts = NodeCounts { selected: 2, publishing: 2, available: 2 };
        assert_eq!((status.nodes, status.observed_generation), (Some(counts), Some(3)));
        assert_eq!(status.conditions[0].observed_generation, Some(3));
    }

    #[test]
    fn the_message_has_every_problem() {
        let acceptance = network(|network| {
            network["metadata"]["name"] = json!("a.b");
            network["spec"]["capacity"] = json!({"interfaces": 0});
        });
        let status = acceptance.status(&on(0), Found::default(), Vec::new(), None, &at(0)).unwrap();
        let (status, reason, message) = accepted(&status);
        assert_eq!((status, reason), ("False", "Invalid"));
        assert!(message.contains("metadata.name: \"a.b\" cannot name a ClaimNetwork"), "{message}");
        assert!(message.contains("; spec.capacity.interfaces: is 0"), "{message}");
    }

    #[test]
    fn the_message_has_all_three_faults_of_a_conflist_and_what_to_do() {
        let acceptance = network(|network| {
            network["spec"]["cni"]["plugins"] = json!([
                {"type": "macvlan", "master": "${uplink.name}", "mode": "bridged",
                 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24", "rangeStart": "10.21.0.5"}]]}},
                {"type": "tuning", "mtu": "1400"},
            ]);
        });
        let status = acceptance.status(&on(0), Found::default(), Vec::new(), None, &at(0)).unwrap();
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
    fn a_network_with_a_probable_mistake_is_accepted_with_a_warning() {
        let acceptance = network(|network| {
            network["spec"]["cni"]["plugins"][0]["mdoe"] = json!("vepa");
            network["spec"]["allow"] = json!({"mac": {}});
        });
        assert!(acceptance.result.is_ok());
        let status = acceptance.status(&on(0), Found::default(), Vec::new(), None, &at(0)).unwrap();
        let (status, reason, message) = accepted(&status);
        assert_eq!((status, reason), ("True", "AcceptedWithWarnings"));
        let warning = "pods can claim the network, but look at spec.cni.plugins[0].mdoe: plugin `macvlan` has no key `mdoe`: it \
                    has no effect; write `mode` if that is meant, else remove it; spec.allow.mac: no plugin takes it";
        assert!(message.starts_with(warning), "{message}");
    }

    #[test]
    fn a_network_that_does_not_decode_names_the_field() {
        for (spec, expected) in [
            (
                json!({"cni": {}, "uplink": {"links": ["eth1", 7]}}),
                "spec.uplink.links[1]: must be a string, not a number",
            ),
            (json!({"cni": {}, "uplnk": {}}), "spec.uplnk: unknown field `uplnk`"),
            (Value::Null, "spec: must be an object, not null"),
        ] {
            let status = network(|network| network["spec"] = spec)
                .status(&on(0), Found::default(), Vec::new(), None, &at(0))
                .unwrap();
            let (status, reason, message) = accepted(&status);
            assert_eq!((status, reason), ("False", "Invalid"));
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_correct_status_is_not_written_again() {
        let written = network(|_| {}).status(&on(2), Found::default(), Vec::new(), None, &at(0)).unwrap();
        let again = |status: Value| network(|network| network["status"] = status);
        let as_written = serde_json::to_value(&written).unwrap();
        assert_eq!(
            again(as_written.clone()).status(&on(2), Found::default(), Vec::new(), None, &at(60)),
            None
        );
        assert_eq!(
            again(as_written).status(&on(3), Found::default(), Vec::new(), None, &at(60)).unwrap().nodes,
            Some(NodeCounts { selected: 3, publishing: 3, available: 3 })
        );
        assert_eq!(
            again(json!({"nodes": "many"})).status(&on(2), Found::default(), Vec::new(), None, &at(0)),
            Some(written)
        );
    }

    #[test]
    fn conditions_of_others_do_not_matter() {
        let written = network(|_| {}).status(&on(2), Found::default(), Vec::new(), None, &at(0)).unwrap();
        let mut status = serde_json::to_value(&written).unwrap();
        let other = json!({"type": "Other", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        status["conditions"].as_array_mut().unwrap().insert(0, other);
        assert_eq!(
            network(|network| network["status"] = status).status(
                &on(2),
                Found::default(),
                Vec::new(),
                None,
                &at(60)
            ),
            None
        );
    }

    #[test]
    fn the_time_of_transition_changes_with_the_status_only() {
        let written = serde_json::to_value(
            network(|_| {}).status(&on(2), Found::default(), Vec::new(), None, &at(0)).unwrap(),
        )
        .unwrap();
        let newer = network(|network| {
            network["status"] = written.clone();
            network["metadata"]["generation"] = json!(4);
        });
        assert_eq!(
            newer.status(&on(2), Found::default(), Vec::new(), None, &at(60)).unwrap().conditions[0]
                .last_transition_time,
            at(0)
        );
        let invalid = network(|network| {
            network["status"] = written;
            network["spec"]["cni"] = json!({});
        });
        assert_eq!(
            invalid.status(&on(2), Found::default(), Vec::new(), None, &at(60)).unwrap().conditions[0]
                .last_transition_time,
            at(60)
        );
    }

    #[test]
    fn an_invalid_network_counts_no_nodes_and_warns_of_nothing() {
        let status = network(|network| network["spec"]["cni"] = json!({}))
            .status(&on(1), Found::default(), vec![Invalid::new("spec.allow.mac", "is odd")], None, &at(0))
            .unwrap();
        assert_eq!((status.nodes, status.warnings), (None, Vec::new()));
    }

    #[test]
    fn warnings_are_a_list_with_fields() {
        let status = network(|_| {})
            .status(&on(1), Found::default(), vec![Invalid::new("spec.allow.mac", "is odd")], None, &at(0))
            .unwrap();
        let warning = Warning { field: "spec.allow.mac".into(), message: "is odd".into() };
        assert_eq!(status.warnings, [warning]);
    }

    #[test]
    fn the_available_condition_names_the_nodes_without_the_network() {
        let available = |nodes: &NetworkNodes| {
            let status = network(|_| {}).status(nodes, Found::default(), Vec::new(), None, &at(0));
            let condition = status.unwrap().conditions.remove(1);
            assert_eq!(condition.type_, AvailableReason::TYPE);
            (condition.status, condition.reason, condition.message)
        };
        let says = |status: &str, reason: &str, message: &str| (status.into(), reason.into(), message.into());
        let mut nodes = on(7);
        assert_eq!(available(&nodes), says("True", "Everywhere", "on 7 nodes"));
        publishes(&mut nodes, 1, &["netclaim.dev/link-down"]);
        let message = "on 6 of 7 nodes: netclaim.dev/link-down on n1";
        assert_eq!(available(&nodes), says("False", "NotEverywhere", message));
        (2..=7).for_each(|n| publishes(&mut nodes, n, &["netclaim.dev/link-down"]));
        let message = "on none of 7 nodes: netclaim.dev/link-down on n1 n2 n3 n4 n5 and 2 more";
        assert_eq!(available(&nodes), says("False", "Nowhere", message));
        assert_eq!(available(&on(0)).1, "NoNode");
        let mut in_use = on(2);
        publishes(&mut in_use, 1, &["netclaim.dev/link-in-pod"]);
        let message = "on 2 nodes; a pod has the uplink on n1";
        assert_eq!(available(&in_use), says("True", "Everywhere", message));
        let mut some = on(2);
        some.set("n8", NodeNow { published: None, is_selected: true, has_agent: true, older: 0 });
        let message = "on 2 nodes, not on n8 (no uplink for it, or see the node's events)";
        assert_eq!(
            available(&some),
            says("True", "Everywhere", message),
            "no nodeSelector says that it should be"
        );
        let message = "on 2 of 3 nodes: not on n8 (no uplink for it, or see the node's events)";
        assert_eq!(availability(&some, true).message, message);
        assert_eq!(availability(&some, true).reason, AvailableReason::NotEverywhere);
        let message = "on 1 nodes; the uplink has less bandwidth left than spec.capacity.bandwidth on n1";
        assert_eq!(available(&on_asking(1, "20G")), says("True", "Everywhere", message));
    }

    #[test]
    fn the_pods_condition_comes_with_the_first_pod_of_an_older_configuration_and_stays() {
        let pods = |status: &ClaimNetworkStatus| {
            let condition = find(&status.conditions, PodsReason::TYPE)?;
            Some((condition.status.clone(), condition.reason.clone(), condition.message.clone()))
        };
        let mut nodes = on(3);
        let status = network(|_| {}).status(&nodes, Found::default(), Vec::new(), None, &at(0)).unwrap();
        assert_eq!(pods(&status), None, "nothing is written where nothing is old");
        let mut set = |node: &str, older| {
            let published = Some(OnNode { bandwidth: Some("10G".parse().unwrap()), ..OnNode::default() });
            assert!(nodes.set(node, NodeNow { published, is_selected: true, has_agent: true, older }).status);
            nodes.clone()
        };
        set("n1", 1);
        let status =
            network(|_| {}).status(&set("n2", 2), Found::default(), Vec::new(), None, &at(0)).unwrap();
        let (is, reason, message) = pods(&status).unwrap();
        assert_eq!((is.as_str(), reason.as_str()), ("False", "OlderConfiguration"));
        assert!(message.starts_with("3 pods run an older configuration, on 2 nodes: n1 n2. To"), "{message}");
        set("n1", 0);
        let gone = set("n2", 0);
        let later = network(|network| network["status"] = serde_json::to_value(&status).unwrap());
        let status = later.status(&gone, Found::default(), Vec::new(), None, &at(60)).unwrap();
        let (is, reason, _) = pods(&status).unwrap();
        assert_eq!((is.as_str(), reason.as_str()), ("True", "UpToDate"), "so that kubectl wait ends");
        let one = network(|_| {}).status(&set("n2", 1), Found::default(), Vec::new(), None, &at(0)).unwrap();
        assert!(pods(&one).unwrap().2.starts_with("1 pod runs an older configuration, on 1 node: n2."));
    }

    #[test]
    fn the_condition_of_a_default_says_who_lacks_it_and_why() {
        let wanted = |network: &mut Value| {
            network["spec"]["default"] = json!({"namespaceSelector": {"matchLabels": {"storage": "yes"}}});
        };
        let says = |defaulted: Option<Result<&Defaulted, DefaultsAreOff>>| {
            let found = Found { defaulted, ..Found::default() };
            let status = network(wanted).status(&on(1), found, Vec::new(), None, &at(0)).unwrap();
            let condition = find(&status.conditions, DefaultReason::TYPE)?.clone();
            Some((condition.reason, condition.message))
        };
        let reason = |defaulted: &Defaulted| says(Some(Ok(defaulted))).unwrap();
        assert_eq!(says(None), None, "it is not known yet");
        assert_eq!(says(Some(Err(DefaultsAreOff))).unwrap().0, "Off");
        assert_eq!(reason(&Defaulted::default()).0, "NoNamespace");
        let mut some = Defaulted { namespaces: 9, ..Defaulted::default() };
        assert_eq!(reason(&some), ("AllPods".to_owned(), "pods of 9 namespaces have it".to_owned()));
        (some.lacking, some.lacking_in) = (3, 2);
        let (older, message) = reason(&some);
        assert_eq!(older, "OlderPods");
        assert!(
            message
                .starts_with("older than the default and without it: 3 pods in 2 of 9 namespaces; to give")
        );
        some.refused = (0..7).map(|n| (format!("n{n}"), "quota".to_owned())).collect();
        let (none, message) = reason(&some);
        assert_eq!(none, "NoTemplate");
        assert!(
            message.starts_with(
                "the claims have no template of netclaim in 7 of 9 namespaces: n0: quota; n1: quota;"
            ),
            "{message}"
        );
        assert!(message.contains("; and 2 more; older than"), "{message}");
    }

    #[test]
    fn the_addresses_condition_names_the_nodes_without_a_block() {
        let drawing = |network: &mut Value| {
            network["spec"]["addresses"] = json!({"ranges": [{"subnet": "10.20.0.0/24"}]})
        };
        let totals = Some(AddressTotals { size: 253, leased: 253, used: 9, ..AddressTotals::default() });
        let nodes = (0..7).map(|n| format!("n{n}")).collect();
        let supply = Supply::Exhausted(nodes);
        let addresses = Found { totals, supply: Some(&supply), defaulted: None };
        let status = network(drawing).status(&on(1), addresses, Vec::new(), None, &at(0)).unwrap();
        assert_eq!(status.addresses, totals);
        let Some(condition) = find(&status.conditions, ADDRESSES_AVAILABLE) else { panic!("{status:?}") };
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "Exhausted"));
        let named = "no block of addresses is free for n0 n1 n2 n3 n4 and 2 more: nodes have leased 253 of 253 addresses";
        assert!(condition.message.starts_with(named), "{}", condition.message);

        let written = serde_json::to_value(&status).unwrap();
        let again = network(|network| {
            drawing(network);
            network["status"] = written.clone();
        });
        assert_eq!(again.status(&on(1), addresses, Vec::new(), None, &at(60)), None);
        assert_eq!(
            again.status(&on(1), Found::default(), Vec::new(), None, &at(60)),
            None,
            "a new leader does not know them yet"
        );
        let without = network(|network| network["status"] = written);
        let status = without.status(&on(1), Found::default(), Vec::new(), None, &at(60)).unwrap();
        assert_eq!((status.addresses, find(&status.conditions, ADDRESSES_AVAILABLE)), (None, None));
    }

    #[test]
    fn the_totals_of_an_address_pool_are_not_the_networks() {
        let acceptance = network(|network| network["spec"]["addresses"] = json!({"poolName": "lan"}));
        let supply = Supply::PoolMissing("lan".into());
        let addresses =
            Found { totals: Some(AddressTotals::default()), supply: Some(&supply), defaulted: None };
        let status = acceptance.status(&on(1), addresses, Vec::new(), None, &at(0)).unwrap();
        assert_eq!(status.addresses, None);
        let reason = find(&status.conditions, ADDRESSES_AVAILABLE).map(|condition| condition.reason.as_str());
        assert_eq!(reason, Some("PoolMissing"));
    }
}
