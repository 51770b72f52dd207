//! The archive: texts of bounded size, and a README that says what they are and what is missing.

use std::fmt::Write as _;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::redaction::Redaction;

/// The folder of everything in the archive.
const FOLDER: &str = "netclaim-bugreport";

/// The most bytes of one file.
pub(super) const MAX_FILE: usize = 32 << 20;

/// The most bytes of all files together, before they are compressed.
const MAX_ALL: usize = 256 << 20;

/// A text that takes no more than [`MAX_FILE`] bytes.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub(super) text: String,
    is_cut: bool,
}

impl Text {
    /// Adds a part of the text. Once there is no room for one, nothing more is added.
    pub(super) fn push(&mut self, part: &str) {
        self.is_cut |= self.text.len() + part.len() > MAX_FILE;
        if !self.is_cut {
            self.text.push_str(part);
        }
    }

    /// Whether there is more than the text has.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Takes the last lines: as many as fit into `max` bytes.
    pub(super) fn newest(mut text: String, max: usize) -> Self {
        let over = text.len().saturating_sub(max.min(MAX_FILE));
        if over == 0 {
            return Self { text, is_cut: false };
        }
        let end_of_line = text.as_bytes()[over - 1..].iter().position(|byte| *byte == b'\n');
        let next_line = end_of_line.map(|at| over + at).filter(|start| *start < text.len());
        let start = next_line.unwrap_or_else(|| text.ceil_char_boundary(over));
        text.drain(..start);
        Self { text, is_cut: true }
    }

    /// Says that the text is only a part, if it is.
    pub(super) fn cut_if(mut self, is_cut: bool) -> Self {
        self.is_cut |= is_cut;
        self
    }
}

impl From<String> for Text {
    /// Takes the beginning of the text.
    fn from(mut text: String) -> Self {
        let is_cut = text.len() > MAX_FILE;
        text.truncate(text.floor_char_boundary(MAX_FILE));
        Self { text, is_cut }
    }
}

/// A `tar.gz` that is written as it grows.
pub(super) struct Archive<W: Write> {
    tar: tar::Builder<GzEncoder<W>>,
    redaction: Redaction,
    /// Seconds since 1970 at which everything in it was made.
    time: u64,
    /// Bytes that may still be added.
    left: usize,
    files: Vec<String>,
    missing: Vec<String>,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W, redaction: Redaction, time: u64) -> Self {
        let tar = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        Self { tar, redaction, time, left: MAX_ALL, files: Vec::new(), missing: Vec::new() }
    }

    /// Bytes that may still be added.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Whether nothing could be read.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// What could not be read, with reasons.
    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Notes what could not be read.
    pub(super) fn lacks(&mut self, what: &str, why: &str) {
        self.missing.push(format!("{what}: {}", self.redaction.text(why)));
    }

    /// Adds a file, without secrets. `what` says what it is.
    ///
    /// # Errors
    /// Fails if the archive cannot be written.
    pub(super) fn add(&mut self, path: &str, what: &str, text: impl Into<Text>) -> io::Result<()> {
        let Text { text, mut is_cut } = text.into();
        let mut text = self.redaction.text(&text);
        if text.len() > self.left {
            text.truncate(text.floor_char_boundary(self.left));
            is_cut = true;
        }
        self.left -= text.len();
        let cut = if is_cut { " **Truncated**: there was more of it." } else { "" };
        self.files.push(format!("`{path}`: {what}.{cut}"));
        self.append(path, &text)
    }

    /// Adds the README and ends the archive.
    ///
    /// # Errors
    /// Fails if the archive cannot be written.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let readme = self.readme();
        self.append("README.md", &readme)?;
        self.tar.into_inner()?.finish()
    }

    fn append(&mut self, path: &str, text: &str) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(text.len()).unwrap_or(u64::MAX));
        header.set_mode(0o644);
        header.set_mtime(self.time);
        self.tar.append_data(&mut header, format!("{FOLDER}/{path}"), text.as_bytes())
    }

    fn readme(&self) -> String {
        let mut readme = String::from(README);
        for (title, lines) in [("What is in it", &self.files), ("What could not be read", &self.missing)] {
            let _ = write!(readme, "\n## {title}\n\n");
            for line in lines {
                let _ = writeln!(readme, "* {line}");
            }
            if lines.is_empty() {
                readme.push_str("Nothing.\n");
            }
        }
        readme
    }
}

