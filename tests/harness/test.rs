//! One scenario's part of the cluster: a namespace, and the cluster-wide objects that are marked as its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cluster::{AGENT_PODS, Cluster, SYSTEM};
use crate::node::{Interface, Task};
use crate::objects;
use crate::process::signal;
use crate::runtime::Runtime;
use crate::wait::{eventually, holds};
use crate::watch::PodWatch;

/// The label of everything that is made for tests.
pub(crate) const LABEL: &str = "netclaim.dev/test";
/// Seconds until a pod has to run whose every part is there. The kubelet retries a refused container after 10 to 15 s,
/// and a pod whose claim was refused only after 60 to 90 s, see [`Test::wake`].
const SOON: u64 = 60;
/// Seconds for which a pod has to stay without a node: longer than it takes to publish a change of devices.
const UNSCHEDULED: u64 = 3;

/// Why a scenario cannot be shown on this machine.
#[derive(Debug)]
pub(crate) struct Skipped(pub String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SKIPPED: {}", self.0)
    }
}

impl std::error::Error for Skipped {}

/// What a scenario works with.
pub struct Test<'a> {
    /// The cluster, which other scenarios may be using.
    pub cluster: &'a Cluster,
    namespace: String,
    number: usize,
}

impl<'a> Test<'a> {
    pub(crate) fn begin(cluster: &'a Cluster, number: usize) -> Result<Self> {
        let namespace = format!("t{number}");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {LABEL: namespace}}});
        cluster.kubectl_with(&["create", "-f", "-"], &object.to_string())?;
        let test = Self { cluster, namespace, number };
        cluster.remove_plugins(&test.name(""))?;
        Ok(test)
    }

    /// Deletes everything that is the scenario's, and waits until its pods are gone.
    pub(crate) fn end(&self) -> Result<()> {
        let label = format!("{LABEL}={}", self.namespace);
        self.kubectl(&["delete", "pods", "--all", "--timeout=60s"]).context("pods that do not go")?;
        let kinds = "namespaces,networks,uplinkpolicies,deviceclasses";
        self.cluster.kubectl(&["delete", kinds, "-l", &label, "--wait=false"]).map(drop)
    }

    /// Waits until nothing is left on the node of pods that are gone.
    ///
    /// # Errors
    /// What is left.
    pub fn node_is_clean(&self) -> Result<()> {
        eventually(20, "the node is clean", || {
            let all = self.cluster.get(&["resourceclaims", "--all-namespaces"])?;
            let held = list(&all["items"]).filter(|claim| claim["status"]["reservedFor"].is_array());
            let claims: BTreeSet<String> = held.map(|claim| text(&claim["metadata"]["uid"])).collect();
            self.cluster.node().is_clean(&claims)
        })
    }

    /// Says why the scenario cannot be shown here.
    ///
    /// # Errors
    /// Always: the harness knows it from a failure.
    pub fn skip(&self, reason: &str) -> Result<()> {
        Err(Skipped(reason.to_owned()).into())
    }

    /// The scenario's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A name for an object that belongs to no namespace.
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// A subnet that no other scenario uses; `n` from 0 to 3.
    pub fn subnet(&self, n: usize) -> String {
        format!("10.{}.{}.0/24", 100 + n, self.number)
    }

    /// Installs a CNI plugin of the scenario's own on the node: `script` in busybox's shell. Returns its type.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn plugin(&self, name: &str, script: &str) -> Result<String> {
        let full = self.name(name);
        self.cluster.plugin(&full, script)?;
        Ok(full)
    }

    /// Runs kubectl in the scenario's namespace.
    ///
    /// # Errors
    /// When it fails; with what it said.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.cluster.kubectl(&[&["-n", &self.namespace], args].concat())
    }

    /// Watches the scenario's pods from now on.
    ///
    /// # Errors
    /// When kubectl cannot be run.
    pub fn watch_pods(&self) -> Result<PodWatch> {
        PodWatch::start(self.cluster.kubectl_command().args(["-n", &self.namespace]))
    }

    /// Reads an object of the scenario's namespace.
    ///
    /// # Errors
    /// When it is not there.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.cluster.get(&["-n", &self.namespace, kind, name])
    }

    /// Creates objects, all at once.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn create(&self, objects: impl IntoIterator<Item = Value>) -> Result<()> {
        let mut objects: Vec<Value> = objects.into_iter().collect();
        for object in &mut objects {
            object["metadata"]["labels"][LABEL] = json!(self.namespace);
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.cluster.kubectl_with(&["-n", &self.namespace, "create", "-f", "-"], &list).map(drop)
    }

    /// Creates a macvlan Network on eth1 and its class, both named `name` for this scenario; returns that name.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn macvlan(&self, name: &str) -> Result<String> {
        self.network(name, |_| {})
    }

    /// As [`Self::macvlan`], with a change to the Network.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn network(&self, name: &str, change: impl FnOnce(&mut Value)) -> Result<String> {
        let full = self.name(name);
        // Neighbours in the alphabet have different subnets.
        let n = name.bytes().next().map_or(0, |letter| usize::from(letter % 4));
        let mut network = objects::network(&full, "macvlan", "eth1", &self.subnet(n));
        change(&mut network);
        self.create([network, objects::class_of_network(&full, &full)])?;
        Ok(full)
    }

    /// Makes the scenario's plugin one that is macvlan, but for what `on_add` does first. A Network has it by
    /// [`Self::network_after`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn macvlan_after(&self, on_add: &str) -> Result<String> {
        let script = format!("if [ \"$CNI_COMMAND\" = ADD ]; then\n{on_add}\nfi\nexec /opt/cni/bin/macvlan");
        self.plugin("plugin", &script)
    }

    /// As [`Self::macvlan`] with the name `a`, by a plugin as of [`Self::macvlan_after`].
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn network_after(&self, on_add: &str) -> Result<String> {
        let plugin = self.macvlan_after(on_add)?;
        self.network("a", |network| network["spec"]["cni"]["plugins"][0]["type"] = json!(plugin))
    }

    /// Creates a claim of `class` and a pod that uses it, both named `name`.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn pod(&self, name: &str, class: &str) -> Result<()> {
        self.create([objects::claim(name, class), objects::pod(name, &[name])])
    }

    /// Deletes a pod with its claim, and waits until it is gone.
    ///
    /// # Errors
    /// When it does not go.
    pub fn delete_pod(&self, name: &str) -> Result<()> {
        self.kubectl(&["delete", "pod", name, "--ignore-not-found", "--timeout=60s"])?;
        self.kubectl(&["delete", "resourceclaim", name, "--ignore-not-found", "--timeout=60s"]).map(drop)
    }

    /// Waits until netclaim's networks have given away `count` addresses on the node. For scenarios that are alone.
    ///
    /// # Errors
    /// When it does not come to that.
    pub fn node_has_leases(&self, count: usize) -> Result<()> {
        eventually(20, &format!("{count} addresses are given away"), || {
            let (leases, journal) = (self.cluster.node().leases()?, self.cluster.node().journal()?);
            ensure!(
                leases.len() == count && journal.len() == count,
                "leases {leases:?}, journal {journal:?}"
            );
            Ok(())
        })
    }

    /// Waits until a pod is ready, and makes sure that every container of it found `interfaces` when it began, and
    /// began once.
    ///
    /// # Errors
    /// When it does not run, or ran without them.
    pub fn runs_with(&self, pod: &str, interfaces: &[&str]) -> Result<()> {
        self.runs(pod)?;
        let status = self.get("pod", pod)?["status"].clone();
        for container in list(&status["containerStatuses"]) {
            ensure!(container["restartCount"] == 0, "a container of {pod} was restarted: {container}");
        }
        self.began_with(pod, interfaces)
    }

    /// Has the kubelet look at a pod at once, by an annotation. By itself it asks for a claim that was refused again
    /// after 60 to 90 s only: scenarios that are not about this wait spare themselves it.
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn wake(&self, pod: &str) -> Result<()> {
        // Only a value that it has not had is a change.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let annotation = format!("netclaim.dev/test-wake={now}");
        self.kubectl(&["annotate", "--overwrite", "pod", pod, &annotation]).map(drop)
    }

    /// Waits until a pod is ready.
    ///
    /// # Errors
    /// When it is not in time; with its events.
    pub fn runs(&self, pod: &str) -> Result<()> {
        let timeout = format!("--timeout={SOON}s");
        self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), &timeout])
            .map(drop)
            .with_context(|| format!("pod {pod} does not run"))
    }

    /// Makes sure that the containers of a pod found `interfaces` when they began, each with the addresses that it has now.
    ///
    /// # Errors
    /// When one did not.
    pub fn began_with(&self, pod: &str, interfaces: &[&str]) -> Result<()> {
        // A kubelet that has just started knows no pods and shows no logs for a while.
        eventually(SOON, "the containers' logs tell the interfaces", || {
            let containers = self.get("pod", pod)?["spec"]["containers"].clone();
            for container in list(&containers) {
                let log = self.kubectl(&["logs", pod, "-c", &text(&container["name"])])?;
                let lines: Vec<&str> = log.lines().collect();
                for name in interfaces {
                    ensure!(lines.contains(name), "{pod} began without {name}: it found {lines:?}");
                    for ip in self.interface(pod, name)?.ips {
                        let there = lines.iter().any(|line| {
                            let words: Vec<&str> = line.split_whitespace().collect();
                            words.contains(name) && words.contains(&ip.as_str())
                        });
                        ensure!(there, "{pod} began without {ip} on {name}: it found {lines:?}");
                    }
                }
            }
            Ok(())
        })
    }

    /// Waits until a pod has no node because of the devices it asks for, and makes sure that this stays so.
    ///
    /// # Errors
    /// When the scheduler finds a node for it, or says nothing.
    pub fn is_unschedulable(&self, pod: &str) -> Result<()> {
        self.event(pod, &["FailedScheduling", "cannot allocate all claims"])?;
        // The scheduler may have looked before the device was published, and looks again when it is.
        holds(UNSCHEDULED, &format!("{pod} has no node"), || {
            let object = self.get("pod", pod)?;
            let node = &object["spec"]["nodeName"];
            ensure!(node.is_null(), "{pod} was scheduled: {node}");
            let is_told = |condition: &Value| {
                condition["type"] == "PodScheduled" && condition["reason"] == "Unschedulable"
            };
            ensure!(list(&object["status"]["conditions"]).any(is_told), "it is told {}", object["status"]);
            Ok(())
        })
    }

    /// Waits for an event of a pod whose reason and message have all of `words`; returns it.
    ///
    /// # Errors
    /// When there is none in time; with those that there are.
    pub fn event(&self, pod: &str, words: &[&str]) -> Result<String> {
        eventually(SOON, &format!("pod {pod} has an event with {words:?}"), || {
            let events = self.events(pod)?;
            let found = events.iter().find(|event| words.iter().all(|word| event.contains(word)));
            found.cloned().with_context(|| format!("it has {events:#?}"))
        })
    }

    /// The events of a pod, each with its reason.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn events(&self, pod: &str) -> Result<Vec<String>> {
        let events = self.cluster.get(&["-n", &self.namespace, "events"])?;
        let of_pod = list(&events["items"]).filter(|event| event["involvedObject"]["name"] == pod);
        Ok(of_pod.map(|event| format!("{}: {}", text(&event["reason"]), text(&event["message"]))).collect())
    }

    /// Waits until the claim's one device is not ready, with all of `words` in the reason given.
    ///
    /// # Errors
    /// When it does not come to that.
    pub fn claim_is_not_ready(&self, claim: &str, words: &[&str]) -> Result<()> {
        eventually(SOON, &format!("claim {claim} is not ready because of {words:?}"), || {
            let devices = self.get("resourceclaim", claim)?["status"]["devices"].clone();
            for device in list(&devices) {
                let ready = list(&device["conditions"]).find(|condition| condition["type"] == "Ready");
                let ready = ready.context("no condition Ready")?;
                let message = text(&ready["message"]);
                ensure!(
                    ready["status"] == "False" && words.iter().all(|word| message.contains(word)),
                    "it says {ready}"
                );
            }
            ensure!(list(&devices).next().is_some(), "it has no status");
            Ok(())
        })
    }

    /// Waits until every device of the claim is ready; returns `status.devices`.
    ///
    /// # Errors
    /// When it does not come to that.
    pub fn claim_is_ready(&self, claim: &str) -> Result<Vec<Value>> {
        eventually(15, &format!("claim {claim} is ready"), || {
            let status = self.get("resourceclaim", claim)?["status"].clone();
            let devices: Vec<Value> = list(&status["devices"]).cloned().collect();
            let ready = |device: &Value| {
                list(&device["conditions"]).any(|c| c["type"] == "Ready" && c["status"] == "True")
            };
            ensure!(!devices.is_empty() && devices.iter().all(ready), "it has {status}");
            Ok(devices)
        })
    }

    /// Makes sure that the kubelet was not once refused a claim of a pod, by us or by the API server
    /// (`deploy/manifests/kubelets-rbac.yaml`): it tries again after 60 to 90 s only.
    ///
    /// # Errors
    /// When it was; with the pod's events.
    pub fn claim_was_not_refused(&self, pod: &str) -> Result<()> {
        let of_pod = format!("involvedObject.name={pod}");
        let events = self.kubectl(&["get", "events", "--field-selector", &of_pod])?;
        ensure!(!events.contains("FailedPrepareDynamicResources"), "{pod} was refused its claim:\n{events}");
        Ok(())
    }

    /// What of a pod runs on the node.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn tasks(&self, pod: &str) -> Result<Vec<Task>> {
        let tasks = self.cluster.node().tasks()?.into_iter();
        Ok(tasks.filter(|task| task.namespace == self.namespace && task.pod == pod).collect())
    }

    /// The sandbox of a pod.
    ///
    /// # Errors
    /// When it has none.
    pub fn sandbox(&self, pod: &str) -> Result<Task> {
        self.tasks(pod)?
            .into_iter()
            .find(|task| task.container.is_none())
            .with_context(|| format!("{pod} has no sandbox"))
    }

    /// A running container of a pod.
    ///
    /// # Errors
    /// When it does not run.
    pub fn container(&self, pod: &str, name: &str) -> Result<Task> {
        let mut tasks = self.tasks(pod)?.into_iter();
        tasks
            .find(|task| task.container.as_deref() == Some(name))
            .with_context(|| format!("{name} of {pod} does not run"))
    }

    /// Makes sure that no container of a pod runs.
    ///
    /// # Errors
    /// When one does.
    pub fn has_not_started(&self, pod: &str) -> Result<()> {
        match self.tasks(pod)?.into_iter().find_map(|task| task.container) {
            Some(container) => bail!("container {container} of {pod} runs"),
            None => Ok(()),
        }
    }

    /// Ends a process with SIGKILL.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&self, task: &Task) -> Result<()> {
        signal(task.pid.with_context(|| format!("{} has no process", task.id))?, "KILL")
    }

    /// Ends a sandbox behind the kubelet's back, which makes another.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn end_sandbox(&self, sandbox: &Task) -> Result<()> {
        match self.cluster.node().runtime() {
            Runtime::Containerd => self.kill(sandbox),
            Runtime::CriO => self.cluster.on_node(&["crictl", "stopp", &sandbox.id]).map(drop),
        }
    }

    /// Removes the name of a pod's network namespace, as a runtime does at the pod's end.
    ///
    /// # Errors
    /// When the pod does not run, or the namespace has no name.
    pub fn take_namespace_away(&self, pod: &str) -> Result<()> {
        let inode = fs::metadata(self.sandbox(pod)?.netns)?.ino();
        let names = fs::read_dir(self.cluster.node().path("/run/netns"))?;
        let is_its = |entry: &fs::DirEntry| fs::metadata(entry.path()).is_ok_and(|file| file.ino() == inode);
        let entry =
            names.filter_map(Result::ok).find(is_its).context("the sandbox's namespace has no name")?;
        let path = format!("/run/netns/{}", entry.file_name().to_string_lossy());
        // CRI-O holds it open.
        self.cluster.on_node(&["umount", "--lazy", &path])?;
        self.cluster.on_node(&["rm", &path]).map(drop)
    }

    /// The interfaces in a pod's network namespace.
    ///
    /// # Errors
    /// When the pod does not run.
    pub fn interfaces(&self, pod: &str) -> Result<BTreeMap<String, Interface>> {
        self.cluster.node().interfaces_of(&self.sandbox(pod)?.netns)
    }

    /// One interface in a pod's network namespace.
    ///
    /// # Errors
    /// When it is not there.
    pub fn interface(&self, pod: &str, name: &str) -> Result<Interface> {
        let all = self.interfaces(pod)?;
        all.get(name).cloned().with_context(|| format!("{pod} has no {name}, only {:?}", all.keys()))
    }

    /// Pings from one pod the address that another has on an interface.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn ping(&self, from: &str, to: &str, interface: &str) -> Result<()> {
        let target = self.interface(to, interface)?;
        let ip = target.ips.first().with_context(|| format!("{interface} of {to} has no address"))?;
        let ip = ip.split('/').next().unwrap_or_default();
        eventually(10, &format!("{from} reaches {to}"), || {
            self.kubectl(&["exec", from, "--", "ping", "-c", "1", "-W", "2", "-I", interface, ip]).map(drop)
        })
    }

    /// What one wants to know when the scenario has failed.
    pub(crate) fn tell(&self) -> String {
        let agent = ["logs", "-n", SYSTEM, "-l", AGENT_PODS, "--tail=40"];
        let parts: [(&str, Result<String>); 5] = [
            ("pods", self.kubectl(&["get", "pods", "-o", "wide"])),
            ("events", self.kubectl(&["get", "events", "--sort-by=.metadata.creationTimestamp"])),
            (
                "claims",
                self.kubectl(&[
                    "get",
                    "resourceclaims",
                    "-o",
                    "jsonpath={range .items[*]}{.metadata.name}: {.status}{\"\\n\"}{end}",
                ]),
            ),
            ("agent", self.cluster.kubectl(&["get", "pods", "-n", SYSTEM, "-o", "wide"])),
            ("agent's log", self.cluster.kubectl(&agent)),
        ];
        let part = |(title, result): &(&str, Result<String>)| match result {
            Ok(text) => format!("--- {title}\n{text}"),
            Err(error) => format!("--- {title}: {error:#}\n"),
        };
        parts.iter().map(part).collect()
    }
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
