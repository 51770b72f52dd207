//! When pods got where and when slices were written, as a watch tells: timestamps of objects are whole seconds.

use std::collections::{BTreeSet, HashMap};
use std::io::BufReader;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::wait::eventually;

/// How far a pod has come.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    scheduled: Option<Instant>,
    running: Option<Instant>,
}

/// A watch of the pods of one namespace; it ends with the value.
pub struct PodWatch {
    kubectl: Child,
    seen: Arc<Mutex<HashMap<String, Seen>>>,
}

impl PodWatch {
    pub(crate) fn start(kubectl: &mut Command) -> Result<Self> {
        kubectl.args(["get", "pods", "--watch", "-o", "json"]);
        let mut kubectl = kubectl.stdout(Stdio::piped()).spawn().context("cannot run kubectl")?;
        let told = kubectl.stdout.take().context("no pipe")?;
        let seen: Arc<Mutex<HashMap<String, Seen>>> = Arc::default();
        let notes = Arc::clone(&seen);
        std::thread::spawn(move || {
            let pods = serde_json::Deserializer::from_reader(BufReader::new(told)).into_iter::<Value>();
            for pod in pods.map_while(Result::ok) {
                let now = Instant::now();
                let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                let seen =
                    notes.entry(pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).or_default();
                if !pod["spec"]["nodeName"].is_null() {
                    seen.scheduled.get_or_insert(now);
                }
                if pod["status"]["phase"] == "Running" {
                    seen.running.get_or_insert(now);
                }
            }
        });
        Ok(Self { kubectl, seen })
    }

    /// Waits until `count` pods were seen running; returns how long each took from being scheduled to that.
    ///
    /// # Errors
    /// When they do not run within `seconds`.
    pub fn started(&self, count: usize, seconds: u64) -> Result<Vec<(String, Duration)>> {
        eventually(seconds, &format!("{count} pods run"), || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let took = |(name, seen): (&String, &Seen)| Some((name.clone(), seen.running? - seen.scheduled?));
            let mut started: Vec<_> = seen.iter().filter_map(took).collect();
            ensure!(started.len() >= count, "{} do", started.len());
            started.sort();
            Ok(started)
        })
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        end(&mut self.kubectl);
    }
}

fn end(kubectl: &mut Child) {
    let _ = kubectl.kill();
    let _ = kubectl.wait();
}

/// One write of a slice of netclaim, whoever wrote it.
#[derive(Debug)]
pub struct SliceEvent {
    /// When the watch told.
    pub at: Instant,
    /// Whether the slice is gone now.
    pub deleted: bool,
    /// The slice.
    pub slice: Value,
}

impl SliceEvent {
    /// The slice's name.
    pub fn name(&self) -> &str {
        self.slice["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// A device that is in the slice now.
    pub fn device(&self, name: &str) -> Option<&Value> {
        let devices = self.slice["spec"]["devices"].as_array().filter(|_| !self.deleted)?;
        devices.iter().find(|device| device["name"] == name)
    }
}

/// A watch of the slices of netclaim; it ends with the value.
pub struct SliceWatch {
    kubectl: Child,
    events: Receiver<SliceEvent>,
}

impl SliceWatch {
    pub(crate) fn start(cluster: &Cluster) -> Result<Self> {
        let ours = ["--field-selector", "spec.driver=netclaim.dev"];
        let there = cluster.get(&[&["resourceslices"], ours.as_slice()].concat())?;
        let there = there["items"].as_array().into_iter().flatten();
        let mut unseen: BTreeSet<String> =
            there.filter_map(|slice| Some(slice["metadata"]["name"].as_str()?.to_owned())).collect();
        let mut kubectl = cluster.kubectl_command();
        kubectl.args(["get", "resourceslices", "--watch", "--output-watch-events", "-o", "json"]).args(ours);
        let mut kubectl = kubectl.stdout(Stdio::piped()).spawn().context("cannot run kubectl")?;
        let told = kubectl.stdout.take().context("no pipe")?;
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            let told = serde_json::Deserializer::from_reader(BufReader::new(told)).into_iter::<Value>();
            for mut event in told.map_while(Result::ok) {
                let deleted = event["type"] == "DELETED";
                let event = SliceEvent { at: Instant::now(), deleted, slice: event["object"].take() };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let watch = Self { kubectl, events };
        // The watch is there once it has told what was there before.
        if !unseen.is_empty() {
            watch.until(Duration::from_secs(20), "the watch begins", |event| {
                unseen.remove(event.name());
                unseen.is_empty()
            })?;
        }
        Ok(watch)
    }

    /// Takes writes until one is `what` is waited for, which is returned.
    ///
    /// # Errors
    /// When none is in time.
    pub fn until(
        &self,
        limit: Duration,
        what: &str,
        mut fits: impl FnMut(&SliceEvent) -> bool,
    ) -> Result<SliceEvent> {
        let end = Instant::now() + limit;
        loop {
            match self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(event) if fits(&event) => return Ok(event),
                Ok(_) => {}
                Err(_) => bail!("not within {} s: {what}", limit.as_secs()),
            }
        }
    }

    /// Takes the writes of so long a time.
    pub fn during(&self, time: Duration) -> Vec<SliceEvent> {
        let end = Instant::now() + time;
        let next = || self.events.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).collect()
    }

    /// Takes writes until there is none for so long.
    ///
    /// # Errors
    /// When they do not end within two minutes.
    pub fn until_quiet(&self, quiet: Duration) -> Result<Vec<SliceEvent>> {
        let end = Instant::now() + Duration::from_secs(120);
        let mut writes = Vec::new();
        while let Ok(event) = self.events.recv_timeout(quiet) {
            writes.push(event);
            ensure!(Instant::now() < end, "slices are written all the time: {} writes", writes.len());
        }
        Ok(writes)
    }
}

impl Drop for SliceWatch {
    fn drop(&mut self) {
        end(&mut self.kubectl);
    }
}
