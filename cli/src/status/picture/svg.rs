//! A picture as SVG: nodes with their links in one column, ClaimNetworks in another, and lines between them.
//! Pure.
//!
//! Columns need no program that lays out graphs, and two pictures of one cluster differ only where the
//! cluster does. Widths of texts are those of a monospaced font, since nobody is asked for the real ones.

use std::fmt::Write as _;

use super::{Health, Picture};

/// Pixels of a character, and of the distances between things.
const CHARACTER: usize = 7;
const LINE: usize = 18;
const PAD: usize = 10;
const GAP: usize = 20;
/// Between the columns, where the lines are.
const MIDDLE: usize = 300;
const MARGIN: usize = 16;

/// A box with a place.
struct Place {
    y: usize,
    height: usize,
}

/// Returns the picture as a document (<https://www.w3.org/TR/SVG2/>).
pub(in crate::status) fn svg(picture: &Picture) -> String {
    let of_link = |node: usize, link: usize| {
        picture.lines.iter().filter(move |line| (line.node, line.link) == (node, link)).count()
    };
    let of_network =
        |network: usize| picture.lines.iter().filter(move |line| line.network == network).count();
    let node_texts = picture.nodes.iter().flat_map(|node| {
        std::iter::once(node.label.as_str()).chain(node.links.iter().map(|link| link.label.as_str()))
    });
    let network_texts = picture.networks.iter().flat_map(|network| [network.label.as_str(), &network.facts]);
    let (left, right) = (width(node_texts) + 2 * PAD, width(network_texts));
    let (x_nodes, x_networks) = (MARGIN, MARGIN + left + MIDDLE);

    let top = MARGIN + 2 * LINE;
    let (mut nodes, mut links, mut y) = (Vec::new(), Vec::new(), top);
    for (n, node) in picture.nodes.iter().enumerate() {
        let begin = y;
        y += LINE + PAD;
        let mut of_node = Vec::new();
        for l in 0..node.links.len() {
            let height = of_link(n, l).max(1) * LINE + PAD;
            of_node.push(Place { y, height });
            y += height + PAD / 2;
        }
        nodes.push(Place { y: begin, height: y - begin });
        links.push(of_node);
        y += GAP;
    }
    let bottom_of_nodes = y;
    let heights: Vec<usize> =
        (0..picture.networks.len()).map(|w| of_network(w).max(2) * LINE + PAD).collect();
    // The shorter column is spread over the height of the other one.
    let needed: usize = heights.iter().map(|height| height + GAP).sum();
    let space = bottom_of_nodes.saturating_sub(top + needed) / (heights.len() + 1);
    let (mut networks, mut y) = (Vec::new(), top + space);
    for height in heights {
        networks.push(Place { y, height });
        y += height + GAP + space;
    }
    let mut bottom = bottom_of_nodes.max(y);
    let total_width = x_networks + right + MARGIN;
    let total_height = bottom + (picture.left_out.len() + 1) * LINE + MARGIN;

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {total_width} {total_height}\" width=\"{total_width}\" \
         height=\"{total_height}\" font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"11.5\" \
         fill=\"#1a1a1a\" role=\"img\">\n<title>{0}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        escaped(&picture.title)
    );
    text(&mut out, MARGIN, MARGIN + PAD, &picture.title, " font-weight=\"bold\"");
    // Lines are below the boxes that they end at.
    let (mut from, mut to) = (vec![0; picture.lines.len()], vec![0; picture.networks.len()]);
    for (index, line) in picture.lines.iter().enumerate() {
        let before = picture.lines.iter().take(index);
        from[index] = before.filter(|other| (other.node, other.link) == (line.node, line.link)).count();
    }
    for (index, line) in picture.lines.iter().enumerate() {
        let (Some(link), Some(network)) =
            (links.get(line.node).and_then(|links| links.get(line.link)), networks.get(line.network))
        else {
            continue;
        };
        let step = network.height / (of_network(line.network) + 1);
        to[line.network] += 1;
        let (x1, x2) = (x_nodes + left - PAD, x_networks);
        let (y1, y2) =
            (link.y + PAD / 2 + LINE / 2 + from[index] * LINE, network.y + step * to[line.network]);
        let middle = x1.midpoint(x2);
        let _ = writeln!(
            out,
            "<path d=\"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" \
             stroke-opacity=\"0.75\"/>",
            line.health.colour(),
            line.width()
        );
        let halo = " stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"";
        text(&mut out, x1 + PAD + 4, y1 + 4, &line.label(), halo);
    }
    for ((node, place), links) in picture.nodes.iter().zip(&nodes).zip(&links) {
        boxed(&mut out, x_nodes, place, left, node.health, &node.names);
        text(&mut out, x_nodes + PAD, place.y + LINE, &node.label, " font-weight=\"bold\"");
        for (link, place) in node.links.iter().zip(links) {
            boxed(&mut out, x_nodes + PAD, place, left - 2 * PAD, link.health, &link.label);
            text(&mut out, x_nodes + 2 * PAD, place.y + LINE, &link.label, "");
        }
    }
    for (network, place) in picture.networks.iter().zip(&networks) {
        boxed(&mut out, x_networks, place, right, network.health, &network.label);
        let y = place.y + place.height / 2;
        text(&mut out, x_networks + PAD, y - 4, &network.label, " font-weight=\"bold\"");
        text(&mut out, x_networks + PAD, y + LINE - 6, &network.facts, "");
    }
    let mut x = MARGIN;
    for health in Health::ALL {
        let colour = health.colour();
        let _ = writeln!(out, "<circle cx=\"{}\" cy=\"{}\" r=\"5\" fill=\"{colour}\"/>", x + 5, bottom + 6);
        text(&mut out, x + 16, bottom + PAD, health.meaning(), "");
        x += (health.meaning().len() + 5) * CHARACTER;
    }
    text(&mut out, x, bottom + PAD, "lines: attachments", "");
    for sentence in &picture.left_out {
        bottom += LINE;
        text(&mut out, MARGIN, bottom + PAD, sentence, "");
    }
    out + "</svg>\n"
}

/// The width of a box for the longest of these texts.
fn width<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or_default() * CHARACTER + 2 * PAD
}

fn boxed(out: &mut String, x: usize, Place { y, height }: &Place, width: usize, health: Health, title: &str) {
    let (colour, title) = (health.colour(), escaped(title));
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"5\" fill=\"#ffffff\" stroke=\"{colour}\" \
         stroke-width=\"2\"><title>{title}: {}</title></rect>",
        health.meaning()
    );
}

fn text(out: &mut String, x: usize, y: usize, text: &str, attributes: &str) {
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\"{attributes}>{}</text>", escaped(text));
}

/// Escapes what is markup, and replaces what no XML document may have. Control characters are gone already.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
