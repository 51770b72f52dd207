//! A link of one of many nodes that goes down and up once a second: what the controller writes, what that
//! costs it, and what every node's watch of ClaimNetworks gets of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use kube::Client;
use kube::runtime::watcher::{self, watcher};
use netclaim_tests::{AuditLog, Cluster};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::cluster::{Controller, PUBLISHING, TIMEOUT, admin, client, on_cluster};
use crate::fleet::{self, Fleet, LINKS, Uses};
use crate::networks::{self, ClaimNetworks};
use crate::report::{Report, millis};

/// Changes of the link, one each second. The last one is up.
const CHANGES: usize = 120;
/// Time between two writes of one status. Half a second of it may pass between the write and its line in the
/// audit log.
const INTERVAL: Duration = Duration::from_millis(15_000 - 500);

/// Measures it, on its own cluster.
pub fn a_flapping_link_is_written_rarely() -> Result<()> {
    on_cluster("flapping", async |cluster, count| measure(cluster, count).await)
}

async fn measure(cluster: &Cluster, count: usize) -> Result<()> {
    let mut report = Report::new("flapping")?;
    let client = client(&admin(cluster)).await?;
    let networks = ClaimNetworks::create(cluster, &client, Uses::ClaimNetworks)?;
    let nodes = fleet::nodes(&client, count).await?;
    let controller = Controller::start(cluster, &admin(cluster))?;
    let fleet = timeout(PUBLISHING, Fleet::publish(&client, &nodes, Uses::ClaimNetworks)).await??;
    networks.are_on(count).await?;
    report.row("nodes, each with a watch of ClaimNetworks", count as f64, "")?;
    let watches = Watches::start(&client, count).await?;
    // The last writes were long ago.
    sleep(INTERVAL * 2).await;

    let (log, before) = (AuditLog::from_now(cluster)?, controller.usage()?);
    watches.events.store(0, Ordering::Relaxed);
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begin = Instant::now();
    for change in 1..=CHANGES {
        second.tick().await;
        fleet.set_link(0, LINKS[0], change % 2 == 0).await?;
    }
    let flapped = begin.elapsed();
    let used = controller.usage()?.cpu - before.cpu;
    networks.are_everywhere().await?;
    let right = begin.elapsed() - flapped;
    sleep(INTERVAL * 2).await;
    networks.are_everywhere().await?;

    let writes = log.write_times_by_name("claimnetworks")?;
    let (most, all) = (
        writes.values().map(Vec::len).max().unwrap_or_default(),
        writes.values().map(Vec::len).sum::<usize>(),
    );
    let pauses = writes.values().flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0]));
    let shortest = pauses.min().context("no status was written twice")?;
    report.row("changes of the link: writes of its slice", log.writes("resourceslices")? as f64, "")?;
    report.seconds("for", flapped)?;
    report.row("ClaimNetworks on the link that were written", writes.len() as f64, "")?;
    report.row("writes of the status, of all of them", all as f64, "")?;
    report.row("writes of the status, of one at most", most as f64, "")?;
    report.seconds("shortest time between two writes of one", shortest)?;
    report.seconds("the last state is in every status, after", right)?;
    report.row("events of the watches of all nodes", watches.events.load(Ordering::Relaxed) as f64, "")?;
    report.row("controller: CPU for each change", used as f64 / CHANGES as f64, "ms")?;
    report.seconds("controller: CPU", Duration::from_secs_f64(millis(used)))?;
    ensure!(shortest >= INTERVAL, "a status was written again after {shortest:?}");
    ensure!(writes.len() == Uses::ClaimNetworks.networks(), "{} ClaimNetworks were written", writes.len());
    Ok(())
}

/// A watch of ClaimNetworks for each node, as its agent has it.
struct Watches {
    events: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Watches {
    /// Starts them, and waits until each has its first list.
    async fn start(client: &Client, count: usize) -> Result<Self> {
        let (events, listed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let api = networks::api(client);
            let (events, listed) = (Arc::clone(&events), Arc::clone(&listed));
            tasks.spawn(async move {
                let mut watch = std::pin::pin!(watcher(api, watcher::Config::default()));
                while let Some(event) = watch.next().await {
                    match event {
                        Ok(watcher::Event::InitDone) => listed.fetch_add(1, Ordering::Relaxed),
                        Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {
                            events.fetch_add(1, Ordering::Relaxed)
                        }
                        _ => 0,
                    };
                }
            });
        }
        let all = async {
            while listed.load(Ordering::Relaxed) < count {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(TIMEOUT, all).await.context("not all watches have begun")?;
        Ok(Self { events, _tasks: tasks })
    }
}
