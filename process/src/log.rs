//! The log: what is in it, and how a running program takes another filter.
//!
//! The filter may be in a file, which is read again and again. In a pod that is a mounted ConfigMap: no one
//! needs a port, a signal or a right of the program for it.

use std::io::{IsTerminal as _, stderr};
use std::path::PathBuf;
use std::time::Duration;

use tracing::{Level, Subscriber};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// From one look at the file to the next. The kubelet takes up to a minute to write it.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// What is logged when the flag cannot be used.
const FALLBACK: &str = "info";
/// What a filter may be without the name of a module.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The flags of the log.
#[derive(Debug, Clone, clap::Args)]
#[allow(missing_docs, reason = "each field's comment is its help text")]
pub struct LogArgs {
    /// What to log: a level, or levels by module such as info,netclaim_driver=debug
    #[arg(long, env = "NETCLAIM_LOG", default_value = FALLBACK)]
    pub log: String,

    /// File of a filter like that of --log, instead of which it is used. It is read again every 5 s; the
    /// agent's parent does without it
    #[arg(long, env = "NETCLAIM_LOG_FILTER_FILE")]
    pub log_filter_file: Option<PathBuf>,

    /// Log as JSON, one object a line
    #[arg(long, env = "NETCLAIM_LOG_JSON")]
    pub log_json: bool,
}

/// Why a filter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// A word that would be taken for a module, so that nothing else is logged.
    #[error("{0:?} is not a level ({levels}): for a module, write MODULE=LEVEL", levels = LEVELS.join(", "))]
    NoLevel(String),
    /// Spans and fields, for which only a larger filter has code.
    #[error("{0:?} names spans or fields, which the filter does not know: write MODULE=LEVEL")]
    Spans(String),
    /// It makes no sense.
    #[error("cannot parse it")]
    Parse(#[from] ParseError),
}

/// Returns a filter. `quiet` are directives that come before the others.
///
/// # Errors
/// [`FilterError`].
fn filter(quiet: &str, text: &str) -> Result<Targets, FilterError> {
    let directives = || text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let is_level = |word: &str| LEVELS.contains(&word.to_lowercase().as_str());
    if let Some(word) = directives().find(|word| word.contains('[')) {
        return Err(FilterError::Spans(word.to_owned()));
    }
    if let Some(word) = directives().find(|word| !word.contains('=') && !is_level(word)) {
        return Err(FilterError::NoLevel(word.to_owned()));
    }
    let all: Vec<&str> =
        Some(quiet).filter(|quiet| !quiet.is_empty()).into_iter().chain(directives()).collect();
    Ok(if all.is_empty() { Targets::new().with_default(Level::ERROR) } else { all.join(",").parse()? })
}

/// What else gets the program's spans, besides the log. Its filter is its own.
pub type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts to log to standard error. `quiet` are directives that come before those of the flags. `spans` gets
/// what it wants whatever the log's filter is, and the log does not get longer by it.
pub fn init(args: &LogArgs, quiet: &'static str, spans: Option<SpanLayer>) {
    let first = filter(quiet, &args.log);
    let refused = first.as_ref().err().map(ToString::to_string);
    let first = first.or_else(|_| filter(quiet, FALLBACK)).unwrap_or_default();
    let followed = args.log_filter_file.clone().map(|file| Followed {
        file,
        flag: args.log.clone(),
        quiet,
        known: None,
    });
    match spans {
        // A filter of the whole program is cheaper than one of a layer.
        None => {
            let (first, handle) = reload::Layer::new(first);
            tracing_subscriber::registry().with(first).with(lines(args)).init();
            if let Some(followed) = followed {
                followed.start(handle);
            }
        }
        Some(spans) => {
            let (first, handle) = reload::Layer::new(first);
            tracing_subscriber::registry().with(spans).with(lines(args).with_filter(first)).init();
            if let Some(followed) = followed {
                followed.start(handle);
            }
        }
    }
    if let Some(error) = refused {
        tracing::warn!(filter = args.log, error, "cannot use --log: logging at level {FALLBACK}");
    }
}

/// Returns what writes the lines.
fn lines<S>(args: &LogArgs) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    let log = fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    if args.log_json { log.json().boxed() } else { log.boxed() }
}

/// A file with a filter.
struct Followed {
    file: PathBuf,
    /// The filter while there is no file, or an empty one.
    flag: String,
    quiet: &'static str,
    /// What the file had last.
    known: Option<String>,
}

impl Followed {
    /// Follows the file in a thread of its own, because the log is there before any runtime.
    fn start<S: 'static>(mut self, handle: reload::Handle<Targets, S>) {
        let follow = move || {
            loop {
                match self.look(std::fs::read_to_string(&self.file).ok()) {
                    // Without a subscriber the program ends.
                    Some(Ok(filter)) => {
                        let directives = filter.to_string();
                        if handle.reload(filter).is_err() {
                            return;
                        }
                        tracing::info!(filter = directives, "the log has another filter");
                    }
                    None => {}
                    Some(Err(error)) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(file = %self.file.display(), error, "cannot use the filter of the log: it stays as it was");
                    }
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("log filter".to_owned()).spawn(follow) {
            tracing::warn!(%error, "cannot follow the filter of the log");
        }
    }

    /// Returns the filter from now on, if the file has another content than before.
    fn look(&mut self, content: Option<String>) -> Option<Result<Targets, FilterError>> {
        let content = content.map(|content| content.trim().to_owned()).filter(|content| !content.is_empty());
        if content == self.known {
            return None;
        }
        let next = filter(self.quiet, content.as_deref().unwrap_or(&self.flag));
        self.known = content;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_not_a_level_is_refused() {
        for good in ["info", "DEBUG", "info,netclaim_driver=debug", "warn, kube=off", ""] {
            assert!(filter("", good).is_ok(), "{good}");
        }
        let error = filter("", "info,debgu").unwrap_err().to_string();
        assert!(error.starts_with("\"debgu\" is not a level (off, error,"), "{error}");
        assert!(matches!(filter("", "a=loud"), Err(FilterError::Parse(_))));
        assert!(matches!(filter("", "info,a[b{c}]=trace"), Err(FilterError::Spans(_))));
    }

    #[test]
    fn directives_that_come_first_are_kept_unless_they_are_replaced() {
        let text = |flag| filter("kube=off", flag).unwrap().to_string();
        assert!(text("debug").contains("kube=off"));
        assert!(
            text("debug,kube=trace").contains("kube=trace") && !text("debug,kube=trace").contains("kube=off")
        );
    }

    #[test]
    fn the_filter_follows_its_file_and_then_the_flag_again() {
        let mut followed = Followed { file: PathBuf::new(), flag: "warn".to_owned(), quiet: "", known: None };
        let mut look = |content: Option<&str>| {
            let next = followed.look(content.map(str::to_owned));
            next.map(|filter| filter.map(|filter| filter.to_string()).map_err(|error| error.to_string()))
        };
        assert_eq!(look(None), None, "there is no file yet");
        assert_eq!(look(Some("debug\n")), Some(Ok("debug".to_owned())));
        assert_eq!(look(Some("debug")), None, "nothing has changed");
        assert!(look(Some("loud")).is_some_and(|filter| filter.is_err()));
        assert_eq!(look(Some("loud")), None, "it was reported");
        assert_eq!(look(Some("")), Some(Ok("warn".to_owned())));
        assert_eq!(look(None), None, "an empty file is the same as none");
    }
}
