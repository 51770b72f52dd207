//! Chains of plugins in the specification's order (section 3).

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::iter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;
use tracing::Instrument as _;

use super::bin_changes::BinChanges;
use super::cache::AddOutcome;
#[cfg(feature = "sockets")]
use super::daemon;
use super::deadline::Deadline;
use super::error::{AddError, CallPhase, Context, Effect, Error, ErrorKind, Stopped, Way};
use super::exec::{self, Ended};
use super::known_versions::{Fingerprint, KnownVersions, Program};
use super::launcher::{Launcher, MountNamespaceError};
use super::locks::{AttachmentGuard, Locks};
use super::namespace_gone;
use super::reply::Reply;
use super::runs::{Observed, RunObserver};
use super::sockets;
use super::spans::{self, TraceOf};
use crate::attachment::{Attachment, ValidAttachment};
use crate::config::{NetworkList, PluginConf};
use crate::error_chain::error_chain;
use crate::names::PluginType;
use crate::request::{Request, Verb};
use crate::result::CniResult;

/// Variables of this program's environment that plugins get: those that find and reach other programs.
const PASSED_ON: [&str; 8] =
    ["PATH", "HOME", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// `PATH` for plugins if this program has none: they call `iptables`, `nft` and others by name.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs CNI plugins from a list of directories.
///
/// Operations on one container wait for each other, and GC of a network waits for the other operations on it;
/// so there should be one `Runtime` per host.
///
/// At its deadline a plugin's process group gets SIGTERM, and SIGKILL at the latest [`TERM_GRACE`] later, so
/// that a call can take that much longer than its deadline.
///
/// [`TERM_GRACE`]: super::exec::TERM_GRACE
#[derive(Debug)]
pub struct Runtime {
    bin_dirs: Vec<PathBuf>,
    pub(super) cni_path: OsString,
    pub(super) env: Vec<(OsString, OsString)>,
    daemons: Option<Daemons>,
    pub(super) launcher: Launcher,
    pub(super) locks: Locks,
    pub(super) versions: KnownVersions,
    observed: Observed,
    trace_of: Option<TraceOf>,
}

/// The plugins that are daemons, and where their sockets are.
#[derive(Debug)]
struct Daemons {
    dir: PathBuf,
    types: BTreeSet<PluginType>,
}

/// A directory that cannot be searched for plugins.
#[derive(Debug, thiserror::Error)]
pub enum BinDirError {
    /// There is none.
    #[error("no directory to search for CNI plugins")]
    None,
    /// A relative directory would depend on the working directory.
    #[error("CNI plugin directory {} is not an absolute path", .0.display())]
    Relative(PathBuf),
    /// `CNI_PATH` separates its entries by colons.
    #[error("CNI plugin directory {} contains a colon", .0.display())]
    Colon(PathBuf),
}

/// What a DEL knows about its ADD.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfAdd<'a> {
    /// What [`add`](Runtime::add) returned, or [`AddError::last_good`].
    pub result: Option<&'a CniResult>,
    /// Where the ADD failed, if that is known.
    pub stopped: Option<Stopped>,
}

impl OfAdd<'_> {
    /// Returns what the ADD left behind of the plugin at `index` in the chain.
    fn left_by(self, index: usize) -> Effect {
        self.stopped.map_or(Effect::Unknown, |stopped| stopped.left_by(index))
    }
}

impl<'a> From<Option<&'a CniResult>> for OfAdd<'a> {
    fn from(result: Option<&'a CniResult>) -> Self {
        Self { result, stopped: None }
    }
}

impl<'a> From<&'a AddOutcome> for OfAdd<'a> {
    fn from(outcome: &'a AddOutcome) -> Self {
        Self { result: outcome.result(), stopped: outcome.stopped() }
    }
}

