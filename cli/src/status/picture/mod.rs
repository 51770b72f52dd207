//! `netclaimctl status -o svg`, `dot` and `mermaid`: a picture of nodes, their links, the ClaimNetworks on
//! these, and how many attachments claims have of them. Pure.
//!
//! ```text
//!   snapshot, report ──> boxes: which nodes look alike ──> svg, which places them
//!                                                      └─> dot, mermaid: programs place them
//! ```
//!
//! A few nodes have a box each. Of many, nodes with the same links, ClaimNetworks and health share one, and
//! so do ClaimNetworks. What does not fit is counted in a sentence. Names are made
//! [`printable`](crate::printable) here and escaped by each form.

mod alike;
mod dot;
mod mermaid;
mod svg;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use self::alike::{Kind, LinkNow};
use super::report::{Agent, NetworkRow, Published, Report, published};
use super::snapshot::Snapshot;
use crate::printable::printable;

pub(super) use self::dot::dot;
pub(super) use self::mermaid::mermaid;
pub(super) use self::svg::svg;

/// Up to so many nodes, or ClaimNetworks, have a box each.
const MAX_FEW: usize = 8;
/// Most boxes of nodes, and most boxes of ClaimNetworks.
const MAX_BOXES: usize = 16;
/// Most links in a box: more are counted.
const MAX_LINKS: usize = 12;
/// Most lines between the boxes: Mermaid draws 500 edges at most, and people read fewer.
const MAX_LINES: usize = 300;
/// Longest name of anything, in characters.
const MAX_NAME: usize = 32;

/// How well something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Bad,
    Doubtful,
    /// There is nothing to be well.
    Unused,
    Good,
}

impl Health {
    const ALL: [Self; 4] = [Self::Good, Self::Doubtful, Self::Bad, Self::Unused];

    /// Returns the colour, of a palette for people who cannot tell red from green (M. Okabe and K. Ito,
    /// "Color Universal Design").
    fn colour(self) -> &'static str {
        match self {
            Self::Good => "#009e73",
            Self::Doubtful => "#e69f00",
            Self::Bad => "#d55e00",
            Self::Unused => "#767676",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Good => "works",
            Self::Doubtful => "look at it",
            Self::Bad => "takes no new pods",
            Self::Unused => "without netclaim",
        }
    }
}

/// A picture, without places.
#[derive(Debug)]
pub(super) struct Picture {
    title: String,
    nodes: Vec<NodeBox>,
    networks: Vec<NetworkBox>,
    lines: Vec<Line>,
    /// What is not shown, in sentences.
    left_out: Vec<String>,
}

/// One node, or several that look alike.
#[derive(Debug)]
struct NodeBox {
    label: String,
    /// The names of the first of them.
    names: String,
    health: Health,
    links: Vec<LinkBox>,
}

/// A link of these nodes, or several that look alike.
#[derive(Debug)]
struct LinkBox {
    label: String,
    health: Health,
}

#[derive(Debug)]
struct NetworkBox {
    label: String,
    /// What is to be said beside its name.
    facts: String,
    health: Health,
}

/// A link that carries a ClaimNetwork; all are indices.
#[derive(Debug)]
struct Line {
    node: usize,
    link: usize,
    network: usize,
    /// `None` if that is not known.
    attachments: Option<usize>,
    /// Why new pods do not get it.
    closed: String,
    health: Health,
}

impl Line {
    /// The width in pixels: it grows with the logarithm of the number of attachments.
    fn width(&self) -> u32 {
        1 + 2 * (usize::BITS - self.attachments.unwrap_or_default().leading_zeros()).min(6)
    }

    /// What is written at it.
    fn label(&self) -> String {
        let attachments = self.attachments.map(|attachments| attachments.to_string());
        let closed = Some(self.closed.clone()).filter(|closed| !closed.is_empty());
        attachments.into_iter().chain(closed).collect::<Vec<_>>().join(", ")
    }
}

