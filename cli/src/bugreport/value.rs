//! Where the value after a name ends in a text: in JSON, also escaped within other JSON, in YAML, on a
//! command line. Pure.

use std::ops::Range;

/// Returns where the value at the beginning of `text` is, without its quotes. It ends with the line at the
/// latest.
pub(super) fn of(text: &str) -> Range<usize> {
    let line = text.find(['\n', '\r']).unwrap_or(text.len());
    let text = &text[..line];
    match Quote::at(text) {
        Some(quote) => quote.length..quote.length + quote.content(&text[quote.length..]),
        None => 0..bare(text),
    }
}

/// A quotation mark with the backslashes before it.
struct Quote {
    mark: char,
    backslashes: usize,
    /// Bytes of both.
    length: usize,
}

impl Quote {
    /// Reads a quotation mark at the beginning.
    fn at(text: &str) -> Option<Self> {
        let rest = text.trim_start_matches('\\');
        let backslashes = text.len() - rest.len();
        let mark = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        Some(Self { mark, backslashes, length: backslashes + 1 })
    }

    /// Returns how long the quoted text is that begins here. Each level of escaping doubles the backslashes
    /// and adds one.
    fn content(&self, text: &str) -> usize {
        let (mut backslashes, mut is_doubled) = (0, false);
        for (at, c) in text.char_indices() {
            if c == '\\' {
                backslashes += 1;
                continue;
            }
            let escaped = 2 * (self.backslashes + 1);
            let ends = backslashes < self.backslashes || backslashes % escaped == self.backslashes;
            if is_doubled {
                is_doubled = false;
            } else if c == self.mark && ends {
                // YAML doubles an apostrophe.
                is_doubled = c == '\'' && text[at + 1..].starts_with('\'');
                if !is_doubled {
                    return at - backslashes.min(self.backslashes);
                }
            }
            backslashes = 0;
        }
        text.len()
    }
}

/// Returns how long a value without quotes is. It may have brackets, with anything in them.
fn bare(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        if let Some(quote) = Quote::at(rest) {
            let after = &rest[quote.length..];
            if depth > 0 {
                at += quote.length + quote.content(after);
                at += Quote::at(&text[at..]).map_or(0, |end| end.length);
            } else if quote.mark == '\'' && after.starts_with(char::is_alphanumeric) {
                at += quote.length;
            } else {
                break;
            }
            continue;
        }
        match c {
            '[' | '{' | '(' => depth += 1,
            ']' | '}' | ')' => depth = depth.saturating_sub(1),
            '\\' => {
                let after = rest.trim_start_matches('\\');
                // The end of a line, within JSON.
                if after.starts_with(['n', 'r', 't']) && depth == 0 {
                    break;
                }
                at = text.len() - after.len();
                continue;
            }
            ' ' | '\t' if depth == 0 => break,
            _ => {}
        }
        at += c.len_utf8();
        // What follows a list or an object is not part of it.
        if depth == 0 && text.starts_with(['[', '{']) {
            break;
        }
    }
    // A comma may end the value or be a part of it.
    text[..at].trim_end_matches(',').len()
}
