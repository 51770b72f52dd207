//! Answers what people ask of the node, and asks it.
//!
//! ```text
//!   netclaimctl ── exec in the agent's pod ──> netclaim-kubelet-plugin ask ── questions.sock ──> the agent
//! ```
//!
//! One line of JSON each way, over a Unix socket that only root reaches. One question is answered at a time,
//! within a limit, so that questions take little from pods.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netclaim_api::question::{Answer, Question};
use netclaim_process::sockets;
use tokio::io::{AsyncReadExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;

use crate::json_lines::{read_line, write_line};

/// The longest question, in bytes.
const MAX_QUESTION: u64 = 4096;
/// How long a question may take to come.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take, with the wait for those before it: plugins have 10 s for STATUS.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The name of the socket in the run directory.
pub(crate) const SOCKET: &str = "questions.sock";

/// Why the agent could not be asked.
#[derive(Debug, thiserror::Error)]
#[error("the agent does not answer on {}: is it ready?", path.display())]
pub struct AskError {
    path: PathBuf,
    source: io::Error,
}

/// Answers until dropped, as `know` knows.
pub(crate) async fn serve<A>(listener: UnixListener, know: impl Fn(Question) -> A + Send + Sync + 'static)
where
    A: Future<Output = Answer> + Send + 'static,
{
    let (know, turn) = (Arc::new(know), Arc::new(Mutex::new(())));
    sockets::serve(listener, |stream| {
        let (know, turn) = (Arc::clone(&know), Arc::clone(&turn));
        answer(stream, async move |question| {
            let _turn = turn.lock().await;
            know(question).await
        })
    })
    .await;
}

async fn answer(mut stream: UnixStream, know: impl AsyncFnOnce(Question) -> Answer) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let answer = match tokio::time::timeout(ASK_TIMEOUT, read_line(&mut reader, MAX_QUESTION)).await? {
        Ok(question) => tokio::time::timeout(ANSWER_TIMEOUT, know(question)).await.unwrap_or_else(|_| {
            Answer::Error(format!("the agent has found no answer within {} s", ANSWER_TIMEOUT.as_secs()))
        }),
        Err(error) => Answer::Error(format!("the agent does not know this question: {error}")),
    };
    write_line(&mut writer, &answer).await
}

/// Asks the agent whose run directory is this. Returns the answer as a line of JSON.
///
/// # Errors
/// When there is no answer.
pub async fn ask(run_dir: &Path, question: &Question) -> Result<String, AskError> {
    let path = run_dir.join(SOCKET);
    let asked = async {
        let mut stream = UnixStream::connect(&path).await?;
        write_line(&mut stream, question).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
    };
    asked.await.map_err(|source| AskError { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use netclaim_process::sockets::listen;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn network(name: &str) -> Question {
        Question::Network(name.parse().unwrap())
    }

    #[tokio::test]
    async fn questions_are_answered_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let at_once = Arc::new(AtomicUsize::new(0));
        let know = move |question: Question| {
            let at_once = Arc::clone(&at_once);
            async move {
                assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "another question is being answered");
                tokio::time::sleep(Duration::from_millis(20)).await;
                at_once.fetch_sub(1, Ordering::SeqCst);
                Answer::Error(format!("{question:?}"))
            }
        };
        let server = tokio::spawn(serve(listen(&dir.path().join(SOCKET)).unwrap(), know));
        let asked = ["a", "b", "c"].map(network);
        let asked = asked.iter().map(|question| ask(dir.path(), question));
        for (answer, name) in futures::future::join_all(asked).await.into_iter().zip(["a", "b", "c"]) {
            let answer: Answer = serde_json::from_str(&answer.unwrap()).unwrap();
            assert_eq!(answer, Answer::Error(format!("{:?}", network(name))));
        }
        server.abort();
    }

    #[tokio::test]
    async fn a_question_that_is_not_known_has_an_error_as_its_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SOCKET);
        let known = async |_| Answer::History(Vec::new());
        let server = tokio::spawn(serve(listen(&path).unwrap(), known));
        for wrong in ["{\"secrets\":\"a\"}\n", "{\"network\":\"../a\"}\n", "{\"who\":\"../a\"}\n", "\n"] {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream.write_all(wrong.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(matches!(serde_json::from_str(&answer), Ok(Answer::Error(_))), "{wrong}: {answer}");
        }
        server.abort();
        let _ = server.await;
        let error = ask(dir.path(), &network("a")).await.unwrap_err();
        assert!(error.to_string().contains("questions.sock"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_too_long_is_given_up() {
        let (mut asks, answers) = UnixStream::pair().unwrap();
        asks.write_all(b"{\"network\":\"a\"}\n").await.unwrap();
        let hangs = async |_| std::future::pending::<Answer>().await;
        answer(answers, hangs).await.unwrap();
        let mut said = String::new();
        asks.read_to_string(&mut said).await.unwrap();
        assert!(said.contains("no answer within 20 s"), "{said}");
    }
}
