//! Reads the cluster into the archive.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt as _, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client};
use netclaim_api::DRIVER_NAME;
use netclaim_cni::error_chain;
use serde_json::Value;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

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
const LOG_BYTES: usize = 8 << 20;

/// The most bytes of all logs together.
const LOGS_BYTES: usize = 128 << 20;

/// How long a log may say nothing before its end: a kubelet that hangs does not end its stream.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

/// How many logs are read at a time.
const LOGS_AT_ONCE: usize = 8;

/// The most events, the newest ones.
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
const OBJECTS: [(Which, Kind); 21] = [
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "ClaimNetwork", "claimnetworks")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "UplinkPolicy", "uplinkpolicies")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "AddressPool", "addresspools")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "AddressBlock", "addressblocks")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "AddressLease", "addressleases")),
    (Which::All, Kind::new("netclaim.dev/v1alpha1", "NetworkAttachment", "networkattachments")),
    (Which::OfDriver, Kind::new("resource.k8s.io/v1", "ResourceSlice", "resourceslices")),
    (Which::Labelled, Kind::new("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")),
    (Which::Labelled, Kind::new("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings")),
    (Which::Labelled, Kind::new(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies")),
    (
        Which::Labelled,
        Kind::new(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    ),
    (Which::Labelled, Kind::new(ADMISSION, "MutatingAdmissionPolicy", "mutatingadmissionpolicies")),
    (
        Which::Labelled,
        Kind::new(ADMISSION, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"),
    ),
    (Which::Labelled, Kind::new("node.k8s.io/v1", "RuntimeClass", "runtimeclasses")),
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
    /// By which agents are asked: one that is not ready says so at once.
    agents: Client,
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
        [client, agents]: [Client; 2],
        namespace: &'a str,
        since: SignedDuration,
        now: Timestamp,
        archive: Archive<W>,
    ) -> Self {
        Self { client, agents, namespace, since, now, archive }
    }

    /// Reads everything that the user may read. `server` is the version of the API server.
    ///
    /// # Errors
    /// Fails if the archive cannot be written.
    pub(super) async fn collect(mut self, server: Option<&str>) -> io::Result<Archive<W>> {
        match status::text(&self.client, &self.agents, self.namespace).await {
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
        // Without anything else, the versions are not a report.
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
        let read = fold(kind.plural, &api, params, Text::default, |text: &mut Text, object| {
            let Some(mut object) = kind.object(object).and_then(&mut take) else {
                return ControlFlow::Continue(());
            };
            // The rest of a long list is read, too: `take` learns which pods and claims there are.
            if !text.is_cut() {
                scrub(&mut object);
                match yaml([&object]) {
                    Ok(document) => text.push(&document),
                    Err(error) => text.push(&format!("# An object cannot be written: {error}\n")),
                }
            }
            ControlFlow::Continue(())
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
        let read = fold("Events", &api, &everything, Newest::default, |found, event| {
            if let Some(event) = EVENT.object(event).filter(|event| subjects.have(event))
                && let Some(time) = time_of(&event).filter(|time| *time >= oldest)
            {
                found.add(time, event_line(time, &event));
            }
            ControlFlow::Continue(())
        });
        match read.await {
            Ok(events) => {
                let what = "events of netclaim, its objects, and pods with its claims";
                self.archive.add("events.txt", what, events.text(self.archive.left()))
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
        let wanted: Vec<LogRef> = pods.iter().flat_map(LogRef::of).collect();
        let (since, mut left, mut without_room) = (self.since, LOGS_BYTES, wanted.len());
        let read = |wanted: LogRef| {
            let api = &api;
            async move {
                let read = wanted.read(api, since).await;
                (wanted, read)
            }
        };
        let mut logs = std::pin::pin!(stream::iter(wanted).map(read).buffered(LOGS_AT_ONCE));
        while left > 0
            && self.archive.left() > 0
            && let Some((wanted, read)) = logs.next().await
        {
            without_room -= 1;
            match read {
                Ok(log) => {
                    let is_cut = log.lines().count() as i64 >= LOG_LINES;
                    let room = LOG_BYTES.min(left).min(self.archive.left());
                    let text = Text::newest(log, room).cut_if(is_cut);
                    left -= text.text.len();
                    self.archive.add(&wanted.path(), wanted.what(), text)?;
                }
                Err(LogError::Api(error)) if is_forbidden(&error) => {
                    self.archive.lacks("logs", &error_chain(&error));
                    return Ok(());
                }
                Err(error) => self.archive.lacks(&wanted.path(), &error_chain(&error)),
            }
        }
        if without_room > 0 {
            self.archive.lacks("logs", &format!("{without_room} logs more, for which there is no room"));
        }
        Ok(())
    }
}

/// The log of a container.
#[derive(Debug)]
struct LogRef {
    pod: String,
    container: String,
    /// Whether it is the one before the last restart.
    previous: bool,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("it breaks off")]
    Read(#[from] io::Error),
    #[error("nothing has come for {} s", LOG_TIMEOUT.as_secs())]
    Late(#[from] Elapsed),
}

impl LogRef {
    fn of(pod: &OwnPod) -> impl Iterator<Item = Self> {
        pod.containers.iter().flat_map(|(container, has_previous)| {
            let log = |previous| Self { pod: pod.name.clone(), container: container.clone(), previous };
            [Some(log(false)), has_previous.then(|| log(true))].into_iter().flatten()
        })
    }

    fn path(&self) -> String {
        let kind = if self.previous { "previous.log" } else { "log" };
        format!("logs/{}/{}.{kind}", self.pod, self.container)
    }

    fn what(&self) -> &'static str {
        if self.previous { "the log before the last restart" } else { "the log" }
    }

    /// Returns the newest lines.
    async fn read(&self, api: &Api<Pod>, since: SignedDuration) -> Result<String, LogError> {
        let params = LogParams {
            container: Some(self.container.clone()),
            previous: self.previous,
            // What ended a container may be long ago.
            since_seconds: (!self.previous).then(|| since.as_secs().max(1)),
            // Not `limit_bytes`, which counts from the oldest of these lines.
            tail_lines: Some(LOG_LINES),
            timestamps: true,
            ..LogParams::default()
        };
        end_of(timeout(LOG_TIMEOUT, api.log_stream(&self.pod, &params)).await??, LOG_BYTES).await
    }
}

/// Reads to the end, and returns the last bytes: more than `max`, if there were more.
async fn end_of(mut stream: impl AsyncRead + Unpin, max: usize) -> Result<String, LogError> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let read = timeout(LOG_TIMEOUT, stream.read(&mut part)).await??;
        if read == 0 {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        bytes.extend_from_slice(&part[..read]);
        if bytes.len() > 2 * max + 1 {
            bytes.drain(..bytes.len() - max - 1);
        }
    }
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_forbidden())
}

/// Lines of events; the newest ones are kept.
#[derive(Debug, Default)]
struct Newest {
    lines: Vec<(Timestamp, String)>,
    is_cut: bool,
}

impl Newest {
    fn add(&mut self, time: Timestamp, line: String) {
        self.lines.push((time, line));
        if self.lines.len() >= 2 * EVENTS {
            self.cut();
        }
    }

    /// Sorts the lines, and drops the oldest ones.
    fn cut(&mut self) {
        self.lines.sort();
        let over = self.lines.len().saturating_sub(EVENTS);
        self.is_cut |= over > 0;
        self.lines.drain(..over);
    }

    /// Returns as many lines as fit into `max` bytes, from the oldest to the newest.
    fn text(mut self, max: usize) -> Text {
        self.cut();
        Text::newest(self.lines.into_iter().map(|(_, line)| line).collect(), max).cut_if(self.is_cut)
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

#[cfg(test)]
mod tests {
    use futures::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn a_long_log_keeps_its_end() {
        let lines: String = (0..100_000).map(|line| format!("{line}\n")).collect();
        let end = end_of(Cursor::new(&lines), 100).await.expect("reads");
        assert!(end.len() > 100 && end.len() < lines.len() && lines.ends_with(&end), "{}", end.len());
        assert_eq!(end_of(Cursor::new("a\n"), 100).await.expect("reads"), "a\n");
    }

    #[test]
    fn a_long_list_of_events_keeps_the_newest() {
        let mut newest = Newest::default();
        let count = i64::try_from(2 * EVENTS).expect("a count") + 10;
        for second in (0..count).rev() {
            newest.add(Timestamp::from_second(second).expect("a time"), format!("{second}\n"));
        }
        assert!(newest.lines.len() < 2 * EVENTS);
        let text = newest.text(20);
        assert_eq!((text.text.as_str(), text.is_cut()), ("100008\n100009\n", true));
    }
}
