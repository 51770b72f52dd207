//! Colours, which terminals show and programs never see.

use std::io;

use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::AnsiColor;

/// Whether texts have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// Wrong is red, doubtful is yellow.
    On,
    /// Texts are as they are.
    Off,
}

/// How bad a text's meaning is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Plain,
    Warning,
    Bad,
}

impl Colours {
    /// Colours for standard output if it is a terminal that can show them, and neither `NO_COLOR` nor
    /// `TERM=dumb` is set.
    pub fn of_stdout() -> Self {
        match AutoStream::choice(&io::stdout()) {
            ColorChoice::Never => Self::Off,
            _ => Self::On,
        }
    }

    /// Returns the text in the colour of the mark.
    pub(crate) fn paint(self, mark: Mark, text: &str) -> String {
        let colour = match mark {
            Mark::Warning => AnsiColor::Yellow,
            Mark::Bad => AnsiColor::Red,
            Mark::Plain => return text.to_owned(),
        };
        let style = colour.on_default();
        match self {
            Self::On => format!("{style}{text}{style:#}"),
            Self::Off => text.to_owned(),
        }
    }
}
