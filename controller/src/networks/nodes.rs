//! The nodes of one ClaimNetwork: which publish it, which of these take no new pods, and which lack it. Pure.
//!
//! Each set follows the change of one node, so that a change costs the same with a hundred and with thousands
//! of nodes.

use std::collections::{BTreeMap, BTreeSet};

use netclaim_api::Quantity;
use netclaim_api::network::NodeCounts;
use netclaim_api::taints::Reason;

/// The devices that a node publishes for a ClaimNetwork.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OnNode {
    pub(crate) bandwidth: Option<Quantity>,
    /// Keys of the taints that keep new pods away.
    pub(crate) taints: BTreeSet<String>,
}

/// One node, as seen by one ClaimNetwork.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeNow {
    pub(crate) published: Option<OnNode>,
    /// Whether the ClaimNetwork is accepted, and meant for the node.
    pub(crate) is_selected: bool,
    /// Whether the node's agent publishes anything.
    pub(crate) has_agent: bool,
    /// How many of its pods run an older configuration.
    pub(crate) older: u32,
}

/// The effect of a node's change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The status of the ClaimNetwork may have changed.
    pub(crate) status: bool,
    /// Other nodes publish the ClaimNetwork, or are selected by it.
    pub(crate) places: bool,
}

/// The nodes of one ClaimNetwork.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetworkNodes {
    /// The bandwidth that each node should have.
    asked: Option<Quantity>,
    publishing: BTreeMap<String, OnNode>,
    selected: BTreeSet<String>,
    /// Nodes by the key of a taint.
    tainted: BTreeMap<String, BTreeSet<String>>,
    /// Nodes with any taint but that of a link in a pod, which is in use.
    closed: BTreeSet<String>,
    /// Nodes with less bandwidth than `asked`.
    reduced: BTreeSet<String>,
    missing: BTreeSet<String>,
    /// How many pods run an older configuration, by node.
    older: BTreeMap<String, u32>,
}

impl NetworkNodes {
    /// Returns no nodes, of a ClaimNetwork that asks for this bandwidth on each.
    pub(crate) fn asking(asked: Option<Quantity>) -> Self {
        Self { asked, ..Self::default() }
    }

    /// Takes in what a node is now.
    pub(crate) fn set(&mut self, node: &str, now: NodeNow) -> Change {
        let NodeNow { published, is_selected, has_agent, older } = now;
        let mut change = Change::default();
        change.status |= toggle(&mut self.selected, node, is_selected);
        change.places |= published.is_some() != self.publishing.contains_key(node);
        change.status |= toggle(&mut self.missing, node, is_selected && has_agent && published.is_none());
        change.places |= change.status;
        let before = match older {
            0 => self.older.remove(node),
            _ => self.older.insert(node.to_owned(), older),
        };
        change.status |= before.unwrap_or_default() != older;
        if published.as_ref() == self.publishing.get(node) {
            return change;
        }
        let is_reduced =
            |on: &OnNode| self.asked.is_some_and(|asked| on.bandwidth.is_none_or(|has| has < asked));
        toggle(&mut self.reduced, node, published.as_ref().is_some_and(is_reduced));
        let is_closed = |on: &OnNode| on.taints.iter().any(|taint| Reason::is_problem(taint));
        toggle(&mut self.closed, node, published.as_ref().is_some_and(is_closed));
        for taint in self.publishing.get(node).iter().flat_map(|on| &on.taints) {
            if let Some(nodes) = self.tainted.get_mut(taint) {
                nodes.remove(node);
                if nodes.is_empty() {
                    self.tainted.remove(taint);
                }
            }
        }
        for taint in published.iter().flat_map(|on| &on.taints) {
            self.tainted.entry(taint.clone()).or_default().insert(node.to_owned());
        }
        match published {
            Some(on) => self.publishing.insert(node.to_owned(), on),
            None => self.publishing.remove(node),
        };
        Change { status: true, ..change }
    }

    /// Returns the numbers of nodes.
    pub(crate) fn counts(&self) -> NodeCounts {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let publishing = number(self.publishing.len());
        let available = publishing - number(self.closed.len());
        NodeCounts { selected: number(self.selected.len()), publishing, available }
    }

    /// Returns the nodes that take no new pods, by the taint that says why.
    pub(crate) fn tainted(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.tainted
    }

    /// Returns the nodes that the ClaimNetwork selects and that have an agent, but do not publish it.
    pub(crate) fn missing(&self) -> &BTreeSet<String> {
        &self.missing
    }

    /// Returns the nodes with less bandwidth than the ClaimNetwork asks for.
    pub(crate) fn reduced(&self) -> &BTreeSet<String> {
        &self.reduced
    }

    /// Returns the nodes with pods that run an older configuration, and how many pods these are.
    pub(crate) fn older(&self) -> &BTreeMap<String, u32> {
        &self.older
    }

    /// Returns the nodes that publish the ClaimNetwork.
    pub(crate) fn publishing(&self) -> impl Iterator<Item = &String> {
        self.publishing.keys()
    }

    /// Returns the nodes that the ClaimNetwork selects.
    pub(crate) fn selected(&self) -> &BTreeSet<String> {
        &self.selected
    }

    /// Whether the node is selected.
    pub(crate) fn selects(&self, node: &str) -> bool {
        self.selected.contains(node)
    }

    /// Whether no node is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.publishing.is_empty() && self.selected.is_empty() && self.older.is_empty()
    }
}

/// Has `set` contain the node or not. Returns whether that is new.
fn toggle(set: &mut BTreeSet<String>, node: &str, is_in: bool) -> bool {
    if is_in { !set.contains(node) && set.insert(node.to_owned()) } else { set.remove(node) }
}
