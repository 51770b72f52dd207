//! Reads the cluster into the archive.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::ops::ControlFlow;

use futures::AsyncReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client};
use netclaim_api::DRIVER_NAME;
use netclaim_cni::error_chain;
use serde_json::Value;

use super::archive::{Archive, Text};
use super::redaction::scrub;
use super::selection::{
    Subjects, event_line, foreign_pod, has_claim, is_our_claim, is_our_class, name_of, node, text, time_of,
};
use crate::cluster::fold;
use crate::components::{CONTROLLER, NAME};
use crate::kinds::{Kind, yaml};
use crate::status;

/// The label of netclaim's own objects.
const OURS: &str = "app.kubernetes.io/part-of=netclaim";

/// The most lines of one log, the newest ones.
const LOG_LINES: i64 = 20_000;

/// The most bytes of one log.
const LOG_BYTES: u32 = 8 << 20;

/// The most bytes of all logs together.
const LOGS_BYTES: usize = 128 << 20;

/// The most events.
const EVENTS: usize = 50_000;

/// Which objects of a kind are netclaim's.
#[derive(Debug, Clone, Copy)]
enum Which {
    All,
    /// Those with the driver's name.
    OfDriver,
    /// Those with the label [`OURS`].
    Labelled,
    /// The same, in netclaim's namespace.
    InNamespace,
}

