//! Requests to the API server over a connection that stays open.
//!
//! Scenarios look at objects several times a second. kubectl, whose program here is all of Kubernetes, needs
//! a tenth of a second of a processor for each look, and reads the API's schema before it creates an object.
//! It stays for what it does itself, such as `rollout`, `exec` and `wait`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::objects::text;
use crate::wait::eventually;

/// A kind of object.
#[derive(Debug)]
struct Resource {
    kind: &'static str,
    plural: &'static str,
    /// The path of its group and version.
    api: &'static str,
    namespaced: bool,
}

const fn of_cluster(kind: &'static str, plural: &'static str, api: &'static str) -> Resource {
    Resource { kind, plural, api, namespaced: false }
}

const fn of_namespace(kind: &'static str, plural: &'static str, api: &'static str) -> Resource {
    Resource { kind, plural, api, namespaced: true }
}

const CORE: &str = "api/v1";
const APPS: &str = "apis/apps/v1";
const DRA: &str = "apis/resource.k8s.io/v1";
const NETCLAIM: &str = "apis/netclaim.dev/v1alpha1";

/// What scenarios look at often. kubectl knows the others.
const RESOURCES: &[Resource] = &[
    of_cluster("Namespace", "namespaces", CORE),
    of_cluster("Node", "nodes", CORE),
    of_namespace("ConfigMap", "configmaps", CORE),
    of_namespace("Event", "events", CORE),
    of_namespace("Pod", "pods", CORE),
    of_namespace("Secret", "secrets", CORE),
    of_namespace("Service", "services", CORE),
    of_namespace("DaemonSet", "daemonsets", APPS),
    of_namespace("Deployment", "deployments", APPS),
    of_namespace("StatefulSet", "statefulsets", APPS),
    of_namespace("Lease", "leases", "apis/coordination.k8s.io/v1"),
    of_cluster("DeviceClass", "deviceclasses", DRA),
    of_namespace("ResourceClaim", "resourceclaims", DRA),
    of_namespace("ResourceClaimTemplate", "resourceclaimtemplates", DRA),
    of_cluster("ResourceSlice", "resourceslices", DRA),
    of_cluster("AddressBlock", "addressblocks", NETCLAIM),
    of_cluster("AddressLease", "addressleases", NETCLAIM),
    of_cluster("AddressPool", "addresspools", NETCLAIM),
    of_cluster("ClaimNetwork", "claimnetworks", NETCLAIM),
    of_namespace("NetworkAttachment", "networkattachments", NETCLAIM),
    of_cluster("UplinkPolicy", "uplinkpolicies", NETCLAIM),
];

impl Resource {
    /// The one that kubectl means by a word, in the singular or the plural, with or without its group.
    fn named(word: &str) -> Option<&'static Self> {
        let (name, group) = word.split_once('.').map_or((word, None), |(name, group)| (name, Some(group)));
        RESOURCES.iter().find(|one| {
            (one.plural == name || one.kind.eq_ignore_ascii_case(name))
                && group.is_none_or(|group| one.api.split('/').nth(1) == Some(group))
        })
    }

    /// The one of an object.
    fn of(object: &Value) -> Option<&'static Self> {
        let version = text(&object["apiVersion"]);
        RESOURCES.iter().find(|one| object["kind"] == one.kind && one.version() == version)
    }

    fn version(&self) -> &'static str {
        self.api.split_once('/').map_or(self.api, |(_, version)| version)
    }

    /// The path of all objects, or of those of a namespace.
    fn path(&self, namespace: Option<&str>) -> String {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("/{}/namespaces/{namespace}/{}", self.api, self.plural),
            None => format!("/{}/{}", self.api, self.plural),
        }
    }
}

