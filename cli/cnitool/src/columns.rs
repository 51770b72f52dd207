//! Columns for people, as kubectl prints them.

/// Returns the rows as lines whose columns begin below each other. `text` is what a cell has room for, and
/// `shown` what stands there.
pub fn columns<T>(rows: &[Vec<T>], text: impl Fn(&T) -> &str, shown: impl Fn(&T) -> String) -> String {
    let width = |cell: &T| text(cell).chars().count();
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).max(*widest);
        }
    }
    let mut lines = String::new();
    for row in rows {
        // Empty cells at the end are left out: spaces there would wrap on narrow terminals.
        let cells = row.len() - row.iter().rev().take_while(|cell| text(cell).is_empty()).count();
        for (index, (cell, widest)) in row.iter().zip(&widths).take(cells).enumerate() {
            lines += &shown(cell);
            if index + 1 < cells {
                lines.extend(std::iter::repeat_n(' ', widest.saturating_sub(width(cell)) + 3));
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
    fn columns_begin_below_each_other_and_lines_end_with_a_word() {
        let rows = [["NETWORK", "N", "LAST"], ["a", "é", "x"], ["storage", "", ""]].map(Vec::from);
        let shown = columns(&rows, |cell| cell, |cell| (*cell).to_owned());
        assert_eq!(shown, "NETWORK   N   LAST\na         é   x\nstorage\n");
    }
}
