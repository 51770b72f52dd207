//! Reads what is known of an address.

use kube::api::ListParams;
use kube::{Api, Client};
use netclaim_api::addresses::{AddressBlock, AddressLease};
use netclaim_api::history::Subject;
use netclaim_api::question::Answer;

use super::Args;
use super::report::Facts;
use crate::asking::exec::{Answers, exec_all};
use crate::attachments::{self, Attachment, Chosen};
use crate::cluster::{ReadError, list_kept, permitted};
use crate::components::{agents, agents_of};

/// Reads the cluster and asks the agents. Agents of nodes that have the address, or the block that it is of,
/// are asked first.
///
/// # Errors
/// Fails if the cluster cannot be read for another reason than a missing right.
pub(super) async fn facts(
    client: &Client,
    asking: &Client,
    subject: Subject,
    args: &Args,
) -> Result<Facts, ReadError> {
    let mut notes = Vec::new();
    let attached = permitted(attached(client, &subject, &mut notes).await, &mut notes, || {
        "you may not list the ResourceClaims: who has it now is known from agents only".to_owned()
    })?;
    let (leases, blocks) = match &subject {
        Subject::Pod { .. } => (Vec::new(), Vec::new()),
        _ => {
            let without = || {
                "you may not list AddressLeases and AddressBlocks: for whom the address is kept is not known"
                    .to_owned()
            };
            let books =
                async { Ok((leases_of(client, &subject).await?, blocks_of(client, &subject).await?)) };
            permitted(books.await, &mut notes, without)?
        }
    };
    let pods = agents_of(client, &args.netclaim_namespace).await;
    let pods = permitted(pods, &mut notes, || {
        format!(
            "you may not list the Pods of namespace {}: who had it before is not known",
            args.netclaim_namespace
        )
    })?;
    let agents = agents(&pods);
    let likely: Vec<&str> = attached
        .iter()
        .filter_map(|attachment: &Attachment| attachment.node.as_deref())
        .chain(blocks.iter().map(|block: &AddressBlock| block.spec.node.as_str()))
        .collect();
    let (first, then): (Vec<_>, Vec<_>) = agents
        .into_iter()
        .filter(|(node, _)| args.node.as_deref().is_none_or(|wanted| wanted == *node))
        .partition(|(node, _)| likely.contains(node));
    let asked: Vec<_> = first.into_iter().chain(then).collect();
    if let (Some(node), true) = (&args.node, asked.is_empty()) {
        notes.push(format!("node {node} has no agent of netclaim: who had it before is not known"));
    }
    let read = |answer| match answer {
        Answer::History(entries) => Some(entries),
        _ => None,
    };
    let histories = Answers::of(exec_all(asking, asked, &["who", &subject.to_string()], read).await);
    Ok(Facts { subject, attached, leases, blocks, histories, notes })
}

async fn attached(
    client: &Client,
    subject: &Subject,
    notes: &mut Vec<String>,
) -> Result<Vec<Attachment>, ReadError> {
    let namespace = match subject {
        Subject::Pod { namespace, .. } => Some(namespace.clone()),
        _ => None,
    };
    let is_of = |attachment: &Attachment| {
        let pod = attachment.pod.as_deref().unwrap_or_default();
        subject.is_of((&attachment.namespace, pod), &attachment.addresses, attachment.mac.as_deref())
    };
    let found = attachments::find(client, &Chosen { namespace, ..Chosen::default() }, is_of).await?;
    notes.extend(found.notes);
    Ok(found.attachments)
}

async fn leases_of(client: &Client, subject: &Subject) -> Result<Vec<AddressLease>, ReadError> {
    let is_of = |lease: &AddressLease| match subject {
        Subject::Address(address) => lease.spec.address == Some(*address),
        Subject::Mac(mac) => lease.spec.mac.as_ref() == Some(mac),
        Subject::Pod { .. } => false,
    };
    let api = Api::<AddressLease>::all(client.clone());
    none_if_unknown(
        list_kept("AddressLeases", api, &ListParams::default(), |lease| Some(lease).filter(is_of)).await,
    )
}

async fn blocks_of(client: &Client, subject: &Subject) -> Result<Vec<AddressBlock>, ReadError> {
    let Subject::Address(address) = subject else { return Ok(Vec::new()) };
    let is_of = |block: &AddressBlock| block.spec.cidr.contains(address);
    let api = Api::<AddressBlock>::all(client.clone());
    none_if_unknown(
        list_kept("AddressBlocks", api, &ListParams::default(), |block| Some(block).filter(is_of)).await,
    )
}

/// A cluster without these kinds has none of their objects.
fn none_if_unknown<T>(read: Result<Vec<T>, ReadError>) -> Result<Vec<T>, ReadError> {
    match read {
        Err(error) if error.is_unknown() => Ok(Vec::new()),
        read => read,
    }
}
