//! netclaim's runtime as the agent has it: one on two worker threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netclaim_cni::{Attachment, Cache, NetworkList, Runtime};
use netclaim_driver::attach::journal::Journal;
use netclaim_driver::attach::machine::{Event, after};
use netclaim_driver::attach::testing::{Claimant, Object};
use netclaim_driver::attach::{Attach as _, CniPlugins, Del, DelOutcome, Plan, Record, Sandbox, Spec};
use netclaim_driver::links::{Links, Netns};

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
    plugins: CniPlugins,
    journal: Journal<Claimant>,
}

impl Agent {
    /// One that keeps its cache and its journal below `dir`, with the agent's default of `--cni-env`.
    pub(crate) fn new(bin_dir: PathBuf, dir: &Path) -> Result<Self> {
        let runtime = Runtime::new(vec![bin_dir])?.with_env("GOMAXPROCS", "1");
        let cache = Cache::new(dir.join("cache")).beside_a_journal();
        let plugins = CniPlugins::new(runtime, cache, Links::new("/sys"), DEADLINE);
        Ok(Self { plugins, journal: Journal::open(dir.join("journal"), dir.join("run"))? })
    }

    async fn write(&self, record: &Record<Claimant>) -> Result<()> {
        let (journal, record) = (self.journal.clone(), record.clone());
        Ok(tokio::task::spawn_blocking(move || journal.write(&record)).await??)
    }

    /// Moves the record on, and writes it.
    async fn advance(&self, record: &mut Record<Claimant>, event: Event) -> Result<()> {
        record.phase = after(record.phase.clone(), event).map_err(|illegal| anyhow!("{illegal}"))?;
        self.write(record).await
    }
}

impl Host for Agent {
    async fn once(&self, list: &NetworkList, attachment: Attachment) -> Result<Times> {
        let sandbox = sandbox(&attachment)?;
        let plan = plan(list, &attachment);

        let begin = Instant::now();
        let mut record = Record::new(plan);
        self.write(&record).await?;
        record.moved_link = self.plugins.link_to_move(&record.plan.spec).await?;
        self.advance(&mut record, Event::AddDue(sandbox.clone())).await?;
        let result = self.plugins.add(&record.plan.spec, &sandbox).await;
        let result = result.map_err(|failed| failed.failure).context("ADD")?;
        self.advance(&mut record, Event::Added(result.clone())).await?;

        let added = Instant::now();
        self.advance(&mut record, Event::DelDue).await?;
        let del = Del {
            sandbox_id: &sandbox.id,
            netns: Some(&sandbox.netns),
            result: Some(&result),
            moved_link: record.moved_link.as_ref(),
            ..Del::default()
        };
        let outcome = self.plugins.del(&record.plan.spec, del).await.context("DEL")?;
        ensure!(outcome == DelOutcome::Clean, "something is left");
        let journal = self.journal.clone();
        tokio::task::spawn_blocking(move || journal.remove(&record)).await??;
        Ok((nanos(begin, added), nanos(added, Instant::now())))
    }
}

/// The plan that a claim for this attachment would have come to.
fn plan(list: &NetworkList, attachment: &Attachment) -> Plan<Claimant> {
    let name = attachment.container_id.as_str();
    let object = |kind: &str| Object {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: format!("{name}-{kind}"),
    };
    let owner = Claimant { claim: object("claim"), pod: object("pod"), rest: Default::default() };
    let spec = Spec {
        tenant: "default".to_owned(),
        if_name: attachment.if_name.clone(),
        conflist: list.clone(),
        args: Default::default(),
        capability_args: Default::default(),
        wire: Default::default(),
    };
    Plan { owner, index: 0, of: 1, finalizes: None, network: "bench".to_owned(), spec }
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
