//! Tables in Markdown.

/// Returns a table with this head.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut text = format!("{}|{}\n", line(&head.map(str::to_owned)), "---|".repeat(N));
    for row in rows {
        text += &line(&row.map(|cell| cell.replace('|', "\\|")));
    }
    text
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Returns a text in backticks; nothing for an empty one.
pub fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}