/// The path and the query of `kubectl get ARGS`, and whether it gives one object; `None` if kubectl has to be
/// asked.
fn request_of(args: &[&str]) -> Option<(&'static Resource, String, bool)> {
    let (mut namespace, mut words, mut query) = (Some("default"), Vec::new(), Vec::new());
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match *arg {
            "-n" => namespace = Some(rest.next()?),
            "-A" | "--all-namespaces" => namespace = None,
            "-l" => query.push(format!("labelSelector={}", selector(rest.next()?)?)),
            "--field-selector" => query.push(format!("fieldSelector={}", selector(rest.next()?)?)),
            option if option.starts_with('-') => return None,
            word => words.push(word),
        }
    }
    let (resource, name) = match words.as_slice() {
        [word] => word.split_once('/').map_or((*word, None), |(resource, name)| (resource, Some(name))),
        [resource, name] => (*resource, Some(*name)),
        _ => return None,
    };
    let resource = Resource::named(resource)?;
    let path = resource.path(namespace);
    match name {
        Some(name) if query.is_empty() && !name.contains('/') => {
            Some((resource, format!("{path}/{name}"), true))
        }
        Some(_) => None,
        None if query.is_empty() => Some((resource, path, false)),
        None => Some((resource, format!("{path}?{}", query.join("&")), false)),
    }
}

/// A selector, if it may stand in a query as it is.
fn selector(text: &str) -> Option<&str> {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "./=!,_-".contains(c)).then_some(text)
}

/// A connection to an API server.
pub(crate) struct Api {
    client: Client,
    /// Its own, because scenarios are threads, some with a runtime of theirs.
    runtime: Runtime,
}

