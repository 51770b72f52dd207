//! Notes when pods are attached and detached, with their addresses, for people who ask later who had one.
//!
//! ```text
//!   observed states of pods ──> one line for each ADD and DEL ──> history.jsonl, history.1.jsonl (tmpfs)
//!   netclaimctl who ─────────> both files, read then ──────────> entries
//! ```
//!
//! * The files are in the run directory: they outlive agents, and end with the boot. No disk is waited for.
//! * They have 2 MiB at most, the lines of some 2,000 attachments. What is attached stays in them. In memory
//!   are its sandboxes and interfaces.
//! * A history that cannot be written stops no pod.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use netclaim_api::IfName;
use netclaim_api::history::{HistoryEntry, Subject};
use netclaim_driver::attach::{Interface, Phase, Sandbox};
use serde::{Deserialize, Serialize};

use crate::pods::owner::{PodState, Record};
use crate::reports::now;

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
    noted: Mutex<Noted>,
}

/// What has been noted.
#[derive(Debug, Default)]
struct Noted {
    /// What is attached, by the pods' UIDs.
    attached: HashMap<String, Vec<Key>>,
    /// The last write has failed.
    has_failed: bool,
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
enum Change {
    Attached,
    Detached,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    /// RFC 3339; `None` if it is not known.
    at: Option<String>,
    change: Change,
    key: Key,
    entry: HistoryEntry,
}

impl History {
    /// Continues the history in the run directory. `records` is the content of the journal: what the agent
    /// before has attached and detached without noting it is noted now. Reads files.
    pub(crate) fn open(run_dir: &Path, records: &[Record]) -> Self {
        let files = Files { newer: run_dir.join("history.jsonl"), older: run_dir.join("history.1.jsonl") };
        let mut noted = Noted::default();
        let open = files.open_keys().unwrap_or_default();
        let mut lines = Vec::new();
        let mut now = BTreeSet::new();
        for (record, key) in records.iter().filter_map(|record| Some((record, made(record)?))) {
            if !open.contains(&key) {
                lines.push(Line { at: None, ..Line::of(Change::Attached, &key, Some(record)) });
            }
            now.insert(key.clone());
            noted.attached.entry(record.plan.owner.pod.uid.clone()).or_default().push(key);
        }
        lines.extend(open.difference(&now).map(|key| Line::of(Change::Detached, key, None)));
        noted.append(&files, &lines);
        Self { files, noted: Mutex::new(noted) }
    }

