//! Columns for people, as kubectl prints them.

/// Returns the rows as lines whose columns begin below each other.
pub(super) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}   "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_begin_below_each_other() {
        let rows = [["storage".to_owned(), "3".to_owned()], ["é".to_owned(), String::new()]];
        assert_eq!(table(["NETWORK", "N"], rows), "NETWORK   N\nstorage   3\né\n");
    }
}
