//! Whether an AddressPool is accepted, and the status that says so. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DynamicObject, ResourceExt as _};
use netclaim_api::Invalid;
use netclaim_api::addresses::spans::{merge, within};
use netclaim_api::addresses::{AddressPool, AddressPoolSpec, AddressPoolStatus, AddressTotals, Span};
use netclaim_api::reasons::{AcceptedReason, ConditionReason as _};
use serde_json::Value;

use crate::objects::catalog::Review;
use crate::objects::conditions::{Finding, find, named, stored_status};
use crate::objects::nodes::{NodeFacts, Nodes};

/// Whether one AddressPool is accepted.
#[derive(Debug)]
pub(crate) struct PoolAcceptance {
    pub(crate) name: String,
    /// Its spec, or everything that is wrong with it.
    pub(crate) result: Result<AddressPoolSpec, Vec<Invalid>>,
    generation: Option<i64>,
    /// The status in the API server.
    before: AddressPoolStatus,
}

impl Review for PoolAcceptance {
    type Kind = AddressPool;
    type Status = AddressPoolStatus;

    fn of(pool: &DynamicObject) -> Self {
        let spec = pool.data.get("spec").unwrap_or(&Value::Null);
        Self {
            name: pool.name_any(),
            result: AddressPoolSpec::read(&pool.name_any(), spec),
            generation: pool.metadata.generation,
            before: stored_status(pool),
        }
    }

    fn before(&mut self) -> &mut AddressPoolStatus {
        &mut self.before
    }
}

impl PoolAcceptance {
    /// Returns what the status says of the last look through the pool's ranges.
    pub(crate) fn surveyed(&self) -> Option<i64> {
        let is_present = self.before.observed_generation == self.generation;
        self.before.addresses.filter(|_| is_present)?.surveyed
    }

    /// Returns the status that the pool should have, or `None` if it has it. Without `totals`, those of
    /// before stay. `warnings` are what an accepted pool may not mean as written.
    pub(crate) fn status(
        &self,
        totals: Option<AddressTotals>,
        warnings: &[Invalid],
        now: &Time,
    ) -> Option<AddressPoolStatus> {
        let finding = match &self.result {
            Ok(_) if warnings.is_empty() => {
                Finding::new(AcceptedReason::Accepted, "ClaimNetworks can use the pool")
            }
            Ok(_) => {
                let warnings = Invalid::list(warnings);
                let message = format!("ClaimNetworks can use the pool, but look at {warnings}");
                Finding::new(AcceptedReason::AcceptedWithWarnings, message)
            }
            Err(problems) => {
                let problems = Invalid::list(problems);
                let message = format!("{problems}; nodes keep the blocks that they have, and get no others");
                Finding::new(AcceptedReason::Invalid, message)
            }
        };
        let condition = finding.condition(&self.before.conditions, self.generation, now);
        let addresses = totals.or(self.before.addresses);
        let same = find(&self.before.conditions, AcceptedReason::TYPE) == Some(&condition)
            && self.before.observed_generation == self.generation
            && self.before.addresses == addresses;
        (!same).then(|| AddressPoolStatus {
            observed_generation: self.generation,
            addresses,
            conditions: vec![condition],
        })
    }
}

/// The nodes whose own addresses, or those of their pods in the cluster's network, a pool hands out. Each
/// change of a node is compared once.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct NodeOverlaps {
    /// The ranges that the pool hands out or reserves: sorted and disjoint.
    spans: Vec<Span>,
    /// An address of the pool by the node that has it.
    of_node: BTreeMap<String, Span>,
    of_pods: BTreeMap<String, Span>,
}

impl NodeOverlaps {
    /// Compares a pool with all nodes.
    pub(crate) fn of(pool: &AddressPoolSpec, nodes: &Nodes) -> Self {
        let spans = merge(pool.usable().into_iter().chain(pool.reserved.iter().copied()).collect());
        let mut overlaps = Self { spans, ..Self::default() };
        for (node, facts) in nodes {
            overlaps.update(node, Some(facts));
        }
        overlaps
    }

    /// Takes in a node; `None` if it is gone. Returns whether that changes the warnings.
    pub(crate) fn update(&mut self, node: &str, facts: Option<&NodeFacts>) -> bool {
        let common = |own: Span| within(&self.spans, own).next();
        let own = facts.and_then(|facts| facts.addresses.iter().find_map(|ip| common(Span::of_address(*ip))));
        let pods =
            facts.and_then(|facts| facts.pod_cidrs.iter().find_map(|cidr| common(Span::of_net(*cidr))));
        replace(&mut self.of_node, node, own) | replace(&mut self.of_pods, node, pods)
    }

