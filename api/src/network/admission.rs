//! Rules by which the API server refuses a ClaimNetwork: what one object shows, in one line of CEL. The
//! controller checks the rest, and all of it again.

use serde_json::{Value, json};

use crate::labels::requires_something;
use crate::quantity::amount_rule;

/// For the spec.
pub(super) fn spec_rules() -> Value {
    json!([{
        "rule": "self.scope != 'Cluster' || !has(self.segmentation)",
        "message": IDS_OF_CLUSTER,
        "fieldPath": ".segmentation",
    }, {
        "rule": "self.scope != 'Cluster' || !has(self.addresses)",
        "message": ADDRESSES_OF_CLUSTER,
        "fieldPath": ".addresses",
    }, {
        "rule": "!has(self.addresses) || !has(self.capacity) || !has(self.capacity.addresses)",
        "message": ADDRESSES_COUNTED,
        "fieldPath": ".capacity",
    }, {
        "rule": "!has(self.addresses) || !has(self.cni.name) || !self.cni.name.contains('${')",
        "message": ONE_NAME,
        "fieldPath": ".cni",
    }])
}

/// For the uplink.
pub(super) fn uplink_rules() -> Value {
    json!([{
        "rule": "has(self.links) && size(self.links) > 0 || has(self.attributes) && size(self.attributes) > 0",
        "message": EVERY_LINK,
    }])
}

/// For the capacity: amounts of which no pod could take anything, or that are not amounts.
pub(super) fn capacity_rules() -> Value {
    json!([
        bandwidth_rule(),
        amount_rule("interfaces", 1, "must be a number of at least 1, such as 64"),
        amount_rule("addresses", 1, "must be a number of at least 1, such as 254"),
    ])
}

/// For the default.
pub(super) fn default_rules() -> Value {
    json!([{
        "rule": requires_something("self.namespaceSelector"),
        "message": EVERY_NAMESPACE,
        "fieldPath": ".namespaceSelector",
    }])
}

/// For the capacity of a default.
pub(super) fn default_capacity_rules() -> Value {
    json!([bandwidth_rule()])
}

fn bandwidth_rule() -> Value {
    amount_rule("bandwidth", 0, "must be an amount such as 10G")
}

/// For the scope.
pub(super) fn scope_rules() -> Value {
    json!([{
        "rule": "self == oldSelf",
        "message": "claims are allocated for the devices of one scope: delete the ClaimNetwork and create it again",
    }])
}

/// For what is set up on nodes.
pub(super) fn node_rules() -> Value {
    json!([{
        "rule": "self == oldSelf",
        "message": "nodes have set it up as it is: delete the ClaimNetwork and create it again, or create another one",
    }])
}

pub(super) const ADDRESSES_COUNTED: &str = "is counted from spec.addresses: remove it";
pub(super) const ADDRESSES_OF_CLUSTER: &str = "nodes lease these addresses, and the scheduler does not count those of \
    a node for a ClaimNetwork of scope Cluster: use scope Node, or an IPAM that all nodes share, such as dhcp";
pub(super) const ONE_NAME: &str = "a name with placeholders cannot be combined with spec.addresses, for which a node keeps one record: write one name, or remove it";
pub(super) const EVERY_LINK: &str = "selects every link: name links, attributes, or both";
pub(super) const IDS_OF_CLUSTER: &str =
    "ids are handed out by nodes, and a ClaimNetwork of scope Cluster is not: use scope Node";
pub(super) const EVERY_NAMESPACE: &str = "has neither matchLabels nor matchExpressions, and so selects every namespace: name the \
                                          labels of the namespaces that are meant, such as matchLabels: {net-storage: \"yes\"}";
