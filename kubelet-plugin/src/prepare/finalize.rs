//! Plans the finalizers of a claim: for each attachment whose ClaimNetwork has `finalize`, one more run of
//! plugins when all attachments of the pod are made. Pure.

use netclaim_api::device::DeviceName;
use netclaim_api::merge::merge;
use netclaim_api::network::finalize_name;
use netclaim_driver::attach::Spec;
use serde_json::Map;

use super::claim::{AllocatedDevice, Claim};
use super::error::{DeviceError, PlanError};
use super::offered::{Node, in_request, offer, scope};
use crate::pods::owner::{Owner, Plan};

/// Returns the finalizers of the `attachments` of a claim; some of them are `known`.
///
/// # Errors
/// The first configuration that cannot be filled.
pub(super) fn finalizers(
    claim: &Claim,
    attachments: &[Plan],
    node: Node<'_>,
    known: &[Plan],
) -> Result<Vec<Plan>, PlanError> {
    let mut finalizers = Vec::new();
    for ((attachment, device), index) in
        attachments.iter().zip(&claim.devices).zip(first_index(attachments)..)
    {
        let finalizer = match known.iter().find(|plan| plan.index == index) {
            Some(known) => Some(known.clone()),
            None => finalizer(claim, device, attachment, index, node)
                .map_err(|source| in_request(claim, device, source))?,
        };
        finalizers.extend(finalizer);
    }
    Ok(finalizers)
}

/// Finalizers come after all attachments. Each has the place of its attachment among them, so that a
/// ClaimNetwork which gets or loses its `finalize` moves no other one.
fn first_index(attachments: &[Plan]) -> u32 {
    attachments.last().map_or(0, |last| last.index + 1)
}

fn finalizer(
    claim: &Claim,
    allocated: &AllocatedDevice,
    attachment: &Plan,
    index: u32,
    node: Node<'_>,
) -> Result<Option<Plan>, DeviceError> {
    let Ok(DeviceName::Network(network)) = allocated.device.device.parse() else { return Ok(None) };
    if node.inventory.networks.get(&network).is_none_or(|spec| spec.finalize.is_none()) {
        return Ok(None);
    }
    let offered = offer(&allocated.device, node)?;
    let merged = merge(offered.base, &allocated.layers, allocated.bandwidth)?;
    let scope = scope(claim, network.as_str(), node, &offered, attachment.owner.segment.as_ref())?;
    let Some(conflist) = merged.finalizer(&finalize_name(network.as_str()), scope)? else { return Ok(None) };
    // It holds nothing of what the attachment has.
    let owner = Owner {
        bandwidth: None,
        segment: None,
        addresses: None,
        takes_no_address: false,
        link: None,
        attributes: Map::new(),
        ..attachment.owner.clone()
    };
    let spec = Spec { conflist, ..attachment.spec.clone() };
    Ok(Some(Plan { owner, index, finalizes: Some(attachment.index), spec, ..attachment.clone() }))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use netclaim_api::network::ClaimNetworkSpec;
    use netclaim_cni::error_chain;
    use serde_json::{Value, json};

    use super::super::offered::Labels;
    use super::super::plan::{Taken, plans};
    use super::*;
    use crate::inventory::Inventory;
    use crate::inventory::fixtures::uplink;
    use crate::pods::owner::{DeviceRef, ObjectRef};

    static NO_LABELS: Labels = Labels { namespace: BTreeMap::new(), pod: BTreeMap::new() };

    fn inventory(finalize: Option<Value>) -> Inventory {
        let spec = |finalize: Option<Value>| -> ClaimNetworkSpec {
            serde_json::from_value(json!({
                "uplink": {"links": ["eth1"]},
                "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]},
                "finalize": finalize,
            }))
            .expect("a network")
        };
        let networks = [("plain", None), ("storage", finalize)];
        let networks = networks.map(|(name, finalize)| (name.parse().expect("a name"), spec(finalize)));
        Inventory { uplinks: vec![uplink("eth1")], networks: networks.into(), ..Inventory::default() }
    }

    const SYSCTL: &str = "net.ipv4.conf.IFNAME.arp_notify";

    fn tuning(value: &str) -> Option<Value> {
        Some(json!({"cniVersion": "1.0.0", "plugins": [{"type": "tuning", "sysctl": {SYSCTL: value}}]}))
    }

    /// A claim of a device of each of these ClaimNetworks.
    fn claim(networks: &[&str]) -> Claim {
        let object =
            |name: &str| ObjectRef { namespace: "default".into(), name: name.into(), uid: name.into() };
        let device = |network: &&str| AllocatedDevice {
            device: DeviceRef {
                request: "net".into(),
                pool: "node0".into(),
                device: format!("net-{network}"),
                share_id: None,
            },
            bandwidth: None,
            segments: BTreeSet::new(),
            takes_no_address: false,
            layers: Vec::new(),
        };
        Claim {
            object: object("c"),
            pod: object("p"),
            pod_claim_name: None,
            by_attachment: None,
            node_selector: None,
            devices: networks.iter().map(device).collect(),
            observed: Vec::new(),
        }
    }

    fn planned(networks: &[&str], inventory: &Inventory, own: Vec<Plan>) -> Vec<Plan> {
        let node = Node { name: "node0", inventory, labels: &NO_LABELS, kept: &[], primary: true };
        let taken = Taken { own, ..Taken::default() };
        plans(&claim(networks), node, &taken).unwrap_or_else(|error| panic!("{}", error_chain(&error)))
    }

    #[test]
    fn finalizers_come_after_all_attachments_and_hold_nothing() {
        let plans = planned(&["storage", "plain", "storage"], &inventory(tuning("${node.name}")), Vec::new());
        let of = |plan: &Plan| (plan.index, plan.of, plan.finalizes, plan.spec.if_name.to_string());
        let expected = [
            (0, 5, None, "net1"),
            (1, 5, None, "net2"),
            (2, 5, None, "net3"),
            (3, 5, Some(0), "net1"),
            (5, 5, Some(2), "net3"),
        ];
        assert_eq!(
            plans.iter().map(of).collect::<Vec<_>>(),
            expected.map(|(index, of, finalizes, name)| (index, of, finalizes, name.to_owned()))
        );
        let finalizer = &plans[3];
        assert_eq!(finalizer.spec.conflist.name().as_str(), "netclaim-storage.finalize");
        assert!(
            finalizer.spec.conflist.raw().contains("IFNAME.arp_notify\":\"node0\""),
            "{}",
            finalizer.spec.conflist.raw()
        );
        assert_eq!((&finalizer.spec.args, &finalizer.network), (&plans[0].spec.args, &plans[0].network));
        assert!(plans[0].owner.link.is_some() && finalizer.owner.link.is_none());
    }

    #[test]
    fn half_a_claim_is_completed_by_its_finalizers_and_known_ones_stay() {
        let before = planned(&["storage"], &inventory(tuning("1")), Vec::new());
        let now = inventory(tuning("2"));
        assert_eq!(planned(&["storage"], &now, before.clone()), before);
        let completed = planned(&["storage"], &now, before[..1].to_vec());
        assert_eq!((completed.len(), &completed[0]), (2, &before[0]));
        assert!(completed[1].spec.conflist.raw().contains("IFNAME.arp_notify\":\"2\""));
        assert_eq!(planned(&["storage"], &inventory(None), before.clone()), before, "pods keep it");
        let without = planned(&["storage"], &inventory(None), Vec::new());
        assert_eq!(planned(&["storage"], &now, without.clone())[0], without[0], "its number stays, too");
    }
}
