//! What attachments receive and send: asks the agents of their nodes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use netclaim_allocation::nodes_in_words;
use netclaim_api::question::Answer;
use netclaim_api::traffic::Traffic;

use super::read::{Chosen, Found};
use crate::asking::exec::exec_all;
use crate::cluster::{ReadError, list};
use crate::components::{AGENT, NAME, agents};

/// The most nodes that a line names.
const SHOWN: usize = 5;

/// Adds to each attachment what it receives and sends, as far as its agent can be asked.
///
/// # Errors
/// Fails if netclaim's Pods cannot be read.
pub(super) async fn add(
    client: &Client,
    asking: &Client,
    netclaim_namespace: &str,
    chosen: &Chosen,
    found: &mut Found,
) -> Result<(), ReadError> {
    let pods = Api::<Pod>::namespaced(client.clone(), netclaim_namespace);
    let pods =
        list("netclaim's Pods", pods, &ListParams::default().labels(&format!("{NAME}={AGENT}"))).await?;
    let nodes: BTreeSet<&str> =
        found.attachments.iter().filter_map(|attachment| attachment.node.as_deref()).collect();
    let asked = agents(&pods).into_iter().filter(|(node, _)| nodes.contains(node)).collect();
    let mut question = vec!["traffic"];
    question.extend(chosen.namespace.iter().flat_map(|namespace| ["--namespace", namespace]));
    question.extend(chosen.pod.iter().flat_map(|pod| ["--pod", pod]));
    let read = |answer| match answer {
        Answer::Traffic(all) => Some(all),
        _ => None,
    };
    for (node, answer) in exec_all(asking, asked, &question, read).await {
        match answer {
            Ok(all) => all.into_iter().for_each(|traffic| set(found, &node, traffic)),
            Err(why) => found
                .notes
                .push(format!("the traffic on {} is not known: {why}", nodes_in_words(&[node], SHOWN))),
        }
    }
    Ok(())
}

fn set(found: &mut Found, node: &str, traffic: Traffic) {
    let same = found.attachments.iter_mut().find(|attachment| {
        attachment.namespace == traffic.namespace
            && attachment.node.as_deref() == Some(node)
            && attachment.pod.as_ref() == Some(&traffic.pod)
            && attachment.interface.as_ref() == Some(&traffic.interface)
    });
    if let Some(attachment) = same {
        attachment.traffic = Some(traffic);
    }
}

/// A rate for people: three digits, and the prefix of its unit.
pub(super) fn rate(bits: u64) -> String {
    let (mut value, mut prefixes) = (bits as f64, ["", "k", "M", "G"].into_iter());
    let mut prefix = prefixes.next().unwrap_or_default();
    while value >= 999.5 {
        let Some(next) = prefixes.next() else { break };
        (value, prefix) = (value / 1000.0, next);
    }
    let digits = if prefix.is_empty() || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::super::Attachment;
    use super::*;

    #[test]
    fn a_rate_has_three_digits_and_a_prefix() {
        for (bits, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1.00k"),
            (12_340, "12.3k"),
            (999_600, "1.00M"),
            (2_000_000_000, "2.00G"),
            (123_400_000_000, "123G"),
            (5_000_000_000_000, "5000G"),
        ] {
            assert_eq!(rate(bits), text);
        }
    }

    #[test]
    fn traffic_is_of_the_interface_of_its_pod_on_its_node() {
        let attachment = |pod: &str, node: &str| Attachment {
            namespace: "shop".to_owned(),
            pod: Some(pod.to_owned()),
            interface: Some("net1".to_owned()),
            node: Some(node.to_owned()),
            ..Attachment::default()
        };
        let mut found =
            Found { attachments: vec![attachment("web", "a"), attachment("db", "a")], ..Found::default() };
        let traffic = |pod: &str| Traffic {
            namespace: "shop".to_owned(),
            pod: pod.to_owned(),
            interface: "net1".to_owned(),
            ..Traffic::default()
        };
        set(&mut found, "a", traffic("db"));
        set(&mut found, "b", traffic("web"));
        let has: Vec<bool> =
            found.attachments.iter().map(|attachment| attachment.traffic.is_some()).collect();
        assert_eq!(has, [false, true]);
    }
}