impl Picture {
    /// Derives the picture of a cluster from its status.
    pub(super) fn of(report: &Report, snapshot: &Snapshot) -> Self {
        let mut left_out = Vec::new();
        let published = published(snapshot);
        let networks = networks(report, snapshot, &published, &mut left_out);
        let index: BTreeMap<&str, usize> = networks
            .iter()
            .enumerate()
            .flat_map(|(index, rows)| rows.iter().map(move |row| (&*row.name, index)))
            .collect();
        let shown_as = |name: &str| Some(networks.get(*index.get(name)?)?.first()?.name.clone());
        let kinds = alike::kinds(snapshot, report, &published, shown_as, report.nodes.len() > MAX_FEW);
        let (shown, hidden) = kinds.split_at(kinds.len().min(MAX_BOXES));
        if !hidden.is_empty() {
            let nodes: usize = hidden.iter().map(|kind| kind.nodes.len()).sum();
            left_out.push(format!(
                "not shown: {}, of {}",
                count(nodes, "node"),
                count(hidden.len(), "more kind")
            ));
        }
        let attachments = report.networks.iter().map(|row| row.attachments).sum();
        let title = [
            count(report.nodes.len(), "node"),
            count(report.networks.len(), "ClaimNetwork"),
            count(attachments, "attachment"),
        ];
        let title = format!("netclaim: {}", title.join(", "));
        let boxes = networks.iter().filter_map(|rows| network_box(rows)).collect();
        let mut picture = Self { title, nodes: Vec::new(), networks: boxes, lines: Vec::new(), left_out };
        shown.iter().for_each(|kind| picture.add(kind, &index));
        picture.leave_out_lines();
        picture
    }

    /// Keeps the lines that are not well, and those with most attachments.
    fn leave_out_lines(&mut self) {
        let more = self.lines.len().saturating_sub(MAX_LINES);
        if more > 0 {
            self.lines.sort_by_key(|line| (line.health, Reverse(line.attachments)));
            self.lines.truncate(MAX_LINES);
            self.left_out.push(format!("not shown: {}", count(more, "more line")));
        }
    }

    /// Adds nodes that look alike, and the lines of their links. `index` has the boxes of ClaimNetworks.
    fn add(&mut self, kind: &Kind, index: &BTreeMap<&str, usize>) {
        let mut links = kind.links();
        let more = links.split_off(links.len().min(MAX_LINKS)).len();
        if more > 0 {
            self.left_out.push(format!("not shown: {} of {}", count(more, "more link"), label_of(kind)));
        }
        for (link, now) in links.iter().enumerate() {
            let carried = now.networks.iter().filter_map(|on| Some((*index.get(on.network.as_str())?, on)));
            self.lines.extend(carried.map(|(network, on)| Line {
                node: self.nodes.len(),
                link,
                network,
                attachments: on.attachments,
                closed: on.closed.iter().map(|taint| cut(taint)).collect::<Vec<_>>().join(", "),
                health: if on.closed.is_empty() { Health::Good } else { Health::Bad },
            }));
        }
        let links: Vec<LinkBox> = links.iter().map(link_box).collect();
        let (label, names) = (label_of(kind), names_of(kind));
        self.nodes.push(NodeBox { label, names, health: health_of(kind.agent, &links), links });
    }
}

/// The ClaimNetworks that are shown: those that are not well, and those with most attachments. Of many, those
/// on the same links of the same nodes are one.
fn networks<'a>(
    report: &'a Report,
    snapshot: &Snapshot,
    published: &[Published<'_>],
    left_out: &mut Vec<String>,
) -> Vec<Vec<&'a NetworkRow>> {
    let places = alike::places(snapshot, published);
    let mut alike: BTreeMap<_, Vec<&NetworkRow>> = BTreeMap::new();
    for row in &report.networks {
        let own = (report.networks.len() <= MAX_FEW).then_some(&row.name);
        let key = (health_of_network(row), row.accepted, places.get(row.name.as_str()), own);
        alike.entry(key).or_default().push(row);
    }
    let mut shown: Vec<Vec<&NetworkRow>> = alike.into_values().collect();
    let name = |rows: &[&'a NetworkRow]| rows.first().map(|row| &row.name);
    shown.sort_by_key(|rows| {
        (rows.first().map(|row| health_of_network(row)), Reverse(attachments_of(rows)), name(rows))
    });
    let hidden: Vec<&NetworkRow> =
        shown.split_off(shown.len().min(MAX_BOXES)).into_iter().flatten().collect();
    if !hidden.is_empty() {
        let (networks, attachments) = (count(hidden.len(), "ClaimNetwork"), attachments_of(&hidden));
        left_out.push(format!("not shown: {networks} with {}", count(attachments, "attachment")));
    }
    shown.sort_by_key(|rows| name(rows));
    shown
}