impl Runtime {
    /// Creates a runtime that looks for plugins in `bin_dirs`, in that order.
    ///
    /// Plugins inherit `PATH`, `HOME` and the proxy variables only.
    ///
    /// # Errors
    /// [`BinDirError`] if there is no directory, or one that cannot be part of `CNI_PATH`.
    pub fn new(bin_dirs: Vec<PathBuf>) -> Result<Self, BinDirError> {
        if bin_dirs.is_empty() {
            return Err(BinDirError::None);
        }
        if let Some(dir) = bin_dirs.iter().find(|dir| !dir.is_absolute()) {
            return Err(BinDirError::Relative(dir.clone()));
        }
        let colon = |dir: &&PathBuf| dir.as_os_str().as_encoded_bytes().contains(&b':');
        if let Some(dir) = bin_dirs.iter().find(colon) {
            return Err(BinDirError::Colon(dir.clone()));
        }
        let cni_path = bin_dirs.iter().map(|dir| dir.as_os_str()).collect::<Vec<_>>().join(OsStr::new(":"));
        let mut passed_on: Vec<(OsString, OsString)> =
            PASSED_ON.into_iter().filter_map(|key| Some((key.into(), env::var_os(key)?))).collect();
        if !passed_on.iter().any(|(key, _)| key == "PATH") {
            passed_on.push(("PATH".into(), DEFAULT_PATH.into()));
        }
        let (daemons, launcher, locks, versions, observed, trace_of) = Default::default();
        Ok(Self {
            bin_dirs,
            cni_path,
            env: passed_on,
            daemons,
            launcher,
            locks,
            versions,
            observed,
            trace_of,
        })
    }

    /// Looks for plugins, and runs them, in the mount namespace at `path`: `/proc/1/ns/mnt` is the host's for
    /// a program in a container that shares the host's process ids. Paths given to plugins must then mean the
    /// same in there, that of the network namespace above all.
    ///
    /// # Errors
    /// [`MountNamespaceError`], mostly for want of a capability.
    pub fn in_mount_namespace(self, path: &Path) -> Result<Self, MountNamespaceError> {
        Ok(Self { launcher: Launcher::in_namespace(path)?, ..self })
    }

    /// Adds or replaces a variable of the plugins. The `CNI_*` variables cannot be changed.
    #[must_use]
    pub fn with_env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Calls plugins of these `types` by their sockets, `TYPE.sock` in `dir`, and never as programs: a daemon
    /// that has not started yet, as after a boot, must not be replaced by a program that lacks what the
    /// daemon has. A chain is called so only after [`settle`](Self::settle); one that was settled before is
    /// called as it was then, whatever the `types` are now. Plugins that run others, above all their IPAM
    /// plugin, do so themselves: what they run as programs does not go by sockets.
    #[cfg(feature = "sockets")]
    #[must_use]
    pub fn with_daemons(self, dir: impl Into<PathBuf>, types: impl IntoIterator<Item = PluginType>) -> Self {
        let types = types.into_iter().collect();
        Self { daemons: Some(Daemons { dir: dir.into(), types }), ..self }
    }

