//! A daemon that serves plugins which are programs: each call runs the program, as a runtime on the host
//! would, with what the daemon's own container has.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request as Message, Response, Status};

use super::chain::Runtime;
use super::daemon::MESSAGE_LIMIT;
use super::daemon::proto::plugin_server::{Plugin, PluginServer};
use super::daemon::proto::reply::Outcome;
use super::daemon::proto::{Call, Reply, VersionReply, VersionRequest};
use super::deadline::Deadline;
use super::error::{Context, Error, ErrorKind, Way};
use super::exec::{self, Ended};
use super::sockets;
use crate::error_chain::error_chain;
use crate::names::{ContainerId, ListName, PluginType};
use crate::request::{Request, Verb};
use crate::trace_context::PARENT;

/// How long a call may take that has no deadline of its own.
const LONGEST: Duration = Duration::from_secs(600);

/// How long calls that run may still take when the daemon ends. Then their plugins are killed.
const DRAIN: Duration = Duration::from_secs(20);

/// How long another daemon may take to accept a connection.
const TAKEN: Duration = Duration::from_secs(1);

/// Why plugins cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The plugin is not installed.
    #[error(transparent)]
    Plugin(#[from] Error),
    /// The directory of the sockets is not the user's alone.
    #[error("{} {problem}; the runtime would refuse its sockets", path.display())]
    Untrusted {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Another daemon serves the plugin.
    #[error("another daemon listens at {}; end it first", .0.display())]
    Taken(PathBuf),
    /// A socket, or its directory.
    #[error("cannot listen at {}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A server failed.
    #[error("cannot serve a socket any more")]
    Server(#[from] tonic::transport::Error),
}

/// Hears what plugins write to standard error.
type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Serves `plugins`, programs that `runtime` finds, on sockets in `dir` until `end`. Then removes the sockets
/// and lets running calls finish, at most for 20 s.
///
/// Calls for one container run one after another. A call that is cancelled or late has its plugin's process
/// group killed before the next one for its container begins. `log` gets what plugins write to standard
/// error.
///
/// # Errors
/// [`ServeError`]. All plugins are served or none.
pub async fn serve(
    runtime: Runtime,
    plugins: &[PluginType],
    dir: &Path,
    log: impl Fn(&str) + Send + Sync + 'static,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let (runtime, log): (_, Log) = (Arc::new(runtime), Arc::new(log));
    let failed = |source| ServeError::Listen { path: dir.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    if let Some(problem) = sockets::fault(&fs::symlink_metadata(dir).map_err(failed)?) {
        return Err(ServeError::Untrusted { path: dir.to_owned(), problem });
    }
    let mut bound = Vec::new();
    for plugin in plugins {
        runtime.find(plugin)?;
        bound.push((plugin.clone(), Socket::bind(sockets::path(dir, plugin)).await?));
    }
    let (ends, ended) = watch::channel(false);
    let (mut servers, mut kept) = (JoinSet::new(), Vec::new());
    for (plugin, (listener, socket)) in bound {
        let served = Served { runtime: Arc::clone(&runtime), plugin, log: Arc::clone(&log) };
        let served = PluginServer::new(served).max_encoding_message_size(MESSAGE_LIMIT);
        let mut ended = ended.clone();
        kept.push(socket);
        servers.spawn(async move {
            let ended = async move {
                let _ = ended.wait_for(|ended| *ended).await;
            };
            let incoming = UnixListenerStream::new(listener);
            Server::builder().add_service(served).serve_with_incoming_shutdown(incoming, ended).await
        });
    }
    let failure = tokio::select! {
        () = end => None,
        Some(Ok(Err(failure))) = servers.join_next() => Some(failure),
    };
    drop(kept);
    let _ = ends.send(true);
    let drained = async { while servers.join_next().await.is_some() {} };
    // Dropping the servers drops the calls.
    let _ = timeout(DRAIN, drained).await;
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// A socket that is removed when this is dropped, unless another daemon has replaced it.
struct Socket {
    path: PathBuf,
    inode: u64,
}

impl Socket {
    /// Listens at `path`, also where a daemon that has been killed has left a socket. The socket belongs
    /// to this user alone from the moment it can be seen there.
    async fn bind(path: PathBuf) -> Result<(UnixListener, Self), ServeError> {
        if !matches!(timeout(TAKEN, UnixStream::connect(&path)).await, Ok(Err(_))) {
            return Err(ServeError::Taken(path));
        }
        let hidden = path.with_file_name(format!(".{}", std::process::id())).with_extension("tmp");
        let bound = || {
            let _ = fs::remove_file(&hidden);
            let listener = UnixListener::bind(&hidden)?;
            fs::set_permissions(&hidden, Permissions::from_mode(0o600))?;
            let inode = fs::symlink_metadata(&hidden)?.ino();
            fs::rename(&hidden, &path)?;
            Ok((listener, inode))
        };
        match bound() {
            Ok((listener, inode)) => Ok((listener, Self { path, inode })),
            Err(source) => Err(ServeError::Listen { path, source }),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// One plugin.
struct Served {
    runtime: Arc<Runtime>,
    plugin: PluginType,
    log: Log,
}

/// The part of a configuration that the daemon reads.
#[derive(Deserialize)]
struct Named {
    name: ListName,
}

impl Served {
    async fn run(&self, verb: Verb, call: Message<Call>) -> Result<Response<Reply>, Status> {
        let Call { container_id, netns, ifname, args, path: _, config, traceparent } = call.into_inner();
        let invalid = |error: &dyn std::error::Error| Status::invalid_argument(error_chain(error));
        let Named { name } = serde_json::from_slice(&config).map_err(|error| invalid(&error))?;
        let context = Context { way: Way::Program, ..Context::lookup(&self.plugin) };
        let program =
            self.runtime.search(&context).map_err(|e| Status::failed_precondition(error_chain(&e)))?;
        let who = format!("{} {verb} of network {name} {container_id} {ifname}", self.plugin);
        // Dropped with the call; a plugin that is killed keeps the first until its group has ended.
        let (of_container, _of_network) = match verb {
            Verb::Add | Verb::Del | Verb::Check => {
                let container =
                    ContainerId::try_from(container_id.clone()).map_err(|error| invalid(&error))?;
                (Some(Arc::new(self.runtime.locks.attachment(&container, &name).await)), None)
            }
            Verb::Gc => (None, Some(self.runtime.locks.whole_network(&name).await)),
            Verb::Status | Verb::Version => (None, None),
        };
        let mut env: Vec<(&'static str, OsString)> = vec![
            ("CNI_COMMAND", verb.as_str().into()),
            ("CNI_CONTAINERID", container_id.into()),
            ("CNI_NETNS", netns.into()),
            ("CNI_ARGS", args.into()),
            ("CNI_IFNAME", ifname.into()),
            // The caller's names directories of the host.
            ("CNI_PATH", self.runtime.cni_path.clone()),
        ];
        if !traceparent.is_empty() {
            env.push((PARENT, traceparent.into()));
        }
        let request = Request { verb, env, stdin: config };
        let (launcher, env) = (&self.runtime.launcher, &self.runtime.env);
        let deadline = Deadline::after(LONGEST);
        let ended = exec::run(launcher, &program.path, env, &request, deadline, of_container).await;
        let Ended { outcome, stderr } = ended;
        if !stderr.trim().is_empty() && verb != Verb::Status {
            (self.log)(&format!("{who}: {}", stderr.trim_end()));
        }
        let failed = |kind: &ErrorKind| {
            let mut text = error_chain(kind);
            if !stderr.trim().is_empty() {
                text = format!("{text}, with {:?} on standard error", stderr.trim());
            }
            (self.log)(&format!("{who}: {text}"));
            Status::aborted(text)
        };
        let reply = outcome.map_err(|kind| failed(&kind))?;
        let outcome = match reply.success() {
            _ if reply.overflow => return Err(Status::out_of_range("too much on standard output")),
            Ok(()) => Outcome::Result(reply.stdout),
            Err(ErrorKind::Plugin(_)) => Outcome::Error(reply.stdout),
            Err(kind) => return Err(failed(&kind)),
        };
        Ok(Response::new(Reply { outcome: Some(outcome) }))
    }
}

#[tonic::async_trait]
impl Plugin for Served {
    async fn version(&self, _: Message<VersionRequest>) -> Result<Response<VersionReply>, Status> {
        let versions = self.runtime.versions(&self.plugin).await;
        let versions = versions.map_err(|error| Status::aborted(error_chain(&error)))?;
        let versions = versions.iter().map(ToString::to_string).collect();
        Ok(Response::new(VersionReply { versions, verbs: Vec::new() }))
    }

    async fn add(&self, call: Message<Call>) -> Result<Response<Reply>, Status> {
        self.run(Verb::Add, call).await
    }

    async fn del(&self, call: Message<Call>) -> Result<Response<Reply>, Status> {
        self.run(Verb::Del, call).await
    }

    async fn check(&self, call: Message<Call>) -> Result<Response<Reply>, Status> {
        self.run(Verb::Check, call).await
    }

    async fn status(&self, call: Message<Call>) -> Result<Response<Reply>, Status> {
        self.run(Verb::Status, call).await
    }

    async fn gc(&self, call: Message<Call>) -> Result<Response<Reply>, Status> {
        self.run(Verb::Gc, call).await
    }
}
