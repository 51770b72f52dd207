//! Rules by which the API server refuses a Network: what one object shows, in one line of CEL. The controller checks the rest, and
//! all of it again.

use serde_json::{Value, json};

/// For the spec.
pub(super) fn spec_rules() -> Value {
    json!([{
        "rule": "self.scope != 'Cluster' || !has(self.segmentation)",
        "message": IDS_OF_CLUSTER,
        "fieldPath": ".segmentation",
    }])
}

/// For the scope.
pub(super) fn scope_rules() -> Value {
    json!([{
        "rule": "self == oldSelf",
        "message": "claims are allocated for the devices of one scope: delete the Network and create it anew",
    }])
}

pub(super) const IDS_OF_CLUSTER: &str =
    "ids are handed out by nodes, and a Network of scope Cluster is not: use scope Node";
