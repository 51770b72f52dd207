//! What attachments receive and send: asks the agents of their nodes.

use std::collections::BTreeSet;

use kube::Client;
use netclaim_api::question::Answer;
use netclaim_api::traffic::Traffic;

use super::read::{Chosen, Found};
use crate::asking::exec::{Answers, exec_all};
use crate::cluster::ReadError;
use crate::components::{agents, agents_of};

/// Adds to each attachment what it receives and sends, as far as its agent can be asked.
///
/// # Errors
/// Fails if netclaim's Pods cannot be read for another reason than a missing right.
pub(super) async fn add(
    client: &Client,
    asking: &Client,
    netclaim_namespace: &str,
    chosen: &Chosen,
    found: &mut Found,
) -> Result<(), ReadError> {
    let pods = match agents_of(client, netclaim_namespace).await {
        Err(error) if error.is_forbidden() => {
            let note =
                format!("you may not list the Pods of namespace {netclaim_namespace}: traffic is not shown");
            found.notes.push(note);
            return Ok(());
        }
        read => read?,
    };
    let nodes: BTreeSet<&str> =
        found.attachments.iter().filter_map(|attachment| attachment.node.as_deref()).collect();
    let (mut asked, mut question) = (agents(&pods), vec!["traffic"]);
    let without = nodes.iter().filter(|node| !asked.contains_key(**node)).count();
    if without > 0 {
        found
            .notes
            .push(format!("nodes without an agent of netclaim, whose traffic is not shown: {without}"));
    }
    asked.retain(|node, _| nodes.contains(node));
    question.extend(chosen.namespace.iter().flat_map(|namespace| ["--namespace", namespace]));
    question.extend(chosen.pod.iter().flat_map(|pod| ["--pod", pod]));
    let read = |answer| match answer {
        Answer::Traffic(all) => Some(all),
        _ => None,
    };
    let answers = Answers::of(exec_all(asking, asked.into_iter().collect(), &question, read).await);
    found.notes.extend(answers.unknown("the traffic on"));
    for (node, all) in answers.found {
        all.into_iter().for_each(|traffic| set(found, &node, traffic));
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

#[cfg(test)]
mod tests {
    use super::super::Attachment;
    use super::*;

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
