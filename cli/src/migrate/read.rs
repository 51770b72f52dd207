//! Reads NetworkAttachmentDefinitions, workloads and what earlier migrations made from files and clusters.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use kube::Client;
use kube::api::ListParams;
use serde_json::Value;

use crate::cluster::{self, Connection, list};
use crate::documents;
use crate::kinds::Kind;

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
    Kind::new("netclaim.dev/v1alpha1", "Network", "networks"),
    Kind::new("netclaim.dev/v1alpha1", "AddressLease", "addressleases"),
    Kind::new("resource.k8s.io/v1", "DeviceClass", "deviceclasses"),
];

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] cluster::ReadError),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file has something else.
    #[error("{}: is not valid YAML or JSON: {problem}", path.display())]
    Syntax { path: PathBuf, problem: String },
}

/// Reads the documents of files; `-` is standard input.
///
/// # Errors
/// See [`ReadError`].
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<Value>, ReadError> {
    let mut objects = Vec::new();
    for path in paths {
        let text = text(path).map_err(|source| ReadError::File { path: path.clone(), source })?;
        let read =
            documents::read(&text).map_err(|problem| ReadError::Syntax { path: path.clone(), problem })?;
        objects.extend(read);
    }
    Ok(objects)
}

fn text(path: &Path) -> io::Result<String> {
    if path.as_os_str() != "-" {
        return fs::read_to_string(path);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Reads the cluster, and returns the objects with the namespace of the context.
///
/// # Errors
/// See [`ReadError`].
pub(super) async fn cluster(connection: &Connection) -> Result<(Vec<Value>, String), ReadError> {
    let client = connection.client().await?;
    Ok((objects(&client).await?, client.default_namespace().to_owned()))
}

/// Reads the objects of a cluster. A kind that it does not know has none.
///
/// # Errors
/// See [`ReadError`].
pub(super) async fn objects(client: &Client) -> Result<Vec<Value>, cluster::ReadError> {
    let mut objects = Vec::new();
    for kind in KINDS {
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
            "Network first",
            "AddressLease first",
            "DeviceClass first",
        ];
        assert_eq!(found, expected);
    }
}
