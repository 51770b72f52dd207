//! Regular expressions that match a whole text.
//!
//! A pattern of JSON Schema matches any part of a text, so one that is not anchored at both ends would allow
//! any text that contains a match. Such patterns are refused. Texts are printable ASCII, so `.` and `[^/]`
//! never match line ends or other control characters, and `\d` has ten digits.

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::Look;

/// The most memory that a pattern may take, in bytes. Matching is linear in the text, with the pattern's size
/// as factor.
const MAX_SIZE: usize = 64 * 1024;
/// The longest pattern, in bytes. What a parser makes of it takes many times its length.
pub(super) const MAX_LENGTH: usize = 1024;

/// A pattern that matches whole texts only.
pub(super) struct Pattern(Regex);

impl Pattern {
    /// Parses `pattern`, in the syntax of RE2.
    ///
    /// # Errors
    /// Says what is wrong with it, and what to write.
    pub(super) fn parse(pattern: &str) -> Result<Self, String> {
        if pattern.len() > MAX_LENGTH {
            return Err(format!("is longer than {MAX_LENGTH} bytes: use a format, or a shorter one"));
        }
        let syntax = ParserBuilder::new()
            .unicode(false)
            .utf8(false)
            .build()
            .parse(pattern)
            .map_err(|error| format!("is not a regular expression: {}", last_line(&error)))?;
        let ends = syntax.properties();
        if !ends.look_set_prefix().contains(Look::Start) || !ends.look_set_suffix().contains(Look::End) {
            return Err("matches parts of a text, too: write it as ^(…)$".to_owned());
        }
        let regex = RegexBuilder::new(pattern)
            .unicode(false)
            .size_limit(MAX_SIZE)
            .build()
            .map_err(|error| format!("cannot be used: {}: repeat less", last_line(&error)))?;
        Ok(Self(regex))
    }

    /// Whether `text` is printable ASCII and matches the pattern as a whole.
    pub(super) fn matches(&self, text: &str) -> bool {
        text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && self.0.is_match(text.as_bytes())
    }
}

/// A syntax error has several lines; the last one says what is wrong.
fn last_line(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let line = text.trim_end().lines().next_back().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::parse(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}")).matches(text)
    }

    fn problem(pattern: &str) -> String {
        Pattern::parse(pattern).err().unwrap_or_else(|| panic!("{pattern} is accepted"))
    }

    #[test]
    fn a_pattern_that_matches_a_part_of_a_text_is_refused() {
        let partial = [
            "",
            "a",
            "^a",
            "a$",
            r"^a\$",
            "^a[$]",
            "^a|b$",
            "^a$|b",
            "(^a)?$",
            "^(a$)?",
            "(?m)^a$",
            "^(?m)a$",
            "(?m:^)a$",
            "(^|x)a$",
            "^a*$|",
            "(?R)^a$\\z|",
        ];
        for pattern in partial {
            assert_eq!(problem(pattern), "matches parts of a text, too: write it as ^(…)$", "{pattern:?}");
        }
        for pattern in ["^a$", "^(a|b)$", "^a$|^b$", "^(?:a|b)$", r"\Aa\z", "^^a$$", "(^a$)", "^$", "(?i)^a$"]
        {
            assert!(Pattern::parse(pattern).is_ok(), "{pattern:?}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_the_reason() {
        // Behind these words is the reason of the crate `regex`.
        let deep = format!("^{}a{}$", "(".repeat(500), ")".repeat(500));
        for pattern in ["^(a$", "^a**$)", "^(?=a)a$", r"^(a)\1$", "^[ä]$", &deep] {
            let problem = problem(pattern);
            let reason = problem.strip_prefix("is not a regular expression: ");
            assert!(reason.is_some_and(|reason| !reason.is_empty()), "{pattern:?}: {problem}");
        }
        assert!(problem("^((a{1,100}){1,100}){1,100}$").starts_with("cannot be used: "));
        assert!(problem(&format!("^{}$", "a|".repeat(1_000_000))).starts_with("is longer than 1024 bytes"));
    }

    #[test]
    fn an_end_of_line_is_not_an_end() {
        assert!(matches("^[a-z]+$", "abc"));
        for text in ["abc\n", "\nabc", "abc\nabc", "abc\r", "abc\0", "x abc", ""] {
            assert!(!matches("^[a-z]+$", text), "{text:?}");
        }
    }

    #[test]
    fn controls_and_letters_beyond_ascii_pass_no_pattern() {
        for pattern in ["^.*$", "(?s)^.*$", r"^[^/]*$", r"^\D*$", r"^[\x00-\xff]*$", "(?-u)^(?s:.)*$"] {
            for text in ["a\nb", "\0", "\x1b[0m", "\x7f", "a\u{202e}b", "٣", "ä", "\u{85}"] {
                assert!(!matches(pattern, text), "{pattern:?} {text:?}");
            }
            assert!(matches(pattern, "a ~ b"), "{pattern:?}");
        }
        assert!(matches(r"^\d+$", "123") && matches(r"^\w{3}$", "a_1"));
    }

    #[test]
    fn neither_a_name_nor_what_is_made_to_be_slow_takes_long() {
        // As long as what the API server stores of a claim's parameters.
        let text = "a".repeat(10 * 1024) + "!";
        let started = std::time::Instant::now();
        assert!(!matches("^(a+)+$", &text) && !matches("^(a|a)*a{1,253}$", &text));
        assert!(matches("^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", "ns1.lab"));
        assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    }

    proptest! {
        #[test]
        fn the_pattern_of_one_text_matches_that_one_only(one in "[ -~]{0,12}", other in "\\PC{0,12}") {
            let pattern = format!("^{}$", regex::escape(&one));
            prop_assert!(matches(&pattern, &one));
            prop_assert_eq!(matches(&pattern, &other), one == other);
            let (before, after) = (format!("{other}{one}"), format!("{one}{other}"));
            prop_assert_eq!(matches(&pattern, &before), before == one);
            prop_assert_eq!(matches(&pattern, &after), after == one);
        }

        #[test]
        fn no_pattern_lets_a_control_through(pattern in "\\^[\\^$.a|*()\\[\\]?:\\\\sSdDwW-]{0,12}\\$", text in any::<String>()) {
            if let Ok(pattern) = Pattern::parse(&pattern) {
                prop_assert!(!pattern.matches(&text) || text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            }
        }
    }
}
