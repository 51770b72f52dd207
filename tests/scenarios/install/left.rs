//! What an installation leaves behind.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use netclaim_tests::{Cluster, SYSTEM, eventually};
use serde_json::Value;

/// Each look reads all objects of the cluster, for a second of a processor.
const INTERVAL: Duration = Duration::from_secs(3);

/// Waits until the cluster has no object of netclaim of any kind, but for those whose names begin with one of
/// `kept`.
pub fn nothing_is_left(cluster: &Cluster, kept: &[&str]) -> Result<()> {
    let kinds = cluster.kubectl(&["api-resources", "--verbs=list", "-o", "name"])?;
    // Events are a diary, and end by themselves.
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    eventually(90, "nothing of netclaim is left", || {
        let all = cluster.get(&[&kinds.join(","), "-A"])?;
        let left: Vec<String> =
            all["items"].as_array().into_iter().flatten().filter_map(of_netclaim).collect();
        let left: Vec<&String> =
            left.iter().filter(|left| !kept.iter().any(|kept| left.starts_with(kept))).collect();
        if !left.is_empty() {
            sleep(INTERVAL);
        }
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// Returns `KIND/NAME` of an object of netclaim, or of one with its label.
fn of_netclaim(object: &Value) -> Option<String> {
    let (kind, metadata) = (object["kind"].as_str()?, &object["metadata"]);
    let name = metadata["name"].as_str()?;
    // Namespaces are the admin's, and the cluster puts things of its own into each.
    let of_cluster = ["ConfigMap/kube-root-ca.crt", "ServiceAccount/default"];
    let shown = format!("{kind}/{name}");
    if kind == "Namespace" || of_cluster.contains(&shown.as_str()) {
        return None;
    }
    let labels = metadata["labels"].to_string();
    let is_ours =
        name.contains("netclaim") || metadata["namespace"] == SYSTEM || labels.contains("netclaim.dev");
    is_ours.then_some(shown)
}
