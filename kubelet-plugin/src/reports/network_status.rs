//! The annotation by which programs made for Multus learn a pod's networks. Pure.
//!
//! The format is section 4.1.2 of the Network Plumbing Working Group's de-facto standard, version 1.3. Multus
//! writes the whole list when it makes a sandbox, before the pod's networks of claims are attached, so that
//! ours are added to it.

use std::net::IpAddr;

use netclaim_cni::{CniResult, IpConfig, Route};
use netclaim_driver::attach::{Interface, Phase};
use serde_json::{Value, json};

use crate::pods::owner::{PodState, Record};

/// Name of the annotation.
pub(super) const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// Returns the entries of a pod's attachments, by interface; `None` while one of them is under way. An
/// attachment that failed has none.
pub(super) fn entries(state: &PodState) -> Option<Vec<Value>> {
    let mut entries = Vec::new();
    for Record { plan, phase, error, .. } in state.attachments() {
        match phase {
            Phase::Attached { sandbox, result } => {
                let made = Interface::made(&plan.spec, sandbox, result);
                let ips: Vec<IpAddr> = made.ips.iter().map(|ip| ip.addr()).collect();
                let mut entry = json!({
                    "name": plan.network,
                    "interface": plan.spec.if_name,
                    "dns": result.dns(),
                });
                if !ips.is_empty() {
                    entry["ips"] = json!(ips);
                }
                if plan.is_primary() {
                    entry["default"] = json!(true);
                }
                if let Some(mac) = made.mac {
                    entry["mac"] = json!(mac);
                }
                let gateways = default_gateways(result);
                if !gateways.is_empty() {
                    entry["gateway"] = json!(gateways);
                }
                entries.push(entry);
            }
            _ if error.is_some() => {}
            _ => return None,
        }
    }
    entries.sort_by(|a, b| a["interface"].as_str().cmp(&b["interface"].as_str()));
    Some(entries)
}

/// The next hops of the default routes. A route without one goes by the gateway of its family's address.
fn default_gateways(result: &CniResult) -> Vec<IpAddr> {
    let of_address = |route: &Route| {
        let mut gateways = result.ips().iter().filter_map(|IpConfig { gateway, .. }| *gateway);
        gateways.find(|gateway| gateway.is_ipv4() == route.dst.addr().is_ipv4())
    };
    let defaults = result.routes().iter().filter(|route| route.dst.prefix_len() == 0);
    defaults.filter_map(|route| route.gw.or_else(|| of_address(route))).collect()
}

/// An annotation that is not a list of objects: it belongs to another program, and stays as it is.
#[derive(Debug, thiserror::Error)]
#[error("the annotation {NETWORK_STATUS} of the pod is not a list: it is left alone")]
pub(crate) struct NoList(#[source] serde_json::Error);

/// Returns the annotation with these entries of ours instead of those of the same interfaces, and of
/// `before`, which an earlier sandbox had; `None` if it has them already.
pub(super) fn merged(
    annotation: Option<&str>,
    before: &[Value],
    ours: &[Value],
) -> Result<Option<String>, NoList> {
    let found: Vec<Value> =
        annotation.map_or(Ok(Vec::new()), |text| serde_json::from_str(text).map_err(NoList))?;
    let is_ours = |entry: &Value| ours.iter().chain(before).any(|own| own["interface"] == entry["interface"]);
    let others = found.iter().filter(|entry| !is_ours(entry));
    let wanted: Vec<Value> = others.chain(ours).cloned().collect();
    Ok((wanted != found).then(|| json!(wanted).to_string()))
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::fixtures::{record, result, sandbox};

    fn state(records: Vec<Record>) -> PodState {
        PodState { records, ..PodState::default() }
    }

    fn attached_with(claim: &str, cni: &Value) -> Record {
        record(claim, Phase::Attached { sandbox: sandbox("s"), result: result(cni) })
    }

    #[test]
    fn an_attachment_has_its_addresses_without_prefixes_and_its_default_gateways() {
        let made = json!({"cniVersion": "1.1.0",
            "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/n"}],
            "ips": [{"address": "10.20.0.2/24", "gateway": "10.20.0.1", "interface": 0},
                {"address": "fd00::2/64", "interface": 0}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "10.20.0.9"}, {"dst": "::/0", "gw": "fd00::1"}]});
        assert_eq!(
            entries(&state(vec![attached_with("c", &made)])),
            Some(vec![json!({"name": "storage", "interface": "net1", "ips": ["10.20.0.2", "fd00::2"],
                "mac": "02:00:00:00:00:01", "gateway": ["10.20.0.1", "fd00::1"], "dns": {}})])
        );
    }

    #[test]
    fn the_primary_network_is_the_pods_default_one() {
        let mut primary = attached_with("c", &json!({"cniVersion": "1.1.0"}));
        std::sync::Arc::make_mut(&mut primary.plan).spec.if_name = "eth0".parse().expect("a name");
        let other = attached_with("d", &json!({"cniVersion": "1.1.0"}));
        let entries = entries(&state(vec![other, primary])).expect("both are made");
        assert_eq!((&entries[0]["interface"], &entries[0]["default"]), (&json!("eth0"), &json!(true)));
        assert_eq!(entries[1]["default"], Value::Null);
    }

    #[test]
    fn nothing_is_said_while_an_attachment_is_under_way() {
        let made = attached_with("c", &json!({"cniVersion": "1.1.0"}));
        assert_eq!(entries(&state(vec![made.clone(), record("d", Phase::Planned)])), None);
        let failed = Record { error: Some("no".to_owned()), ..record("d", Phase::Planned) };
        assert_eq!(entries(&state(vec![made, failed])).map(|entries| entries.len()), Some(1));
    }

    #[test]
    fn entries_of_others_stay_and_ours_are_replaced() {
        let entry = |interface: &str, ip: &str| json!({"interface": interface, "ips": [ip]});
        let eth0 = entry("eth0", "10.0.0.5");
        let text = |entries: &[Value]| json!(entries).to_string();
        let merged = |found: &[Value], before: &[Value], ours: &[Value]| {
            merged(Some(&text(found)), before, ours).unwrap()
        };
        let (old, new) = (entry("net1", "10.20.0.2"), entry("net1", "10.20.0.3"));
        let both = [eth0.clone(), new.clone()];
        assert_eq!(merged(&[eth0.clone(), old], &[], from_ref(&new)), Some(text(&both)));
        assert_eq!(merged(&both, &[], from_ref(&new)), None, "nothing to write");
        let moved = entry("data0", "10.20.0.2");
        assert_eq!(merged(&both, &[new], from_ref(&moved)), Some(text(&[eth0, moved])));
        assert_eq!(super::merged(None, &[], &[]).unwrap(), None, "no annotation for nothing");
    }

    #[test]
    fn a_value_that_is_not_a_list_is_left_alone() {
        assert!(merged(Some("{}"), &[], &[json!({"interface": "net1"})]).is_err());
    }
}
