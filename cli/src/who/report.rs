//! Who has and had an address. Pure.

use std::fmt::Write as _;

use kube::ResourceExt as _;
use netclaim_api::addresses::{AddressBlock, AddressLease, HolderKind};
use netclaim_api::history::{HistoryEntry, Subject};
use serde::Serialize;

use crate::asking::exec::Answers;
use crate::attachments::Attachment;
use crate::colour::Colours;
use crate::printable::printable;
use crate::table::{Cell, NONE, table};

/// What the report is made of.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) subject: Subject,
    /// By claims: who has it now.
    pub(super) attached: Vec<Attachment>,
    pub(super) leases: Vec<AddressLease>,
    /// Blocks that have the address.
    pub(super) blocks: Vec<AddressBlock>,
    /// What agents say.
    pub(super) histories: Answers<Vec<HistoryEntry>>,
    /// What could not be read.
    pub(super) notes: Vec<String>,
}

/// Who has and had it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    subject: String,
    /// Those that have it now come first, then the last one that had it.
    attachments: Vec<Row>,
    /// For whom the address is kept, in sentences.
    kept: Vec<String>,
    /// What is not known, in sentences.
    notes: Vec<String>,
    /// Everything could be read, and every agent has answered.
    is_complete: bool,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    node: Option<String>,
    #[serde(flatten)]
    entry: HistoryEntry,
    is_attached: bool,
}

impl Report {
    /// Puts together what is known.
    pub(super) fn of(facts: Facts) -> Self {
        let Facts { subject, attached, leases, blocks, histories, mut notes } = facts;
        notes.extend(histories.unknown("who had it before on"));
        let is_complete = notes.is_empty() && !histories.found.is_empty();
        let mut rows: Vec<Row> = attached.into_iter().filter_map(Row::of).collect();
        for (node, entries) in histories.found {
            entries.into_iter().for_each(|entry| Row::add(&mut rows, &node, entry));
        }
        rows.sort_by_cached_key(|row| {
            let time = std::cmp::Reverse((row.entry.until.clone(), row.entry.from.clone()));
            (!row.is_attached, time, row.entry.namespace.clone(), row.entry.pod.clone())
        });
        let kept = leases.iter().map(of_lease).chain(blocks.iter().map(of_block)).collect();
        Self { subject: subject.to_string(), attachments: rows, kept, notes, is_complete }
    }

    /// What is not known.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        self.notes.iter().map(|note| printable(note))
    }

    /// The report for people.
    pub(super) fn text(&self, colours: Colours) -> String {
        let mut text = String::new();
        if self.attachments.is_empty() {
            let _ = if self.is_complete {
                writeln!(text, "No pod has {}, and none has had it in the history of the nodes", self.subject)
            } else {
                writeln!(text, "No pod is known to have {}", self.subject)
            };
        } else {
            let head = ["POD", "NODE", "INTERFACE", "NETWORK", "ADDRESSES", "MAC", "CLAIM", "FROM", "UNTIL"];
            text = table(&head, self.attachments.iter().map(Row::cells), colours);
        }
        for kept in &self.kept {
            let _ = writeln!(text, "{}", printable(kept));
        }
        text
    }
}

impl Row {
    /// What a claim says; `None` until its agent has attached it.
    fn of(attachment: Attachment) -> Option<Self> {
        let interface = attachment.interface?;
        let entry = HistoryEntry {
            namespace: attachment.namespace,
            pod: attachment.pod.unwrap_or_default(),
            claim: attachment.claim,
            network: attachment.network.unwrap_or_else(|| attachment.device.clone()),
            interface,
            addresses: attachment.addresses,
            mac: attachment.mac,
            ..HistoryEntry::default()
        };
        Some(Self { node: attachment.node, entry, is_attached: true })
    }

    /// Adds what an agent says. Of an attachment that the claim has it says since when.
    fn add(rows: &mut Vec<Self>, node: &str, entry: HistoryEntry) {
        let same = |row: &&mut Self| {
            let (one, other) = (&row.entry, &entry);
            row.is_attached
                && row.node.as_deref().is_none_or(|known| known == node)
                && (&one.namespace, &one.pod, &one.claim, &one.interface)
                    == (&other.namespace, &other.pod, &other.claim, &other.interface)
        };
        let is_attached = entry.until.is_none();
        match rows.iter_mut().find(same).filter(|_| is_attached) {
            Some(row) => {
                row.node.get_or_insert_with(|| node.to_owned());
                row.entry.from = entry.from;
            }
            None => rows.push(Self { node: Some(node.to_owned()), entry, is_attached }),
        }
    }

    fn cells(&self) -> Vec<Cell> {
        let HistoryEntry { namespace, pod, claim, network, interface, addresses, mac, from, until } =
            &self.entry;
        let text = |text: &str| Cell::from(if text.is_empty() { NONE.to_owned() } else { printable(text) });
        let pod = if pod.is_empty() { String::new() } else { format!("{namespace}/{pod}") };
        let until = match until {
            None if self.is_attached => "now",
            until => until.as_deref().unwrap_or_default(),
        };
        vec![
            text(&pod),
            text(self.node.as_deref().unwrap_or_default()),
            text(interface),
            text(network),
            text(&addresses.join(",")),
            text(mac.as_deref().unwrap_or_default()),
            text(claim),
            text(from.as_deref().unwrap_or_default()),
            text(until),
        ]
    }
}

