//! Failed plugin calls.
//!
//! An [`Error`] names the plugin, the call and the attachment; its source, an [`ErrorKind`], is the cause. It
//! answers two questions: may the same call succeed later ([`Error::retry`]), and may it have left something
//! behind ([`Error::effect`])?

use std::cmp::Ordering;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::attachment::Attachment;
use crate::config::{ConfError, NetworkList};
use crate::names::{ContainerId, IfName, ListName, PluginType};
use crate::request::{RequestError, Verb};
use crate::result::{CniResult, ResultError};
use crate::version::SpecVersion;

/// How much of a plugin's output an error message shows, in bytes.
const SHOWN: usize = 512;

/// A failed plugin call.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    context: Context,
    kind: ErrorKind,
    stderr: String,
}

/// The call that an error belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) verb: Option<Verb>,
    pub(crate) plugin: PluginType,
    pub(crate) network: Option<ListName>,
    pub(crate) container: Option<ContainerId>,
    pub(crate) if_name: Option<IfName>,
    pub(crate) way: Way,
}

/// How a plugin is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// By the socket of its daemon if there is one now, else its program.
    Either,
    /// Its program.
    Program,
    /// By the socket of its daemon.
    Socket,
}

impl Context {
    pub(crate) fn lookup(plugin: &PluginType) -> Self {
        let (verb, network, container, if_name) = Default::default();
        Self { verb, plugin: plugin.clone(), network, container, if_name, way: Way::Either }
    }

    /// A call for the network, the way the list was settled.
    pub(crate) fn network(verb: Verb, list: &NetworkList, plugin: &PluginType) -> Self {
        let is_served = list.sockets().is_some_and(|types| types.contains(plugin));
        let way = if is_served { Way::Socket } else { Way::Program };
        Self { verb: Some(verb), network: Some(list.name().clone()), way, ..Self::lookup(plugin) }
    }

    pub(crate) fn attachment(
        verb: Verb,
        list: &NetworkList,
        plugin: &PluginType,
        attachment: &Attachment,
    ) -> Self {
        Self {
            container: Some(attachment.container_id.clone()),
            if_name: Some(attachment.if_name.clone()),
            ..Self::network(verb, list, plugin)
        }
    }

    /// Logs a plugin's standard error.
    pub(crate) fn log(&self, stderr: &str) {
        tracing::info!(
            plugin = %self.plugin,
            verb = self.verb.map(Verb::as_str),
            network = self.network.as_ref().map(ListName::as_str),
            container = self.container.as_ref().map(ContainerId::as_str),
            interface = self.if_name.as_ref().map(IfName::as_str),
            stderr = stderr.trim_end(),
            "CNI plugin wrote to standard error"
        );
    }

    pub(crate) fn error(&self, kind: impl Into<ErrorKind>) -> Error {
        self.error_with(kind, String::new())
    }

    pub(crate) fn error_with(&self, kind: impl Into<ErrorKind>, stderr: String) -> Error {
        Error(Box::new(Inner { context: self.clone(), kind: kind.into(), stderr }))
    }
}

