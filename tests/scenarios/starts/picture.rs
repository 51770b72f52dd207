//! A picture of where the time of a start goes: a bar for each contestant, of the medians of its marks.

use crate::samples::{Samples, short};
use crate::timeline::MARKS;

/// The parts of a start: name, colour, and the mark that ends it. A part begins where the one before ends.
const PARTS: [(&str, &str, &str); 8] = [
    ("claim made and allocated", "#7b6fb3", "allocated"),
    ("scheduled", "#b3a9d9", "scheduled"),
    ("seen by the kubelet", "#d9d9d9", "seen"),
    ("volumes, cgroups, claim prepared", "#e8a33d", "sandbox"),
    ("sandbox", "#5b9bd5", "sandboxed"),
    ("container created", "#8cc6a0", "start"),
    ("container started", "#4f9d69", "started"),
    ("status written", "#bfbfbf", "running"),
];
const ADD: &str = "#c0392b";
/// Sizes in pixels.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 130.0;
const BAR: f64 = 26.0;
const ROW: f64 = 48.0;
const LEGEND: f64 = 62.0;

/// One group of bars with a time scale of its own.
pub struct Panel<'a> {
    /// Its title.
    pub title: &'a str,
    /// The kind of measurement, whose marks are the samples `KIND: MARK ms`.
    pub kind: &'a str,
}

/// The name of a mark's samples.
pub fn sample(kind: &str, mark: &str) -> String {
    format!("{kind}: {mark} ms")
}

/// Draws the panels as SVG, with a bar for each of `who`.
pub fn svg(samples: &Samples, panels: &[Panel<'_>], who: &[&str]) -> String {
    let height = LEGEND + panels.len() as f64 * (ROW * who.len() as f64 + 50.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let parts =
        PARTS.iter().map(|(name, colour, _)| (*name, *colour)).chain([("ADD of the CNI plugins", ADD)]);
    for (number, (name, colour)) in parts.enumerate() {
        let (x, y) = (10.0 + (number % 4) as f64 * 222.0, 8.0 + (number / 4) as f64 * 17.0);
        svg += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{name}</text>\n",
            x + 17.0,
            y + 10.0
        );
    }
    let mut y = LEGEND;
    for panel in panels {
        let median = |who: &str, mark: &str| samples.median(who, &sample(panel.kind, mark));
        let longest = who.iter().filter_map(|who| median(who, "running")).fold(1.0, f64::max);
        let scale = (WIDTH - LEFT - 90.0) / longest;
        svg += &format!("<text x=\"10\" y=\"{}\" font-weight=\"bold\">{}</text>\n", y + 18.0, panel.title);
        y += 30.0;
        for who in who {
            svg += &format!("<text x=\"10\" y=\"{}\">{who}</text>\n", y + BAR * 0.7);
            let mut from = 0.0;
            for (name, colour, mark) in PARTS {
                // Marks are medians of their own: one may lie a little before the one that it follows.
                let Some(to) = median(who, mark).map(|to| to.max(from)) else { continue };
                svg += &bar(LEFT + from * scale, y, (to - from) * scale, BAR, colour, name, to - from);
                from = to;
            }
            if let (Some(add), Some(added)) = (median(who, "add"), median(who, "added")) {
                let width = (added - add) * scale;
                svg += &bar(LEFT + add * scale, y + BAR + 2.0, width, 6.0, ADD, "ADD", added - add);
            }
            svg += &format!(
                "<text x=\"{}\" y=\"{}\">{} ms</text>\n",
                LEFT + from * scale + 6.0,
                y + BAR * 0.7,
                short(from)
            );
            y += ROW;
        }
        y += 20.0;
    }
    svg + "</svg>\n"
}

fn bar(x: f64, y: f64, width: f64, height: f64, colour: &str, name: &str, millis: f64) -> String {
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"><title>{name}: {} ms</title></rect>\n",
        short(millis)
    )
}

/// The medians of all marks as rows of a table, with a column for each of `who`.
pub fn rows(samples: &Samples, kind: &str, who: &[&str]) -> Vec<Vec<String>> {
    let cell = |who: &str, mark: &str| {
        samples.median(who, &sample(kind, mark)).map_or_else(|| "–".to_owned(), short)
    };
    let row = |mark: &&str| {
        std::iter::once((*mark).to_owned()).chain(who.iter().map(|who| cell(who, mark))).collect()
    };
    MARKS.iter().map(row).collect()
}
