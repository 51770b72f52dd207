//! netclaim's runtime as the agent has it: one on two worker threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use netclaim_driver::cni::{Attachment, Attachments, Cached, NetworkList, Outcome, Runtime};

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

impl Host for Attachments {
    async fn once(&self, list: &NetworkList, attachment: Attachment) -> Result<Times> {
        let begin = Instant::now();
        self.add(list, &attachment, DEADLINE).await?;
        let added = Instant::now();
        let request = Cached { list: list.clone(), attachment, outcome: Outcome::Unfinished(None) };
        self.del(&request, DEADLINE).await?;
        Ok((nanos(begin, added), nanos(added, Instant::now())))
    }
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
