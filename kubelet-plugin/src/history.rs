//! Notes when pods are attached and detached, with their addresses, for people who ask later who had one.
//!
//! ```text
//!   observed states of pods ──> one line for each ADD and DEL ──> history.jsonl, history.1.jsonl (tmpfs)
//!   netclaimctl who ─────────> both files, read then ──────────> entries
//! ```
//!
//! * The files are in the run directory: they outlive agents, and end with the boot. No disk is waited for.
//! * They have 2 MiB at most, some 5,000 lines. Of attachments that rest there is one line, and in memory
//!   their sandbox and interface.
//! * A history that cannot be written stops no pod.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;
use netclaim_api::IfName;
use netclaim_api::history::{HistoryEntry, Subject};
use netclaim_cni::CniResult;
use netclaim_driver::attach::{Interface, Phase, Sandbox};
use serde::{Deserialize, Serialize};

use crate::pods::owner::{PodState, Record};

/// The size from which on a file is the older one, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Most addresses of an entry.
const MAX_ADDRESSES: usize = 16;
/// Most entries of an answer.
const MAX_ENTRIES: usize = 200;

/// The history of this boot.
#[derive(Debug)]
pub(crate) struct History {
    files: Files,
    /// What is attached, by the pods' UIDs.
    attached: Mutex<HashMap<String, Vec<Key>>>,
}

/// Where the lines are.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    newer: PathBuf,
    older: PathBuf,
}

/// One attachment of the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    sandbox: String,
    interface: IfName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum What {
    Attached,
    Detached,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    /// RFC 3339.
    at: String,
    what: What,
    key: Key,
    entry: HistoryEntry,
}

impl History {
    /// Goes on with the history in the run directory. `records` is the content of the journal: what is
    /// attached has been noted by an earlier agent.
    pub(crate) fn open(run_dir: &Path, records: &[Record]) -> Self {
        let mut attached: HashMap<String, Vec<Key>> = HashMap::new();
        for (record, (key, _, _)) in records.iter().filter_map(|record| Some((record, made(record)?))) {
            attached.entry(record.plan.owner.pod.uid.clone()).or_default().push(key);
        }
        let files = Files { newer: run_dir.join("history.jsonl"), older: run_dir.join("history.1.jsonl") };
        Self { files, attached: Mutex::new(attached) }
    }

    /// Returns where the lines are, for readers.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Notes what has been attached and detached since the pod was seen last.
    pub(crate) fn observe(&self, pod_uid: &str, state: &PodState) {
        let now: Vec<(Key, &Record)> =
            state.attachments().filter_map(|record| Some((made(record)?.0, record))).collect();
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let before = attached.get(pod_uid).map(Vec::as_slice).unwrap_or_default();
        let mut lines = Vec::new();
        for (key, record) in now.iter().filter(|(key, _)| !before.contains(key)) {
            lines.push(Line::of(What::Attached, key, Some(record)));
        }
        for key in before.iter().filter(|key| now.iter().all(|(now, _)| now != *key)) {
            let record = state.attachments().find(|record| ended(record).as_ref() == Some(key));
            lines.push(Line::of(What::Detached, key, record));
        }
        if lines.is_empty() {
            return;
        }
        let keys: Vec<Key> = now.into_iter().map(|(key, _)| key).collect();
        if keys.is_empty() {
            attached.remove(pod_uid);
        } else {
            attached.insert(pod_uid.to_owned(), keys);
        }
        if let Err(error) = self.files.append(&lines) {
            let path = self.files.newer.display();
            tracing::warn!(%path, %error, "cannot note who is attached: `netclaimctl who` will not know");
        }
    }
}

/// An attachment that is made: which, where, and what has come of it.
fn made(record: &Record) -> Option<(Key, &Sandbox, &CniResult)> {
    match &record.phase {
        Phase::Attached { sandbox, result } => Some((Key::of(record, sandbox), sandbox, result)),
        _ => None,
    }
}

/// An attachment whose DEL has begun.
fn ended(record: &Record) -> Option<Key> {
    match &record.phase {
        Phase::Deleting { sandbox, .. } => Some(Key::of(record, sandbox)),
        _ => None,
    }
}

impl Key {
    fn of(record: &Record, sandbox: &Sandbox) -> Self {
        Self { sandbox: sandbox.id.clone(), interface: record.plan.spec.if_name.clone() }
    }
}

impl Line {
    /// A line of now. Without a record the other line of the attachment says what it was.
    fn of(what: What, key: &Key, record: Option<&Record>) -> Self {
        let at = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Self { at, what, key: key.clone(), entry: record.map(entry).unwrap_or_default() }
    }
}

fn entry(record: &Record) -> HistoryEntry {
    let plan = &record.plan;
    let interface = match (record.phase.sandbox(), record.phase.result()) {
        (Some(sandbox), Some(result)) => Interface::made(&plan.spec, sandbox, result),
        _ => Interface::default(),
    };
    HistoryEntry {
        namespace: plan.owner.pod.namespace.clone(),
        pod: plan.owner.pod.name.clone(),
        claim: plan.owner.claim.name.clone(),
        network: plan.network.clone(),
        interface: plan.spec.if_name.to_string(),
        addresses: interface.ips.iter().take(MAX_ADDRESSES).map(ToString::to_string).collect(),
        mac: interface.mac,
        from: None,
        until: None,
    }
}

