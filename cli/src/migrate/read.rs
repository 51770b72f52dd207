//! Reads NetworkAttachmentDefinitions, workloads and what earlier migrations made from files and clusters.

use std::path::PathBuf;

use kube::Client;
use kube::api::ListParams;
use serde_json::Value;

use crate::cluster::{self, list};
use crate::files::{self, File};
use crate::kinds::Kind;

pub(super) const NETWORKS: Kind = Kind::new("netclaim.dev/v1alpha1", "ClaimNetwork", "claimnetworks");
pub(super) const CLASSES: Kind = Kind::new("resource.k8s.io/v1", "DeviceClass", "deviceclasses");

/// The kinds that are read from a cluster.
const KINDS: [Kind; 14] = [
    Kind::new("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", "network-attachment-definitions"),
    Kind::new("whereabouts.cni.cncf.io/v1alpha1", "IPPool", "ippools"),
    Kind::new(
        "whereabouts.cni.cncf.io/v1alpha1",
        "OverlappingRangeIPReservation",
        "overlappingrangeipreservations",
    ),
    Kind::new("whereabouts.cni.cncf.io/v1alpha1", "NodeSlicePool", "nodeslicepools"),
    Kind::new("apps/v1", "Deployment", "deployments"),
    Kind::new("apps/v1", "StatefulSet", "statefulsets"),
    Kind::new("apps/v1", "DaemonSet", "daemonsets"),
    Kind::new("apps/v1", "ReplicaSet", "replicasets"),
    Kind::new("batch/v1", "CronJob", "cronjobs"),
    Kind::new("batch/v1", "Job", "jobs"),
    Kind::new("v1", "Pod", "pods"),
    NETWORKS,
    Kind::new("netclaim.dev/v1alpha1", "AddressLease", "addressleases"),
    CLASSES,
];

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] cluster::ReadError),
    /// A file cannot be read, or has something else.
    #[error("{path}: {problem}")]
    File { path: String, problem: String },
}

/// Reads the objects of files and directories; `-` is standard input.
///
/// # Errors
/// See [`ReadError`].
pub(super) fn from_files(paths: &[PathBuf], recursive: bool) -> Result<Vec<Value>, ReadError> {
    let mut all = Vec::new();
    for File { path, objects } in files::read(paths, recursive) {
        all.extend(objects.map_err(|problem| ReadError::File { path, problem })?);
    }
    Ok(all)
}

/// Reads everything that a translation depends on.
///
/// # Errors
/// See [`ReadError`].
pub(super) async fn objects(client: &Client) -> Result<Vec<Value>, cluster::ReadError> {
    let mut objects = Vec::new();
    for kind in &KINDS {
        // A kind that the cluster does not know has no objects.
        let found = match list(kind.plural, kind.api(client.clone(), None), &ListParams::default()).await {
            Err(error) if error.is_unknown() => continue,
            found => found?,
        };
        objects.extend(found.into_iter().filter_map(|object| kind.object(object)));
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mock::{api_server, items, status};

    #[tokio::test]
    async fn a_cluster_is_read_without_the_kinds_that_it_does_not_know() {
        let client = api_server(|uri| {
            if uri.contains("whereabouts") {
                status(404, "NotFound")
            } else {
                items([json!({"metadata": {"namespace": "shop", "name": "first"}})])
            }
        });
        let found = objects(&client).await.expect("reads");
        let named =
            |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
        let found: Vec<String> = found.iter().map(named).collect();
        let expected = [
            "NetworkAttachmentDefinition first",
            "Deployment first",
            "StatefulSet first",
            "DaemonSet first",
            "ReplicaSet first",
            "CronJob first",
            "Job first",
            "Pod first",
            "ClaimNetwork first",
            "AddressLease first",
            "DeviceClass first",
        ];
        assert_eq!(found, expected);
    }
}
