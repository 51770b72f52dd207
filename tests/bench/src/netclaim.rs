//! netclaim's runtime as the agent has it: one [`Runtime`] on two worker threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use netclaim_driver::cni::{Attachment, Cache, Cached, NetworkList, Runtime};

use crate::protocol::{Order, Times};
use crate::usage::nanos;

/// Longer than any plugin takes.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Contestant {
    threads: tokio::runtime::Runtime,
    host: Arc<Host>,
}

struct Host {
    runtime: Runtime,
    cache: Option<Cache>,
}

impl Contestant {
    /// Without a cache for those who keep elsewhere what DEL needs, as the agent does in its journal.
    pub(crate) fn new(runtime: Runtime, cache: Option<Cache>) -> Result<Self> {
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { threads, host: Arc::new(Host { runtime, cache }) })
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

impl Host {
    async fn once(&self, list: &NetworkList, attachment: Attachment) -> Result<Times> {
        let begin = Instant::now();
        let mut cached = Cached { list: list.clone(), attachment, result: None };
        self.store(&cached)?;
        match self.runtime.add(list, &cached.attachment, DEADLINE).await {
            Ok(result) => cached.result = Some(result),
            Err(failed) => bail!("ADD: {}", failed.error),
        }
        self.store(&cached)?;
        let added = Instant::now();
        self.runtime.del(list, &cached.attachment, cached.result.as_ref(), DEADLINE).await?;
        if let Some(cache) = &self.cache {
            cache.remove(list.name(), &cached.attachment.container_id, &cached.attachment.if_name)?;
        }
        Ok((nanos(begin, added), nanos(added, Instant::now())))
    }

    fn store(&self, cached: &Cached) -> Result<()> {
        self.cache.as_ref().map_or(Ok(()), |cache| cache.store(cached))?;
        Ok(())
    }
}