impl Files {
    fn append(&self, lines: &[Line]) -> io::Result<()> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        if fs::metadata(&self.newer).is_ok_and(|file| file.len() >= MAX_FILE) {
            fs::rename(&self.newer, &self.older)?;
        }
        OpenOptions::new().create(true).append(true).mode(0o600).open(&self.newer)?.write_all(&text)
    }

    /// Returns the entries of the subject, at most the last 200, by time. Reads files.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    pub(crate) fn of(&self, subject: &Subject) -> io::Result<Vec<HistoryEntry>> {
        let mut entries: BTreeMap<Key, HistoryEntry> = BTreeMap::new();
        for file in [&self.older, &self.newer] {
            let file = match File::open(file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            for line in BufReader::new(file).lines() {
                // An agent that died has left a part of a line.
                let Ok(Line { at, what, key, entry }) = serde_json::from_str(&line?) else { continue };
                let known = entries.entry(key).or_default();
                if known.pod.is_empty() {
                    *known = entry;
                }
                match what {
                    // Again where it was repaired.
                    What::Attached => (known.from, known.until) = (known.from.take().or(Some(at)), None),
                    What::Detached => known.until = Some(at),
                }
            }
        }
        let mut found: Vec<HistoryEntry> =
            entries.into_values().filter(|entry| entry.is_of(subject)).collect();
        // What is attached comes last.
        let time = |entry: &HistoryEntry| (entry.until.is_none(), entry.until.clone(), entry.from.clone());
        found.sort_by_cached_key(time);
        let surplus = found.len().saturating_sub(MAX_ENTRIES);
        found.drain(..surplus);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use netclaim_driver::attach::Phase;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{record, result, sandbox};

    fn attached(claim: &str, address: &str) -> Record {
        let result = json!({"cniVersion": "1.1.0", "ips": [{"address": address, "interface": 0}],
            "interfaces": [{"name": "net1", "sandbox": "/run/netns/x", "mac": "02:00:5e:10:00:01"}]});
        record(claim, Phase::Attached { sandbox: sandbox("s"), result: self::result(&result) })
    }

    fn deleting(of: &Record) -> Record {
        let (sandbox, result) = (of.phase.sandbox().cloned().unwrap(), of.phase.result().cloned());
        Record { phase: Phase::Deleting { sandbox, result }, ..of.clone() }
    }

    fn state(records: &[&Record]) -> PodState {
        PodState { records: records.iter().map(|record| (*record).clone()).collect(), ..PodState::default() }
    }

    fn found(history: &History, subject: &str) -> Vec<(String, bool, bool)> {
        let found = history.files().of(&subject.parse().unwrap()).unwrap();
        found
            .into_iter()
            .map(|entry| (entry.addresses.join(","), entry.from.is_some(), entry.until.is_some()))
            .collect()
    }

    #[test]
    fn a_pod_is_found_by_its_address_while_it_is_attached_and_later() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::open(dir.path(), &[]);
        assert_eq!(found(&history, "10.0.0.7"), []);
        let planned = record("a", Phase::Planned);
        let made = attached("a", "10.0.0.7/24");
        for state in [state(&[&planned]), state(&[&made]), state(&[&made])] {
            history.observe("p", &state);
        }
        let now = [("10.0.0.7/24".to_owned(), true, false)];
        assert_eq!(found(&history, "10.0.0.7"), now);
        assert_eq!(found(&history, "02:00:5e:10:00:01"), now);
        assert_eq!(found(&history, "10.0.0.8"), []);
        for state in [state(&[&deleting(&made)]), state(&[])] {
            history.observe("p", &state);
        }
        assert_eq!(found(&history, "10.0.0.7"), [("10.0.0.7/24".to_owned(), true, true)]);
        let lines = fs::read_to_string(&history.files().newer).unwrap();
        assert_eq!(lines.lines().count(), 2, "{lines}");
    }

    #[test]
    fn the_history_goes_on_after_the_agent_and_its_files_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let made = attached("a", "10.0.0.7/24");
        History::open(dir.path(), &[]).observe("p", &state(&[&made]));
        let history = History::open(dir.path(), std::slice::from_ref(&made));
        history.observe("p", &state(&[&made]));
        fs::write(&history.files().older, "{\"at\":\n").unwrap();
        history.observe("p", &state(&[&deleting(&made)]));
        assert_eq!(found(&history, "10.0.0.7"), [("10.0.0.7/24".to_owned(), true, true)]);
        for n in 0..6000 {
            let made = attached("a", &format!("10.1.{}.{}/16", n / 250, n % 250));
            history.observe(&n.to_string(), &state(&[&made]));
        }
        for file in [&history.files().newer, &history.files().older] {
            let size = fs::metadata(file).unwrap().len();
            assert!((1 << 10..=(1 << 20) + 4096).contains(&size), "{size}");
        }
        assert_eq!(
            history.files().of(&"02:00:5e:10:00:01".parse().unwrap()).unwrap().len(),
            1,
            "one sandbox"
        );
    }

    #[test]
    fn an_attachment_that_vanishes_without_a_del_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::open(dir.path(), &[]);
        history.observe("p", &state(&[&attached("a", "10.0.0.7/24")]));
        history.observe("p", &PodState::default());
        assert_eq!(found(&history, "10.0.0.7"), [("10.0.0.7/24".to_owned(), true, true)]);
    }

    #[test]
    fn a_history_that_cannot_be_written_is_left_out() {
        let history = History::open(Path::new("/nonexistent"), &[]);
        history.observe("p", &state(&[&attached("a", "10.0.0.7/24")]));
        assert_eq!(found(&history, "10.0.0.7"), []);
    }
}
