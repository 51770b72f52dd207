//! The journal: one file per attachment, written before anything is done that it says.
//!
//! ```text
//! DIR/POD-UID_CLAIM-UID.INDEX.json   {"version":1,"sha256":"…","record":{…}}
//! DIR/.POD-UID_CLAIM-UID.INDEX.tmp   a write that was cut short; means nothing
//! DIR/.lock                          held by the one agent that writes here
//! ```
//!
//! * A write is atomic and durable when it returns.
//! * A file that cannot be read (torn, foreign, of a newer version) is reported and left where it is: it may
//!   stand for a DEL that is owed, and the one thing the journal never does is forget that. Its name still
//!   says whose it is.
//!
//! Everything here blocks; call it off the async threads.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::plan::Owner;
use super::record::{Phase, Record};
use crate::failpoint::Failpoint;
use netclaim_cni::durable::{self, Lasting, Pending};
use netclaim_cni::{error_chain, hex};

/// The name of the file by whose lock agents take turns.
const LOCK: &str = ".lock";

/// The format that this version writes; it reads this and older ones.
const VERSION: u32 = 1;

/// What can go wrong with the journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot {verb} {}: is the state directory full, read-only or gone?", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A record that cannot be written as JSON.
    #[error("cannot encode the record for {}", path.display())]
    Encode {
        /// Where it should have gone.
        path: PathBuf,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
}

/// A file in the journal's directory that is not a readable record.
#[derive(Debug)]
pub struct Unreadable {
    /// Where it is; it stays there.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl Unreadable {
    /// UIDs of the pod and the group that the file belongs to, by its name.
    pub fn owner(&self) -> Option<(&str, &str)> {
        let (pod, rest) = self.path.file_name()?.to_str()?.strip_suffix(".json")?.split_once('_')?;
        Some((pod, rest.rsplit_once('.')?.0))
    }
}

/// What an agent finds when it starts.
#[derive(Debug)]
pub struct Loaded<O> {
    /// Every record that can be read.
    pub records: Vec<Record<O>>,
    /// Every file that cannot.
    pub unreadable: Vec<Unreadable>,
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    version: u32,
    sha256: String,
    #[serde(borrow)]
    record: &'a RawValue,
}

/// The directory of records.
#[derive(Debug)]
pub struct Journal<O> {
    dir: PathBuf,
    owner: PhantomData<fn() -> O>,
    /// Why the last write failed; `None` after one that did not.
    health: watch::Sender<Option<String>>,
}

impl<O> Clone for Journal<O> {
    fn clone(&self) -> Self {
        Self { dir: self.dir.clone(), owner: PhantomData, health: self.health.clone() }
    }
}

