//! Locks among the tasks of this process (specification, section 3, "Lifecycle & Ordering").
//!
//! Operations on one container run one after another. GC of a network runs alone; operations on different
//! containers of a network run side by side.
//!
//! [`file_locks`](super::file_locks) do the same among processes, but cannot replace these: they poll, and a
//! waiting task must start without that delay, also without a cache.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{
    Mutex as AsyncMutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock,
};

use crate::names::{ContainerId, ListName};

#[derive(Debug, Default)]
pub(crate) struct Locks {
    containers: Keyed<ContainerId, AsyncMutex<()>>,
    networks: Keyed<ListName, RwLock<()>>,
}

/// Held during an operation on one attachment.
#[derive(Debug)]
pub(crate) struct AttachmentGuard {
    _container: OwnedMutexGuard<()>,
    _network: OwnedRwLockReadGuard<()>,
}

impl Locks {
    /// Waits for earlier operations on the container, and for GC of the network.
    pub(crate) async fn attachment(&self, container: &ContainerId, network: &ListName) -> AttachmentGuard {
        // GC waits for no container, so this order cannot block itself.
        let container = self.containers.get(container).lock_owned().await;
        let network = self.networks.get(network).read_owned().await;
        AttachmentGuard { _container: container, _network: network }
    }

    /// Waits for all operations on the network.
    pub(crate) async fn whole_network(&self, network: &ListName) -> OwnedRwLockWriteGuard<()> {
        self.networks.get(network).write_owned().await
    }
}

/// Locks that exist while a task holds them or waits for them.
#[derive(Debug)]
struct Keyed<K, L>(Mutex<HashMap<K, Weak<L>>>);

impl<K, L> Default for Keyed<K, L> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Clone + Eq + Hash, L: Default> Keyed<K, L> {
    fn get(&self, key: &K) -> Arc<L> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn passes(future: impl Future) -> bool {
        timeout(Duration::from_secs(1), future).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn one_container_has_one_operation_at_a_time() {
        let locks = Locks::default();
        let (a, b, net, other) =
            ("a".parse().unwrap(), "b".parse().unwrap(), "net".parse().unwrap(), "other".parse().unwrap());
        let held = locks.attachment(&a, &net).await;
        assert!(!passes(locks.attachment(&a, &other)).await);
        assert!(passes(locks.attachment(&b, &net)).await);
        drop(held);
        assert!(passes(locks.attachment(&a, &net)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn gc_runs_alone_on_its_network() {
        let locks = Locks::default();
        let (a, net, other) = ("a".parse().unwrap(), "net".parse().unwrap(), "other".parse().unwrap());
        let held = locks.attachment(&a, &net).await;
        assert!(!passes(locks.whole_network(&net)).await);
        assert!(passes(locks.whole_network(&other)).await);
        drop(held);
        let held = locks.whole_network(&net).await;
        assert!(!passes(locks.attachment(&a, &net)).await);
        drop(held);
        assert!(passes(locks.attachment(&a, &net)).await);
    }

    #[tokio::test]
    async fn locks_without_a_holder_are_forgotten() {
        let locks = Locks::default();
        for i in 0..100 {
            drop(locks.attachment(&format!("c{i}").parse().unwrap(), &"net".parse().unwrap()).await);
        }
        assert!(locks.containers.0.lock().unwrap().len() <= 1);
    }
}
