//! Reads NetworkAttachmentDefinitions, workloads and what earlier migrations made from files and clusters.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use kube::api::{ApiResource, ListParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

use super::input::with_kind;
use crate::cluster::{self, Connection};
use crate::documents;

/// Objects in one answer of the API server.
const PAGE: u32 = 500;

/// The kinds that are read from a cluster: API version, kind, and the name in URLs.
const KINDS: [(&str, &str, &str); 13] = [
    ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", "network-attachment-definitions"),
    ("whereabouts.cni.cncf.io/v1alpha1", "IPPool", "ippools"),
    ("whereabouts.cni.cncf.io/v1alpha1", "OverlappingRangeIPReservation", "overlappingrangeipreservations"),
    ("whereabouts.cni.cncf.io/v1alpha1", "NodeSlicePool", "nodeslicepools"),
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("apps/v1", "DaemonSet", "daemonsets"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("batch/v1", "CronJob", "cronjobs"),
    ("batch/v1", "Job", "jobs"),
    ("v1", "Pod", "pods"),
    ("netclaim.dev/v1alpha1", "Network", "networks"),
    ("resource.k8s.io/v1", "DeviceClass", "deviceclasses"),
];

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// There is no client.
    #[error(transparent)]
    Connect(#[from] cluster::ReadError),
    /// The API server does not list these objects.
    #[error("cannot list {kind} objects of the cluster")]
    List {
        kind: &'static str,
        #[source]
        source: kube::Error,
    },
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

async fn objects(client: &Client) -> Result<Vec<Value>, ReadError> {
    let mut objects = Vec::new();
    for (api_version, kind, plural) in KINDS {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let found = list(client, &resource).await.map_err(|source| ReadError::List { kind, source })?;
        objects.extend(found.into_iter().filter_map(|object| with_kind(object, api_version, kind)));
    }
    Ok(objects)
}

/// Lists a kind in all namespaces. A kind that the cluster does not know has no objects.
async fn list(client: &Client, resource: &ApiResource) -> Result<Vec<DynamicObject>, kube::Error> {
    let api = Api::<DynamicObject>::all_with(client.clone(), resource);
    let (mut found, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = match api.list(&params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(found),
            page => page?,
        };
        found.extend(page.items);
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower_test::mock::pair;

    use super::*;

    #[tokio::test]
    async fn a_cluster_is_read_page_by_page_and_without_the_kinds_that_it_does_not_know() {
        let (service, mut requests) = pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some((request, answer)) = requests.next_request().await {
                let uri = request.uri().to_string();
                let page = |name: &str, next: &str| {
                    json!({"kind": "List", "apiVersion": "v1", "metadata": {"continue": next},
                        "items": [{"metadata": {"namespace": "shop", "name": name}}]})
                };
                let (code, body) = if uri.contains("whereabouts") {
                    (
                        404,
                        json!({"kind": "Status", "status": "Failure", "message": "", "reason": "NotFound", "code": 404}),
                    )
                } else if uri.contains("continue=next") {
                    (200, page("second", ""))
                } else {
                    (200, page("first", if uri.contains("/deployments") { "next" } else { "" }))
                };
                let body = Body::from(body.to_string().into_bytes());
                answer.send_response(Response::builder().status(code).body(body).expect("a response"));
            }
        });
        let found = objects(&Client::new(service, "shop")).await.expect("reads");
        let named =
            |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
        let found: Vec<String> = found.iter().map(named).collect();
        let expected = [
            "NetworkAttachmentDefinition first",
            "Deployment first",
            "Deployment second",
            "StatefulSet first",
            "DaemonSet first",
            "ReplicaSet first",
            "CronJob first",
            "Job first",
            "Pod first",
            "Network first",
            "DeviceClass first",
        ];
        assert_eq!(found, expected);
    }
}
