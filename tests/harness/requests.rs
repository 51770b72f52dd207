//! What the agent, or another user, asks of the API server.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cluster::Cluster;

/// The agent, as the API server knows it.
const USER: &str = "system:serviceaccount:netclaim-system:netclaim-agent";

/// A user's requests from a moment on, by the API server's audit log.
pub struct Requests {
    user: String,
    log: PathBuf,
    from: u64,
}

impl Requests {
    /// Counts the agent's from now on.
    ///
    /// # Errors
    /// When there is no log.
    pub fn begin(cluster: &Cluster) -> Result<Self> {
        Self::of(cluster, USER)
    }

    /// Counts those of `user` from now on.
    ///
    /// # Errors
    /// When there is no log.
    pub fn of(cluster: &Cluster, user: &str) -> Result<Self> {
        let log = cluster.dir().join("log/audit.log");
        let from = fs::metadata(&log).context("no audit log")?.len();
        Ok(Self { user: user.to_owned(), log, from })
    }

    /// How many there were until now, by verb, resource and status code.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn end(&self) -> Result<BTreeMap<String, usize>> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.from))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut counts = BTreeMap::new();
        // The last line may be half written.
        for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if event["user"]["username"] == self.user.as_str() && event["stage"] == "ResponseComplete" {
                let word = |path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default();
                let kind = [word("/verb"), word("/objectRef/resource"), word("/objectRef/subresource")];
                let code = &event["responseStatus"]["code"];
                *counts.entry(format!("{} {code}", kind.join(" ").trim_end())).or_default() += 1;
            }
        }
        Ok(counts)
    }
}
