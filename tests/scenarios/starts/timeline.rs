//! Where the time of a pod's start goes: what the API server, the kubelet, the runtime and the agent noted,
//! and when.
//!
//! | mark | noted by |
//! |---|---|
//! | `claimed`, `allocated`, `scheduled` | the API server's audit log |
//! | `seen` | the kubelet's log |
//! | `read` | the audit log: the kubelet has read the claim, so that it calls the driver now |
//! | `sandbox`, `sandboxed`, `create`, `start`, `started` | containerd's log |
//! | `add`, `added` | the agent's log |
//! | `running` | the benchmark's watch |

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netclaim_tests::{AuditLog, SYSTEM, Test, names, time_of_day};
use serde_json::Value;

use crate::pods::{Started, millis_between};

/// All marks, in the order of a start.
pub const MARKS: [&str; 13] = [
    "claimed",
    "allocated",
    "scheduled",
    "seen",
    "read",
    "sandbox",
    "add",
    "added",
    "sandboxed",
    "create",
    "start",
    "started",
    "running",
];
const SCHEDULER: &str = "system:kube-scheduler";
const CLAIM_CONTROLLER: &str = "system:serviceaccount:kube-system:resource-claim-controller";
/// No start takes longer; a mark beyond is from a log with another time zone.
const LONGEST: f64 = 600_000.0;

/// The logs from a moment on.
pub struct Logs {
    audit: AuditLog,
    files: [Part; 2],
    agent: PathBuf,
}

/// A file from an offset on.
struct Part {
    path: PathBuf,
    from: u64,
}

impl Part {
    fn from_now(path: PathBuf) -> Result<Self> {
        let from = path.metadata().with_context(|| format!("no {}", path.display()))?.len();
        Ok(Self { path, from })
    }

    fn read(&self) -> Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// A pod's name and its marks, each in milliseconds since the request that created the pod.
type MarksOfPod = (String, Vec<(&'static str, f64)>);

/// When each mark of a pod was set, by time of day.
type Marks = HashMap<&'static str, Duration>;

impl Logs {
    /// Starts at the logs' present ends.
    pub fn from_now(test: &Test<'_>) -> Result<Self> {
        let log = test.cluster.dir().join("log");
        Ok(Self {
            audit: AuditLog::from_now(test.cluster)?,
            files: [Part::from_now(log.join("runtime.log"))?, Part::from_now(log.join("kubelet.log"))?],
            agent: test.cluster.node().path("/var/log/pods"),
        })
    }

    /// The requests to the API server.
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Returns the marks of each pod.
    pub fn marks(&self, test: &Test<'_>, started: &[Started]) -> Result<Vec<MarksOfPod>> {
        let mut marks: HashMap<&str, Marks> =
            started.iter().map(|pod| (pod.name.as_str(), Marks::new())).collect();
        let [runtime, kubelet] = &self.files;
        self.of_requests(test, &mut marks)?;
        of_kubelet(&kubelet.read()?, test.namespace(), &mut marks);
        of_runtime(&runtime.read()?, test.namespace(), &mut marks);
        of_agent(&self.agent_log()?, started, &mut marks);
        let of_pod = |pod: &Started| {
            let mut all = marks.remove(pod.name.as_str()).unwrap_or_default();
            all.insert("running", pod.running);
            let since = |mark: &&'static str| Some((*mark, millis_between(pod.created, *all.get(mark)?)));
            let since: Vec<_> =
                MARKS.iter().filter_map(since).filter(|(_, millis)| *millis < LONGEST).collect();
            (pod.name.clone(), since)
        };
        Ok(started.iter().map(of_pod).collect())
    }

    fn of_requests(&self, test: &Test<'_>, marks: &mut HashMap<&str, Marks>) -> Result<()> {
        for event in self.audit.requests()? {
            let object = &event["objectRef"];
            let answered = event["stageTimestamp"].as_str().and_then(time_of_day);
            let ok = event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300);
            let (Some(name), Some(answered)) = (object["name"].as_str(), answered.filter(|_| ok)) else {
                continue;
            };
            if object["namespace"] != test.namespace() {
                continue;
            }
            let verb = event["verb"].as_str().unwrap_or_default();
            let part = object["subresource"].as_str().unwrap_or_default();
            let by_kubelet =
                event["user"]["username"].as_str().is_some_and(|user| user.starts_with("system:node:"));
            let (mark, pod) = match (object["resource"].as_str().unwrap_or_default(), verb, part) {
                ("pods", "create", "binding") => ("scheduled", Some(name)),
                // The claim's creation names no pod; this follows at once.
                ("pods", "update" | "patch", "status") if is_by(&event, CLAIM_CONTROLLER) => {
                    ("claimed", Some(name))
                }
                ("resourceclaims", "update" | "patch", "status") if is_by(&event, SCHEDULER) => {
                    ("allocated", pod_of_claim(name, marks))
                }
                ("resourceclaims", "get", "") if by_kubelet => ("read", pod_of_claim(name, marks)),
                _ => continue,
            };
            if let Some(marks) = pod.and_then(|pod| marks.get_mut(pod)) {
                marks.entry(mark).or_insert(answered);
            }
        }
        Ok(())
    }

    fn agent_log(&self) -> Result<String> {
        let mut text = String::new();
        let of_agent = format!("{SYSTEM}_netclaim-agent-");
        for pod in names(&self.agent)?.into_iter().filter(|pod| pod.starts_with(&of_agent)) {
            let dir = self.agent.join(pod).join("agent");
            for file in names(&dir)? {
                // The kubelet may have removed the log with its pod.
                text += &fs::read_to_string(dir.join(file)).unwrap_or_default();
            }
        }
        Ok(text)
    }
}

fn is_by(event: &Value, user: &str) -> bool {
    event["user"]["username"] == user
}

/// The pod that a claim was made for: `POD-CLAIM-RANDOM` from a template, or the claim's own name.
fn pod_of_claim<'a>(claim: &str, marks: &HashMap<&'a str, Marks>) -> Option<&'a str> {
    let is_of =
        |pod: &&&str| claim.strip_prefix(**pod).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    marks.keys().filter(is_of).max_by_key(|pod| pod.len()).copied()
}

