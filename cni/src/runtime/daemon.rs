//! One call of a plugin's daemon, from connection to reply.
//!
//! Each call has a connection of its own. It ends with the call, also when the future is dropped: the daemon
//! sees that no caller waits any more. Nothing forces it to stop.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Endpoint;
use tonic::{Code, Request as Message, Status};
use tower::service_fn;

use self::proto::plugin_client::PluginClient;
use self::proto::reply::Outcome;
use super::deadline::Deadline;
use super::error::{CallPhase, ErrorKind};
use super::exec::Ended;
use super::reply::{Reply, STDOUT_LIMIT};
use super::sockets;
use crate::request::{Request, RequestError, Verb};
use crate::trace_context::PARENT;
use crate::version::SpecVersion;

/// Generated from `proto/` by `make generate`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub(super) mod proto {
    include!("gen/netclaim.cni.v1alpha1.rs");
}

/// Largest message: what a program may print, and what is around it.
pub(super) const MESSAGE_LIMIT: usize = STDOUT_LIMIT + 1024;

/// Where paths of namespaces belong to one process: a daemon in another container does not see them.
const OF_A_PROCESS: &str = "/proc/";

/// Calls the daemon at the socket `path`.
pub(super) async fn call(path: &Path, request: &Request, deadline: Deadline) -> Ended {
    let outcome = if Instant::now() >= deadline.at() {
        Err(deadline.passed(CallPhase::Spent))
    } else {
        let answer = timeout_at(deadline.at(), answer(path, request, deadline)).await;
        answer.unwrap_or_else(|_| Err(deadline.passed(CallPhase::Daemon)))
    };
    Ended { outcome, stderr: String::new() }
}

/// Connects to the socket `path`, and checks who listens.
pub(super) async fn connect(path: &Path) -> Result<UnixStream, ErrorKind> {
    let failed = |source| ErrorKind::Daemon { path: path.to_owned(), source };
    let stream = UnixStream::connect(path).await.map_err(failed)?;
    let peer = stream.peer_cred().map_err(failed)?.uid();
    if !sockets::is_trusted(peer) {
        let problem = format!("is served by user {peer}");
        return Err(ErrorKind::Untrusted { path: path.to_owned(), problem });
    }
    Ok(stream)
}

async fn answer(path: &Path, request: &Request, deadline: Deadline) -> Result<Reply, ErrorKind> {
    let call = message(request)?;
    let mut stream = Some(connect(path).await?);
    let connector = service_fn(move |_| {
        let stream = stream.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    // The name is not looked up.
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
    let channel = channel
        .map_err(|error| ErrorKind::Daemon { path: path.to_owned(), source: io::Error::other(error) })?;
    let mut client = PluginClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let failed = |status: Status| match status.code() {
        Code::OutOfRange => ErrorKind::TooMuchOutput { limit: STDOUT_LIMIT },
        Code::DeadlineExceeded => deadline.passed(CallPhase::Daemon),
        // The transport's own timer.
        Code::Cancelled if Instant::now() >= deadline.at() => deadline.passed(CallPhase::Daemon),
        code => {
            let message = format!("{} ({code:?})", status.message());
            ErrorKind::DaemonFailed { path: path.to_owned(), message }
        }
    };
    let left = deadline.at().saturating_duration_since(Instant::now());
    let reply = match request.verb {
        Verb::Version => {
            let mut message = Message::new(proto::VersionRequest {});
            message.set_timeout(left);
            let reply = client.version(message).await.map_err(failed)?.into_inner();
            let versions = json!({"cniVersion": SpecVersion::CURRENT, "supportedVersions": reply.versions});
            return Ok(as_printed(0, versions.to_string().into_bytes()));
        }
        verb => {
            let mut message = Message::new(call);
            message.set_timeout(left);
            match verb {
                Verb::Add => client.add(message).await,
                Verb::Del => client.del(message).await,
                Verb::Check => client.check(message).await,
                Verb::Status => client.status(message).await,
                Verb::Gc | Verb::Version => client.gc(message).await,
            }
        }
    };
    match reply.map_err(failed)?.into_inner().outcome {
        Some(Outcome::Result(printed)) => Ok(as_printed(0, printed)),
        Some(Outcome::Error(printed)) => Ok(as_printed(1, printed)),
        None => {
            let message = "its reply has neither a result nor an error".to_owned();
            Err(ErrorKind::DaemonFailed { path: path.to_owned(), message })
        }
    }
}

/// Returns what a program would have left that exits with `code`.
fn as_printed(code: i32, stdout: Vec<u8>) -> Reply {
    Reply { status: ExitStatus::from_raw(code << 8), stdout, overflow: false }
}

fn message(request: &Request) -> Result<proto::Call, RequestError> {
    let variable = |name: &str| {
        let found = request.env.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let mut netns = variable("CNI_NETNS");
    if netns.starts_with(OF_A_PROCESS) {
        if request.verb != Verb::Del {
            return Err(RequestError::NoNetns(request.verb));
        }
        netns.clear();
    }
    Ok(proto::Call {
        container_id: variable("CNI_CONTAINERID"),
        netns,
        ifname: variable("CNI_IFNAME"),
        args: variable("CNI_ARGS"),
        path: variable("CNI_PATH"),
        config: request.stdin.clone(),
        traceparent: variable(PARENT),
    })
}
