//! Tasks that belong to a sandbox: at most one of a kind for each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// One kind of task.
#[derive(Debug, Default)]
pub(crate) struct SandboxTasks(Mutex<HashMap<String, AbortHandle>>);

impl SandboxTasks {
    /// Starts the task of a sandbox, unless one of it runs.
    pub(crate) fn start(&self, sandbox_id: &str, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.running();
        if !tasks.contains_key(sandbox_id) {
            tasks.insert(sandbox_id.to_owned(), tokio::spawn(task).abort_handle());
        }
    }

    /// Starts the task of a sandbox; one of it that runs ends.
    pub(crate) fn replace(&self, sandbox_id: &str, task: impl Future<Output = ()> + Send + 'static) {
        self.stop(sandbox_id);
        self.start(sandbox_id, task);
    }

    /// Ends the task of a sandbox, if there is one.
    pub(crate) fn stop(&self, sandbox_id: &str) {
        if let Some(task) = self.running().remove(sandbox_id) {
            task.abort();
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, AbortHandle>> {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|_, task| !task.is_finished());
        tasks
    }
}
