//! Whose operation runs when: after a reboot, or when a node is drained, every pod of the node has something to run at
//! once.
//!
//! * A CNI network runs a number of operations at once. One that hangs, on a DHCP server that does not answer for
//!   example, so holds up its own pods and nobody else's.
//! * The node starts as many at once, over all networks. An operation counts there only while it is new: one that takes
//!   longer waits for something else than the processors. So no number of networks that hang stops the node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;

/// Operations at a time, for each processor: plugins mostly wait for the kernel.
const PER_CPU: usize = 4;
/// How long an operation counts as one that keeps the processors busy.
const NEW: Duration = Duration::from_millis(100);

/// The turns of a node.
#[derive(Debug)]
pub(super) struct Turns {
    at_once: usize,
    node: Semaphore,
    networks: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Turns {
    /// Turns for this machine.
    pub(super) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self::at_once(cpus * PER_CPU)
    }

    fn at_once(at_once: usize) -> Self {
        Self { at_once, node: Semaphore::new(at_once), networks: Mutex::default() }
    }

    /// Runs an operation on `network` when it is its turn.
    pub(super) async fn take<T>(&self, network: &str, operation: impl Future<Output = T>) -> T {
        let of_network = self.of(network);
        let _turn = of_network.acquire().await;
        let new = self.node.acquire().await;
        tokio::pin!(operation);
        if let Ok(done) = tokio::time::timeout(NEW, &mut operation).await {
            return done;
        }
        drop(new);
        operation.await
    }

    fn of(&self, network: &str) -> Arc<Semaphore> {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = networks.get(network).and_then(Weak::upgrade) {
            return known;
        }
        networks.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(self.at_once));
        networks.insert(network.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;

    /// Has `pods` of each of `networks` hang; returns how many operations run then.
    async fn hang(turns: &Arc<Turns>, networks: usize, pods: usize) -> Arc<AtomicUsize> {
        let running = Arc::new(AtomicUsize::new(0));
        for network in 0..networks {
            for _ in 0..pods {
                let (turns, running) = (Arc::clone(turns), Arc::clone(&running));
                tokio::spawn(async move {
                    let hanging = async {
                        running.fetch_add(1, Ordering::Relaxed);
                        std::future::pending::<()>().await
                    };
                    turns.take(&format!("dead{network}"), hanging).await
                });
            }
        }
        tokio::task::yield_now().await;
        running
    }

    #[tokio::test(start_paused = true)]
    async fn forty_pods_of_a_network_that_hangs_hold_up_another_networks_pod_for_less_than_a_second() {
        for networks in [1, 10] {
            let turns = Arc::new(Turns::at_once(8));
            let running = hang(&turns, networks, 40).await;
            let start = Instant::now();
            turns.take("alive", async {}).await;
            assert!(start.elapsed() <= Duration::from_secs(1), "{networks}: {:?}", start.elapsed());
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(running.load(Ordering::Relaxed), networks * 8, "one network's processes are bounded");
            let start = Instant::now();
            turns.take("alive", async {}).await;
            assert_eq!(start.elapsed(), Duration::ZERO, "those that hang have no turn of the node");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_operations_of_all_networks_share_the_processors() {
        let turns = Arc::new(Turns::at_once(8));
        let running = hang(&turns, 5, 40).await;
        assert_eq!(running.load(Ordering::Relaxed), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_without_operations_is_forgotten() {
        let turns = Turns::at_once(1);
        for network in ["a", "b", "c"] {
            turns.take(network, async {}).await;
        }
        assert_eq!(turns.networks.lock().unwrap().len(), 1);
    }
}
