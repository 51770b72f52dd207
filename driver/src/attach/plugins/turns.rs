//! Whose operation runs when: after a reboot, or when a node is drained, every pod of the node has something
//! to run at once.
//!
//! * A CNI network runs a number of operations at once. One that hangs, on a DHCP server that does not answer
//!   for example, so holds up its own pods and no others.
//! * A tenant has at most half of these turns of a network, so that what it chose to hang on leaves turns for
//!   others.
//! * The node starts as many at once, over all networks. An operation counts there only while it is new: one
//!   that takes longer waits for something else than the processors. So no number of networks that hang stops
//!   the node.

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
    networks: Mutex<HashMap<String, Weak<OfNetwork>>>,
}

/// The turns of a network.
#[derive(Debug)]
struct OfNetwork {
    all: Semaphore,
    at_once: usize,
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl OfNetwork {
    /// The turns that a tenant may have.
    fn of(&self, tenant: &str) -> Arc<Semaphore> {
        known_or(&self.tenants, tenant, || Semaphore::new((self.at_once / 2).max(1)))
    }
}

/// Returns the entry of this name, and makes one if there is none.
fn known_or<T>(known: &Mutex<HashMap<String, Weak<T>>>, name: &str, new: impl FnOnce() -> T) -> Arc<T> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.get(name).and_then(Weak::upgrade) {
        return known;
    }
    known.retain(|_, others| others.strong_count() > 0);
    let new = Arc::new(new());
    known.insert(name.to_owned(), Arc::downgrade(&new));
    new
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

    /// Runs an operation on `network` for `tenant` when it is its turn.
    pub(super) async fn take<T>(&self, network: &str, tenant: &str, operation: impl Future<Output = T>) -> T {
        let of_network = self.of(network);
        let of_tenant = of_network.of(tenant);
        // First, so that who waits for its own turns keeps none of the others'.
        let _own = of_tenant.acquire().await;
        let _turn = of_network.all.acquire().await;
        let new = self.node.acquire().await;
        tokio::pin!(operation);
        if let Ok(done) = tokio::time::timeout(NEW, &mut operation).await {
            return done;
        }
        drop(new);
        operation.await
    }

    fn of(&self, network: &str) -> Arc<OfNetwork> {
        let (all, at_once) = (Semaphore::new(self.at_once), self.at_once);
        known_or(&self.networks, network, || OfNetwork { all, at_once, tenants: Mutex::default() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;

    /// Has `pods` of as many tenants hang on each of `networks`; returns how many operations run then.
    async fn hang(turns: &Arc<Turns>, networks: usize, pods: usize) -> Arc<AtomicUsize> {
        let running = Arc::new(AtomicUsize::new(0));
        for network in 0..networks {
            for pod in 0..pods {
                let (turns, running) = (Arc::clone(turns), Arc::clone(&running));
                tokio::spawn(async move {
                    let hanging = async {
                        running.fetch_add(1, Ordering::Relaxed);
                        std::future::pending::<()>().await
                    };
                    turns.take(&format!("dead{network}"), &format!("tenant{pod}"), hanging).await
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
            turns.take("alive", "a", async {}).await;
            assert!(start.elapsed() <= Duration::from_secs(1), "{networks}: {:?}", start.elapsed());
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(running.load(Ordering::Relaxed), networks * 8, "one network's processes are bounded");
            let start = Instant::now();
            turns.take("alive", "a", async {}).await;
            assert_eq!(start.elapsed(), Duration::ZERO, "those that hang have no turn of the node");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_whose_pods_hang_leaves_half_of_the_networks_turns_to_others() {
        for (at_once, own) in [(8, 4), (1, 1), (2, 1)] {
            let turns = Arc::new(Turns::at_once(at_once));
            let running = Arc::new(AtomicUsize::new(0));
            for _ in 0..40 {
                let (turns, running) = (Arc::clone(&turns), Arc::clone(&running));
                tokio::spawn(async move {
                    let hanging = async {
                        running.fetch_add(1, Ordering::Relaxed);
                        std::future::pending::<()>().await
                    };
                    turns.take("shared", "greedy", hanging).await
                });
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(running.load(Ordering::Relaxed), own, "of {at_once}");
            let other = tokio::time::timeout(Duration::from_secs(1), turns.take("shared", "other", async {}));
            assert_eq!(other.await.is_ok(), at_once > 1, "of {at_once}");
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
            turns.take(network, "a", async {}).await;
        }
        assert_eq!(turns.networks.lock().unwrap().len(), 1);
        let network = turns.of("a");
        for tenant in ["a", "b", "c"] {
            drop(network.of(tenant));
        }
        assert_eq!(network.tenants.lock().unwrap().len(), 1);
    }
}
