//! Columns for people, as kubectl prints them.

use netclaim_cnitool::columns;

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
    columns(&rows, |cell| &cell.text, |cell| colours.paint(cell.mark, &cell.text))
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
