//! Who hears of each run of a plugin: how long it took and how it ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::error::ErrorKind;
use crate::names::PluginType;
use crate::request::Verb;

/// How a plugin's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// It exited with success.
    Succeeded,
    /// It reported an error, crashed, or could not be started.
    Failed,
    /// Its time was over: it was killed, or not even started.
    TimedOut,
    /// It was killed because its caller does not wait any more.
    CutShort,
}

impl RunEnd {
    /// All ends.
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::Failed, Self::TimedOut, Self::CutShort];

    /// Returns its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Ok",
            Self::Failed => "Failed",
            Self::TimedOut => "TimedOut",
            Self::CutShort => "CutShort",
        }
    }
}

/// Hears of every process of a plugin that a [`Runtime`](super::Runtime) ends or has seen ending. Plugins
/// that a plugin runs itself, as most do with their IPAM plugin, are part of its time. It delays the
/// attachment, so it must not wait.
pub trait RunObserver: Send + Sync {
    /// Notes that `plugin` has run for `verb`, from the start of its process to its end.
    fn ran(&self, plugin: &PluginType, verb: Verb, end: RunEnd, took: Duration);
}

/// The observer of a runtime, if it has one.
#[derive(Clone, Default)]
pub(super) struct Observed(Option<Arc<dyn RunObserver>>);

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.0.is_some()).finish()
    }
}

impl Observed {
    pub(super) fn by(observer: Arc<dyn RunObserver>) -> Self {
        Self(Some(observer))
    }

    /// Starts to measure a run. Without [`Run::ended`], it is reported as cut short.
    pub(super) fn run<'a>(&'a self, plugin: &'a PluginType, verb: Verb) -> Run<'a> {
        Run { observed: self, plugin, verb, end: RunEnd::CutShort, start: Instant::now() }
    }
}

/// One run, reported when it is dropped: a future that is dropped kills its plugin.
pub(super) struct Run<'a> {
    observed: &'a Observed,
    plugin: &'a PluginType,
    verb: Verb,
    end: RunEnd,
    start: Instant,
}

impl Run<'_> {
    /// Notes how the plugin ended.
    pub(super) fn ended<T>(mut self, outcome: Result<&T, &ErrorKind>) {
        self.end = match outcome {
            Ok(_) => RunEnd::Succeeded,
            Err(ErrorKind::Timeout { .. }) => RunEnd::TimedOut,
            Err(_) => RunEnd::Failed,
        };
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if let Some(observer) = &self.observed.0 {
            observer.ran(self.plugin, self.verb, self.end, self.start.elapsed());
        }
    }
}
