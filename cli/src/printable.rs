//! Texts of others on a terminal: tenants and plugins write names, expressions, conditions and events.

use std::fmt::Display;

use netclaim_api::shorten;

/// The most bytes of a text that are shown.
const MAX: usize = 1024;

/// Returns the text in one line, without what moves a terminal's cursor, and not too long.
pub(crate) fn printable(text: &str) -> String {
    shorten(escaped(text), MAX)
}

/// Returns the whole text in one line, without what moves a terminal's cursor: commands are not cut.
pub(crate) fn escaped(text: impl Display) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.to_string().chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_texts_stay() {
        assert_eq!(printable("\u{1b}[2Ja\r\nb\u{9b}"), r"\u{1b}[2Ja\r\nb\u{9b}");
        assert_eq!(printable("Größe: \"1\" \\ 2"), "Größe: \"1\" \\ 2");
    }

    #[test]
    fn a_long_text_is_cut() {
        let text = printable(&"é".repeat(MAX));
        assert!(text.len() <= MAX && text.ends_with('…'), "{text}");
    }
}