    /// Returns where the lines are, for readers.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Notes what has been attached and detached since the pod was seen last.
    pub(crate) fn observe(&self, pod_uid: &str, state: &PodState) {
        let now: Vec<(Key, &Record)> =
            state.attachments().filter_map(|record| Some((made(record)?, record))).collect();
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = noted.attached.get(pod_uid).map(Vec::as_slice).unwrap_or_default();
        let mut lines = Vec::new();
        for (key, record) in now.iter().filter(|(key, _)| !before.contains(key)) {
            lines.push(Line::of(Change::Attached, key, Some(record)));
        }
        for key in before.iter().filter(|key| now.iter().all(|(now, _)| now != *key)) {
            let record = state.attachments().find(|record| ended(record).as_ref() == Some(key));
            lines.push(Line::of(Change::Detached, key, record));
        }
        if lines.is_empty() {
            return;
        }
        let keys: Vec<Key> = now.into_iter().map(|(key, _)| key).collect();
        if keys.is_empty() {
            noted.attached.remove(pod_uid);
        } else {
            noted.attached.insert(pod_uid.to_owned(), keys);
        }
        noted.append(&self.files, &lines);
    }
}

impl Noted {
    fn append(&mut self, files: &Files, lines: &[Line]) {
        if lines.is_empty() {
            return;
        }
        let appended = files.append(lines, || self.attached.values().flatten().collect());
        if let (Err(error), false) = (&appended, self.has_failed) {
            let path = files.newer.display();
            tracing::warn!(%path, %error, "cannot note who is attached: `netclaimctl who` will not know");
        }
        self.has_failed = appended.is_err();
    }
}

/// An attachment that is made.
fn made(record: &Record) -> Option<Key> {
    match &record.phase {
        Phase::Attached { sandbox, .. } => Some(Key::of(record, sandbox)),
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
    fn of(change: Change, key: &Key, record: Option<&Record>) -> Self {
        Self { at: Some(now()), change, key: key.clone(), entry: record.map(entry).unwrap_or_default() }
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
    /// Appends lines. If the file is full, it becomes the older one, and the new one begins with the lines of
    /// what is `attached`, which would be lost with the older one.
    fn append<'a>(&self, lines: &[Line], attached: impl FnOnce() -> BTreeSet<&'a Key>) -> io::Result<()> {
        let mut text = Vec::new();
        if fs::metadata(&self.newer).is_ok_and(|file| file.len() >= MAX_FILE) {
            let (attached, mut kept) = (attached(), BTreeMap::new());
            self.read(|line| {
                if line.change == Change::Attached && attached.contains(&line.key) {
                    kept.insert(line.key.clone(), line);
                }
            })?;
            kept.values().for_each(|line| write(&mut text, line));
            fs::rename(&self.newer, &self.older)?;
        }
        let mut file =
            OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&self.newer)?;
        // A full file system or a kill can leave a part of a line.
        if ends_within_a_line(&mut file)? {
            text.insert(0, b'\n');
        }
        lines.iter().for_each(|line| write(&mut text, line));
        file.write_all(&text)
    }

    /// Calls `each` with every line, in their order. Reads files.
    fn read(&self, mut each: impl FnMut(Line)) -> io::Result<()> {
        for file in [&self.older, &self.newer] {
            let file = match File::open(file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            for line in BufReader::new(file).split(b'\n') {
                if let Ok(line) = serde_json::from_slice(&line?) {
                    each(line);
                }
            }
        }
        Ok(())
    }

    /// Returns what is attached by the lines.
    fn open_keys(&self) -> io::Result<BTreeSet<Key>> {
        let mut open = BTreeSet::new();
        self.read(|Line { change, key, .. }| {
            match change {
                Change::Attached => open.insert(key),
                Change::Detached => open.remove(&key),
            };
        })?;
        Ok(open)
    }

    /// Returns the entries of the subject, at most the last 200, by time. Reads files.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    pub(crate) fn find(&self, subject: &Subject) -> io::Result<Vec<HistoryEntry>> {
        let mut entries: Vec<HistoryEntry> = Vec::new();
        // Where the last entry of each attachment is.
        let mut last: BTreeMap<Key, usize> = BTreeMap::new();
        self.read(|Line { at, change, key, entry }| {
            let known = last.get(&key).and_then(|known| entries.get_mut(*known));
            match (change, known) {
                // It was noted again, or repaired.
                (Change::Attached, Some(known)) if known.has_same(&entry) => known.until = None,
                (Change::Attached, known) => {
                    if let Some(known) = known {
                        known.until = known.until.take().or_else(|| at.clone());
                    }
                    last.insert(key, entries.len());
                    entries.push(HistoryEntry { from: at, until: None, ..entry });
                }
                (Change::Detached, Some(known)) => known.until = at,
                (Change::Detached, None) if !entry.pod.is_empty() => {
                    entries.push(HistoryEntry { from: None, until: at, ..entry });
                }
                (Change::Detached, None) => {}
            }
        })?;
        let mut found: Vec<HistoryEntry> = entries.into_iter().filter(|entry| entry.is_of(subject)).collect();
        // What is attached comes last.
        let time = |entry: &HistoryEntry| (entry.until.is_none(), entry.until.clone(), entry.from.clone());
        found.sort_by_cached_key(time);
        let surplus = found.len().saturating_sub(MAX_ENTRIES);
        found.drain(..surplus);
        Ok(found)
    }
}

fn write(text: &mut Vec<u8>, line: &Line) {
    // Writing to a Vec does not fail, and a line has nothing that JSON cannot have.
    if serde_json::to_writer(&mut *text, line).is_ok() {
        text.push(b'\n');
    }
}

fn ends_within_a_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
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
        let found = history.files().find(&subject.parse().unwrap()).unwrap();
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
        let lines = || fs::read_to_string(&history.files().newer).unwrap().lines().count();
        assert_eq!(lines(), 1, "it is noted already");
        for n in 0..6000 {
            let mut made = attached("a", &format!("10.1.{}.{}/16", n / 250, n % 250));
            if let Phase::Attached { sandbox, .. } = &mut made.phase {
                sandbox.id = n.to_string();
            }
            for records in [&[&made][..], &[]] {
                history.observe("q", &state(records));
            }
        }
        for file in [&history.files().newer, &history.files().older] {
            let size = fs::metadata(file).unwrap().len();
            assert!((1 << 10..=(1 << 20) + 4096).contains(&size), "{size}");
        }
        assert_eq!(found(&history, "10.0.0.7").len(), 1, "it is still attached");
    }

    #[test]
    fn what_the_agent_before_has_not_noted_is_noted_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let gone = Record {
            phase: Phase::Attached {
                sandbox: sandbox("gone"),
                result: result(&json!({
            "cniVersion": "1.1.0", "ips": [{"address": "10.0.0.8/24"}]})),
            },
            ..attached("b", "10.0.0.8/24")
        };
        History::open(dir.path(), &[]).observe("q", &state(&[&gone]));
        let history = History::open(dir.path(), &[attached("a", "10.0.0.7/24")]);
        assert_eq!(found(&history, "10.0.0.7"), [("10.0.0.7/24".to_owned(), false, false)]);
        assert_eq!(found(&history, "10.0.0.8"), [("10.0.0.8/24".to_owned(), true, true)]);
        let again = History::open(dir.path(), &[attached("a", "10.0.0.7/24")]);
        assert_eq!(found(&again, "10.0.0.7").len(), 1);
    }

    #[test]
    fn an_attachment_that_was_made_again_with_another_address_has_two_entries() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::open(dir.path(), &[]);
        let (one, other) = (attached("a", "10.0.0.7/24"), attached("a", "10.0.0.8/24"));
        for state in [state(&[&one]), state(&[&deleting(&one)]), state(&[&other])] {
            history.observe("p", &state);
        }
        assert_eq!(found(&history, "10.0.0.7"), [("10.0.0.7/24".to_owned(), true, true)]);
        assert_eq!(found(&history, "10.0.0.8"), [("10.0.0.8/24".to_owned(), true, false)]);
        for state in [state(&[&deleting(&other)]), state(&[&other])] {
            history.observe("p", &state);
        }
        assert_eq!(found(&history, "10.0.0.8"), [("10.0.0.8/24".to_owned(), true, false)], "the same again");
    }

    #[test]
    fn a_part_of_a_line_takes_no_other_line_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::open(dir.path(), &[]);
        let made = attached("a", "10.0.0.7/24");
        history.observe("p", &state(&[&made]));
        let path = &history.files().newer;
        let mut text = fs::read(path).unwrap();
        text.extend_from_slice(b"{\"at\":\"2026-\xff");
        fs::write(path, text).unwrap();
        history.observe("p", &state(&[&deleting(&made)]));
        assert_eq!(found(&history, "10.0.0.7"), [("10.0.0.7/24".to_owned(), true, true)]);
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
