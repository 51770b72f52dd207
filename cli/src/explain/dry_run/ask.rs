//! Asks an agent by a program in its own pod, with the rights of whoever runs the command.
//!
//! The agent's answer may have what an admin hides in CNI configurations. So it is on no port, and whoever
//! may run programs in the agent's pod could read it on the node anyway.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::AttachParams;
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::dry_run::{Answer, DryRun};
use netclaim_cni::error_chain;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use crate::asking::MAX_ASKED;

/// The longest time for one answer: longer than agents take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(25);
/// The longest time for all answers.
pub(super) const ALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest answer, in bytes.
const MAX_ANSWER: u64 = 4 << 20;

/// Why it is not known what an agent would do.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAsked {
    #[error("you may not ask its agent: that takes the rights to get and create pods/exec in namespace {0}")]
    Forbidden(String),
    #[error("the API server cannot ask its agent: {0}")]
    Unreachable(String),
    #[error("its agent did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Late,
    #[error("its agent gives no answer: {0}")]
    NoAnswer(String),
    #[error("its agent was not asked: {MAX_ASKED} are, or as many as answer within {} s; use --node", ALL_TIMEOUT.as_secs())]
    TooMany,
}

/// What an agent answers.
pub(super) type Asked = Result<DryRun, NotAsked>;

/// Asks the agent of this pod about a ClaimNetwork.
pub(super) async fn ask(client: &Client, pod: &Pod, network: &str) -> Asked {
    timeout(ANSWER_TIMEOUT, exec(client, pod, network)).await.unwrap_or(Err(NotAsked::Late))
}

async fn exec(client: &Client, pod: &Pod, network: &str) -> Asked {
    let namespace = pod.namespace().unwrap_or_default();
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let params = AttachParams::default().container("agent").stdin(false);
    let command = ["netclaim-kubelet-plugin", "ask", "network", network];
    let mut process = pods.exec(&pod.name_any(), command, &params).await.map_err(|error| match error {
        kube::Error::Api(status) if status.is_forbidden() => NotAsked::Forbidden(namespace),
        other => NotAsked::Unreachable(error_chain(&other)),
    })?;
    let (out, err) = (process.stdout(), process.stderr());
    let (said, complaint) = tokio::join!(read(out), read(err));
    answer(&said, &complaint)
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What has come before the end of a broken connection is no answer.
        let _ = stream.take(MAX_ANSWER).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns what the program has said.
fn answer(said: &str, complaint: &str) -> Asked {
    match serde_json::from_str(said) {
        Ok(Answer::DryRun(found)) => Ok(*found),
        Ok(Answer::Error(why)) => Err(NotAsked::NoAnswer(why)),
        Err(_) if !complaint.trim().is_empty() => Err(NotAsked::NoAnswer(complaint.trim().to_owned())),
        Err(error) => Err(NotAsked::NoAnswer(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_without_an_answer_has_a_reason() {
        let of = |said: &str, complaint: &str| answer(said, complaint).unwrap_err().to_string();
        assert!(
            of("", "error: unrecognized subcommand\n").ends_with("no answer: error: unrecognized subcommand")
        );
        assert!(of("{\"error\":\"too slow\"}", "").ends_with("too slow"));
        assert!(of("{\"dryRun\":", "").contains("EOF"));
        let of_a_newer_one = "{\"dryRun\":{\"refusal\":\"no\",\"new\":1}}";
        assert_eq!(answer(of_a_newer_one, "").unwrap().refusal.as_deref(), Some("no"));
    }
}