    /// Returns the warnings. `field` has the ranges.
    pub(crate) fn warnings(&self, field: &str) -> Vec<Invalid> {
        let warning = |found: &BTreeMap<String, Span>, what: &str| {
            let (_, example) = found.first_key_value()?;
            let nodes = named(found.keys());
            Some(Invalid::new(
                field,
                format!("pods may get addresses of {what} {nodes}, such as {example}: exclude them"),
            ))
        };
        let of_pods = warning(&self.of_pods, "the spec.podCIDRs of nodes");
        warning(&self.of_node, "nodes").into_iter().chain(of_pods).collect()
    }
}

/// Sets or removes the span of a node. Returns whether that is new.
fn replace(spans: &mut BTreeMap<String, Span>, node: &str, now: Option<Span>) -> bool {
    match now {
        Some(span) => spans.insert(node.to_owned(), span) != Some(span),
        None => spans.remove(node).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::objects::conditions::Status as _;

    fn pool(spec: Value, status: Value) -> PoolAcceptance {
        let pool = json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": "lan", "generation": 2},
            "spec": spec, "status": status,
        });
        PoolAcceptance::of(&serde_json::from_value(pool).unwrap())
    }

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn a_pool_is_accepted_or_its_status_has_every_problem() {
        let status = pool(json!({"ranges": [{"subnet": "10.0.0.0/24"}]}), Value::Null)
            .status(None, &[], &at(0))
            .unwrap();
        assert_eq!(status.conditions[0].message, "ClaimNetworks can use the pool");
        let bad = json!({"ranges": [{"subnet": "10.0.0.1/24"}], "reserved": ["10.9.0.0/24"]});
        let message = pool(bad, Value::Null).status(None, &[], &at(0)).unwrap().conditions.remove(0).message;
        assert!(message.starts_with("spec.ranges[0].subnet: 10.0.0.1/24 has host bits set"), "{message}");
        assert!(message.contains("; spec.reserved[0]: "), "{message}");
        let message = pool(json!({"rangs": []}), Value::Null)
            .status(None, &[], &at(0))
            .unwrap()
            .conditions
            .remove(0)
            .message;
        assert!(message.starts_with("spec.rangs: unknown field"), "{message}");
    }

    #[test]
    fn a_correct_status_is_not_written_again() {
        let spec = json!({"ranges": [{"subnet": "10.0.0.0/24"}]});
        let totals = AddressTotals { size: 253, ..AddressTotals::default() };
        let written = pool(spec.clone(), Value::Null).status(Some(totals), &[], &at(0)).unwrap();
        let again = pool(spec, serde_json::to_value(&written).unwrap());
        assert_eq!(again.status(Some(totals), &[], &at(60)), None);
        assert_eq!(again.status(None, &[], &at(60)), None, "what is not known yet stays");
        let more = again.status(Some(AddressTotals { used: 1, ..totals }), &[], &at(60)).unwrap();
        assert!(!again.before.differs_for_people(&more), "only the totals");
    }

    #[test]
    fn addresses_of_nodes_and_of_their_pods_get_a_warning() {
        let facts = |ip: &str, cidr: &str| NodeFacts {
            addresses: vec![ip.parse().unwrap()],
            pod_cidrs: vec![cidr.parse().unwrap()],
            ..NodeFacts::default()
        };
        let nodes = Nodes::from([
            ("a".to_owned(), facts("192.0.2.7", "10.244.0.0/24")),
            ("b".to_owned(), facts("192.0.2.8", "10.244.1.0/24")),
        ]);
        let found = |spec: Value| {
            let pool: AddressPoolSpec = serde_json::from_value(spec).unwrap();
            NodeOverlaps::of(&pool, &nodes)
                .warnings("spec.ranges")
                .iter()
                .map(Invalid::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found(json!({"ranges": [{"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.64"}]})),
            [""; 0]
        );
        assert_eq!(
            found(json!({"ranges": [{"subnet": "192.0.2.0/24"}]})),
            ["spec.ranges: pods may get addresses of nodes a b, such as 192.0.2.7: exclude them"]
        );
        let pods = found(json!({"ranges": [{"subnet": "10.244.0.0/16", "rangeStart": "10.244.1.9"}]}));
        assert_eq!(
            pods,
            [
                "spec.ranges: pods may get addresses of the spec.podCIDRs of nodes b, such as 10.244.1.9-10.244.1.255: exclude them"
            ]
        );
        let all: AddressPoolSpec =
            serde_json::from_value(json!({"ranges": [{"subnet": "192.0.2.0/24"}]})).unwrap();
        let mut kept = NodeOverlaps::of(&all, &nodes);
        let fewer = Nodes::from([("b".to_owned(), facts("192.0.2.9", "10.244.1.0/24"))]);
        assert!(kept.update("a", None) && kept.update("b", fewer.get("b")));
        assert!(!kept.update("b", fewer.get("b")), "nothing new");
        assert_eq!(kept, NodeOverlaps::of(&all, &fewer));
    }
}
