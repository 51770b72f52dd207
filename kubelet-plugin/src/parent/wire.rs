//! The messages between a parent and the agent that works: one JSON line each way, one connection per call.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncBufRead;

use crate::dra::ClaimRef;
use crate::json_lines;
pub(super) use crate::json_lines::write_line;

/// Longest line in bytes: more than the claims of a pod, or all devices of a node, ever take.
const MAX_LINE: u64 = 4 << 20;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Message {
    Prepare(Vec<ClaimRef>),
    Unprepare(ClaimRef),
    /// The kubelet has registered the driver.
    Registered,
    /// Answered with a line for each report.
    WatchHealth,
}

/// Reads a message or an answer.
pub(super) async fn read_line<T: DeserializeOwned>(lines: &mut (impl AsyncBufRead + Unpin)) -> io::Result<T> {
    json_lines::read_line(lines, MAX_LINE).await
}