fn attachments_of(rows: &[&NetworkRow]) -> usize {
    rows.iter().map(|row| row.attachments).sum()
}

fn health_of_network(row: &NetworkRow) -> Health {
    match row.accepted {
        Some(false) => Health::Bad,
        _ if row.nodes > 0 && row.open_nodes == 0 => Health::Bad,
        None => Health::Doubtful,
        _ if row.open_nodes < row.nodes || row.older_pods > 0 => Health::Doubtful,
        Some(true) => Health::Good,
    }
}

/// The box of ClaimNetworks that look alike.
fn network_box(rows: &[&NetworkRow]) -> Option<NetworkBox> {
    let row = rows.first()?;
    let mut facts = vec![count(attachments_of(rows), "attachment")];
    match row.accepted {
        Some(false) => facts.push("not accepted".to_owned()),
        None => facts.push("not looked at yet".to_owned()),
        _ if row.open_nodes < row.nodes => {
            facts.push(format!("on {} of {}", row.open_nodes, count(row.nodes, "node")));
        }
        Some(true) => {}
    }
    let older = rows.iter().map(|row| row.older_pods).sum();
    if older > 0 {
        facts.push(format!("{} of an older configuration", count(older, "pod")));
    }
    let name = cut(&row.name);
    let label =
        if rows.len() > 1 { format!("{} like {name}", count(rows.len(), "ClaimNetwork")) } else { name };
    Some(NetworkBox { label, facts: facts.join(", "), health: health_of_network(row) })
}

fn link_box(link: &LinkNow) -> LinkBox {
    let name = match link.names.first() {
        Some(name) if name.is_empty() => "without a link".to_owned(),
        name => cut(name.map_or("", String::as_str)),
    };
    let mut label =
        if link.names.len() > 1 { format!("{name} and {} more", link.names.len() - 1) } else { name };
    if link.by_itself > 0 {
        label += &format!(" (by itself: {})", count(link.by_itself, "attachment"));
    }
    let is_closed = |closed: &BTreeSet<String>| !closed.is_empty();
    let health = match link.networks.iter().filter(|on| is_closed(&on.closed)).count() {
        _ if is_closed(&link.closed) => Health::Bad,
        0 => Health::Good,
        closed if closed == link.networks.len() => Health::Bad,
        _ => Health::Doubtful,
    };
    LinkBox { label, health }
}

/// What the agent and the links of a node say of it.
fn health_of(agent: Agent, links: &[LinkBox]) -> Health {
    match agent {
        Agent::NotSelected => Health::Unused,
        Agent::NotReady | Agent::None => Health::Bad,
        Agent::Ready if links.iter().any(|link| link.health != Health::Good) => Health::Doubtful,
        Agent::Ready => Health::Good,
    }
}

fn label_of(kind: &Kind) -> String {
    let what = match kind.agent {
        Agent::Ready => "",
        Agent::NotReady => " (agent not ready)",
        Agent::None => " (no agent)",
        Agent::NotSelected => " (no agent wanted)",
    };
    match kind.nodes.as_slice() {
        [node] => format!("{}{what}", cut(node)),
        [first, ..] => format!("{} like {}{what}", count(kind.nodes.len(), "node"), cut(first)),
        [] => String::new(),
    }
}

fn names_of(kind: &Kind) -> String {
    let mut names: Vec<String> = kind.nodes.iter().take(MAX_BOXES).map(|name| cut(name)).collect();
    if kind.nodes.len() > names.len() {
        names.push(format!("and {} more", kind.nodes.len() - names.len()));
    }
    names.join(" ")
}

/// `1 node`, `2 nodes`.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A name that harms nothing and is not too long.
fn cut(name: &str) -> String {
    let name = printable(name);
    match name.char_indices().nth(MAX_NAME) {
        Some(_) => name.chars().take(MAX_NAME - 1).chain(['…']).collect(),
        None => name,
    }
}

#[cfg(test)]
mod tests;
