//! Asks an agent by a program in its own pod, with the rights of whoever runs the command.
//!
//! The agent's answer may have what an admin hides in CNI configurations. So it is on no port, and whoever
//! may run programs in the agent's pod could read it on the node anyway.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess};
use kube::{Api, Client, ResourceExt as _};
use netclaim_allocation::nodes_in_words;
use netclaim_api::question::Answer;
use netclaim_cni::error_chain;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, timeout};

use super::{Asked, MAX_ASKED, ask_all};

/// The longest time for one answer: longer than agents take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(25);
/// The longest time for all answers.
const ALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Most nodes that a sentence names.
const SHOWN: usize = 5;
/// The longest answer, in bytes.
const MAX_ANSWER: u64 = 4 << 20;

/// Why it is not known what an agent would answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAsked {
    #[error("you may not ask its agent: that takes the rights to get and create pods/exec in namespace {0}")]
    Forbidden(String),
    #[error("the API server cannot ask its agent: {0}")]
    Unreachable(String),
    #[error("its agent did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Late,
    #[error("its agent gives no answer: {0}")]
    NoAnswer(String),
    #[error("what its agent prints cannot be written: {0}")]
    NotWritten(io::Error),
    #[error("its agent was not asked: {MAX_ASKED} are, or as many as answer within {} s; use --node", ALL_TIMEOUT.as_secs())]
    TooMany,
}

/// The answers of agents, and why there are none of others.
#[derive(Debug)]
pub(crate) struct Answers<T> {
    /// By node.
    pub(crate) found: BTreeMap<String, T>,
    /// The nodes whose agents have given no answer, by the reason.
    silent: BTreeMap<String, Vec<String>>,
}

impl<T> Answers<T> {
    /// Sorts the answers.
    pub(crate) fn of(all: impl IntoIterator<Item = (String, Result<T, NotAsked>)>) -> Self {
        let mut answers = Self { found: BTreeMap::new(), silent: BTreeMap::new() };
        for (node, answer) in all {
            match answer {
                Ok(answer) => drop(answers.found.insert(node, answer)),
                Err(why) => answers.silent.entry(why.to_string()).or_default().push(node),
            }
        }
        answers
    }

    /// Says what is not known, with the nodes of which it is not: `what` is how the sentence begins.
    pub(crate) fn unknown(&self, what: &str) -> impl Iterator<Item = String> {
        self.silent
            .iter()
            .map(move |(why, nodes)| format!("{what} {} is not known: {why}", nodes_in_words(nodes, SHOWN)))
    }
}

/// Asks these agents by `netclaim-kubelet-plugin ask` with the words of the question. Of an answer it takes
/// what `read` reads from it.
pub(crate) async fn exec_all<T>(
    client: &Client,
    asked: Asked<'_>,
    question: &[&str],
    read: impl Fn(Answer) -> Option<T>,
) -> BTreeMap<String, Result<T, NotAsked>> {
    let ask = async |pod: &Pod| {
        let answer = timeout(ANSWER_TIMEOUT, exec(client, pod, question)).await;
        let answer = answer.unwrap_or(Err(NotAsked::Late))?;
        read(answer).ok_or_else(|| NotAsked::NoAnswer("it answers another question".to_owned()))
    };
    ask_all(asked, Instant::now() + ALL_TIMEOUT, || Err(NotAsked::TooMany), ask).await
}

async fn exec(client: &Client, pod: &Pod, question: &[&str]) -> Result<Answer, NotAsked> {
    let words = [&["ask"], question].concat();
    let mut process = start(client, pod, &words, false).await?;
    let (out, err) = (process.stdout(), process.stderr());
    let (said, complaint) = tokio::join!(read(out), read(err));
    answer(&said, &complaint)
}

/// Starts netclaim-kubelet-plugin with these words in the agent's pod.
async fn start(
    client: &Client,
    pod: &Pod,
    words: &[&str],
    has_input: bool,
) -> Result<AttachedProcess, NotAsked> {
    let namespace = pod.namespace().unwrap_or_default();
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let params = AttachParams::default().container("agent").stdin(has_input);
    let command = [&["netclaim-kubelet-plugin"], words].concat();
    pods.exec(&pod.name_any(), command, &params).await.map_err(|error| match error {
        kube::Error::Api(status) if status.is_forbidden() => NotAsked::Forbidden(namespace),
        other => NotAsked::Unreachable(error_chain(&other)),
    })
}

/// Runs netclaim-kubelet-plugin with these words in the agent's pod, and passes on what it prints as it
/// comes, until it ends or `out` takes no more. Returns what it has said beside that.
pub(crate) async fn exec_into(
    client: &Client,
    pod: &Pod,
    words: &[&str],
    out: &mut (dyn Write + Send),
) -> Result<String, NotAsked> {
    let mut process = start(client, pod, words, true).await?;
    // The program ends when its input does, and that ends with the connection.
    let _input = process.stdin();
    let (printed, err, status) = (process.stdout(), process.stderr(), process.take_status());
    match pass_on(printed, out).await {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(String::new()),
        Err(error) => return Err(NotAsked::NotWritten(error)),
        Ok(()) => {}
    }
    let said = read(err).await.trim().to_owned();
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    let has_failed = status.is_none_or(|status| status.status.as_deref() != Some("Success"));
    match has_failed {
        true if said.is_empty() => Err(NotAsked::NoAnswer("the connection has ended".to_owned())),
        true => Err(NotAsked::NoAnswer(said)),
        false => Ok(said),
    }
}

/// Passes on what comes until its end. Fails if `out` takes no more before that.
async fn pass_on(from: Option<impl AsyncRead + Unpin>, out: &mut (dyn Write + Send)) -> io::Result<()> {
    let Some(mut from) = from else { return Ok(()) };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        out.write_all(buffer.get(..length).unwrap_or_default())?;
        out.flush()?;
    }
    Ok(())
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
fn answer(said: &str, complaint: &str) -> Result<Answer, NotAsked> {
    match serde_json::from_str(said) {
        Ok(Answer::Error(why)) => Err(NotAsked::NoAnswer(why)),
        Ok(answer) => Ok(answer),
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
        let of_a_newer_one = answer("{\"dryRun\":{\"refusal\":\"no\",\"new\":1}}", "").unwrap();
        assert!(matches!(of_a_newer_one, Answer::DryRun(found) if found.refusal.as_deref() == Some("no")));
    }
}
