//! What is said of an object.

use netclaim_api::{Invalid, shorten};

/// What is wrong with an object, and what is legal and unwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// What makes netclaim refuse the object, or what is made of it.
    pub errors: Vec<Invalid>,
    /// What is legal and unwise.
    pub warnings: Vec<Invalid>,
}

impl Review {
    /// An object that is refused for one thing.
    pub fn refused(error: Invalid) -> Self {
        Self { errors: vec![error], warnings: Vec::new() }
    }

    pub(crate) fn error(&mut self, field: impl Into<String>, problem: impl Into<String>) {
        self.errors.push(Invalid::new(field, problem));
    }

    pub(crate) fn warn(&mut self, field: impl Into<String>, problem: impl Into<String>) {
        self.warnings.push(Invalid::new(field, problem));
    }

    /// Bounds what users have written into names and values, and escapes what would move a terminal's cursor.
    pub(crate) fn printable(mut self) -> Self {
        for invalid in self.errors.iter_mut().chain(&mut self.warnings) {
            invalid.field = printable(&invalid.field, MAX_FIELD);
            invalid.problem = printable(&invalid.problem, MAX_PROBLEM);
        }
        self
    }
}

/// The longest path of a field and the longest text of a problem, in bytes.
const MAX_FIELD: usize = 256;
const MAX_PROBLEM: usize = 1024;

/// Returns a text in printable ASCII, so that letters which look alike differ. The middle of a long one is
/// left out: what to do is at the end.
fn printable(text: &str, max: usize) -> String {
    let escaped = |text: &str| -> String {
        let plain = |c: char| c == '…' || c == ' ' || c.is_ascii_graphic();
        text.chars().map(|c| if plain(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
    };
    if text.len() <= max {
        return shorten(escaped(text), max);
    }
    let half = max / 2;
    let (head, tail) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half / 2));
    let head = shorten(escaped(&text[..head]), half);
    format!("{}…{}", head.trim_end_matches('…'), shorten(escaped(&text[tail..]), half))
}