/// The cause of a failed call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No directory has an executable file of the plugin's name.
    #[error("not found in {}{}; install the plugin there or name its directory", list(dirs), but_not_executable(.not_executable))]
    NotFound {
        /// The directories, in the order they were searched.
        dirs: Vec<PathBuf>,
        /// A regular file of that name which may not be executed.
        not_executable: Option<PathBuf>,
    },
    /// The call cannot be put together.
    #[error("the call cannot be made")]
    Request(#[from] RequestError),
    /// The process could not be started.
    #[error("{} cannot be started", path.display())]
    Spawn {
        /// The binary.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The plugin's daemon cannot be reached: nothing was asked of it.
    #[error("its daemon does not answer at {}; start the daemon that serves the plugin there", path.display())]
    Daemon {
        /// Its socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The call is for a daemon, and no directory of sockets is set.
    #[error("only its daemon can do this, and no directory of sockets is set; set it, as by --cni-sockets")]
    NoSockets,
    /// A file or directory that others than root could have put there.
    #[error("{} {problem}; only sockets that root alone can put there are used", path.display())]
    Untrusted {
        /// The socket or its directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The daemon failed other than by a plugin's error, or the connection broke.
    #[error("its daemon at {} failed: {message}", path.display())]
    DaemonFailed {
        /// Its socket.
        path: PathBuf,
        /// The status of the call.
        message: String,
    },
    /// The deadline passed. A running plugin was killed with its process group.
    #[error("did not finish within {}: {phase}", seconds(*after))]
    Timeout {
        /// The time that was allowed for the whole operation, every plugin of the chain included.
        after: Duration,
        /// The step at which the call was.
        phase: CallPhase,
    },
    /// A signal that was not the runtime's ended the plugin: a crash, or the kernel was out of memory.
    #[error("killed by signal {signal}")]
    Signal {
        /// Its number.
        signal: i32,
    },
    /// The plugin reported an error.
    #[error(transparent)]
    Plugin(PluginError),
    /// The plugin failed without saying why.
    #[error("exit status {status} without an error on standard output")]
    Silent {
        /// The exit status.
        status: i32,
    },
    /// The plugin failed and printed something that is not an error object.
    #[error("exit status {status} with {stdout:?} on standard output, which is not a CNI error")]
    Garbage {
        /// The exit status.
        status: i32,
        /// The beginning of its output.
        stdout: String,
    },
    /// The plugin claims success and printed nothing where a result is due.
    #[error("success without a result on standard output")]
    Empty,
    /// The plugin claims success and printed something that is not JSON.
    #[error("success with {stdout:?} on standard output, which is not a JSON document")]
    NotJson {
        /// The beginning of its output.
        stdout: String,
        /// Where the text stops being JSON.
        #[source]
        source: serde_json::Error,
    },
    /// The plugin claims success and printed more than one JSON document.
    #[error("success with more than one JSON document on standard output: {stdout:?}")]
    TwoDocuments {
        /// The beginning of its output.
        stdout: String,
    },
    /// The plugin claims success and printed an error.
    #[error("exit status 0 although it reported an error")]
    ErrorDespiteSuccess(#[source] PluginError),
    /// The plugin printed more than is kept.
    #[error("more than {limit} bytes on standard output")]
    TooMuchOutput {
        /// The limit in bytes.
        limit: usize,
    },
    /// The plugin's JSON is not a result, or one of an unknown version.
    #[error("unusable result")]
    Result(#[from] ResultError),
    /// The answer to VERSION names no versions.
    #[error("its answer to VERSION names no supported versions: {stdout:?}")]
    VersionReply {
        /// The beginning of its output.
        stdout: String,
    },
    /// The plugin supports none of the versions that the configuration and the plugins before it leave.
    #[error("supports CNI {}, and the network needs one of {}", list(supported), list(wanted))]
    NoCommonVersion {
        /// Versions of the configuration that the plugins looked at before support.
        wanted: Vec<SpecVersion>,
        /// What this plugin supports.
        supported: Vec<SpecVersion>,
    },
    /// The configuration cannot be narrowed to the version that was found.
    #[error("its configuration cannot be rewritten")]
    Pin(#[source] ConfError),
    /// CHECK was asked for in a version that does not have it.
    #[error("CHECK does not exist in version {0}; 0.4.0 is the first that has it")]
    NoCheck(SpecVersion),
    /// The process could not be waited for.
    #[error("its process cannot be waited for")]
    Wait(#[source] io::Error),
}

/// The step at which a call was when its deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPhase {
    /// Another operation on the same container, or GC of the same network, was still running.
    Queued,
    /// The plugins before it were running.
    Spent,
    /// The binary was being written (`ETXTBSY`).
    Busy,
    /// The plugin was running.
    Running,
    /// The plugin's daemon was asked. It has been told to stop; whether it does is not known.
    Daemon,
}

impl fmt::Display for CallPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => {
                "another operation on the container or network, perhaps another program's, was still running"
            }
            Self::Spent => "the plugins before it took all the time",
            Self::Busy => "the binary was being written",
            Self::Running => "the plugin was killed",
            Self::Daemon => "the plugin's daemon was told to stop",
        })
    }
}

/// The error object of a plugin (specification, section 5, "Error").
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error {code}: {msg}{}", details_part(details))]
pub struct PluginError {
    /// Below 100 defined by the specification, from 100 on by the plugin; 999 is what Go plugins use for
    /// everything.
    pub code: u64,
    /// The short message.
    pub msg: String,
    /// The long message; may be empty.
    pub details: String,
    /// What the failed operation left behind, if the plugin reports it. Not in a released specification yet.
    pub effect_state: Option<EffectState>,
}

/// A plugin's report of what a failed operation left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectState {
    /// Nothing.
    None,
    /// Something, all of it inside the container's namespace.
    Container,
    /// Something outside of the container.
    Global,
}

/// Whether the same call may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The cause should pass: the plugin reported so (codes 11, 50, 51), or time or processes ran out.
    Later,
    /// The cause is not known: most plugins give every error the same code.
    Perhaps,
    /// Not before the configuration, the arguments or the installed plugin change.
    No,
}

