//! Columns for people, as kubectl prints them.

use crate::colour::{Colours, Mark};

/// What stands in a cell without a value.
pub(crate) const NONE: &str = "<none>";

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    mark: Mark,
}

impl Cell {
    /// A cell that says how bad it is.
    pub(crate) fn marked(text: impl Into<String>, mark: Mark) -> Self {
        Self { text: text.into(), mark }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::marked(text, Mark::Plain)
    }
}

/// Returns the rows as lines whose columns begin below each other.
pub(crate) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>, colours: Colours) -> String {
    let head = head.iter().map(|title| Cell::from(*title)).collect();
    let rows: Vec<Vec<Cell>> = std::iter::once(head).chain(rows).collect();
    let mut widths = Vec::new();
    for row in &rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.text.chars().count().max(*width);
        }
    }
    let mut lines = String::new();
    for row in &rows {
        // Empty cells at the end are left out: spaces there would wrap on narrow terminals.
        let cells = row.len() - row.iter().rev().take_while(|cell| cell.text.is_empty()).count();
        for (index, (cell, width)) in row.iter().zip(&widths).take(cells).enumerate() {
            lines += &colours.paint(cell.mark, &cell.text);
            if index + 1 < cells {
                let gap = width.saturating_sub(cell.text.chars().count()) + 3;
                lines.extend(std::iter::repeat_n(' ', gap));
            }
        }
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_begin_below_each_other_with_and_without_colours() {
        let rows = || {
            [
                vec![Cell::from("storage"), Cell::marked("3", Mark::Bad), Cell::from("x")],
                vec!["é".into(), "".into(), "".into()],
            ]
        };
        let head = ["NETWORK", "N", "LAST"];
        assert_eq!(table(&head, rows(), Colours::Off), "NETWORK   N   LAST\nstorage   3   x\né\n");
        assert_eq!(
            table(&head, rows(), Colours::On),
            "NETWORK   N   LAST\nstorage   \u{1b}[31m3\u{1b}[0m   x\né\n"
        );
    }
}
