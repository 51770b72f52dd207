//! The agent's parts: tasks that run as long as the agent does.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long parts may take to end after they are cancelled.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Tasks, each with a name for the log. When one of them ends by itself, the agent ends.
#[derive(Default)]
pub(crate) struct Parts {
    tasks: JoinSet<&'static str>,
    cancel: CancellationToken,
}

impl Parts {
    /// Starts a part that ends by itself after the given token is cancelled, or when its input ends.
    pub(crate) fn start<P>(&mut self, name: &'static str, part: impl FnOnce(CancellationToken) -> P)
    where
        P: Future<Output = ()> + Send + 'static,
    {
        let part = part(self.cancel.clone());
        self.tasks.spawn(async move {
            part.await;
            name
        });
    }

    /// Starts a part that is dropped when the parts are cancelled.
    pub(crate) fn start_until_cancelled<T: Send>(
        &mut self,
        name: &'static str,
        part: impl Future<Output = T> + Send + 'static,
    ) {
        self.start(name, |cancel| async move {
            cancel.run_until_cancelled(part).await;
        });
    }

    /// Waits for the end of any part and returns its name.
    pub(crate) async fn any_ended(&mut self) -> &'static str {
        match self.tasks.join_next().await {
            Some(Ok(name)) => name,
            _ => "a part of the agent",
        }
    }

    /// Cancels all parts.
    pub(crate) fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits until all parts have ended, and aborts those that take longer than 2 s.
    pub(crate) async fn finish(mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(END_TIMEOUT, all).await;
        self.tasks.abort_all();
    }
}