/// What is read as it is.
const OBJECTS: [(Which, Kind); 17] = [
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "Network", "networks")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "UplinkPolicy", "uplinkpolicies")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "AddressPool", "addresspools")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "AddressBlock", "addressblocks")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "AddressLease", "addressleases")),
    (Which::OfDriver, Kind::new("resource.k8s.io/v1", "ResourceSlice", "resourceslices")),
    (Which::Labelled, Kind::new("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")),
    (Which::Labelled, Kind::new("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings")),
    (Which::Labelled, Kind::new(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies")),
    (
        Which::Labelled,
        Kind::new(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    ),
    (
        Which::Labelled,
        Kind::new(ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    ),
    (Which::InNamespace, Kind::new("rbac.authorization.k8s.io/v1", "Role", "roles")),
    (Which::InNamespace, Kind::new("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")),
    (Which::InNamespace, Kind::new("apps/v1", "DaemonSet", "daemonsets")),
    (Which::InNamespace, Kind::new("apps/v1", "Deployment", "deployments")),
    (Which::InNamespace, Kind::new("coordination.k8s.io/v1", "Lease", "leases")),
    (Which::InNamespace, Kind::new("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")),
];

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const CRDS: Kind =
    Kind::new("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
const CLASSES: Kind = Kind::new("resource.k8s.io/v1", "DeviceClass", "deviceclasses");
const CLAIMS: Kind = Kind::new("resource.k8s.io/v1", "ResourceClaim", "resourceclaims");
const NODES: Kind = Kind::new("v1", "Node", "nodes");
const PODS: Kind = Kind::new("v1", "Pod", "pods");
const EVENT: Kind = Kind::new("v1", "Event", "events");

/// Reads a cluster into an archive.
pub(super) struct Collector<'a, W: Write> {
    client: Client,
    /// Where netclaim is installed.
    namespace: &'a str,
    since: SignedDuration,
    now: Timestamp,
    archive: Archive<W>,
}

/// One of netclaim's pods.
#[derive(Debug)]
struct OwnPod {
    name: String,
    is_controller: bool,
    /// Whether a container is not ready or has been restarted.
    is_suspect: bool,
    /// Containers, and whether they have an earlier log.
    containers: Vec<(String, bool)>,
    /// What runs in it, with digests.
    images: BTreeSet<String>,
}

impl<'a, W: Write> Collector<'a, W> {
    pub(super) fn new(
        client: Client,
        namespace: &'a str,
        since: SignedDuration,
        now: Timestamp,
        archive: Archive<W>,
    ) -> Self {
        Self { client, namespace, since, now, archive }
    }

    /// Reads everything that the user may read. `server` is the version of the API server.
    ///
    /// # Errors
    /// Fails if the archive cannot be written.
    pub(super) async fn collect(mut self, server: Option<&str>) -> io::Result<Archive<W>> {
        match status::text(&self.client, self.namespace).await {
            Ok(status) => self.archive.add("status.txt", "what `netclaimctl status` shows", status)?,
            Err(error) => self.archive.lacks("status", &error_chain(&error)),
        }
        let pods = self.own_pods().await?;
        for (which, kind) in OBJECTS {
            let (namespace, params, what) = match which {
                Which::All => (None, ListParams::default(), "all of the cluster"),
                Which::OfDriver => {
                    let of_driver = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}"));
                    (None, of_driver, "those of netclaim's driver")
                }
                Which::Labelled => (None, ListParams::default().labels(OURS), "those of netclaim"),
                Which::InNamespace => {
                    (Some(self.namespace), ListParams::default().labels(OURS), "those of netclaim")
                }
            };
            self.objects(kind, namespace, &params, what, Some).await?;
        }
        let everything = ListParams::default();
        let is_ours = |crd: &Value| crd["spec"]["group"] == DRIVER_NAME;
        self.objects(CRDS, None, &everything, "those of netclaim", |crd| Some(crd).filter(is_ours)).await?;
        let shown = "names, labels, conditions, versions of kubelet and runtime";
        self.objects(NODES, None, &everything, shown, |found| Some(node(&found))).await?;
        let subjects = self.claims().await?;
        self.events(&subjects).await?;
        // Without anything else, the versions are no report.
        if !self.archive.is_empty() {
            let versions = versions(server, &pods);
            self.archive.add("versions.txt", "versions of netclaimctl, Kubernetes and netclaim", versions)?;
        }
        self.logs(pods).await?;
        Ok(self.archive)
    }

    /// Adds the objects of a kind for which `take` returns what is shown of them.
    async fn objects(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        params: &ListParams,
        what: &str,
        take: impl FnMut(Value) -> Option<Value>,
    ) -> io::Result<()> {
        self.objects_as(kind.plural, kind, namespace, params, what, take).await
    }

    /// As [`Self::objects`], in a file of another name.
    async fn objects_as(
        &mut self,
        file: &str,
        kind: Kind,
        namespace: Option<&str>,
        params: &ListParams,
        what: &str,
        mut take: impl FnMut(Value) -> Option<Value>,
    ) -> io::Result<()> {
        let api = kind.api(self.client.clone(), namespace);
        let read = fold(kind.plural, &api, params, Text::default, |text, object| {
            let Some(mut object) = kind.object(object).and_then(&mut take) else {
                return ControlFlow::Continue(());
            };
            scrub(&mut object);
            match yaml([&object]) {
                Ok(document) => text.push(&document),
                Err(error) => text.push(&format!("# An object cannot be written: {error}\n")),
            }
        });
        match read.await {
            Ok(text) => {
                self.archive.add(&format!("objects/{file}.yaml"), &format!("{}, {what}", kind.plural), text)
            }
            Err(error) => {
                self.archive.lacks(file, &error_chain(&error));
                Ok(())
            }
        }
    }

    async fn own_pods(&mut self) -> io::Result<Vec<OwnPod>> {
        let mut pods = BTreeMap::new();
        let namespace = self.namespace;
        let ours = ListParams::default().labels(OURS);
        self.objects(PODS, Some(namespace), &ours, "those of netclaim", |pod| {
            let own = OwnPod::of(&pod);
            pods.insert(own.name.clone(), own);
            Some(pod)
        })
        .await?;
        Ok(pods.into_values().collect())
    }

    /// Adds netclaim's classes, the claims that use them, and the pods that have these claims.
    async fn claims(&mut self) -> io::Result<Subjects> {
        let everything = ListParams::default();
        let mut classes = BTreeSet::new();
        self.objects(CLASSES, None, &everything, "those that name netclaim's driver", |class| {
            let class = Some(class).filter(is_our_class)?;
            classes.insert(name_of(&class).1);
            Some(class)
        })
        .await?;
        let mut claims = BTreeSet::new();
        self.objects(CLAIMS, None, &everything, "those with netclaim's devices or classes", |claim| {
            let claim = Some(claim).filter(|claim| is_our_claim(claim, &classes))?;
            claims.insert(name_of(&claim));
            Some(claim)
        })
        .await?;
        let mut pods = BTreeSet::new();
        let shown = "those with such a claim: their claims and their state";
        self.objects_as("pods-with-claims", PODS, None, &everything, shown, |pod| {
            let pod = Some(pod).filter(|pod| has_claim(pod, &claims))?;
            pods.insert(name_of(&pod));
            Some(foreign_pod(&pod))
        })
        .await?;
        Ok(Subjects { namespace: self.namespace.to_owned(), claims, pods })
    }

    async fn events(&mut self, subjects: &Subjects) -> io::Result<()> {
        let oldest = self.now.checked_sub(self.since).unwrap_or(Timestamp::MIN);
        let (api, everything) = (EVENT.api(self.client.clone(), None), ListParams::default());
        let read = fold("Events", &api, &everything, Vec::new, |found, event| {
            let Some(event) = EVENT.object(event).filter(|event| subjects.have(event)) else {
                return ControlFlow::Continue(());
            };
            if let Some(time) = time_of(&event).filter(|time| *time >= oldest) {
                found.push((time, event_line(time, &event)));
            }
            if found.len() < EVENTS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        match read.await {
            Ok(mut events) => {
                events.sort();
                let is_cut = events.len() == EVENTS;
                let lines: String = events.into_iter().map(|(_, line)| line).collect();
                let what = "events of netclaim, its objects, and pods with its claims";
                self.archive.add("events.txt", what, Text::from(lines).cut_if(is_cut))
            }
            Err(error) => {
                self.archive.lacks("events", &error_chain(&error));
                Ok(())
            }
        }
    }

    /// Adds the logs of netclaim's pods while there is room: those of controllers and of suspect pods first.
    async fn logs(&mut self, mut pods: Vec<OwnPod>) -> io::Result<()> {
        pods.sort_by_key(|pod| (!pod.is_controller, !pod.is_suspect));
        let api = Api::<Pod>::namespaced(self.client.clone(), self.namespace);
        let (mut left, mut without_room) = (LOGS_BYTES.min(self.archive.left()), 0);
        for pod in pods {
            for (container, has_previous) in &pod.containers {
                for previous in [false, true].into_iter().filter(|previous| !previous || *has_previous) {
                    if left == 0 {
                        without_room += 1;
                        continue;
                    }
                    let kind = if previous { "previous.log" } else { "log" };
                    let path = format!("logs/{}/{container}.{kind}", pod.name);
                    match self.log(&api, &pod.name, container, previous).await {
                        Ok(log) => {
                            left = left.saturating_sub(log.len());
                            let is_cut =
                                log.lines().count() as i64 >= LOG_LINES || log.len() >= LOG_BYTES as usize;
                            let what = if previous { "the log before the last restart" } else { "the log" };
                            self.archive.add(&path, what, Text::from(log).cut_if(is_cut))?;
                        }
                        Err(error) => self.archive.lacks(&path, &error),
                    }
                }
            }
        }
        if without_room > 0 {
            self.archive.lacks("logs", &format!("{without_room} logs more, for which there is no room"));
        }
        Ok(())
    }

    async fn log(
        &self,
        api: &Api<Pod>,
        pod: &str,
        container: &str,
        previous: bool,
    ) -> Result<String, String> {
        let params = LogParams {
            container: Some(container.to_owned()),
            previous,
            // What ended a container may be long ago.
            since_seconds: (!previous).then(|| self.since.as_secs().max(1)),
            tail_lines: Some(LOG_LINES),
            limit_bytes: Some(i64::from(LOG_BYTES)),
            timestamps: true,
            ..LogParams::default()
        };
        let stream = api.log_stream(pod, &params).await.map_err(|error| error_chain(&error))?;
        let mut bytes = Vec::new();
        let read = stream.take(u64::from(LOG_BYTES)).read_to_end(&mut bytes).await;
        read.map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl OwnPod {
    fn of(pod: &Value) -> Self {
        let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
        let statuses: Vec<Value> =
            [&pod["status"]["initContainerStatuses"], &pod["status"]["containerStatuses"]]
                .into_iter()
                .flat_map(list)
                .collect();
        let restarts = |status: &Value| status["restartCount"].as_i64().unwrap_or_default();
        let containers =
            [&pod["spec"]["initContainers"], &pod["spec"]["containers"]].into_iter().flat_map(list);
        let containers = containers.map(|container| {
            let name = text(&container["name"]).to_owned();
            let has_previous =
                statuses.iter().any(|status| text(&status["name"]) == name && restarts(status) > 0);
            (name, has_previous)
        });
        let image = |status: &Value| {
            let (image, id) = (text(&status["image"]), text(&status["imageID"]));
            format!("{image} ({id})")
        };
        Self {
            name: name_of(pod).1,
            is_controller: pod["metadata"]["labels"][NAME] == CONTROLLER,
            is_suspect: statuses.iter().any(|status| status["ready"] != true || restarts(status) > 0),
            containers: containers.collect(),
            images: statuses.iter().map(image).collect(),
        }
    }
}

/// Returns the versions of everything that is known.
fn versions(server: Option<&str>, pods: &[OwnPod]) -> String {
    let mut images: BTreeMap<&str, usize> = BTreeMap::new();
    for image in pods.iter().flat_map(|pod| &pod.images) {
        *images.entry(image).or_default() += 1;
    }
    let mut text = format!(
        "netclaimctl {}\nKubernetes {}\n",
        env!("CARGO_PKG_VERSION"),
        server.unwrap_or("of an unknown version")
    );
    for (image, count) in images {
        text += &format!("{count} x {image}\n");
    }
    text
}
