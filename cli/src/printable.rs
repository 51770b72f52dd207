//! Texts of others on a terminal: tenants and plugins write names, expressions, conditions and events.

use std::fmt::Display;

use netclaim_api::shorten;

/// The most bytes of a text that are shown.
const MAX: usize = 1024;

/// Returns the text in one line, without what moves a terminal's cursor or turns its direction, and not too
/// long.
pub(crate) fn printable(text: &str) -> String {
    shorten(escaped(text), MAX)
}

/// The same for a text that is not cut, such as a command.
pub(crate) fn escaped(text: impl Display) -> String {
    let is_harmful = |c: char| c.is_control() || is_direction(c);
    let escaped = |c: char| if is_harmful(c) { c.escape_default().to_string() } else { c.to_string() };
    text.to_string().chars().map(escaped).collect()
}

/// Whether the character makes a terminal show what follows in another order (Unicode's explicit directional
/// formatting).
fn is_direction(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_texts_stay() {
        assert_eq!(printable("\u{1b}[2Ja\r\nb\u{9b}"), r"\u{1b}[2Ja\r\nb\u{9b}");
        assert_eq!(printable("a\u{202e}b\u{2066}c"), r"a\u{202e}b\u{2066}c");
        assert_eq!(printable("Größe: \"1\" \\ 2"), "Größe: \"1\" \\ 2");
    }

    #[test]
    fn a_long_text_is_cut() {
        let text = printable(&"é".repeat(MAX));
        assert!(text.len() <= MAX && text.ends_with('…'), "{text}");
    }
}