fn of_lease(lease: &AddressLease) -> String {
    let holder = &lease.spec.holder;
    let kind = match holder.kind {
        HolderKind::ResourceClaim => "claim",
        HolderKind::Pod => "pod",
    };
    let node = lease.status.as_ref().and_then(|status| status.node.as_deref());
    let used = node.map_or_else(|| "no node uses it now".to_owned(), |node| format!("in use on node {node}"));
    format!(
        "AddressLease {}: kept for {kind} {}/{} in ClaimNetwork {}, {used}",
        lease.name_any(),
        holder.namespace,
        holder.name,
        lease.spec.network
    )
}

fn of_block(block: &AddressBlock) -> String {
    let spec = &block.spec;
    format!(
        "AddressBlock {}: node {} hands out {} in ClaimNetwork {}",
        block.name_any(),
        spec.node,
        spec.cidr,
        spec.network
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::asking::exec::NotAsked;

    fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn entry(pod: &str, from: &str, until: Option<&str>) -> HistoryEntry {
        self::from(
            json!({"namespace": "shop", "pod": pod, "claim": format!("{pod}-net"), "network": "storage",
            "interface": "net1", "addresses": ["10.0.0.7/24"], "mac": "02:00:5e:10:00:01", "from": from, "until": until}),
        )
    }

    fn attached(pod: &str) -> Attachment {
        Attachment {
            namespace: "shop".to_owned(),
            pod: Some(pod.to_owned()),
            claim: format!("{pod}-net"),
            network: Some("storage".to_owned()),
            interface: Some("net1".to_owned()),
            addresses: vec!["10.0.0.7/24".to_owned()],
            ..Attachment::default()
        }
    }

    fn facts() -> Facts {
        Facts {
            subject: "10.0.0.7".parse().unwrap(),
            attached: vec![attached("web")],
            leases: Vec::new(),
            blocks: Vec::new(),
            histories: Answers::of([
                ("a".to_owned(), Ok(vec![entry("old", "1", Some("2")), entry("web", "5", None)])),
                ("b".to_owned(), Ok(vec![entry("older", "3", Some("4"))])),
                ("c".to_owned(), Err(NotAsked::Late)),
            ]),
            notes: Vec::new(),
        }
    }

    #[test]
    fn who_has_it_comes_first_and_then_who_had_it_last() {
        let report = Report::of(facts());
        let rows: Vec<_> = report
            .attachments
            .iter()
            .map(|row| {
                (row.entry.pod.as_str(), row.node.as_deref(), row.entry.from.as_deref(), row.is_attached)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("web", Some("a"), Some("5"), true),
                ("older", Some("b"), Some("3"), false),
                ("old", Some("a"), Some("1"), false),
            ]
        );
        let text = report.text(Colours::Off);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "POD          NODE   INTERFACE   NETWORK   ADDRESSES     MAC                 CLAIM       FROM   UNTIL",
                "shop/web     a      net1        storage   10.0.0.7/24   <none>              web-net     5      now"
            ]
        );
        assert_eq!(
            report.notes().collect::<Vec<_>>(),
            ["who had it before on 1 node (c) is not known: its agent did not answer within 25 s"]
        );
    }

    #[test]
    fn a_pod_that_has_come_again_is_not_the_one_that_was_there() {
        let mut facts = facts();
        facts.histories = Answers::of([("a".to_owned(), Ok(vec![entry("web", "1", Some("2"))]))]);
        let report = Report::of(facts);
        assert_eq!(report.attachments.len(), 2);
        assert_eq!(report.attachments[0].entry.from, None);
    }

    #[test]
    fn an_address_that_two_nodes_have_is_shown_of_both() {
        let mut facts = facts();
        facts.attached[0].node = Some("b".to_owned());
        facts.histories =
            Answers::of(["a", "b"].map(|node| (node.to_owned(), Ok(vec![entry("web", node, None)]))));
        let report = Report::of(facts);
        let rows: Vec<_> = report
            .attachments
            .iter()
            .map(|row| (row.node.as_deref(), row.entry.from.as_deref(), row.is_attached))
            .collect();
        assert_eq!(rows, [(Some("b"), Some("b"), true), (Some("a"), Some("a"), true)]);
    }

    #[test]
    fn a_pod_that_waits_for_its_network_has_no_address() {
        let mut facts = facts();
        facts.attached[0].interface = None;
        facts.histories = Answers::of([]);
        let text = Report::of(facts).text(Colours::Off);
        assert_eq!(text, "No pod is known to have 10.0.0.7\n", "no agent was asked");
    }

    #[test]
    fn an_address_that_is_kept_for_a_claim_says_so() {
        let lease = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease", "metadata": {"name": "l"},
            "spec": {"networkName": "storage", "address": "10.0.0.7",
                "holder": {"kind": "ResourceClaim", "namespace": "shop", "name": "db", "uid": "u"}}});
        let block = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": "b"},
            "spec": {"networkName": "storage", "nodeName": "a", "cidr": "10.0.0.0/28"}});
        let facts = Facts {
            attached: Vec::new(),
            histories: Answers::of([("a".to_owned(), Ok(Vec::new()))]),
            leases: vec![from(lease)],
            blocks: vec![from(block)],
            ..facts()
        };
        assert_eq!(
            Report::of(facts).text(Colours::Off),
            "No pod has 10.0.0.7, and none has had it in the history of the nodes\n\
             AddressLease l: kept for claim shop/db in ClaimNetwork storage, no node uses it now\n\
             AddressBlock b: node a hands out 10.0.0.0/28 in ClaimNetwork storage\n"
        );
    }
}
