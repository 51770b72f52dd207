//! `spec.bandwidth`: what becomes of attachments whose claims ask for no bandwidth.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ClaimNetworkSpec;
use crate::conflist::declares;
use crate::{Invalid, Quantity};

/// How the bandwidth of the network's links is kept for the claims that were granted it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkBandwidth {
    /// What becomes of a claim that asks for no bandwidth. `Unlimited`: its pod is not limited, so that the
    /// bandwidth of the others is a limit and no guarantee. `Share`: all such pods on the link share what no
    /// claim was granted, in equal parts. `Refuse`: no device of the network is allocated for it. With
    /// `Share` and with `Refuse`, pods of other networks on the same port that were granted nothing share,
    /// too.
    #[serde(default)]
    pub unrequested: Unrequested,
}

/// What becomes of a claim that asks for no bandwidth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum Unrequested {
    #[default]
    Unlimited,
    Share,
    Refuse,
}

/// The least bandwidth in bit/s that a pod has on a link with guaranteed bandwidth: the least grant where
/// claims must ask, and the least share where all is granted. It lets a pod resolve neighbours and names.
pub const LEAST_BANDWIDTH: Quantity = Quantity::new(64_000);

impl NetworkBandwidth {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether what claims were granted on the network's links is kept free of other pods' traffic.
    pub fn is_guaranteed(self) -> bool {
        self.unrequested != Unrequested::Unlimited
    }
}

impl ClaimNetworkSpec {
    /// Whether a claim must ask for bandwidth.
    pub fn requires_bandwidth(&self) -> bool {
        self.bandwidth.unrequested == Unrequested::Refuse
    }

    /// Returns why bandwidth cannot be guaranteed; paths are relative to the spec.
    pub(super) fn bandwidth_problems(&self) -> Vec<Invalid> {
        if !self.bandwidth.is_guaranteed() {
            return Vec::new();
        }
        let needed = [
            (
                self.capacity.bandwidth.is_none_or(|rate| rate < LEAST_BANDWIDTH),
                format!("needs spec.capacity.bandwidth, of which claims are granted: set it, to at least {LEAST_BANDWIDTH}"),
            ),
            (
                !declares(&self.cni, "bandwidth"),
                "needs a plugin that holds pods to what they are granted: add {\"type\": \"netclaim-bandwidth\", \
                 \"capabilities\": {\"bandwidth\": true}} as the last of spec.cni.plugins"
                    .to_owned(),
            ),
            (
                self.uplink.is_none(),
                "needs spec.uplink, whose bandwidth it is: list the links there, or remove this".to_owned(),
            ),
            (
                self.is_exclusive(),
                "has no effect, because one pod has all of the network on its node: remove it".to_owned(),
            ),
        ];
        let problem = |(is_missing, problem): (bool, String)| {
            is_missing.then(|| Invalid::new("bandwidth.unrequested", problem))
        };
        needed.into_iter().filter_map(problem).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut spec = json!({
            "uplink": {"links": ["eth1"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [
                {"type": "macvlan", "master": "${uplink.name}"},
                {"type": "netclaim-bandwidth", "capabilities": {"bandwidth": true}}]},
            "capacity": {"bandwidth": "10G"},
            "bandwidth": {"unrequested": "Share"},
        });
        change(&mut spec);
        let spec: ClaimNetworkSpec = serde_json::from_value(spec).expect("decodes");
        spec.bandwidth_problems().iter().map(Invalid::to_string).collect()
    }

    #[test]
    fn bandwidth_is_guaranteed_of_a_shared_link_whose_pods_are_limited() {
        assert_eq!(problems(|_| {}), [""; 0]);
        assert_eq!(problems(|spec| spec["bandwidth"]["unrequested"] = json!("Refuse")), [""; 0]);
        let only = |change: fn(&mut Value), part: &str| {
            let found = problems(change);
            assert!(found.len() == 1 && found[0].contains(part), "{part}: {found:?}");
        };
        only(|spec| spec["capacity"] = json!({"interfaces": 2}), "needs spec.capacity.bandwidth");
        only(|spec| spec["capacity"]["bandwidth"] = json!("1k"), "to at least 64k");
        only(|spec| spec["cni"]["plugins"][1] = json!({"type": "tuning"}), "needs a plugin");
        only(|spec| spec["uplink"] = Value::Null, "needs spec.uplink");
        only(|spec| spec["cni"]["plugins"][0] = json!({"type": "vlan", "vlanId": 7}), "one pod has all");
        let unlimited = |spec: &mut Value| {
            spec["bandwidth"] = json!({});
            spec["capacity"] = json!({});
        };
        assert_eq!(problems(unlimited), [""; 0]);
    }
}
