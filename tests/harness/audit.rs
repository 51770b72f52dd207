//! Requests to the API server, read from its audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cluster::{Cluster, SYSTEM};
use crate::objects::text;

const WRITES: [&str; 4] = ["create", "update", "patch", "delete"];

/// What a program of netclaim has asked for: an RBAC rule with one verb for one resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// The name of its service account.
    pub account: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, with its subresource after a slash.
    pub resource: String,
    /// The verb.
    pub verb: String,
}

/// The API server's audit log from a moment on.
pub struct AuditLog {
    path: PathBuf,
    from: u64,
}

impl AuditLog {
    /// Starts at the log's present end.
    pub fn from_now(cluster: &Cluster) -> Result<Self> {
        let path = cluster.dir().join("log/audit.log");
        let from = path.metadata().context("no audit log")?.len();
        Ok(Self { path, from })
    }

    /// Starts at the log's beginning.
    pub fn from_the_beginning(cluster: &Cluster) -> Self {
        Self { path: cluster.dir().join("log/audit.log"), from: 0 }
    }

    /// What netclaim's own programs have asked for, without what scenarios ask by kubectl with their tokens.
    pub fn accesses(&self) -> Result<BTreeSet<Access>> {
        let mut accesses = BTreeSet::new();
        // Also those that go on, as watches do.
        for event in self.events()? {
            let user = text(&event["user"]["username"]);
            let account =
                user.strip_prefix("system:serviceaccount:").and_then(|user| user.strip_prefix(SYSTEM));
            let Some(account) = account.and_then(|account| account.strip_prefix(':')) else { continue };
            if text(&event["userAgent"]).starts_with("kubectl/") || event["objectRef"].is_null() {
                continue;
            }
            let access = |group: &str, resource: &str, verb: &str| {
                let [account, group, resource, verb] = [account, group, resource, verb].map(str::to_owned);
                Access { account, group, resource, verb }
            };
            let object = &event["objectRef"];
            let [group, resource, subresource, verb] =
                [&object["apiGroup"], &object["resource"], &object["subresource"], &event["verb"]].map(text);
            let resource =
                if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
            if event["impersonatedUser"].is_null() {
                accesses.insert(access(&group, &resource, &verb));
                if verb == "patch" && event["responseStatus"]["code"] == 201 {
                    // A server-side apply of an object that was not there needs both rights.
                    accesses.insert(access(&group, &resource, "create"));
                }
            } else {
                // Constrained impersonation: the right to be the node, and the right to do this as the node.
                accesses.insert(access("authentication.k8s.io", "nodes", "impersonate:associated-node"));
                accesses.insert(access(&group, &resource, &format!("impersonate-on:associated-node:{verb}")));
            }
            if (resource.as_str(), verb.as_str()) == ("resourceclaims/status", "patch") {
                // The API server asks for these rights as well, without a request of its own: that of the
                // agent to devices, and that of the controller to allocations.
                let (of, right) = match account {
                    "netclaim-controller" => ("resourceclaims/binding", "patch"),
                    _ => ("resourceclaims/driver", "associated-node:patch"),
                };
                accesses.insert(access(&group, of, right));
            }
        }
        Ok(accesses)
    }

    /// Requests that have been answered, as the audit log has them.
    pub fn requests(&self) -> Result<impl Iterator<Item = Value>> {
        Ok(self.events()?.filter(|event| event["stage"] == "ResponseComplete"))
    }

    fn events(&self) -> Result<impl Iterator<Item = Value>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.from))?;
        // The last line may be incomplete.
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        Ok(lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()))
    }

    /// Counts the requests of `user` by verb, resource and status code.
    pub fn requests_of(&self, user: &str) -> Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for event in self.requests()?.filter(|event| event["user"]["username"] == user) {
            let object = &event["objectRef"];
            let kind = [&event["verb"], &object["resource"], &object["subresource"]].map(text).join(" ");
            let code = &event["responseStatus"]["code"];
            *counts.entry(format!("{} {code}", kind.trim_end())).or_default() += 1;
        }
        Ok(counts)
    }

    /// Counts successful writes of a resource.
    pub fn writes(&self, resource: &str) -> Result<usize> {
        self.count(resource, false)
    }

    /// Counts successful dry runs of writes of a resource.
    pub fn dry_runs(&self, resource: &str) -> Result<usize> {
        self.count(resource, true)
    }

    /// Returns when each successful write of a resource was answered, by the API server's clock since
    /// midnight, with its verb.
    pub fn write_times(&self, resource: &str) -> Result<Vec<(Duration, String)>> {
        let written = self.requests()?.filter(|event| is_write(event, resource, false));
        Ok(written
            .filter_map(|event| Some((time_of_day(event["stageTimestamp"].as_str()?)?, text(&event["verb"]))))
            .collect())
    }

    /// Returns when each successful write of a resource was answered, by the object's name and the API
    /// server's clock since midnight.
    pub fn write_times_by_name(&self, resource: &str) -> Result<BTreeMap<String, Vec<Duration>>> {
        let mut times: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
        for event in self.requests()?.filter(|event| is_write(event, resource, false)) {
            let at = event["stageTimestamp"].as_str().and_then(time_of_day);
            let at = at.context("a request without a time")?;
            times.entry(text(&event["objectRef"]["name"])).or_default().push(at);
        }
        Ok(times)
    }

    fn count(&self, resource: &str, dry_run: bool) -> Result<usize> {
        Ok(self.requests()?.filter(|event| is_write(event, resource, dry_run)).count())
    }
}

/// Whether the request was a successful write of the resource.
fn is_write(event: &Value, resource: &str, dry_run: bool) -> bool {
    event["objectRef"]["resource"] == resource
        && event["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=") == dry_run)
        && event["verb"].as_str().is_some_and(|verb| WRITES.contains(&verb))
        && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
}

/// The time of day of a timestamp such as `2026-01-01T12:00:00.123456Z`.
pub fn time_of_day(timestamp: &str) -> Option<Duration> {
    let (_, time) = timestamp.trim_end_matches('Z').split_once('T')?;
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    Duration::try_from_secs_f64(hours * 3600.0 + minutes * 60.0 + seconds).ok()
}
