//! What is known about one attachment: the plan, and how far it has come. This is what the journal keeps.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use netclaim_api::{IfName, Quantity};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::links::{HostLink, NetnsId};

/// A named object with a UID, as the orchestrator knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ObjectRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The allocated device that an attachment serves; together with the claim it is unique.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRef {
    /// The request (`main` or `main/sub`) that it was allocated for.
    pub request: String,
    /// Name of the pool.
    pub pool: String,
    /// Name in the pool.
    pub device: String,
    /// Which share of a shared device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
}

impl DeviceRef {
    /// The request that containers name: of `main/sub` it is `main`.
    pub fn main_request(&self) -> &str {
        self.request.split('/').next().unwrap_or_default()
    }
}

/// A segmentation id (VLAN id, VNI) that an attachment has alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Segment {
    /// Among what there is only one of the id: an uplink, or a network without one.
    pub space: String,
    /// The id.
    pub id: u32,
}

/// Everything an ADD needs but the sandbox. It does not change between the first ADD and the last DEL, whatever
/// happens to the objects it was made from (CNI specification, section 3, "Lifecycle & Ordering").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The claim that asked for it.
    pub claim: ObjectRef,
    /// Its place among the claim's attachments, from 0.
    pub index: u32,
    /// How many attachments the claim has: a claim is prepared when all of them are journalled.
    pub of: u32,
    /// The pod that gets it.
    pub pod: ObjectRef,
    /// The name by which the pod's specification calls the claim, where it was made from a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_claim_name: Option<String>,
    /// What was allocated.
    pub device: DeviceRef,
    /// The network's name, for people.
    pub network: String,
    /// Name of the interface in the pod.
    pub if_name: IfName,
    /// The CNI conflist, without places.
    pub conflist: Map<String, Value>,
    /// CNI_ARGS of the user's making.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Capability arguments by capability.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub capability_args: Map<String, Value>,
    /// Bits per second that the claim was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
    /// The segmentation id that the network handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
    /// Attributes of the device as it is published, for the pod to read.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub attributes: Map<String, Value>,
}

impl Plan {
    /// The CNI network's name, by which plugins keep what they have on the node.
    pub fn network_name(&self) -> Option<&str> {
        self.conflist.get("name").and_then(Value::as_str)
    }
}

/// The pod's sandbox that an attachment was, or is being, made in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The runtime's id; the CNI container id.
    pub id: String,
    /// Where the runtime mounted the network namespace.
    pub netns: PathBuf,
    /// Which namespace it was: a path may be given to another one.
    pub netns_id: NetnsId,
    /// The boot in which the sandbox lived (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
}

/// How far an attachment has come. See [`machine`](super::machine) for the moves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub enum Phase {
    /// Nothing has been done to any sandbox; nothing is owed.
    Planned,
    /// An ADD may have started: a DEL is owed, whatever came of it.
    Adding {
        /// Where.
        sandbox: Sandbox,
    },
    /// The ADD succeeded.
    Attached {
        /// Where.
        sandbox: Sandbox,
        /// The CNI result of the whole chain.
        result: Value,
    },
    /// A DEL may have started and is owed until it has succeeded.
    Deleting {
        /// Where.
        sandbox: Sandbox,
        /// The CNI result, where the ADD had succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Value>,
    },
}

impl Phase {
    /// The sandbox to which something is owed or done.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        match self {
            Self::Planned => None,
            Self::Adding { sandbox } | Self::Attached { sandbox, .. } | Self::Deleting { sandbox, .. } => {
                Some(sandbox)
            }
        }
    }
}

/// One attachment: its plan, its phase, and the last thing that went wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// What to attach.
    pub plan: Plan,
    /// How far it is.
    #[serde(flatten)]
    pub phase: Phase,
    /// The link of the host that is in the pod, or on the way, as it was before the first ADD. Known from before that
    /// ADD until after the last DEL, which gives the link back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent: Option<HostLink>,
    /// Nothing is owed but the link, which is not back on the host or not as it was, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stray: Option<String>,
    /// The last failure, cleared by the next success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the last CHECK of what is attached has found wrong. Not journalled: the next agent's CHECK finds it again.
    #[serde(skip)]
    pub check: Option<String>,
}

impl Record {
    /// A record for a plan of which nothing has been done yet.
    pub fn new(plan: Plan) -> Self {
        Self { plan, phase: Phase::Planned, lent: None, stray: None, error: None, check: None }
    }

    /// What tells the record from all others of its pod, for the claim's lifetime and beyond.
    pub fn key(&self) -> String {
        format!("{}.{}", self.plan.claim.uid, self.plan.index)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan(claim: &str, index: u32) -> Plan {
        let object = |name: &str| ObjectRef {
            namespace: "default".into(),
            name: name.into(),
            uid: format!("{name}-uid"),
        };
        let device = DeviceRef {
            request: "net".into(),
            pool: "node0".into(),
            device: "net-storage".into(),
            share_id: None,
        };
        Plan {
            claim: object(claim),
            index,
            of: 1,
            pod: object("pod"),
            pod_claim_name: None,
            device,
            network: "storage".into(),
            if_name: format!("net{}", index + 1).parse().expect("a name"),
            conflist: serde_json::from_str(
                r#"{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"noop"}]}"#,
            )
            .expect("JSON"),
            args: BTreeMap::new(),
            capability_args: Map::new(),
            bandwidth: None,
            segment: None,
            attributes: Map::new(),
        }
    }

    pub(crate) fn sandbox(id: &str) -> Sandbox {
        Sandbox {
            id: id.into(),
            netns: format!("/run/netns/{id}").into(),
            netns_id: NetnsId { dev: 4, ino: 1 },
            boot_id: "boot".into(),
        }
    }

    #[test]
    fn a_fraction_is_the_same_after_many_restarts() {
        let mut record = Record::new(plan("c", 0));
        record.plan.conflist.insert("x".into(), serde_json::json!(123.400_000_131_047_93e-30));
        let mut read = record.clone();
        for _ in 0..3 {
            read = serde_json::from_str(&serde_json::to_string(&read).expect("JSON")).expect("reads back");
        }
        assert_eq!(read, record);
    }

    #[test]
    fn a_plan_of_an_agent_that_told_pods_nothing_is_read() {
        let mut old = serde_json::to_value(plan("c", 0)).expect("JSON");
        for later in ["podClaimName", "attributes"] {
            assert!(
                old.as_object_mut().is_some_and(|old| old.remove(later).is_none()),
                "{later} is left out"
            );
        }
        assert_eq!(serde_json::from_value::<Plan>(old).expect("reads"), plan("c", 0));
    }

    #[test]
    fn records_read_back_in_every_phase() {
        let result = serde_json::json!({"cniVersion": "1.1.0", "ips": []});
        let phases = [
            Phase::Planned,
            Phase::Adding { sandbox: sandbox("a") },
            Phase::Attached { sandbox: sandbox("a"), result: result.clone() },
            Phase::Deleting { sandbox: sandbox("a"), result: Some(result) },
        ];
        for phase in phases {
            let record = Record { phase, error: Some("why".into()), ..Record::new(plan("c", 0)) };
            let text = serde_json::to_string(&record).expect("JSON");
            assert_eq!(serde_json::from_str::<Record>(&text).expect("reads back"), record, "{text}");
        }
    }
}