impl Api {
    /// Connects when something is asked, as the user of a kubeconfig.
    pub(crate) fn of(kubeconfig: &Path) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(async {
            let mut config = netclaim_process::kubernetes::config("netclaim-tests", Some(kubeconfig)).await?;
            // Scenarios look again by themselves, and an object that is created twice is there already.
            config.default_retry = false;
            anyhow::Ok(netclaim_process::kubernetes::client(config)?)
        })?;
        Ok(Self { client, runtime })
    }

    /// Sends a request; an error has kubectl's words.
    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<String> {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        let request = request.body(body.map(Value::to_string).unwrap_or_default().into_bytes())?;
        let (client, (answered, answer)) = (self.client.clone(), mpsc::channel());
        self.runtime.spawn(async move { answered.send(client.request_text(request).await) });
        let answer = answer.recv().with_context(|| format!("{method} {path}: no answer"))?;
        answer.map_err(|error| match error {
            kube::Error::Api(status) => {
                anyhow!("Error from server ({}): {}", status.reason, status.message)
            }
            other => Error::new(other).context(format!("{method} {path}")),
        })
    }

    /// As `kubectl get ARGS -o json`; `None` if kubectl has to be asked.
    pub(crate) fn get(&self, args: &[&str]) -> Option<Result<Value>> {
        let (resource, path, is_one) = request_of(args)?;
        Some(self.read(resource, &path, is_one))
    }

    fn read(&self, resource: &Resource, path: &str, is_one: bool) -> Result<Value> {
        let mut found: Value = serde_json::from_str(&self.send("GET", path, None)?)?;
        if is_one {
            without_managed_fields(&mut found);
            return Ok(found);
        }
        // In a list, the API server leaves out what all have.
        let items = found["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let items = items.into_iter().map(|mut item| {
            without_managed_fields(&mut item);
            item["apiVersion"] = json!(resource.version());
            item["kind"] = json!(resource.kind);
            item
        });
        Ok(json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()}))
    }

    /// As `kubectl create -n NAMESPACE`, and as that goes on after an error; `None` if kubectl has to be
    /// asked.
    pub(crate) fn create(&self, namespace: &str, objects: &[Value]) -> Option<Result<()>> {
        let resources = objects.iter().map(Resource::of).collect::<Option<Vec<_>>>()?;
        let mut errors = Vec::new();
        for (resource, object) in resources.iter().zip(objects) {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
            let path = format!(
                "{}?fieldManager=kubectl-create&fieldValidation=Strict",
                resource.path(Some(namespace))
            );
            errors.extend(self.send("POST", &path, Some(object)).err().map(|error| format!("{error:#}")));
        }
        Some(if errors.is_empty() { Ok(()) } else { Err(anyhow!(errors.join("\n"))) })
    }

    /// The objects that `kubectl get ARGS` lists, of a kind that is known here; none where the one that it
    /// names does not exist.
    fn objects(&self, args: &[&str]) -> Result<(&'static Resource, Vec<Value>)> {
        let (resource, path, is_one) = request_of(args).with_context(|| format!("unknown here: {args:?}"))?;
        let objects = match self.read(resource, &path, is_one) {
            Ok(found) if is_one => vec![found],
            Ok(mut found) => found["items"].as_array_mut().map(std::mem::take).unwrap_or_default(),
            Err(error) if is_one && is_not_found(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok((resource, objects))
    }

    /// Deletes the objects that `kubectl get ARGS` lists, of a kind that is known here. Returns their UIDs.
    pub(crate) fn delete(&self, args: &[&str]) -> Result<BTreeSet<String>> {
        let (resource, objects) = self.objects(args)?;
        let (mut uids, mut errors) = (BTreeSet::new(), Vec::new());
        for object in &objects {
            let metadata = &object["metadata"];
            let one =
                format!("{}/{}", resource.path(metadata["namespace"].as_str()), text(&metadata["name"]));
            // As kubectl, which goes on after an error, too.
            let options =
                json!({"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}});
            match self.send("DELETE", &one, Some(&options)) {
                Err(error) if !is_not_found(&error) && !is_another(&error) => {
                    errors.push(format!("{error:#}"))
                }
                _ => drop(uids.insert(text(&metadata["uid"]))),
            }
        }
        if errors.is_empty() { Ok(uids) } else { Err(anyhow!(errors.join("\n"))) }
    }

    /// As [`Self::delete`], and waits until they are gone, for at most a minute.
    pub(crate) fn delete_and_wait(&self, args: &[&str]) -> Result<()> {
        let uids = self.delete(args)?;
        if uids.is_empty() {
            return Ok(());
        }
        eventually(60, &format!("{} are gone", args.join(" ")), || {
            let (_, objects) = self.objects(args)?;
            let left: Vec<_> =
                objects.iter().filter(|one| uids.contains(&text(&one["metadata"]["uid"]))).collect();
            if let Some(one) = left.first() {
                bail!("{} are there; the first: {one}", left.len());
            }
            Ok(())
        })
    }

    /// What a container of a pod has written.
    pub(crate) fn log(&self, namespace: &str, pod: &str, container: &str) -> Result<String> {
        self.send(
            "GET",
            &format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}"),
            None,
        )
    }
}

fn is_not_found(error: &Error) -> bool {
    error.to_string().starts_with("Error from server (NotFound)")
}

/// Whether another object has the name meanwhile.
fn is_another(error: &Error) -> bool {
    error.to_string().starts_with("Error from server (Conflict)")
}

/// As kubectl shows objects.
fn without_managed_fields(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(args: &[&str]) -> Option<String> {
        request_of(args).map(|(_, path, _)| path)
    }

    #[test]
    fn arguments_of_kubectl_are_a_path() {
        for (args, path) in [
            (["-n", "t1", "pod", "p"].as_slice(), "/api/v1/namespaces/t1/pods/p"),
            (
                &["-n", "s", "daemonset/netclaim-agent"],
                "/apis/apps/v1/namespaces/s/daemonsets/netclaim-agent",
            ),
            (&["pods", "-n", "s", "-l", "a.b/c=d"], "/api/v1/namespaces/s/pods?labelSelector=a.b/c=d"),
            (&["resourceclaims", "--all-namespaces"], "/apis/resource.k8s.io/v1/resourceclaims"),
            (&["events"], "/api/v1/namespaces/default/events"),
            (&["-n", "t1", "claimnetworks.netclaim.dev", "n"], "/apis/netclaim.dev/v1alpha1/claimnetworks/n"),
            (&["node", "node0"], "/api/v1/nodes/node0"),
        ] {
            assert_eq!(path_of(args).as_deref(), Some(path), "{args:?}");
        }
    }

    #[test]
    fn unknown_kinds_are_looked_up_by_kubectl() {
        for args in [
            ["clusterroles"].as_slice(),
            &["pods.metrics.k8s.io"],
            &["pods,events"],
            &["pods", "a", "b"],
            &["pods", "--sort-by=x"],
            &["pods", "-l", "a in (b)"],
            &["pods", "a", "-l", "b"],
        ] {
            assert_eq!(path_of(args), None, "{args:?}");
        }
    }
}
