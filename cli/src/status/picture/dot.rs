//! A picture in the language of Graphviz. Pure.

use super::{Health, Picture};

/// Returns the picture for `dot` (<https://graphviz.org/doc/info/lang.html>).
pub(in crate::status) fn dot(picture: &Picture) -> String {
    let mut lines = vec![
        "digraph netclaim {".to_owned(),
        "  rankdir=LR; ranksep=2; fontname=\"sans-serif\"; labelloc=t;".to_owned(),
        "  node [shape=box, style=rounded, fontname=\"sans-serif\"]; edge [arrowhead=none, fontname=\"sans-serif\"];".to_owned(),
        format!("  label={};", quoted(&picture.title)),
    ];
    for (n, node) in picture.nodes.iter().enumerate() {
        let (label, names) = (quoted(&node.label), quoted(&node.names));
        lines.push(format!(
            "  subgraph cluster_n{n} {{ label={label}; tooltip={names}; {};",
            colour(node.health)
        ));
        for (l, link) in node.links.iter().enumerate() {
            lines.push(format!("    n{n}l{l} [label={}, {}];", quoted(&link.label), colour(link.health)));
        }
        if node.links.is_empty() {
            lines.push(format!("    n{n} [label=\"no link\", {}];", colour(Health::Unused)));
        }
        lines.push("  }".to_owned());
    }
    for (w, network) in picture.networks.iter().enumerate() {
        // Of what is in quotes only the line break is a sequence of dot's.
        let (name, facts) = (escaped(&network.label), escaped(&network.facts));
        lines.push(format!("  w{w} [label=\"{name}\\n{facts}\", {}];", colour(network.health)));
    }
    for line in &picture.lines {
        lines.push(format!(
            "  n{}l{} -> w{} [label={}, penwidth={}, {}];",
            line.node,
            line.link,
            line.network,
            quoted(&line.label()),
            line.width(),
            colour(line.health)
        ));
    }
    if !picture.left_out.is_empty() {
        lines.push(format!("  rest [shape=plaintext, label={}];", quoted(&picture.left_out.join("; "))));
    }
    lines.push("}\n".to_owned());
    lines.join("\n")
}

fn colour(health: Health) -> String {
    format!("color=\"{}\"", health.colour())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

/// Escapes quotes, escape sequences, and entities, which Graphviz replaces in labels.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('&', "&amp;")
}