    /// Reports every run of a plugin to `observer`.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn RunObserver>) -> Self {
        self.observed = Observed::by(observer);
        self
    }

    /// Gives each plugin of an ADD or a DEL the trace context that `trace_of` returns for its
    /// [span](super::spans), instead of that of [`Attachment::trace`].
    #[must_use]
    pub fn with_trace_of(self, trace_of: TraceOf) -> Self {
        Self { trace_of: Some(trace_of), ..self }
    }

    /// Calls every plugin as a program: for places that daemons do not see.
    #[must_use]
    pub fn by_programs(self) -> Self {
        Self { daemons: None, ..self }
    }

    /// Whether chains are settled with plugins that are daemons.
    pub(super) fn has_daemons(&self) -> bool {
        self.daemons.as_ref().is_some_and(|daemons| !daemons.types.is_empty())
    }

    /// Whether the plugin is a daemon.
    fn is_daemon(&self, plugin: &PluginType) -> bool {
        self.daemons.as_ref().is_some_and(|daemons| daemons.types.contains(plugin))
    }

    /// The directories that are searched.
    pub fn bin_dirs(&self) -> &[PathBuf] {
        &self.bin_dirs
    }

    /// Subscribes to changes of the installed plugins, also in another mount namespace.
    ///
    /// # Errors
    /// When the kernel gives no inotify instance or watch; `fs.inotify` limits them.
    pub fn bin_changes(&self) -> io::Result<BinChanges> {
        let dirs =
            self.bin_dirs.iter().chain(self.daemons.as_ref().map(|daemons| &daemons.dir)).cloned().collect();
        BinChanges::subscribe(self.launcher.clone(), dirs)
    }

    /// Finds the socket of the plugin's daemon, or the first executable regular file of the plugin's name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with the directories searched, [`ErrorKind::Untrusted`].
    pub fn find(&self, plugin: &PluginType) -> Result<Program, Error> {
        self.search(&Context::lookup(plugin))
    }

    /// Checks that every binary or socket the network needs is there, IPAM plugins included.
    ///
    /// # Errors
    /// As [`find`](Self::find), for the first that is missing.
    pub fn find_all(&self, list: &NetworkList) -> Result<(), Error> {
        self.ways(list).into_iter().try_for_each(|(plugin, way)| {
            let context = Context { network: Some(list.name().clone()), way, ..Context::lookup(plugin) };
            self.search(&context).map(drop)
        })
    }

    /// Checks that the daemons of the network's plugins can be reached. `deadline` is for all of them.
    ///
    /// # Errors
    /// As [`find`](Self::find), and [`ErrorKind::Daemon`].
    pub async fn daemons_answer(&self, list: &NetworkList, deadline: Duration) -> Result<(), Error> {
        let deadline = Deadline::after(deadline);
        for (plugin, way) in self.ways(list).into_iter().filter(|(_, way)| *way == Way::Socket) {
            self.answers(&Context { way, ..Context::lookup(plugin) }, deadline).await?;
        }
        Ok(())
    }

    /// Returns the types of plugins that daemons serve, of a list that does not say so yet.
    pub(super) fn served(&self, list: &NetworkList) -> Option<BTreeSet<PluginType>> {
        (self.has_daemons() && list.sockets().is_none()).then_some(())?;
        let served = self.ways(list).into_iter().filter(|(_, way)| *way == Way::Socket);
        Some(served.map(|(plugin, _)| plugin.clone()).collect())
    }

    /// Returns the types of plugins in the list, and how they are called. A plugin that is a program runs its
    /// IPAM plugin as one, too.
    pub(super) fn ways<'a>(&self, list: &'a NetworkList) -> BTreeSet<(&'a PluginType, Way)> {
        let is_served = |plugin: &PluginType| match list.sockets() {
            Some(types) => types.contains(plugin),
            None => self.is_daemon(plugin),
        };
        let way = |is_served: bool| if is_served { Way::Socket } else { Way::Program };
        let of_one = |plugin: &'a PluginConf| {
            let by_socket = is_served(plugin.plugin_type());
            let ipam = plugin.ipam().map(|ipam| (ipam, way(by_socket && is_served(ipam))));
            iter::once((plugin.plugin_type(), way(by_socket))).chain(ipam)
        };
        list.plugins().flat_map(of_one).collect()
    }

    /// Attaches: ADD of every plugin in order, each with the result of the one before. Returns the last
    /// result, in the list's version.
    ///
    /// A failure undoes nothing: the caller must call DEL with [`AddError::last_good`], as the specification
    /// requires after a failed ADD. `deadline` is for the whole chain. Dropping the future kills the running
    /// plugin; then, too, the caller must call DEL.
    ///
    /// # Errors
    /// [`AddError`]: which plugin failed, how, and what there was before.
    pub async fn add(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Duration,
    ) -> Result<CniResult, AddError> {
        self.add_until(list, attachment, None, Deadline::after(deadline)).await
    }

    /// As [`add`](Self::add), with `prev` as the `prevResult` of the first plugin: the list works on what
    /// other lists have made.
    ///
    /// # Errors
    /// As of [`add`](Self::add). Without an [`AddError::last_good`], the DEL gets `prev`.
    pub async fn add_after(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        prev: &CniResult,
        deadline: Duration,
    ) -> Result<CniResult, AddError> {
        self.add_until(list, attachment, Some(prev), Deadline::after(deadline)).await
    }

    pub(crate) async fn add_until(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        prev: Option<&CniResult>,
        deadline: Deadline,
    ) -> Result<CniResult, AddError> {
        let total = list.plugins().count();
        let not_begun = |error| AddError { completed: 0, total, last_good: None, error };
        let first = Call::new(Verb::Add, list, list.first_plugin(), attachment);
        let lock = self.attachment_lock(&first, deadline).await.map_err(not_begun)?;
        // A chain that lacks a binary or a daemon must not begin.
        for plugin in list.plugins() {
            let context = Call::new(Verb::Add, list, plugin, attachment).context;
            self.answers(&context, deadline).await.map_err(not_begun)?;
        }

        let mut result = self.add_one(&first, &lock, prev, deadline).await.map_err(not_begun)?;
        for (completed, plugin) in list.plugins().enumerate().skip(1) {
            let call = Call::new(Verb::Add, list, plugin, attachment);
            result = match self.add_one(&call, &lock, Some(&result), deadline).await {
                Ok(next) => next,
                Err(error) => {
                    return Err(AddError { completed, total, last_good: Some(Box::new(result)), error });
                }
            };
        }
        Ok(result)
    }

    async fn add_one(
        &self,
        call: &Call<'_>,
        lock: &Arc<AttachmentGuard>,
        prev: Option<&CniResult>,
        deadline: Deadline,
    ) -> Result<CniResult, Error> {
        let (reply, stderr) = self.run(call, lock, prev, deadline).await?;
        reply.result(call.list.version()).map_err(|kind| call.context.error_with(kind, stderr))
    }

    /// Detaches: DEL of every plugin in reverse order, each with the result of the ADD. Stops at the first
    /// error, as the specification wants; DEL may be repeated. Errors of plugins that made nothing do not
    /// count.
    ///
    /// `deadline` is for the whole chain.
    ///
    /// # Errors
    /// The first plugin's that fails.
    pub async fn del(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        add: impl Into<OfAdd<'_>>,
        deadline: Duration,
    ) -> Result<(), Error> {
        self.del_until(list, attachment, add.into(), Deadline::after(deadline)).await
    }

    pub(crate) async fn del_until(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        add: OfAdd<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let first = Call::new(Verb::Del, list, list.first_plugin(), attachment);
        let lock = self.attachment_lock(&first, deadline).await?;
        let plugins: Vec<_> = list.plugins().enumerate().collect();
        for (index, plugin) in plugins.into_iter().rev() {
            let made_nothing = add.left_by(index) == Effect::None;
            // One that hangs must leave time to those that have something to delete.
            let deadline = if made_nothing { deadline.half() } else { deadline };
            match self.run(&Call::new(Verb::Del, list, plugin, attachment), &lock, add.result, deadline).await
            {
                Err(error) if made_nothing || left_nothing(&error) => {
                    tracing::info!(error = error_chain(&error), "treating the error as a successful DEL");
                }
                done => {
                    done?;
                }
            }
        }
        Ok(())
    }

    /// Detaches when the namespace is gone, and [`del`](Self::del) would fail: calls DEL of every plugin in
    /// reverse order, and then that of every IPAM plugin directly.
    ///
    /// Without the namespace or the uplink, some plugins return before they call their IPAM plugin, and the
    /// address would stay taken. `deadline` is for each plugin, so that a hanging one does not keep the
    /// others from cleaning up.
    ///
    /// An error ends it unless `goes_on` returns true: an address must not be free while something of its
    /// attachment is left. `attachment` should have no namespace. Returns all errors but those that are known
    /// to leave nothing behind.
    pub async fn release(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        add: impl Into<OfAdd<'_>>,
        deadline: Duration,
        goes_on: impl Fn(&Error) -> bool,
    ) -> Vec<Error> {
        let add = add.into();
        let first = Call::new(Verb::Del, list, list.first_plugin(), attachment);
        let lock = match self.attachment_lock(&first, Deadline::after(deadline)).await {
            Ok(lock) => lock,
            Err(error) => return vec![error],
        };
        let is_gone = attachment.netns.is_none();
        let needs_netns =
            |plugin: &PluginConf| is_gone && namespace_gone::has_nothing_to_delete_without_netns(plugin);
        let plugins: Vec<_> = list.plugins().enumerate().collect();
        let chain = plugins.iter().rev().filter(|(_, plugin)| !needs_netns(plugin));
        let chain = chain.map(|(index, plugin)| (*index, Call::new(Verb::Del, list, plugin, attachment)));
        let ipam = plugins.iter().filter_map(|(index, plugin)| {
            let mut context = Context::attachment(Verb::Del, list, plugin.ipam()?, attachment);
            // By this plugin's side it was added.
            let of_plugin = Context::network(Verb::Del, list, plugin.plugin_type()).way;
            context.way = if of_plugin == Way::Socket { context.way } else { Way::Program };
            Some((*index, Call { verb: Verb::Del, list, plugin, attachment, context }))
        });
        let mut errors = Vec::new();
        for (index, call) in chain.chain(ipam) {
            let Err(error) = self.run(&call, &lock, add.result, Deadline::after(deadline)).await else {
                continue;
            };
            let is_nothing_left = match add.left_by(index) {
                Effect::None => true,
                Effect::Container if is_gone => true,
                Effect::Container | Effect::Unknown => {
                    left_nothing(&error) || is_gone && namespace_gone::is_done_without_netns(&error)
                }
            };
            if is_nothing_left {
                tracing::debug!(error = error_chain(&error), "nothing is left of it");
                continue;
            }
            let ends = !goes_on(&error);
            errors.push(error);
            if ends {
                break;
            }
        }
        errors
    }

    /// Checks an attachment: CHECK of every plugin in order, each with the result of the ADD. Does nothing
    /// where the network has `disableCheck`. `deadline` is for the whole chain.
    ///
    /// # Errors
    /// The first plugin's that fails, or [`ErrorKind::NoCheck`] before version 0.4.0.
    pub async fn check(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        prev: &CniResult,
        deadline: Duration,
    ) -> Result<(), Error> {
        self.check_until(list, attachment, prev, Deadline::after(deadline)).await
    }

    pub(crate) async fn check_until(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        prev: &CniResult,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let first = Call::new(Verb::Check, list, list.first_plugin(), attachment);
        if !list.version().has_check() {
            return Err(first.context.error(ErrorKind::NoCheck(list.version())));
        }
        if list.disable_check() {
            return Ok(());
        }
        let lock = self.attachment_lock(&first, deadline).await?;
        for plugin in list.plugins() {
            self.run(&Call::new(Verb::Check, list, plugin, attachment), &lock, Some(prev), deadline).await?;
        }
        Ok(())
    }

    /// Asks every plugin in order whether it could serve an ADD. Does nothing before version 1.1.0.
    /// `deadline` is for all of them.
    ///
    /// Only the error codes 50 and 51 mean "no": a plugin that does not know STATUS fails with others.
    ///
    /// # Errors
    /// The first plugin's that fails.
    pub async fn status(&self, list: &NetworkList, deadline: Duration) -> Result<(), Error> {
        if !list.version().has_gc_and_status() {
            return Ok(());
        }
        let deadline = Deadline::after(deadline);
        for plugin in list.plugins() {
            let context = Context::network(Verb::Status, list, plugin.plugin_type());
            let request = Request::status(list, plugin, &self.cni_path);
            self.exec(&context, request.map_err(|e| context.error(e))?, deadline, None).await?;
        }
        Ok(())
    }

    /// Has every plugin remove what belongs to attachments of the network that are not in `valid`. Waits for
    /// running operations on the network and keeps new ones waiting. Does nothing before version 1.1.0, or
    /// where the network has `disableGC`. `deadline` is for all of them.
    ///
    /// `valid` must hold every attachment of that network name on this host, also those of other runtimes.
    /// DEL of stale attachments is the caller's: it knows their parameters.
    ///
    /// # Errors
    /// Those of all plugins that fail; the others were called all the same.
    pub async fn gc(
        &self,
        list: &NetworkList,
        valid: &[ValidAttachment],
        deadline: Duration,
    ) -> Result<(), Vec<Error>> {
        if list.disable_gc() || !list.version().has_gc_and_status() {
            return Ok(());
        }
        let deadline = Deadline::after(deadline);
        let lock = timeout_at(deadline.at(), self.locks.whole_network(list.name())).await;
        let Ok(_guard) = lock else {
            let context = Context::network(Verb::Gc, list, list.first_plugin().plugin_type());
            return Err(vec![context.error(deadline.passed(CallPhase::Queued))]);
        };
        let mut errors = Vec::new();
        for plugin in list.plugins() {
            let context = Context::network(Verb::Gc, list, plugin.plugin_type());
            let done = match Request::gc(list, plugin, valid, &self.cni_path) {
                Ok(request) => self.exec(&context, request, deadline, None).await.map(drop),
                Err(error) => Err(context.error(error)),
            };
            errors.extend(done.err());
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    pub(super) fn search(&self, context: &Context) -> Result<Program, Error> {
        let is_by_socket = match context.way {
            Way::Program => false,
            Way::Either => self.is_daemon(&context.plugin),
            Way::Socket => true,
        };
        if is_by_socket {
            let daemons = self.daemons.as_ref().ok_or_else(|| context.error(ErrorKind::NoSockets))?;
            return sockets::find(&daemons.dir, &context.plugin).map_err(|kind| context.error(kind));
        }
        let mut not_executable = None;
        for dir in &self.bin_dirs {
            let path = dir.join(context.plugin.as_str());
            match self.launcher.metadata(&path) {
                Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => {
                    return Ok(Program { path, file: Fingerprint::of(&file), is_socket: false });
                }
                Ok(file) if file.is_file() && not_executable.is_none() => not_executable = Some(path),
                _ => {}
            }
        }
        Err(context.error(ErrorKind::NotFound { dirs: self.bin_dirs.clone(), not_executable }))
    }

    /// Checks that the plugin is installed, and that its daemon can be reached if it has one.
    async fn answers(&self, context: &Context, deadline: Deadline) -> Result<(), Error> {
        let program = self.search(context)?;
        #[cfg(feature = "sockets")]
        if program.is_socket {
            let answers = timeout_at(deadline.at(), daemon::connect(&program.path)).await;
            let answers = answers.unwrap_or_else(|_| Err(deadline.passed(CallPhase::Daemon)));
            return answers.map(drop).map_err(|kind| context.error(kind));
        }
        let _ = (program, deadline);
        Ok(())
    }

    async fn attachment_lock(
        &self,
        call: &Call<'_>,
        deadline: Deadline,
    ) -> Result<Arc<AttachmentGuard>, Error> {
        let lock = self.locks.attachment(&call.attachment.container_id, call.list.name());
        let locked = timeout_at(deadline.at(), lock).await.map(Arc::new);
        locked.map_err(|_| call.context.error(deadline.passed(CallPhase::Queued)))
    }

    /// Runs one plugin of an operation on an attachment.
    async fn run(
        &self,
        call: &Call<'_>,
        lock: &Arc<AttachmentGuard>,
        prev: Option<&CniResult>,
        deadline: Deadline,
    ) -> Result<(Reply, String), Error> {
        let Call { verb, list, plugin, attachment, .. } = *call;
        let span = spans::of_plugin(verb, &call.context);
        let traced = self.trace_of.and_then(|trace_of| trace_of(&span));
        let traced = traced.map(|trace| Attachment { trace: Some(trace), ..attachment.clone() });
        let attachment = traced.as_ref().unwrap_or(attachment);
        let request = Request::attachment(verb, list, plugin, attachment, prev, &self.cni_path)
            .map_err(|e| call.context.error(e))?;
        let exec = self.exec(&call.context, request, deadline, Some(Arc::clone(lock)));
        let done = exec.instrument(span.clone()).await;
        done.inspect_err(|error| spans::failed(&span, &error_chain(error)))
    }

    pub(super) async fn exec(
        &self,
        context: &Context,
        request: Request,
        deadline: Deadline,
        lock: Option<Arc<AttachmentGuard>>,
    ) -> Result<(Reply, String), Error> {
        let Program { path, is_socket, .. } = self.search(context)?;
        let run = self.observed.run(&context.plugin, request.verb);
        let Ended { outcome, stderr } = match is_socket {
            #[cfg(feature = "sockets")]
            true => daemon::call(&path, &request, deadline).await,
            _ => exec::run(&self.launcher, &path, &self.env, &request, deadline, lock).await,
        };
        let outcome = outcome.and_then(|reply| reply.success().map(|()| reply));
        run.ended(outcome.as_ref());
        // STATUS is repeated often, and its answer says all.
        if !stderr.is_empty() && context.verb != Some(Verb::Status) {
            context.log(&stderr);
        }
        match outcome {
            Ok(reply) => Ok((reply, stderr)),
            Err(kind) => Err(context.error_with(kind, stderr)),
        }
    }
}

/// Whether a plugin reports with its failed DEL an unknown container, or that nothing is left.
fn left_nothing(error: &Error) -> bool {
    error.reported().is_some() && error.effect() == Effect::None
}

/// One plugin's call of an operation on an attachment.
struct Call<'a> {
    verb: Verb,
    list: &'a NetworkList,
    plugin: &'a PluginConf,
    attachment: &'a Attachment,
    /// Names the binary to run: the plugin's, or its IPAM plugin's.
    context: Context,
}

impl<'a> Call<'a> {
    fn new(verb: Verb, list: &'a NetworkList, plugin: &'a PluginConf, attachment: &'a Attachment) -> Self {
        let context = Context::attachment(verb, list, plugin.plugin_type(), attachment);
        Self { verb, list, plugin, attachment, context }
    }
}
