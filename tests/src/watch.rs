//! When pods got where, as a watch tells: their own timestamps are whole seconds.

use std::collections::HashMap;
use std::io::BufReader;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

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
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
