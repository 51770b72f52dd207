//! netclaim's runtime as the agent has it: one on two worker threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netclaim_cni::{Attachment, Cache, NetworkList, Runtime};
use netclaim_driver::attach::journal::Journal;
use netclaim_driver::attach::machine::{Event, after};
use netclaim_driver::attach::record::{Plan, Record, Sandbox};
use netclaim_driver::attach::{CniNetwork, Failure, Network as _, Undone};
use netclaim_driver::links::{Links, Netns};
use serde_json::json;

use crate::protocol::{Order, Times};
use crate::usage::nanos;

/// Longer than any plugin takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// What attaches: the runtime alone, or with what it remembers.
pub(crate) trait Host: Send + Sync + 'static {
    /// ADD, and DEL with what came of it.
    fn once(&self, list: &NetworkList, attachment: Attachment) -> impl Future<Output = Result<Times>> + Send;
}

impl Host for Runtime {
    async fn once(&self, list: &NetworkList, attachment: Attachment) -> Result<Times> {
        let begin = Instant::now();
        let result = match self.add(list, &attachment, DEADLINE).await {
            Ok(result) => result,
            Err(failed) => bail!("ADD: {}", failed.error),
        };
        let added = Instant::now();
        self.del(list, &attachment, Some(&result), DEADLINE).await?;
        Ok((nanos(begin, added), nanos(added, Instant::now())))
    }
}

/// What the agent does for each attachment: its plugins, its cache, and every record of its journal.
pub(crate) struct Agent {
    network: CniNetwork,
    journal: Journal,
}

impl Agent {
    /// One that keeps its cache and its journal below `dir`, with the agent's default of `--cni-env`.
    pub(crate) fn new(bin_dir: PathBuf, dir: &Path) -> Result<Self> {
        let runtime = Runtime::new(vec![bin_dir])?.with_env("GOMAXPROCS", "1");
        let cache = Cache::new(dir.join("cache")).beside_a_journal();
        let network = CniNetwork::new(runtime, cache, Links::new("/sys"), DEADLINE);
        Ok(Self { network, journal: Journal::open(dir.join("journal"))? })
    }

    async fn write(&self, record: &Record) -> Result<()> {
        let (journal, record) = (self.journal.clone(), record.clone());
        Ok(tokio::task::spawn_blocking(move || journal.write(&record)).await??)
    }

    /// Moves the record on, and writes it.
    async fn advance(&self, record: &mut Record, event: Event) -> Result<()> {
        record.phase = after(record.phase.clone(), event).map_err(|illegal| anyhow!("{illegal}"))?;
        self.write(record).await
    }
}

impl Host for Agent {
    async fn once(&self, list: &NetworkList, attachment: Attachment) -> Result<Times> {
        let sandbox = sandbox(&attachment)?;
        let plan = plan(list, &attachment)?;
        let failed = |failure: Failure| anyhow!(failure.message);

        let begin = Instant::now();
        let mut record = Record::new(plan);
        self.write(&record).await?;
        record.lent = self.network.lends(&record.plan).await.map_err(failed)?;
        self.advance(&mut record, Event::AddDue(sandbox.clone())).await?;
        let result = self.network.add(&record.plan, &sandbox).await.map_err(failed).context("ADD")?;
        self.advance(&mut record, Event::Added(result.clone())).await?;

        let added = Instant::now();
        self.advance(&mut record, Event::DelDue).await?;
        let (netns, lent) = (Some(sandbox.netns.as_path()), record.lent.as_ref());
        let undone = self.network.del(&record.plan, &sandbox.id, netns, Some(&result), lent, 0).await;
        ensure!(undone.map_err(failed).context("DEL")? == Undone::All, "something is left");
        let journal = self.journal.clone();
        tokio::task::spawn_blocking(move || journal.remove(&record)).await??;
        Ok((nanos(begin, added), nanos(added, Instant::now())))
    }
}

/// The plan that a claim for this attachment would have come to.
fn plan(list: &NetworkList, attachment: &Attachment) -> Result<Plan> {
    let id = attachment.container_id.as_str();
    let object = |kind: &str| json!({"namespace": "default", "name": id, "uid": format!("{id}-{kind}")});
    let conflist: serde_json::Value = serde_json::from_str(list.raw())?;
    Ok(serde_json::from_value(json!({
        "claim": object("claim"), "index": 0, "of": 1, "pod": object("pod"),
        "device": {"request": "net", "pool": "node0", "device": "net-bench"}, "network": "bench",
        "ifName": attachment.if_name.as_str(), "conflist": conflist,
    }))?)
}

fn sandbox(attachment: &Attachment) -> Result<Sandbox> {
    let netns = attachment.netns.clone().context("no network namespace")?;
    Ok(Sandbox {
        id: attachment.container_id.to_string(),
        netns_id: Netns::open(&netns)?.id(),
        netns,
        boot_id: "boot".to_owned(),
    })
}

pub(crate) struct Contestant<H> {
    threads: tokio::runtime::Runtime,
    host: Arc<H>,
}

impl<H: Host> Contestant<H> {
    pub(crate) fn new(host: H) -> Result<Self> {
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { threads, host: Arc::new(host) })
    }

    pub(crate) fn attach(&self, order: &Order) -> Result<Vec<Vec<Times>>> {
        let list = Arc::new(NetworkList::parse(order.list.as_bytes())?);
        let ops = order.ops;
        self.threads.block_on(async {
            let lanes: Vec<_> = order
                .netns
                .iter()
                .enumerate()
                .map(|(lane, netns)| {
                    let (host, list, netns) =
                        (Arc::clone(&self.host), Arc::clone(&list), PathBuf::from(netns));
                    tokio::spawn(async move {
                        let mut times = Vec::with_capacity(ops);
                        for op in 0..ops {
                            let attachment = Attachment::new(
                                format!("c{lane}-{op}").parse()?,
                                Some(netns.clone()),
                                "net1".parse()?,
                            );
                            times.push(host.once(&list, attachment).await?);
                        }
                        anyhow::Ok(times)
                    })
                })
                .collect();
            let mut times = Vec::with_capacity(lanes.len());
            for lane in lanes {
                times.push(lane.await??);
            }
            Ok(times)
        })
    }
}