/// The text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(found, _)| found)
}

/// A line such as `I1122 15:21:35.123456  123 kubelet.go:1] "SyncLoop ADD" source="api" pods=["default/a"]`.
fn of_kubelet(text: &str, namespace: &str, marks: &mut HashMap<&str, Marks>) {
    for line in text.lines().filter(|line| line.contains("\"SyncLoop ADD\" source=\"api\"")) {
        let at = line.split_whitespace().nth(1).and_then(|time| time_of_day(&format!("T{time}")));
        let (Some(at), Some(pods)) = (at, between(line, "pods=[", "]")) else { continue };
        let pods = pods.split(',').filter_map(|pod| pod.trim_matches('"').split_once('/'));
        for (_, pod) in pods.filter(|(of, _)| *of == namespace) {
            if let Some(marks) = marks.get_mut(pod) {
                marks.entry("seen").or_insert(at);
            }
        }
    }
}

/// containerd logs each call and its return: a sandbox's with the pod's name, the others with ids. For a call
/// that is repeated, the first one counts for the beginning, the last one for the end.
fn of_runtime(text: &str, namespace: &str, marks: &mut HashMap<&str, Marks>) {
    let text = text.replace("\\\"", "\"");
    let mut pods: HashMap<String, String> = HashMap::new();
    for line in text.lines() {
        let Some(at) = between(line, "time=\"", "\"").and_then(time_of_day) else { continue };
        let Some((_, message)) = line.split_once("msg=\"") else { continue };
        let (call, rest) = message.split_once(' ').unwrap_or_default();
        let result = |word: &str| between(rest, &format!(" returns {word} id \""), "\"").map(str::to_owned);
        let subject = || between(rest, "\"", "\"").unwrap_or_default();
        let (mark, pod) = match call {
            "RunPodSandbox" if between(rest, "namespace:\"", "\"") == Some(namespace) => {
                let pod = between(rest, "name:\"", "\"").map(str::to_owned);
                match result("sandbox") {
                    Some(id) => {
                        pods.extend(pod.clone().map(|pod| (id, pod)));
                        ("sandboxed", pod)
                    }
                    None => ("sandbox", pod),
                }
            }
            "CreateContainer" => {
                let pod = pods.get(subject()).cloned();
                match result("container") {
                    Some(id) => {
                        pods.extend(pod.map(|pod| (id, pod)));
                        continue;
                    }
                    None => ("create", pod),
                }
            }
            "StartContainer" => {
                let mark = if rest.contains("returns successfully") { "started" } else { "start" };
                (mark, pods.get(subject()).cloned())
            }
            _ => continue,
        };
        let Some(marks) = pod.and_then(|pod| marks.get_mut(pod.as_str())) else { continue };
        if mark == "sandbox" || mark == "create" {
            marks.entry(mark).or_insert(at);
        } else {
            marks.insert(mark, at);
        }
    }
}

/// A line such as `2026-01-01T15:21:35.1Z stderr F 2026-01-01T15:21:35.1Z DEBUG …: add pod.uid=…
/// attachment=…`.
fn of_agent(text: &str, started: &[Started], marks: &mut HashMap<&str, Marks>) {
    for line in text.lines() {
        let mark = match line {
            line if line.contains(": added pod.uid=") => "added",
            line if line.contains(": add pod.uid=") => "add",
            _ => continue,
        };
        let at = line.split_whitespace().nth(3).and_then(time_of_day);
        let uid = line.split_once("pod.uid=").and_then(|(_, rest)| rest.split_whitespace().next());
        let (Some(at), Some(uid)) = (at, uid) else { continue };
        let pod = started.iter().find(|pod| pod.uid == uid.trim_matches('"'));
        let Some(marks) = pod.and_then(|pod| marks.get_mut(pod.name.as_str())) else { continue };
        if mark == "add" {
            marks.entry(mark).or_insert(at);
        } else {
            marks.insert(mark, at);
        }
    }
}
