//! What this replica knows at this moment, for a person who looks for a fault: `netclaim-controller --dump-state`.
//!
//! ```text
//!   socket ──> Dump ── a question for each part ──> the loops: each shows its own state between two other things
//! ```
//!
//! A loop that is busy or hangs gives no answer, and the dump says so. CNI configurations are not in it: they may have secrets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use netclaim_process::dump;
use serde_json::{Map, Value, json};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::metrics::Metrics;

/// The abstract socket that answers, in the network namespace of the pod: a volume for a file would keep the pod from `kubectl drain`.
pub(crate) const SOCKET: &str = "netclaim-controller";

/// How long a loop may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a loop sends what it knows.
pub(crate) type Answer = oneshot::Sender<Value>;

/// The parts of the dump by name. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dump(Arc<Mutex<BTreeMap<&'static str, mpsc::Sender<Answer>>>>);

/// The questions to one loop.
#[derive(Debug)]
pub(crate) struct Questions(mpsc::Receiver<Answer>);

impl Questions {
    /// Waits for the next question; for ever, if nobody can ask any more.
    pub(crate) async fn next(&mut self) -> Answer {
        match self.0.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

impl Dump {
    /// Adds a part, and returns the questions to it.
    pub(crate) fn part(&self, name: &'static str) -> Questions {
        let (ask, questions) = mpsc::channel(1);
        self.parts().insert(name, ask);
        Questions(questions)
    }

    /// Answers on a socket until dropped.
    pub(crate) async fn serve(self, listener: UnixListener, identity: String, metrics: Metrics) {
        let state = || {
            let (dump, identity, metrics) = (self.clone(), identity.clone(), metrics.clone());
            async move {
                let mut state = Map::new();
                state.insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
                state.insert("time".to_owned(), json!(Timestamp::now().to_string()));
                state.insert("identity".to_owned(), json!(identity));
                state.insert("leads".to_owned(), json!(metrics.leader.get() == 1));
                state.insert("notReady".to_owned(), json!(metrics.ready.lacks()));
                state.extend(dump.state().await);
                Value::Object(state)
            }
        };
        dump::serve(listener, state).await;
    }

    /// Asks all parts at once.
    async fn state(&self) -> Map<String, Value> {
        let parts: Vec<_> = self.parts().iter().map(|(name, part)| (*name, part.clone())).collect();
        let ask = |(name, part): (&'static str, mpsc::Sender<Answer>)| async move {
            let answered = timeout(PATIENCE, async {
                let (answer, answered) = oneshot::channel();
                part.send(answer).await.ok()?;
                answered.await.ok()
            });
            let shown = match answered.await {
                Ok(Some(state)) => state,
                Ok(None) => json!("has ended"),
                Err(_) => json!(format!("no answer within {} s: it is busy or hangs", PATIENCE.as_secs())),
            };
            (name.to_owned(), shown)
        };
        join_all(parts.into_iter().map(ask)).await.into_iter().collect()
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<&'static str, mpsc::Sender<Answer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_part_answers_for_itself_and_one_that_hangs_is_named() {
        let dump = Dump::default();
        assert!(dump.state().await.is_empty(), "a replica that does not lead has no parts");
        let mut good = dump.part("good");
        let _hangs = dump.part("hangs");
        drop(dump.part("ended"));
        let answering = async { good.next().await.send(json!({"blocks": 3})) };
        let (state, answered) = tokio::join!(dump.state(), answering);
        answered.unwrap();
        let expected = json!({
            "good": {"blocks": 3}, "hangs": "no answer within 2 s: it is busy or hangs", "ended": "has ended",
        });
        assert_eq!(Value::Object(state), expected);
    }
}
