//! When pods started and when slices were written, measured by watches: objects' timestamps are whole
//! seconds.

use std::collections::{BTreeSet, HashMap};
use std::io::BufReader;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, SLICES};
use crate::objects::text;
use crate::process::Running;
use crate::wait::eventually;

/// When a pod reached which state.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    scheduled: Option<Instant>,
    running: Option<Instant>,
}

/// A watch of the pods of one namespace.
pub struct PodWatch {
    _kubectl: Running,
    seen: Arc<Mutex<HashMap<String, Seen>>>,
}

impl PodWatch {
    pub(crate) fn start(kubectl: &mut Command) -> Result<Self> {
        kubectl.args(["get", "pods", "--watch", "-o", "json"]);
        let (kubectl, stdout) = Running::piped(kubectl)?;
        let seen: Arc<Mutex<HashMap<String, Seen>>> = Arc::default();
        let notes = Arc::clone(&seen);
        std::thread::spawn(move || {
            let pods = serde_json::Deserializer::from_reader(BufReader::new(stdout)).into_iter::<Value>();
            for pod in pods.map_while(Result::ok) {
                let now = Instant::now();
                let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                let seen = notes.entry(text(&pod["metadata"]["name"])).or_default();
                if !pod["spec"]["nodeName"].is_null() {
                    seen.scheduled.get_or_insert(now);
                }
                if pod["status"]["phase"] == "Running" {
                    seen.running.get_or_insert(now);
                }
            }
        });
        Ok(Self { _kubectl: kubectl, seen })
    }

    /// Waits for at most `seconds` until `count` pods were seen running; returns how long each took from its
    /// scheduling.
    pub fn started(&self, count: usize, seconds: u64) -> Result<Vec<(String, Duration)>> {
        eventually(seconds, &format!("{count} pods run"), || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let took = |(name, seen): (&String, &Seen)| Some((name.clone(), seen.running? - seen.scheduled?));
            let mut started: Vec<_> = seen.iter().filter_map(took).collect();
            ensure!(started.len() >= count, "{} run", started.len());
            started.sort();
            Ok(started)
        })
    }
}

/// One write of a netclaim slice, by anyone.
#[derive(Debug)]
pub struct SliceEvent {
    /// When the watch reported it.
    pub at: Instant,
    /// Whether the slice was deleted.
    pub deleted: bool,
    /// The slice.
    pub slice: Value,
}

impl SliceEvent {
    /// The slice's name.
    pub fn name(&self) -> &str {
        self.slice["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// A device of the slice, unless the slice was deleted.
    pub fn device(&self, name: &str) -> Option<&Value> {
        let devices = self.slice["spec"]["devices"].as_array().filter(|_| !self.deleted)?;
        devices.iter().find(|device| device["name"] == name)
    }
}

/// Starts a watch of netclaim's slices by this kubectl, and returns its events as they come, from those of
/// the slices that exist.
pub(crate) fn slice_events(kubectl: &mut Command) -> Result<(Running, impl Iterator<Item = Value> + use<>)> {
    kubectl.args(["get", "resourceslices", "--watch", "--output-watch-events", "-o", "json"]).args(SLICES);
    let (kubectl, stdout) = Running::piped(kubectl)?;
    let events = serde_json::Deserializer::from_reader(BufReader::new(stdout)).into_iter::<Value>();
    Ok((kubectl, events.map_while(Result::ok)))
}

/// A watch of netclaim's slices.
pub struct SliceWatch {
    _kubectl: Running,
    events: Receiver<SliceEvent>,
}

impl SliceWatch {
    pub(crate) fn start(cluster: &Cluster) -> Result<Self> {
        let mut unseen: BTreeSet<String> =
            cluster.slices()?.iter().map(|slice| text(&slice["metadata"]["name"])).collect();
        let (kubectl, seen) = slice_events(&mut cluster.kubectl_command())?;
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            for mut event in seen {
                let deleted = event["type"] == "DELETED";
                let event = SliceEvent { at: Instant::now(), deleted, slice: event["object"].take() };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let watch = Self { _kubectl: kubectl, events };
        // The watch has begun when it has reported the slices that existed before.
        if !unseen.is_empty() {
            watch.until(Duration::from_secs(20), "the watch begins", |event| {
                unseen.remove(event.name());
                unseen.is_empty()
            })?;
        }
        Ok(watch)
    }

    /// Consumes writes until one fits, for at most `limit`, and returns that one. `what` says what is waited
    /// for.
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

    /// Returns the writes within `time` from now.
    pub fn during(&self, time: Duration) -> Vec<SliceEvent> {
        let end = Instant::now() + time;
        let next = || self.events.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).collect()
    }

    /// Returns the writes until there is none for `quiet`, within two minutes.
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
