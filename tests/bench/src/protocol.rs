//! The protocol between the measuring process and a contestant: one line of JSON per order, one per answer.

use std::io::{BufRead, Write};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::usage::{Cpu, Memory, Usage};

/// Attach and detach `ops` times in each namespace, the namespaces side by side.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The network, a configuration list as JSON text.
    pub(crate) list: String,
    /// Paths of the containers' network namespaces.
    pub(crate) netns: Vec<String>,
    /// Attachments in each namespace.
    pub(crate) ops: usize,
}

/// The result of an [`Order`]. Times are in nanoseconds; CPU time is that of this order alone.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// From the first ADD to the last DEL.
    pub(crate) wall_ns: u64,
    /// Each ADD of the whole chain, namespace by namespace.
    pub(crate) add_ns: Vec<u64>,
    /// Each DEL, in the same order.
    pub(crate) del_ns: Vec<u64>,
    /// CPU time of the contestant itself.
    pub(crate) own: Cpu,
    /// CPU time of the plugins.
    pub(crate) children: Cpu,
    /// Memory after the order.
    pub(crate) memory: Memory,
}

/// How long one ADD and the DEL after it took, in nanoseconds.
pub(crate) type Times = (u64, u64);

/// Answers orders until standard input ends. `attach` does the work of one order: for each namespace a vector
/// of times.
pub(crate) fn serve(mut attach: impl FnMut(&Order) -> Result<Vec<Vec<Times>>>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?).context("unreadable order")?;
        let before = Usage::now()?;
        let lanes = attach(&order)?;
        let used = Usage::after_children(&before)?;
        let (add_ns, del_ns) = lanes.into_iter().flatten().unzip();
        let batch = Batch {
            wall_ns: used.wall_ns,
            add_ns,
            del_ns,
            own: used.own,
            children: used.children,
            memory: Memory::now()?,
        };
        serde_json::to_writer(&mut out, &batch)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}