const README: &str = "\
# A report about netclaim on a cluster

`netclaimctl bugreport` made this archive. It reads the API server and nothing else.

It has no Secrets and no ConfigMaps. Where `(redacted)` stands, netclaimctl has removed something that is or may be a secret:

* the values of environment variables,
* the parameters and the state of other DRA drivers,
* values of CNI configurations and annotations under keys that may name a secret (`password`, `token`, `key`, …),
* texts that look like tokens, passwords and private keys, also in logs.

It has the names of nodes, namespaces, pods and images, labels of nodes, addresses, and CNI configurations. **Look through it before you
give it to others**: no program knows all that is a secret of yours.
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bugreport::fixtures::unpacked;

    fn archive() -> Archive<Vec<u8>> {
        Archive::new(Vec::new(), Redaction::new().unwrap(), 1_800_000_000)
    }

    #[test]
    fn the_readme_says_what_is_there_and_what_is_not() {
        let mut archive = archive();
        archive.add("status.txt", "what `netclaimctl status` shows", "all is well\n".to_owned()).unwrap();
        archive.lacks("nodes", "nodes is forbidden: token=hunter2");
        let files = unpacked(&archive.finish().unwrap());
        assert_eq!(files["status.txt"], "all is well\n");
        let readme = &files["README.md"];
        assert!(readme.contains("\n* `status.txt`: what `netclaimctl status` shows.\n"), "{readme}");
        assert!(
            readme
                .ends_with("\n## What could not be read\n\n* nodes: nodes is forbidden: token=(redacted)\n"),
            "{readme}"
        );
    }

    #[test]
    fn files_and_the_archive_are_bounded() {
        let mut text = Text::default();
        text.push(&"a".repeat(MAX_FILE));
        assert!(text.text.len() == MAX_FILE && !text.is_cut());
        text.push("b");
        assert!(text.text.len() == MAX_FILE && text.is_cut());
        let mut archive = archive();
        archive.left = 10;
        archive.add("fits", "a little", "12345678".to_owned()).unwrap();
        archive.add("big", "much", "äöü".to_owned()).unwrap();
        archive.add("more", "more", "xxx".to_owned()).unwrap();
        let files = unpacked(&archive.finish().unwrap());
        assert_eq!(
            (files["fits"].as_str(), files["big"].as_str(), files["more"].as_str()),
            ("12345678", "ä", "")
        );
        let readme = &files["README.md"];
        assert!(
            readme.contains("* `fits`: a little.\n* `big`: much. **Truncated**: there was more of it.\n")
        );
    }

    #[test]
    fn the_newest_lines_are_whole() {
        let newest = |text: &str, max| {
            let Text { text, is_cut } = Text::newest(text.to_owned(), max);
            (text, is_cut)
        };
        assert_eq!(newest("a\nb\n", 4), ("a\nb\n".to_owned(), false));
        assert_eq!(newest("a\nbc\n", 4), ("bc\n".to_owned(), true));
        assert_eq!(newest("a\nbc\n", 3), ("bc\n".to_owned(), true));
        assert_eq!(newest("a\nbäc\n", 3), ("c\n".to_owned(), true));
        assert_eq!(newest("a\nb", 0), (String::new(), true));
    }

    #[test]
    fn secrets_are_removed_from_every_file() {
        let mut archive = archive();
        archive.add("a.log", "a log", "password=hunter2\n".to_owned()).unwrap();
        assert_eq!(unpacked(&archive.finish().unwrap())["a.log"], "password=(redacted)\n");
    }
}