impl<O: Owner> Journal<O> {
    /// Opens the journal in `dir`, which is made if need be. Only its owner may use the directory: whoever
    /// can open the lock file for reading can hold the lock.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, Error> {
        let dir = dir.into();
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(io_error("create", &dir))?;
        for (path, mode) in [(dir.clone(), 0o700), (dir.join(LOCK), 0o600)] {
            for_its_owner(&path, mode);
        }
        Ok(Self { dir, owner: PhantomData, health: watch::Sender::new(None) })
    }

    /// Opens the file by whose lock agents take turns: the right to write is with whoever has
    /// [taken](take_turn) it.
    ///
    /// # Errors
    /// When the file is not there and cannot be made.
    pub fn lock_file(&self) -> Result<File, Error> {
        let path = self.dir.join(LOCK);
        let made =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        // A read-only disk must not keep an agent from its debts.
        made.or_else(|error| File::open(&path).map_err(|_| error)).map_err(io_error("open", &path))
    }

    /// Reads every record, and lists what could not be read.
    ///
    /// # Errors
    /// When the directory itself cannot be read.
    pub fn load(&self) -> Result<Loaded<O>, Error> {
        for path in self.files(|name| name.starts_with('.') && name.ends_with(".tmp"))? {
            // Best effort: a leftover costs nothing but space.
            let _ = fs::remove_file(&path);
        }
        self.read(|name| !name.starts_with('.'))
    }

    /// Reads the records of one pod, to whose files nobody else may write meanwhile.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_pod(&self, pod_uid: &str) -> Result<Loaded<O>, Error> {
        let prefix = format!("{pod_uid}_");
        self.read(|name| name.starts_with(&prefix))
    }

    /// Whether there is a record of the pod, readable or not. Reads only the names of files.
    ///
    /// # Errors
    /// When the directory itself cannot be read.
    pub fn has_pod(&self, pod_uid: &str) -> Result<bool, Error> {
        let prefix = format!("{pod_uid}_");
        Ok(!self.files(|name| name.starts_with(&prefix))?.is_empty())
    }

    fn files(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, Error> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(io_error("read", &self.dir))? {
            let path = entry.map_err(io_error("read", &self.dir))?.path();
            if path.file_name().is_some_and(|name| wanted(&name.to_string_lossy())) {
                files.push(path);
            }
        }
        Ok(files)
    }

    fn read(&self, wanted: impl Fn(&str) -> bool) -> Result<Loaded<O>, Error> {
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for path in self.files(wanted)? {
            match fs::read(&path).map_err(|e| e.to_string()).and_then(|bytes| decode::<O>(&bytes)) {
                Ok(record) => records.push(record),
                Err(reason) => unreadable.push(Unreadable { path, reason }),
            }
        }
        records.sort_by_key(|record| (record.plan.owner.group().to_owned(), record.plan.index));
        Ok(Loaded { records, unreadable })
    }

    /// Writes `record`, replacing what was known of it.
    ///
    /// # Errors
    /// When it is not certain that the record is on disk.
    pub fn write(&self, record: &Record<O>) -> Result<(), Error> {
        self.noted(self.replace(record))
    }

    /// Why nothing can be written now; `None` as long as it can. Whoever watches should
    /// [`probe`](Self::probe) meanwhile.
    pub fn health(&self) -> watch::Receiver<Option<String>> {
        self.health.subscribe()
    }

    /// Looks whether writing works, by a file that means nothing.
    ///
    /// # Errors
    /// When it does not.
    pub fn probe(&self) -> Result<(), Error> {
        let path = self.dir.join(".probe.tmp");
        // As much as a record may take: a full disk has room for empty files.
        let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = made.and_then(|mut file| file.write_all(&[0; 4096])).map_err(io_error("write", &path));
        let removed = fs::remove_file(&path).map_err(io_error("remove", &path));
        self.noted(written.and(removed))
    }

    fn noted(&self, result: Result<(), Error>) -> Result<(), Error> {
        let reason = result.as_ref().err().map(|error| error_chain(error));
        self.health.send_if_modified(|health| std::mem::replace(health, reason.clone()) != reason);
        result
    }

    fn replace(&self, record: &Record<O>) -> Result<(), Error> {
        let path = self.path(record);
        let bytes = encode(record).map_err(|source| Error::Encode { path: path.clone(), source })?;
        let tmp = self.dir.join(format!(".{}_{}.tmp", record.plan.owner.pod_uid(), record.key()));
        let pending = Pending::write(&tmp, &bytes, Lasting::OnDisk)?;
        if record.phase == Phase::Planned {
            Failpoint::PlanHalfWritten.reach();
        }
        Ok(pending.rename(&path)?)
    }

    /// Forgets `record`; it need not be there.
    ///
    /// # Errors
    /// When it is not certain that the record is gone from disk.
    pub fn remove(&self, record: &Record<O>) -> Result<(), Error> {
        // That something can be removed says nothing: a full disk allows it too.
        durable::remove(&self.path(record), Lasting::OnDisk).or_else(|error| self.noted(Err(error.into())))
    }

    fn path(&self, record: &Record<O>) -> PathBuf {
        self.dir.join(format!("{}_{}.json", record.plan.owner.pod_uid(), record.key()))
    }
}

