//! A picture in the language of Mermaid, which GitHub and many wikis draw. Pure.

use super::{Health, Picture};

/// Returns the picture as a flowchart (<https://mermaid.js.org/syntax/flowchart.html>).
pub(in crate::status) fn mermaid(picture: &Picture) -> String {
    let mut lines = vec![format!("%% {}", escaped(&picture.title)), "flowchart LR".to_owned()];
    for health in Health::ALL {
        lines.push(format!("  classDef {health:?} stroke:{},stroke-width:2px", health.colour()));
    }
    for (n, node) in picture.nodes.iter().enumerate() {
        lines.push(format!("  subgraph n{n}[\"{}\"]", escaped(&node.label)));
        for (l, link) in node.links.iter().enumerate() {
            lines.push(format!("    n{n}l{l}[\"{}\"]:::{:?}", escaped(&link.label), link.health));
        }
        if node.links.is_empty() {
            lines.push(format!("    n{n}none[\"no link\"]:::{:?}", Health::Unused));
        }
        lines.push("  end".to_owned());
        lines.push(format!("  class n{n} {:?}", node.health));
    }
    for (w, network) in picture.networks.iter().enumerate() {
        let (name, facts) = (escaped(&network.label), escaped(&network.facts));
        lines.push(format!("  w{w}([\"{name}<br/>{facts}\"]):::{:?}", network.health));
    }
    for (index, line) in picture.lines.iter().enumerate() {
        let label = escaped(&line.label());
        let label = if label.is_empty() { label } else { format!("|\"{label}\"|") };
        lines.push(format!("  n{}l{} ---{label} w{}", line.node, line.link, line.network));
        let (colour, width) = (line.health.colour(), line.width());
        lines.push(format!("  linkStyle {index} stroke:{colour},stroke-width:{width}px"));
    }
    if !picture.left_out.is_empty() {
        lines.push(format!("  rest[\"{}\"]:::{:?}", escaped(&picture.left_out.join("; ")), Health::Unused));
    }
    lines.join("\n") + "\n"
}

/// Writes all that may mean something to Mermaid, HTML or Markdown as the number of the character.
fn escaped(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || " .,:/()…".contains(c) || c == '-';
    let one = |c: char| if is_plain(c) { c.to_string() } else { format!("#{};", u32::from(c)) };
    text.chars().map(one).collect()
}
