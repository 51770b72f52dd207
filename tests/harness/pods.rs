//! Pods of a scenario: what they report, and what they have on the node.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::node::{Interface, Task, names};
use crate::objects::{claim, list, pod, text};
use crate::process::signal;
use crate::runtime::Runtime;
use crate::test::Test;
use crate::wait::{eventually, holds};

/// Seconds until a pod runs that lacks nothing. The kubelet retries a refused container after 10 to 15 s, but
/// a refused claim only after 60 to 90 s, see [`Test::wake`].
const SOON: u64 = 60;
/// Seconds for which a pod must stay without a node: more than publishing a change of devices takes.
const UNSCHEDULED: u64 = 3;
/// The reason of the kubelet's event about a claim that was refused.
const REFUSED_CLAIM: &str = "FailedPrepareDynamicResources";
/// Seconds for which a pod that is refused must stay without a container: more than the kubelet's first
/// retries take.
const REFUSED: u64 = 3;

impl Test<'_> {
    /// Creates a claim of `class` and a pod that uses it, both named `name`.
    pub fn pod(&self, name: &str, class: &str) -> Result<()> {
        self.pod_with(name, class, |_, _| {})
    }

    /// As [`Self::pod`], with a change to the claim and to the pod.
    pub fn pod_with(
        &self,
        name: &str,
        class: &str,
        change: impl FnOnce(&mut Value, &mut Value),
    ) -> Result<()> {
        let (mut claim, mut pod) = (claim(name, class), pod(name, &[name]));
        change(&mut claim, &mut pod);
        self.create([claim, pod])
    }

    /// As [`Self::pod`], for a pod that only `node` may run.
    pub fn pod_on(&self, node: &str, name: &str, class: &str) -> Result<()> {
        self.pod_with(name, class, |_, pod| {
            pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        })
    }

    /// As [`Self::pod`], for a pod that is never restarted.
    pub fn pod_without_restarts(&self, name: &str, class: &str) -> Result<()> {
        self.pod_with(name, class, |_, pod| pod["spec"]["restartPolicy"] = json!("Never"))
    }

    /// As [`Self::pod`], with a claim that requests an amount of a capacity.
    pub fn pod_with_capacity(&self, name: &str, class: &str, capacity: &str, amount: &str) -> Result<()> {
        self.pod_with(name, class, |claim, _| {
            claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
                json!({"requests": {capacity: amount}});
        })
    }

    /// As [`Self::pod`], and waits until the pod runs with `net1`.
    pub fn start_pod(&self, name: &str, class: &str) -> Result<()> {
        self.pod(name, class)?;
        self.runs_with(name, &["net1"])
    }

    /// Deletes a pod and its claim, and waits until both are gone.
    pub fn delete_pod(&self, name: &str) -> Result<()> {
        let delete = |kind| self.cluster.api().delete_and_wait(&["-n", self.namespace(), kind, name]);
        delete("pod").and_then(|()| delete("resourceclaim"))
    }

    /// Deletes a pod without waiting for the node to end it.
    pub fn delete_pod_by_force(&self, name: &str) -> Result<()> {
        let delete = ["delete", "pod", name, "--grace-period=0", "--force", "--timeout=60s"];
        // The controller manager deletes pods of Nodes that do not exist, too.
        self.kubectl(&[delete.as_slice(), &["--ignore-not-found"]].concat()).map(drop)
    }

    /// Makes the kubelet retry a pod's refused claim now, by an annotation, for scenarios that are not about
    /// the wait of 60 to 90 s.
    pub fn wake(&self, pod: &str) -> Result<()> {
        self.kubectl(&["annotate", "--overwrite", "pod", pod, &waking()?]).map(drop)
    }

    /// Waits until a pod is ready.
    pub fn runs(&self, pod: &str) -> Result<()> {
        eventually(SOON, &format!("pod {pod} runs"), || {
            let status = self.get("pod", pod)?["status"].take();
            let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
            ensure!(list(&status["conditions"]).any(is_ready), "its status is {status}");
            Ok(())
        })
    }

    /// Waits until a pod is ready, and makes sure that its containers started once, with `interfaces`.
    pub fn runs_with(&self, pod: &str, interfaces: &[&str]) -> Result<()> {
        self.runs(pod)?;
        let status = self.get("pod", pod)?["status"].clone();
        for container in list(&status["containerStatuses"]) {
            ensure!(container["restartCount"] == 0, "a container of {pod} was restarted: {container}");
        }
        self.began_with(pod, interfaces)
    }

    /// Makes sure that a pod's containers started with `interfaces`, each with the addresses that it has now.
    pub fn began_with(&self, pod: &str, interfaces: &[&str]) -> Result<()> {
        // A kubelet that has just started has no logs for a while.
        eventually(SOON, "the containers' logs have the interfaces", || {
            let containers = self.get("pod", pod)?["spec"]["containers"].clone();
            for container in list(&containers) {
                let log = self.cluster.api().log(self.namespace(), pod, &text(&container["name"]))?;
                let lines: Vec<&str> = log.lines().collect();
                for name in interfaces {
                    ensure!(lines.contains(name), "{pod} began without {name}: it found {lines:?}");
                    let interface = self.interface(pod, name)?;
                    for ip in interface.ips.iter().chain(&interface.ipv6) {
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

    /// The name of the node that a pod was scheduled to.
    pub fn node_of(&self, pod: &str) -> Result<String> {
        let object = self.get("pod", pod)?;
        object["spec"]["nodeName"].as_str().map(str::to_owned).with_context(|| format!("{pod} has no node"))
    }

    /// Waits until no node has the devices that a pod requests, and makes sure that the pod stays without a
    /// node.
    pub fn is_unschedulable(&self, pod: &str) -> Result<()> {
        self.event(pod, &["FailedScheduling", "cannot allocate all claims"])?;
        // The scheduler writes its event first and the condition after it.
        let says_so =
            |condition: &Value| condition["type"] == "PodScheduled" && condition["reason"] == "Unschedulable";
        eventually(SOON, &format!("{pod} is Unschedulable"), || {
            let status = &self.get("pod", pod)?["status"];
            ensure!(list(&status["conditions"]).any(says_so), "its status is {status}");
            Ok(())
        })?;
        // The scheduler may have looked before the device was published, and retries when it is.
        holds(UNSCHEDULED, &format!("{pod} has no node"), || {
            let node = &self.get("pod", pod)?["spec"]["nodeName"];
            ensure!(node.is_null(), "{pod} was scheduled: {node}");
            Ok(())
        })
    }

    /// Waits for an event of a pod whose reason and message contain all of `words`; returns it.
    pub fn event(&self, pod: &str, words: &[&str]) -> Result<String> {
        eventually(SOON, &format!("pod {pod} has an event with {words:?}"), || {
            let events = self.events(pod)?;
            let found = events.iter().find(|event| words.iter().all(|word| event.contains(word)));
            found.cloned().with_context(|| format!("it has {events:#?}"))
        })
    }

    /// Waits until a condition of a pod is as expected.
    pub fn pod_condition(&self, pod: &str, of_type: &str, fits: impl Fn(&Value) -> bool) -> Result<()> {
        eventually(SOON, &format!("pod {pod} has the condition {of_type} as expected"), || {
            let status = self.get("pod", pod)?["status"].take();
            let found = list(&status["conditions"]).find(|condition| condition["type"] == of_type);
            let found = found.with_context(|| format!("it has none: {status}"))?;
            ensure!(fits(found), "it is {found}");
            Ok(())
        })
    }

    /// Lists the events of a pod, each as `REASON: MESSAGE`.
    pub fn events(&self, pod: &str) -> Result<Vec<String>> {
        let events = self.cluster.get(&["-n", self.namespace(), "events"])?;
        let of_pod = list(&events["items"]).filter(|event| event["involvedObject"]["name"] == pod);
        Ok(of_pod.map(|event| format!("{}: {}", text(&event["reason"]), text(&event["message"]))).collect())
    }

    /// Makes sure that no call of the kubelet for a pod's claims was refused, by netclaim or by the API
    /// server (`deploy/manifests/kubelets-rbac.yaml`): its retry would take 60 to 90 s.
    pub fn claim_was_not_refused(&self, pod: &str) -> Result<()> {
        let events = self.events(pod)?;
        let refused = events.iter().any(|event| event.contains(REFUSED_CLAIM));
        ensure!(!refused, "a claim of {pod} was refused: {events:#?}");
        Ok(())
    }

    /// As [`Self::claim_was_not_refused`], for all pods of the scenario by one read.
    pub fn no_claim_was_refused(&self) -> Result<()> {
        let events = self.cluster.get(&["-n", self.namespace(), "events"])?;
        let refused = list(&events["items"]).filter(|event| text(&event["reason"]) == REFUSED_CLAIM);
        let shown = |event: &Value| {
            format!("{}: {}", text(&event["involvedObject"]["name"]), text(&event["message"]))
        };
        let refused: Vec<String> = refused.map(shown).collect();
        ensure!(refused.is_empty(), "claims were refused: {refused:#?}");
        Ok(())
    }

    /// Waits until every device of a claim is not ready, with all of `words` in the message.
    pub fn claim_is_not_ready(&self, claim: &str, words: &[&str]) -> Result<()> {
        let fits = |ready: &Value| {
            let message = text(&ready["message"]);
            ready["status"] == "False" && words.iter().all(|word| message.contains(word))
        };
        self.claim_conditions(SOON, claim, &format!("not ready because of {words:?}"), fits).map(drop)
    }

    /// Waits until every device of a claim is ready; returns `status.devices`.
    pub fn claim_is_ready(&self, claim: &str) -> Result<Vec<Value>> {
        self.claim_conditions(15, claim, "ready", |ready| ready["status"] == "True")
    }

    fn claim_conditions(
        &self,
        seconds: u64,
        claim: &str,
        what: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<Vec<Value>> {
        eventually(seconds, &format!("claim {claim} is {what}"), || {
            let status = self.get("resourceclaim", claim)?["status"].clone();
            let devices: Vec<Value> = list(&status["devices"]).cloned().collect();
            let ready = |device: &Value| list(&device["conditions"]).any(|c| c["type"] == "Ready" && fits(c));
            ensure!(!devices.is_empty() && devices.iter().all(ready), "its status is {status}");
            Ok(devices)
        })
    }

    /// The sandbox and the running containers of a pod.
    pub fn tasks(&self, pod: &str) -> Result<Vec<Task>> {
        let mut found = Vec::new();
        for node in self.cluster.nodes() {
            let tasks = node.tasks()?.into_iter();
            found.extend(tasks.filter(|task| task.namespace == self.namespace() && task.pod == pod));
        }
        Ok(found)
    }

    /// The sandbox of a pod.
    pub fn sandbox(&self, pod: &str) -> Result<Task> {
        let sandbox = self.tasks(pod)?.into_iter().find(|task| task.container.is_none());
        sandbox.with_context(|| format!("{pod} has no sandbox"))
    }

    /// A running container of a pod.
    pub fn container(&self, pod: &str, name: &str) -> Result<Task> {
        let container = self.tasks(pod)?.into_iter().find(|task| task.container.as_deref() == Some(name));
        container.with_context(|| format!("{name} of {pod} does not run"))
    }

    /// Makes sure that no container of a pod starts: one look could come before the container.
    pub fn does_not_start(&self, pod: &str) -> Result<()> {
        holds(REFUSED, &format!("{pod} does not start"), || self.has_not_started(pod))
    }

    /// Makes sure that no container of a pod runs now.
    pub fn has_not_started(&self, pod: &str) -> Result<()> {
        match self.tasks(pod)?.into_iter().find_map(|task| task.container) {
            Some(container) => bail!("container {container} of {pod} runs"),
            None => Ok(()),
        }
    }

    /// Kills a container's or a sandbox's process with SIGKILL.
    pub fn kill(&self, task: &Task) -> Result<()> {
        signal(task.pid.with_context(|| format!("{} has no process", task.id))?, "KILL")
    }

    /// Ends a pod's sandbox without the kubelet, which then creates another. Returns the old one.
    pub fn end_sandbox(&self, pod: &str) -> Result<Task> {
        let sandbox = self.sandbox(pod)?;
        match self.cluster.node().runtime() {
            Runtime::Containerd => self.kill(&sandbox)?,
            Runtime::CriO => {
                self.cluster.on_node(&["crictl", "--timeout", "1m", "stopp", &sandbox.id]).map(drop)?
            }
        }
        Ok(sandbox)
    }

    /// Ends a pod's sandbox, and waits until the container runs in another one.
    pub fn replace_sandbox(&self, pod: &str) -> Result<()> {
        let old = self.end_sandbox(pod)?;
        eventually(60, "the container runs in a new sandbox", || {
            let container = self.container(pod, "shell")?;
            ensure!(container.sandbox != old.id, "it runs in the old one");
            Ok(())
        })
    }

    /// Removes the name of a pod's network namespace, as a runtime does when the pod ends.
    pub fn take_namespace_away(&self, pod: &str) -> Result<()> {
        let inode = fs::metadata(self.sandbox(pod)?.netns)?.ino();
        let dir = self.cluster.node().path("/run/netns");
        let is_its = |name: &String| fs::metadata(dir.join(name)).is_ok_and(|file| file.ino() == inode);
        let name = names(&dir)?.into_iter().find(is_its).context("the sandbox's namespace has no name")?;
        let path = format!("/run/netns/{name}");
        // CRI-O holds it open.
        self.cluster.on_node(&["umount", "--lazy", &path])?;
        self.cluster.on_node(&["rm", &path]).map(drop)
    }

    /// The interfaces in a pod's network namespace.
    pub fn interfaces(&self, pod: &str) -> Result<BTreeMap<String, Interface>> {
        self.cluster.node().interfaces_of(&self.sandbox(pod)?.netns)
    }

    /// An interface in a pod's network namespace.
    pub fn interface(&self, pod: &str, name: &str) -> Result<Interface> {
        let all = self.interfaces(pod)?;
        all.get(name).cloned().with_context(|| format!("{pod} has no {name}, only {:?}", all.keys()))
    }

    /// The first IPv4 address of an interface of a pod, without its prefix length.
    pub fn ip(&self, pod: &str, interface: &str) -> Result<String> {
        let ips = self.interface(pod, interface)?.ips;
        let ip = ips.first().with_context(|| format!("{interface} of {pod} has no address"))?;
        Ok(ip.split('/').next().unwrap_or_default().to_owned())
    }

    /// Pings the IPv4 address that a pod has on `interface` from another pod.
    pub fn ping(&self, from: &str, to: &str, interface: &str) -> Result<()> {
        self.ping_address(from, &self.ip(to, interface)?, interface)
    }

    /// As [`Self::ping`], for the IPv6 address.
    pub fn ping6(&self, from: &str, to: &str, interface: &str) -> Result<()> {
        let addresses = self.interface(to, interface)?.ipv6;
        let address =
            addresses.first().with_context(|| format!("{interface} of {to} has no IPv6 address"))?;
        self.ping_address(from, address.split('/').next().unwrap_or_default(), interface)
    }

    fn ping_address(&self, from: &str, address: &str, interface: &str) -> Result<()> {
        eventually(10, &format!("{from} reaches {address}"), || {
            self.kubectl(&["exec", from, "--", "ping", "-c", "1", "-W", "2", "-I", interface, address])
                .map(drop)
        })
    }
}

/// An annotation that a pod does not have yet.
pub(crate) fn waking() -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    Ok(format!("netclaim.dev/test-wake={now}"))
}