/// Gives a file or directory this mode, where it is there and has another one: the kubelet makes the state
/// directory for everybody. A read-only disk must not keep an agent from its debts, so it is not an error if
/// that fails.
pub fn for_its_owner(path: &Path, mode: u32) {
    let set = match fs::metadata(path) {
        Ok(found) if found.permissions().mode() & 0o7777 != mode => {
            fs::set_permissions(path, Permissions::from_mode(mode))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = set {
        tracing::warn!(path = %path.display(), %error, "other users of the node may read what only the agent should");
    }
}

/// Takes a journal over by its [lock file](Journal::lock_file); `false` while another agent has it. The lock
/// is let go when every duplicate of the descriptor is closed, whichever process has it.
///
/// # Errors
/// When the file cannot be locked.
pub fn take_turn(lock: &File) -> io::Result<bool> {
    match lock.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

impl From<durable::FileError> for Error {
    fn from(durable::FileError { verb, path, source }: durable::FileError) -> Self {
        Self::Io { verb, path, source }
    }
}

fn io_error(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { verb, path, source }
}

pub(crate) fn encode<O: Owner>(record: &Record<O>) -> serde_json::Result<Vec<u8>> {
    let raw = serde_json::value::to_raw_value(record)?;
    serde_json::to_vec(&Envelope { version: VERSION, sha256: sha256(&raw), record: &raw })
}

pub(crate) fn decode<O: Owner>(bytes: &[u8]) -> Result<Record<O>, String> {
    let envelope: Envelope<'_> =
        serde_json::from_slice(bytes).map_err(|e| format!("is not a journal file: {e}"))?;
    if envelope.version > VERSION {
        return Err(format!("is of version {}, newer than {VERSION}: run the newer agent", envelope.version));
    }
    if envelope.sha256 != sha256(envelope.record) {
        return Err("is damaged: the checksum is wrong".to_owned());
    }
    serde_json::from_str(envelope.record.get()).map_err(|e| format!("has no readable record: {e}"))
}

fn sha256(raw: &RawValue) -> String {
    hex(&Sha256::digest(raw.get()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use netclaim_cni::{Effect, Stopped};

    use super::super::record::tests::{Claimant, plan};
    use super::*;

    fn journal() -> (tempfile::TempDir, Journal<Claimant>) {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(dir.path().join("journal")).expect("opens");
        (dir, journal)
    }

    #[test]
    fn a_written_record_is_read_and_a_removed_one_is_not() {
        let (_dir, journal) = journal();
        let (a, b) = (Record::new(plan("a", 0)), Record::new(plan("a", 1)));
        journal.write(&b).expect("writes");
        journal.write(&a).expect("writes");
        journal.write(&a).expect("writes again");
        assert_eq!(journal.load().expect("loads").records, [a.clone(), b.clone()]);
        journal.remove(&a).expect("removes");
        journal.remove(&a).expect("removes again");
        assert_eq!(journal.load().expect("loads").records, [b]);
    }

    #[test]
    fn a_pod_is_in_the_journal_as_long_as_it_has_a_record() {
        let (_dir, journal) = journal();
        let record = Record::new(plan("a", 0));
        assert!(!journal.has_pod("pod-uid").expect("reads"));
        journal.write(&record).expect("writes");
        assert!(journal.has_pod("pod-uid").expect("reads"));
        assert!(!journal.has_pod("pod").expect("reads"), "another pod");
        journal.remove(&record).expect("removes");
        assert!(!journal.has_pod("pod-uid").expect("reads"));
    }

    #[test]
    fn a_written_or_removed_record_outlasts_the_machine() {
        let (_dir, journal) = journal();
        let record = Record::new(plan("a", 0));
        durable::trace::take();
        journal.write(&record).expect("writes");
        // The content before the name, and the name before the plugin that the record is about.
        let file = "pod-uid_a-uid.0";
        assert_eq!(
            durable::trace::take(),
            [format!("sync .{file}.tmp"), format!("rename to {file}.json"), "sync journal".to_owned()]
        );
        journal.remove(&record).expect("removes");
        assert_eq!(durable::trace::take(), ["sync journal"]);
    }

    #[test]
    fn nobody_but_the_owner_can_open_what_is_in_the_journal() {
        let (dir, journal) = journal();
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        let record = Record::new(plan("a", 0));
        journal.write(&record).expect("writes");
        let lock = journal.lock_file().expect("opens");
        let looked = |journal: &Journal<Claimant>| {
            [&journal.dir, &journal.path(&record), &journal.dir.join(LOCK)].map(|path| mode(path))
        };
        assert_eq!(looked(&journal), [0o700, 0o600, 0o600]);
        // As somebody else may have made them.
        fs::set_permissions(&journal.dir, Permissions::from_mode(0o755)).expect("set");
        lock.set_permissions(Permissions::from_mode(0o644)).expect("set");
        let journal: Journal<Claimant> = Journal::open(dir.path().join("journal")).expect("opens");
        assert_eq!(looked(&journal), [0o700, 0o600, 0o600]);
        let above = Journal::<Claimant>::open(dir.path().join("state/journal")).expect("opens");
        assert_eq!(mode(above.dir.parent().expect("a parent")), 0o700);
    }

    #[test]
    fn damaged_foreign_and_newer_files_are_reported_and_kept() {
        let (_dir, journal) = journal();
        let record = Record::new(plan("a", 0));
        journal.write(&record).expect("writes");
        let path = journal.path(&record);
        let good = fs::read_to_string(&path).expect("a file");
        let bad = [
            ("torn", good[..good.len() / 2].to_owned()),
            ("changed", good.replace("storage", "storagf")),
            ("newer", good.replace("\"version\":1", "\"version\":2")),
            ("foreign", "hello".to_owned()),
            ("empty", String::new()),
        ];
        for (name, content) in &bad {
            fs::write(journal.dir.join(format!("{name}.json")), content).expect("writes");
        }
        let Loaded { records, unreadable } = journal.load().expect("loads");
        assert_eq!(records, [record]);
        assert_eq!(unreadable.len(), bad.len(), "{unreadable:?}");
        assert!(unreadable.iter().all(|file| file.path.exists()));
    }

    /// A record with every field, as version 1 of the format has it. Never change it once there is a release:
    /// there are such files on nodes.
    const VERSION_1: &str = include_str!("../../tests/journal/version-1.json");

    #[test]
    fn version_1_is_read_and_written_by_every_agent() {
        let record: Record<Claimant> = decode(VERSION_1.as_bytes()).expect("readable");
        assert!(matches!(record.phase, Phase::Deleting { result: Some(_), .. }));
        let link = record.moved_link.as_ref().expect("moved");
        assert_eq!((link.name.as_str(), link.mtu, link.addresses.len()), ("eth2", 9000, 2));
        assert_eq!((link.index_in_pod, link.identity, link.sysctls.len()), (Some(9), Some(77), 1));
        assert_eq!(record.stopped, Some(Stopped { completed: 1, effect: Effect::Container }));
        assert!(record.stray.is_some() && record.error.is_some() && record.host_link == Some(3));
        let content = |file: &[u8]| {
            let file: serde_json::Value = serde_json::from_slice(file).expect("JSON");
            file["record"].clone()
        };
        assert_eq!(content(&encode(&record).expect("writable")), content(VERSION_1.as_bytes()));
    }

    #[test]
    fn what_is_not_set_is_not_written() {
        let record = Record::new(plan("a", 0));
        let written = serde_json::to_value(&record).expect("JSON");
        let fields: Vec<&str> = written.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(fields, ["phase", "plan"]);
        let plan = written["plan"].as_object().expect("an object");
        let of_plan: Vec<&str> = plan.keys().map(String::as_str).collect();
        // Those of the owner among them.
        assert_eq!(of_plan, ["claim", "conflist", "device", "ifName", "index", "network", "of", "pod"]);
    }

    #[test]
    fn an_earlier_agent_reads_a_file_with_fields_of_a_later_one() {
        let record = Record::new(plan("a", 0));
        let mut later = serde_json::to_value(&record).expect("JSON");
        later["invented"] = serde_json::json!({"later": true});
        later["plan"]["invented"] = serde_json::json!(1);
        let raw = serde_json::value::to_raw_value(&later).expect("JSON");
        let file = Envelope { version: VERSION, sha256: sha256(&raw), record: &raw };
        let read: Record<Claimant> = decode(&serde_json::to_vec(&file).expect("JSON")).expect("readable");
        let mut known = read.clone();
        Arc::make_mut(&mut known.plan).owner.rest.remove("invented");
        assert_eq!(known, record);
    }

    #[test]
    fn a_write_that_was_cut_short_means_nothing() {
        let (_dir, journal) = journal();
        fs::write(journal.dir.join(".pod-uid_a-uid.0.tmp"), "{\"version\":").expect("writes");
        let Loaded { records, unreadable } = journal.load().expect("loads");
        assert!(records.is_empty() && unreadable.is_empty());
    }

    #[test]
    fn a_failed_write_leaves_the_old_record() {
        let (_dir, journal) = journal();
        let record = Record::new(plan("a", 0));
        journal.write(&record).expect("writes");
        // A directory in the way of the temporary file: works for root too, unlike permissions.
        fs::create_dir(journal.dir.join(".pod-uid_a-uid.0.tmp")).expect("made");
        let changed = Record { error: Some("x".into()), ..record.clone() };
        let error = journal.write(&changed).expect_err("cannot write");
        assert!(error.to_string().starts_with("cannot create"), "{error}");
        assert_eq!(journal.load().expect("loads").records, [record]);
    }

    #[test]
    fn trouble_with_the_disk_is_told_until_it_is_over() {
        let (_dir, journal) = journal();
        let health = journal.health();
        fs::create_dir(journal.dir.join(".pod-uid_a-uid.0.tmp")).expect("made");
        journal.write(&Record::new(plan("a", 0))).expect_err("cannot write");
        assert!(health.borrow().as_ref().is_some_and(|why| why.starts_with("cannot create")));
        journal.probe().expect("works for other files");
        assert_eq!(*health.borrow(), None);
        assert!(journal.load().expect("loads").unreadable.is_empty());
    }

    #[test]
    fn the_name_of_a_damaged_file_says_whose_it_is() {
        let file = Unreadable { path: "/j/pod-uid_claim.uid.1.json".into(), reason: String::new() };
        assert_eq!(file.owner(), Some(("pod-uid", "claim.uid")));
        let foreign = Unreadable { path: "/j/hello.json".into(), reason: String::new() };
        assert_eq!(foreign.owner(), None);
    }

    #[test]
    fn a_journal_has_one_owner_until_nobody_holds_its_descriptor() {
        let (_dir, journal) = journal();
        let [first, second] = [(); 2].map(|()| journal.lock_file().expect("opens"));
        let kept = first.try_clone().expect("duplicated");
        assert!(take_turn(&first).expect("locks") && !take_turn(&second).expect("asks"));
        drop(first);
        assert!(!take_turn(&second).expect("asks"), "a duplicate is held");
        drop(kept);
        assert!(take_turn(&second).expect("locks"));
        assert!(journal.load().expect("loads").unreadable.is_empty());
    }
}
