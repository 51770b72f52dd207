//! An explanation for people. What tenants, plugins and the kubelet have written is made printable here.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use netclaim_allocation::{Group, HeldBy, Holder, Judgement};

use super::explanation::Explanation;
use crate::printable::printable;

/// The most nodes that a line names.
const SHOWN: usize = 5;

impl Explanation {
    /// Returns the explanation in lines; with `details`, every node and device.
    pub(super) fn text(&self, details: bool) -> String {
        let mut text = format!("{}\n", printable(&self.verdict));
        if let Some(judgement) = &self.judgement {
            text += &groups(&judgement.causes, details);
            if !judgement.unfit.is_empty() {
                text += "\nnodes that do not take the pod\n";
                text += &lines(judgement.unfit.iter().map(|group| group_line(group, details)));
            }
            if details {
                text += &all_devices(judgement);
            }
        }
        section(&mut text, "causes", &self.causes);
        section(&mut text, "attachments", &self.attachments);
        section(&mut text, "while the pod runs", &self.network_attachments);
        section(&mut text, "notes", &self.notes);
        text
    }
}

fn section<T: ToString>(text: &mut String, title: &str, items: &[T]) {
    if !items.is_empty() {
        *text += &format!("\n{title}\n");
        *text += &lines(items.iter().map(|item| printable(&item.to_string())));
    }
}

fn lines(items: impl Iterator<Item = String>) -> String {
    items.fold(String::new(), |mut text, item| {
        let _ = writeln!(text, "  {item}");
        text
    })
}

/// The causes below the requests that they are about.
fn groups(groups: &[Group], details: bool) -> String {
    let mut text = String::new();
    let mut last = None;
    for group in groups {
        if last != Some(&group.request) {
            let title = group.request.as_deref().unwrap_or("all requests together");
            let _ = writeln!(text, "\n{}", printable(title));
            last = Some(&group.request);
        }
        let _ = writeln!(text, "  {}", group_line(group, details));
    }
    text
}

/// `3 nodes (a, b, c): ClaimNetwork storage: 0 of 254 addresses free`.
fn group_line(group: &Group, details: bool) -> String {
    let most = if details { group.nodes.len() } else { SHOWN };
    let holders: BTreeSet<&Holder> = group.holders.iter().collect();
    format!(
        "{}: {}{}",
        group.nodes_in_words(most),
        printable(&group.text),
        printable(&HeldBy(&holders).to_string())
    )
}

fn all_devices(judgement: &Judgement) -> String {
    let mut text = String::new();
    for node in &judgement.nodes {
        let unfit: Vec<String> = node.unfit.iter().map(ToString::to_string).collect();
        let unfit = if unfit.is_empty() { String::new() } else { format!(": {}", unfit.join(", ")) };
        let _ = writeln!(text, "\n{}", printable(&format!("node {}{unfit}", node.verdict.node)));
        for request in &node.verdict.requests {
            let _ = writeln!(text, "  {}", printable(&request.request.to_string()));
            for device in &request.devices {
                let id = &device.device;
                if device.causes.is_empty() {
                    let _ = writeln!(text, "    {}/{}: available", id.pool, id.device);
                }
                for cause in &device.causes {
                    let line = printable(&format!("{}/{}: {cause}", id.pool, id.device));
                    let _ = writeln!(text, "    {line}");
                }
            }
        }
    }
    text
}