/// What a failed call may have left behind, that is, whether DEL is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Nothing: the plugin never ran, or reported so. DEL is not due.
    None,
    /// Something that ends with the container's namespace.
    Container,
    /// Anything: DEL is due.
    Unknown,
}

impl Error {
    /// The operation; `None` if the plugin was only looked for.
    pub fn verb(&self) -> Option<Verb> {
        self.0.context.verb
    }

    /// Whether the plugin is a daemon's, and the call has not come to its end there.
    pub fn is_of_daemon(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Daemon { .. }
                | ErrorKind::NoSockets
                | ErrorKind::Untrusted { .. }
                | ErrorKind::DaemonFailed { .. }
                | ErrorKind::Timeout { phase: CallPhase::Daemon, .. }
        )
    }

    /// The plugin.
    pub fn plugin(&self) -> &PluginType {
        &self.0.context.plugin
    }

    /// The network.
    pub fn network(&self) -> Option<&ListName> {
        self.0.context.network.as_ref()
    }

    /// The container, for operations on an attachment.
    pub fn container(&self) -> Option<&ContainerId> {
        self.0.context.container.as_ref()
    }

    /// The interface, for operations on an attachment.
    pub fn if_name(&self) -> Option<&IfName> {
        self.0.context.if_name.as_ref()
    }

    /// The cause.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The end of what the plugin wrote to standard error, at most [`STDERR_TAIL`](super::exec::STDERR_TAIL)
    /// bytes.
    pub fn stderr(&self) -> &str {
        &self.0.stderr
    }

    /// The plugin's error object, if it gave one.
    pub fn reported(&self) -> Option<&PluginError> {
        match self.kind() {
            ErrorKind::Plugin(error) | ErrorKind::ErrorDespiteSuccess(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the same call may succeed later.
    pub fn retry(&self) -> Retry {
        if let Some(error) = self.reported() {
            return match error.code {
                11 | 50 | 51 => Retry::Later,
                1 | 2 | 4 | 6 | 7 => Retry::No,
                _ => Retry::Perhaps,
            };
        }
        match self.kind() {
            ErrorKind::Timeout { .. }
            | ErrorKind::Signal { .. }
            | ErrorKind::Wait(_)
            | ErrorKind::Daemon { .. }
            | ErrorKind::DaemonFailed { .. } => Retry::Later,
            ErrorKind::Spawn { source, .. } => match source.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory | io::ErrorKind::Interrupted => {
                    Retry::Later
                }
                _ if [Errno::EMFILE, Errno::ENFILE]
                    .map(|e| Some(e as i32))
                    .contains(&source.raw_os_error()) =>
                {
                    Retry::Later
                }
                _ => Retry::No,
            },
            ErrorKind::NotFound { .. }
            | ErrorKind::Request(_)
            | ErrorKind::NoCommonVersion { .. }
            | ErrorKind::NoCheck(_)
            | ErrorKind::Result(ResultError::Version(_)) => Retry::No,
            _ => Retry::Perhaps,
        }
    }

    /// What the call may have left behind.
    pub fn effect(&self) -> Effect {
        if let Some(error) = self.reported() {
            return match error.effect_state {
                Some(EffectState::None) => Effect::None,
                Some(EffectState::Container) => Effect::Container,
                Some(EffectState::Global) => Effect::Unknown,
                // "Container unknown": the specification requires no clean-up.
                None if error.code == 3 => Effect::None,
                None => Effect::Unknown,
            };
        }
        match self.kind() {
            ErrorKind::NotFound { .. }
            | ErrorKind::Request(_)
            | ErrorKind::Spawn { .. }
            | ErrorKind::Daemon { .. }
            | ErrorKind::NoSockets
            | ErrorKind::Untrusted { .. }
            | ErrorKind::NoCommonVersion { .. }
            | ErrorKind::NoCheck(_)
            | ErrorKind::Timeout { phase: CallPhase::Queued | CallPhase::Spent | CallPhase::Busy, .. } => {
                Effect::None
            }
            _ => Effect::Unknown,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { verb, plugin, network, container, if_name, way: _ } = &self.0.context;
        write!(f, "CNI plugin `{plugin}`")?;
        if let Some(verb) = verb {
            write!(f, " failed {verb}")?;
        }
        if let Some(network) = network {
            write!(f, " of network `{network}`")?;
        }
        if let Some(if_name) = if_name {
            write!(f, ", interface `{if_name}`")?;
        }
        if let Some(container) = container {
            write!(f, ", container `{container}`")?;
        }
        // A plugin's error object has the message already.
        if self.reported().is_none() && !self.0.stderr.trim().is_empty() {
            write!(f, ", with {:?} on standard error", ending(self.0.stderr.trim()))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.kind)
    }
}

/// An ADD that did not reach the end of its chain. Nothing was deleted.
#[derive(Debug, thiserror::Error)]
#[error("ADD stopped after {completed} of {total} plugins")]
pub struct AddError {
    /// How many plugins had succeeded.
    pub completed: usize,
    /// How many the network has.
    pub total: usize,
    /// The result of the last plugin that succeeded: `prevResult` for the DEL that is due.
    pub last_good: Option<Box<CniResult>>,
    /// Which plugin failed, and how.
    #[source]
    pub error: Error,
}

impl AddError {
    /// Whether anything may have been left behind, so that DEL is due.
    pub fn needs_del(&self) -> bool {
        self.stopped().needs_del()
    }

    /// Where the chain stopped.
    pub fn stopped(&self) -> Stopped {
        Stopped { completed: self.completed, effect: self.error.effect() }
    }

    /// Whether a plugin ran.
    pub(crate) fn has_begun(&self) -> bool {
        self.needs_del() || self.error.reported().is_some()
    }
}

/// Where the chain of a failed ADD stopped. Its DEL needs to know, because a plugin that made nothing may be
/// unable to delete it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopped {
    /// How many plugins had succeeded. The next one failed, and the others did not run.
    pub completed: usize,
    /// What the plugin that failed left behind.
    #[serde(rename = "effectState")]
    pub effect: Effect,
}

impl Stopped {
    /// Before the first plugin ran.
    pub const AT_ONCE: Self = Self { completed: 0, effect: Effect::None };

    /// Whether anything may have been left behind, so that DEL is due.
    pub fn needs_del(self) -> bool {
        self.completed > 0 || self.effect != Effect::None
    }

    /// Returns what the ADD left behind of the plugin at `index` in the chain.
    pub(crate) fn left_by(self, index: usize) -> Effect {
        match index.cmp(&self.completed) {
            Ordering::Less => Effect::Unknown,
            Ordering::Equal => self.effect,
            Ordering::Greater => Effect::None,
        }
    }
}

/// The beginning of a plugin's output, for a message.
pub(crate) fn beginning(output: &[u8]) -> String {
    String::from_utf8_lossy(output.get(..SHOWN).unwrap_or(output)).into_owned()
}

fn ending(text: &str) -> &str {
    let mut start = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.get(start..).unwrap_or_default()
}

fn details_part(details: &str) -> String {
    if details.is_empty() { String::new() } else { format!(" ({details})") }
}

fn list<T: Listed>(items: &[T]) -> String {
    items.iter().map(Listed::text).collect::<Vec<_>>().join(", ")
}

trait Listed {
    fn text(&self) -> String;
}

impl Listed for PathBuf {
    fn text(&self) -> String {
        self.display().to_string()
    }
}

impl Listed for SpecVersion {
    fn text(&self) -> String {
        self.to_string()
    }
}

fn but_not_executable(path: &Option<PathBuf>) -> String {
    path.as_ref().map(|path| format!(" ({} is not executable)", path.display())).unwrap_or_default()
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
