//! A picture as SVG: nodes with their links in one column, ClaimNetworks in another, and lines between them.
//! Pure.
//!
//! Columns need no program that lays out graphs, and two pictures of one cluster differ only where the
//! cluster does. Widths of texts are those of a monospaced font, since nobody is asked for the real ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Health, Line, Picture};

/// Pixels of a character, and of the distances between things.
const CHARACTER: usize = 7;
const LINE: usize = 18;
const PAD: usize = 10;
const GAP: usize = 20;
/// Between the columns, where the lines are.
const MIDDLE: usize = 300;
const MARGIN: usize = 16;
const BOLD: &str = " font-weight=\"bold\"";

/// The vertical place of a box.
struct Place {
    y: usize,
    height: usize,
}

/// Where everything is.
struct Layout {
    /// Widths of the columns.
    left: usize,
    right: usize,
    nodes: Vec<Place>,
    /// By node.
    links: Vec<Vec<Place>>,
    networks: Vec<Place>,
    bottom: usize,
}

impl Layout {
    /// Places the boxes. A box is as high as the lines that end at it need.
    fn of(picture: &Picture) -> Self {
        let lines = |is_of: &dyn Fn(&Line) -> bool| picture.lines.iter().filter(|line| is_of(line)).count();
        let top = MARGIN + 2 * LINE;
        let (mut nodes, mut links, mut y) = (Vec::new(), Vec::new(), top);
        for (n, node) in picture.nodes.iter().enumerate() {
            let begin = y;
            y += LINE + PAD;
            let mut of_node = Vec::new();
            for l in 0..node.links.len() {
                let height = lines(&|line| (line.node, line.link) == (n, l)).max(1) * LINE + PAD;
                of_node.push(Place { y, height });
                y += height + PAD / 2;
            }
            nodes.push(Place { y: begin, height: y - begin });
            links.push(of_node);
            y += GAP;
        }
        let heights =
            (0..picture.networks.len()).map(|w| lines(&|line| line.network == w).max(2) * LINE + PAD);
        let heights: Vec<usize> = heights.collect();
        // The shorter column is spread over the height of the other one.
        let needed: usize = heights.iter().map(|height| height + GAP).sum();
        let space = y.saturating_sub(top + needed) / (heights.len() + 1);
        let (mut networks, mut below) = (Vec::new(), top + space);
        for height in heights {
            networks.push(Place { y: below, height });
            below += height + GAP + space;
        }
        let of_nodes = picture.nodes.iter().flat_map(|node| {
            std::iter::once(node.label.as_str()).chain(node.links.iter().map(|link| link.label.as_str()))
        });
        let of_networks =
            picture.networks.iter().flat_map(|network| [network.label.as_str(), &network.facts]);
        let (left, right) = (width(of_nodes) + 2 * PAD, width(of_networks));
        Self { left, right, nodes, links, networks, bottom: y.max(below) }
    }

    /// Where the column of ClaimNetworks begins.
    fn networks_at(&self) -> usize {
        MARGIN + self.left + MIDDLE
    }
}

/// Returns the picture as a document (<https://www.w3.org/TR/SVG2/>).
pub(in crate::status) fn svg(picture: &Picture) -> String {
    let layout = Layout::of(picture);
    let sentences = picture.left_out.len();
    // The longest sentence may be wider than the columns.
    let of_sentences = width(picture.left_out.iter().map(String::as_str));
    let total_width = (layout.networks_at() + layout.right).max(of_sentences) + MARGIN;
    let total_height = layout.bottom + (sentences + 1) * LINE + MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {total_width} {total_height}\" width=\"{total_width}\" \
         height=\"{total_height}\" font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"11.5\" \
         fill=\"#1a1a1a\" role=\"img\">\n<title>{0}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        escaped(&picture.title)
    );
    text(&mut out, MARGIN, MARGIN + PAD, &picture.title, BOLD);
    // Lines are below the boxes that they end at.
    lines(&mut out, picture, &layout);
    boxes(&mut out, picture, &layout);
    legend(&mut out, layout.bottom);
    for (index, sentence) in picture.left_out.iter().enumerate() {
        text(&mut out, MARGIN, layout.bottom + (index + 1) * LINE + PAD, sentence, "");
    }
    out + "</svg>\n"
}

/// Draws the lines, and what is written at them above all of them.
fn lines(out: &mut String, picture: &Picture, layout: &Layout) {
    let (mut labels, mut ends) = (String::new(), BTreeMap::new());
    for line in &picture.lines {
        let link = layout.links.get(line.node).and_then(|links| links.get(line.link));
        let (Some(link), Some(network)) = (link, layout.networks.get(line.network)) else { continue };
        // How many lines end there before it.
        let mut nth = |end: (Option<usize>, usize)| {
            let count: &mut usize = ends.entry(end).or_default();
            std::mem::replace(count, *count + 1)
        };
        let at_link = nth((Some(line.node), line.link));
        let at_network = nth((None, line.network));
        let of_network = picture.lines.iter().filter(|other| other.network == line.network).count();
        let (x1, x2) = (MARGIN + layout.left - PAD, layout.networks_at());
        let y1 = link.y + PAD / 2 + LINE / 2 + at_link * LINE;
        let y2 = network.y + network.height * (at_network + 1) / (of_network + 1);
        let middle = x1.midpoint(x2);
        let _ = writeln!(
            out,
            "<path d=\"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" \
             stroke-opacity=\"0.75\"/>",
            line.health.colour(),
            line.width()
        );
        let halo = " stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"";
        text(&mut labels, x1 + 2 * PAD, y1 + 4, &line.label(), halo);
    }
    *out += &labels;
}

fn boxes(out: &mut String, picture: &Picture, layout: &Layout) {
    for ((node, place), links) in picture.nodes.iter().zip(&layout.nodes).zip(&layout.links) {
        boxed(out, MARGIN, place, layout.left, node.health, &node.names);
        text(out, MARGIN + PAD, place.y + LINE, &node.label, BOLD);
        for (link, place) in node.links.iter().zip(links) {
            boxed(out, MARGIN + PAD, place, layout.left - 2 * PAD, link.health, &link.label);
            text(out, MARGIN + 2 * PAD, place.y + LINE, &link.label, "");
        }
    }
    let x = layout.networks_at();
    for (network, place) in picture.networks.iter().zip(&layout.networks) {
        boxed(out, x, place, layout.right, network.health, &network.label);
        let middle = place.y + place.height / 2;
        text(out, x + PAD, middle - 4, &network.label, BOLD);
        text(out, x + PAD, middle + LINE - 6, &network.facts, "");
    }
}

fn legend(out: &mut String, bottom: usize) {
    let mut x = MARGIN;
    for health in Health::ALL {
        let colour = health.colour();
        let _ = writeln!(out, "<circle cx=\"{}\" cy=\"{}\" r=\"5\" fill=\"{colour}\"/>", x + 5, bottom + 6);
        text(out, x + 16, bottom + PAD, health.meaning(), "");
        x += (health.meaning().len() + 5) * CHARACTER;
    }
    text(out, x, bottom + PAD, "lines: attachments", "");
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
