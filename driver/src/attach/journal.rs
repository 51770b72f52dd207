//! The journal: the state of each attachment, written before anything is done that it says.
//!
//! ```text
//! DURABLE/POD-UID_CLAIM-UID.INDEX.json   {"version":1,"sha256":"…","record":{…}}
//! DURABLE/.POD-UID_CLAIM-UID.INDEX.tmp   a write that was cut short; means nothing
//! DURABLE/.lock                          held by the one agent that writes here
//! OF-BOOT/POD-UID_CLAIM-UID.INDEX.json   the same format; in memory, gone with the boot
//! ```
//!
//! * A write is atomic. It is durable when it returns if it [must survive](must_survive) a power cut: an ADD
//!   is about to start, and what plugins keep on disk outlives the boot. Everything else is a fact of this
//!   boot, because no sandbox outlives it, and goes to the boot's folder without a wait for the disk.
//! * A file in the boot's folder is newer than the durable one of its name, and decides. A durable write
//!   removes it, when the new file is certain: until then the old one is still right, as nothing was done.
//! * The durable file says at least what is owed: `Adding` stands for all that may follow. So if the boot's
//!   folder is lost, by a reboot or by hand, a DEL is owed as for an ADD that was cut short. A record in
//!   phase `Planned` owes nothing, and is prepared again after a reboot. The durable file never says
//!   `Attached` of what is not.
//! * A file that cannot be read (torn, foreign, of a newer version) is reported and left where it is: it may
//!   stand for a DEL that is owed, and the one thing the journal never does is forget that. Its name still
//!   says whose it is. Nor does an older durable file replace an unreadable one of the boot's folder: its DEL
//!   would detach a running pod. An admin who removes the unreadable file chooses that.
//! * A removal does not wait for the disk. If the power fails before it is on disk, one more DEL follows.
//!   That is harmless: links of the host are not given back to it after a reboot.
//!
//! What a power cut costs a record, beside its phase: `result` (the DEL has none, as after an ADD that was
//! cut short), `stopped` (the DEL runs all plugins), `host_link` and the link's index in the pod (numbers of
//! this boot), `stray` (after a reboot the host has its links). `moved_link` and the plan are there with
//! `Adding`. When an agent ends in order, it [moves everything to disk](Journal::move_to_disk), so that only
//! a power cut loses results.
//!
//! Everything here blocks; call it off the async threads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

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

/// The newest format that this version writes; it reads this and older ones.
const VERSION: u32 = OF_FINALIZERS;

/// The format of attachments.
const OF_ATTACHMENTS: u32 = 1;

/// The format of finalizers. An agent from before them would take one for an attachment: it cannot read the
/// file, keeps the pod's gate shut and deletes nothing of it.
const OF_FINALIZERS: u32 = 2;

/// What can go wrong with the journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot {verb} {}: is its file system full, read-only or gone?", path.display())]
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

/// The records that an agent finds when it starts.
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

/// How many files [`Journal::move_to_disk`] writes at once: file systems sync them together.
const MOVED_AT_ONCE: usize = 16;

/// The folders of records.
#[derive(Debug)]
pub struct Journal<O> {
    durable: PathBuf,
    of_boot: PathBuf,
    owner: PhantomData<fn() -> O>,
    /// Why a write failed; `None` when a probe has succeeded since.
    health: watch::Sender<Option<String>>,
}

impl<O> Clone for Journal<O> {
    fn clone(&self) -> Self {
        Self {
            durable: self.durable.clone(),
            of_boot: self.of_boot.clone(),
            owner: PhantomData,
            health: self.health.clone(),
        }
    }
}

/// Whether `record` must be durable before anything is done about it. `on_disk` reads what is durable.
fn must_survive<O: Owner>(record: &Record<O>, on_disk: impl FnOnce() -> Option<Record<O>>) -> bool {
    match record.phase {
        // A plugin is about to run. What it keeps on disk outlives the boot.
        Phase::Adding { .. } => true,
        // As an agent has left it that ended in order, or one of an earlier version.
        Phase::Deleting { .. } => on_disk().is_some_and(|old| matches!(old.phase, Phase::Attached { .. })),
        Phase::Planned | Phase::Attached { .. } => false,
    }
}

impl<O: Owner> Journal<O> {
    /// Opens the journal in two folders, which are made if need be: the `durable` one, and one that is this
    /// boot's alone (it is not read in another boot, even if it is not in memory). Only its owner may use
    /// them: a process that can open the lock file for reading can hold the lock.
    ///
    /// # Errors
    /// When a folder cannot be made.
    pub fn open(durable: impl Into<PathBuf>, of_boot: impl Into<PathBuf>) -> Result<Self, Error> {
        let (durable, of_boot) = (durable.into(), of_boot.into());
        for dir in [&durable, &of_boot] {
            make_dir(dir)?;
            for_its_owner(dir, 0o700);
        }
        for_its_owner(&durable.join(LOCK), 0o600);
        Ok(Self { durable, of_boot, owner: PhantomData, health: watch::Sender::new(None) })
    }

    /// Opens the file by whose lock agents take turns: the right to write is with the process that has
    /// [taken](take_turn) it.
    ///
    /// # Errors
    /// When the file is not there and cannot be made.
    pub fn lock_file(&self) -> Result<File, Error> {
        let path = self.durable.join(LOCK);
        let made =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        // A read-only disk must not keep an agent from its debts.
        made.or_else(|error| File::open(&path).map_err(|_| error)).map_err(io_error("open", &path))
    }

    /// Reads every record, and lists what could not be read. A debt that is not on disk any more, because
    /// the file was removed or damaged, is written again.
    ///
    /// # Errors
    /// When a folder itself cannot be read.
    pub fn load(&self) -> Result<Loaded<O>, Error> {
        for dir in [&self.durable, &self.of_boot] {
            for path in files(dir, |name| name.starts_with('.') && name.ends_with(".tmp"))?.values() {
                // Best effort: a leftover costs nothing but space.
                let _ = fs::remove_file(path);
            }
        }
        let loaded = self.read(|name| !name.starts_with('.'))?;
        for record in &loaded.records {
            if record.phase.sandbox().is_some() && self.on_disk(record).is_none() {
                tracing::warn!(
                    file = name(record),
                    "a DEL that is owed was not on disk any more: writing it again"
                );
                if let Err(error) = self.write_to_disk(record) {
                    tracing::warn!(file = name(record), error = error_chain(&error), "cannot write it");
                }
            }
        }
        Ok(loaded)
    }

    /// Reads the records of one pod, whose files must not be written meanwhile.
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
    /// When a folder itself cannot be read.
    pub fn has_pod(&self, pod_uid: &str) -> Result<bool, Error> {
        let prefix = format!("{pod_uid}_");
        Ok(!self.deciding(|name| name.starts_with(&prefix))?.is_empty())
    }

    /// The files that decide, by name.
    fn deciding(&self, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<OsString, PathBuf>, Error> {
        let mut deciding = files(&self.durable, &wanted)?;
        deciding.extend(files(&self.of_boot, &wanted)?);
        Ok(deciding)
    }

    fn read(&self, wanted: impl Fn(&str) -> bool) -> Result<Loaded<O>, Error> {
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for path in self.deciding(wanted)?.into_values() {
            match fs::read(&path).map_err(|e| e.to_string()).and_then(|bytes| decode::<O>(&bytes)) {
                Ok(record) => records.push(record),
                Err(reason) => unreadable.push(Unreadable { path, reason }),
            }
        }
        records.sort_by_key(|record| (record.plan.owner.group().to_owned(), record.plan.index));
        Ok(Loaded { records, unreadable })
    }

    /// What is durable of this record, if it can be read.
    fn on_disk(&self, record: &Record<O>) -> Option<Record<O>> {
        decode(&fs::read(self.durable.join(name(record))).ok()?).ok()
    }

    /// Writes `record`, replacing its earlier state.
    ///
    /// # Errors
    /// When it is not certain that the next agent finds the record: in this boot, and after a power cut if it
    /// [must survive](must_survive) one.
    pub fn write(&self, record: &Record<O>) -> Result<(), Error> {
        let written = if must_survive(record, || self.on_disk(record)) {
            self.write_to_disk(record).and_then(|()| {
                let outdated = self.of_boot.join(name(record));
                Ok(durable::remove(&outdated, Lasting::InKernel)?)
            })
        } else {
            self.write_for_this_boot(record)
        };
        self.noted(written)
    }

    /// Why nothing can be written now; `None` as long as it can. A caller that watches should
    /// [`probe`](Self::probe) meanwhile.
    pub fn health(&self) -> watch::Receiver<Option<String>> {
        self.health.subscribe()
    }

    /// Looks whether writing works in both folders, by files that mean nothing.
    ///
    /// # Errors
    /// When it does not.
    pub fn probe(&self) -> Result<(), Error> {
        let probed = [&self.durable, &self.of_boot].into_iter().try_for_each(|dir| probe(dir));
        let reason = probed.as_ref().err().map(|error| error_chain(error));
        self.health.send_if_modified(|health| std::mem::replace(health, reason.clone()) != reason);
        probed
    }

    /// Notes why a write failed. One that succeeds says nothing of the other folder.
    fn noted(&self, result: Result<(), Error>) -> Result<(), Error> {
        if let Err(error) = &result {
            self.health.send_replace(Some(error_chain(error)));
        }
        result
    }

    /// Waits for the disk twice: no file system promises that a synced file has its name after a rename, or
    /// that a synced name has its content.
    fn write_to_disk(&self, record: &Record<O>) -> Result<(), Error> {
        let tmp = self.durable.join(tmp_name(record));
        let path = self.durable.join(name(record));
        Ok(Pending::write(&tmp, &bytes(record, &path)?, Lasting::OnDisk)?.rename(&path)?)
    }

    fn write_for_this_boot(&self, record: &Record<O>) -> Result<(), Error> {
        let (tmp, path) = (self.of_boot.join(tmp_name(record)), self.of_boot.join(name(record)));
        let bytes = bytes(record, &path)?;
        let write = || Pending::write(&tmp, &bytes, Lasting::InKernel);
        let pending = match write() {
            // The run directory was emptied.
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                make_dir(&self.of_boot)?;
                write()?
            }
            written => written?,
        };
        if record.phase == Phase::Planned {
            Failpoint::PlanHalfWritten.reach();
        }
        Ok(pending.rename(&path)?)
    }

    /// Forgets `record`; it need not be there.
    ///
    /// # Errors
    /// When the next agent of this boot may find it.
    pub fn remove(&self, record: &Record<O>) -> Result<(), Error> {
        // In this order: the boot's file knows the record as it is, the durable one owes what may be done.
        let removed = [&self.durable, &self.of_boot]
            .into_iter()
            .try_for_each(|dir| Ok(durable::remove(&dir.join(name(record)), Lasting::InKernel)?));
        // That something can be removed says nothing: a full disk allows it too.
        self.noted(removed)
    }

    /// Moves every record to the durable folder, for an agent that ends in order and writes no more. So DELs
    /// after an orderly reboot have the results of their ADDs, and an agent that knows the durable folder
    /// only finds all.
    ///
    /// # Errors
    /// When a record cannot be written. It stays where it is.
    pub fn move_to_disk(&self) -> Result<(), Error> {
        let here = files(&self.of_boot, |name| !name.starts_with('.'))?;
        let here = Mutex::new(here.into_values());
        let next = || here.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            let mut moved = Ok(());
            while let Some(path) = next() {
                // Whatever fails: the others are moved.
                let result = self.move_file(&path);
                moved = moved.and(result);
            }
            moved
        };
        thread::scope(|scope| {
            let workers = [(); MOVED_AT_ONCE].map(|()| scope.spawn(work));
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    fn move_file(&self, path: &Path) -> Result<(), Error> {
        // An agent that cannot read it any more, or not yet, finds it where it is.
        let Some(record) = fs::read(path).ok().and_then(|bytes| decode::<O>(&bytes).ok()) else {
            return Ok(());
        };
        self.write_to_disk(&record)?;
        Ok(durable::remove(path, Lasting::InKernel)?)
    }
}

/// The name of a record's file.
fn name<O: Owner>(record: &Record<O>) -> String {
    format!("{}_{}.json", record.plan.owner.pod_uid(), record.key())
}

fn tmp_name<O: Owner>(record: &Record<O>) -> String {
    format!(".{}_{}.tmp", record.plan.owner.pod_uid(), record.key())
}

/// The content of the file at `path`.
fn bytes<O: Owner>(record: &Record<O>, path: &Path) -> Result<Vec<u8>, Error> {
    encode(record).map_err(|source| Error::Encode { path: path.to_owned(), source })
}

fn make_dir(dir: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error("create", dir))
}

/// The files of a folder whose names are wanted, by name. A boot's folder may be gone.
fn files(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<OsString, PathBuf>, Error> {
    let mut files = BTreeMap::new();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
        entries => entries.map_err(io_error("read", dir))?,
    };
    for entry in entries {
        let entry = entry.map_err(io_error("read", dir))?;
        if wanted(&entry.file_name().to_string_lossy()) {
            files.insert(entry.file_name(), entry.path());
        }
    }
    Ok(files)
}

fn probe(dir: &Path) -> Result<(), Error> {
    let path = dir.join(".probe.tmp");
    // As much as a record may take: a full disk has room for empty files.
    let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let written = made.and_then(|mut file| file.write_all(&[0; 4096])).map_err(io_error("write", &path));
    let removed = fs::remove_file(&path).map_err(io_error("remove", &path));
    written.and(removed)
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
    let version = if record.plan.is_finalizer() { OF_FINALIZERS } else { OF_ATTACHMENTS };
    serde_json::to_vec(&Envelope { version, sha256: sha256(&raw), record: &raw })
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
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    use netclaim_cni::{Effect, Stopped};
    use proptest::prelude::*;

    use super::super::machine::{Event, after};
    use super::super::record::tests::{Claimant, plan, result, sandbox};
    use super::*;

    const FILE: &str = "pod-uid_a-uid.0.json";

    fn opened(dir: &Path) -> Journal<Claimant> {
        Journal::open(dir.join("journal"), dir.join("run/boot")).expect("opens")
    }

    fn journal() -> (tempfile::TempDir, Journal<Claimant>) {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = opened(dir.path());
        (dir, journal)
    }

    /// A record in the phase that these events lead to.
    fn record(events: &[Event]) -> Record<Claimant> {
        let mut record = Record::new(plan("a", 0));
        for event in events {
            record.phase = after(record.phase, event.clone()).expect("legal");
        }
        record
    }

    fn added() -> Event {
        Event::Added(result(r#"{"cniVersion":"1.1.0"}"#))
    }

    /// A record in each phase of its life.
    fn life() -> [Record<Claimant>; 4] {
        let events = [Event::AddDue(sandbox("s")), added(), Event::DelDue];
        [0, 1, 2, 3].map(|count| record(&events[..count]))
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
    fn a_finalizer_has_a_file_that_agents_from_before_them_do_not_read() {
        let finalizer = Record::new(super::super::Plan { finalizes: Some(0), ..plan("a", 1) });
        let version = |record: &Record<Claimant>| {
            let file = encode(record).expect("encodes");
            assert_eq!(decode::<Claimant>(&file).expect("reads"), *record);
            serde_json::from_slice::<serde_json::Value>(&file).expect("JSON")["version"].as_u64()
        };
        assert_eq!(version(&finalizer), Some(2));
        assert_eq!(version(&Record::new(plan("a", 0))), Some(1));
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
    fn a_life_waits_for_the_disk_twice_and_both_before_its_add() {
        let (_dir, journal) = journal();
        let [planned, adding, attached, deleting] = life();
        let steps = |record: &Record<Claimant>| {
            journal.write(record).expect("writes");
            durable::trace::take()
        };
        durable::trace::take();
        let in_memory = [format!("rename to {FILE}")];
        assert_eq!(steps(&planned), in_memory);
        // The content before the name, and the name before the plugin that the record is about.
        let on_disk = ["sync .pod-uid_a-uid.0.tmp", &in_memory[0], "sync journal", &format!("remove {FILE}")];
        assert_eq!(steps(&adding), on_disk);
        for record in [&attached, &deleting, &planned] {
            assert_eq!(steps(record), in_memory);
        }
        journal.remove(&planned).expect("removes");
        assert_eq!(durable::trace::take(), [format!("remove {FILE}"), format!("remove {FILE}")]);
    }

    #[test]
    fn a_del_of_what_is_attached_on_disk_is_durable_before_it_starts() {
        let (dir, journal) = journal();
        let [_, _, attached, deleting] = life();
        journal.write(&attached).expect("writes");
        journal.move_to_disk().expect("moves");
        assert!(!journal.of_boot.join(FILE).exists());
        let next = opened(dir.path());
        assert_eq!(next.load().expect("loads").records, [attached]);
        durable::trace::take();
        next.write(&deleting).expect("writes");
        assert_eq!(durable::trace::take().iter().filter(|step| step.starts_with("sync")).count(), 2);
        fs::remove_dir_all(&next.of_boot).expect("removed");
        assert_eq!(next.load().expect("loads").records, [deleting]);
    }

    #[test]
    fn an_agent_that_ends_in_order_leaves_everything_on_disk() {
        let (dir, journal) = journal();
        let [planned, _, attached, deleting] = life();
        let records: Vec<_> = (0..50)
            .map(|n| {
                let phase = [&planned, &attached, &deleting][n as usize % 3].phase.clone();
                Record { phase, ..Record::new(plan("a", n)) }
            })
            .collect();
        for record in &records {
            journal.write(record).expect("writes");
        }
        fs::write(journal.of_boot.join("p_c.0.json"), "torn").expect("writes");
        journal.move_to_disk().expect("moves");
        let left: Vec<_> = fs::read_dir(&journal.of_boot).expect("there").flatten().collect();
        assert_eq!(left.len(), 1, "what cannot be read stays: {left:?}");
        let after_reboot = Journal::<Claimant>::open(dir.path().join("journal"), dir.path().join("run/next"))
            .expect("opens");
        assert_eq!(after_reboot.load().expect("loads").records, records);
    }

    #[test]
    fn a_debt_that_was_removed_from_the_disk_is_written_there_again() {
        for damage in [|path: &Path| fs::remove_file(path), |path: &Path| fs::write(path, "torn")] {
            let (_dir, journal) = journal();
            let [planned, adding, attached, _] = life();
            journal.write(&adding).expect("writes");
            journal.write(&attached).expect("writes");
            damage(&journal.durable.join(FILE)).expect("damaged");
            let loaded = journal.load().expect("loads");
            assert_eq!(loaded.records, std::slice::from_ref(&attached));
            assert!(loaded.unreadable.is_empty(), "it is not needed: {:?}", loaded.unreadable);
            assert_eq!(journal.on_disk(&attached), Some(attached));
            journal.remove(&planned).expect("removes");
            journal.write(&planned).expect("writes");
            journal.load().expect("loads");
            assert_eq!(journal.on_disk(&planned), None, "it owes nothing");
        }
    }

    #[test]
    fn an_unreadable_file_of_this_boot_is_not_replaced_by_an_older_one() {
        let (_dir, journal) = journal();
        let [_, adding, attached, _] = life();
        journal.write(&adding).expect("writes");
        journal.write(&attached).expect("writes");
        fs::write(journal.of_boot.join(FILE), "torn").expect("writes");
        let Loaded { records, unreadable } = journal.load().expect("loads");
        assert!(records.is_empty(), "its DEL would detach a running pod");
        let of: Vec<_> = unreadable.iter().map(|file| (file.path.as_path(), file.owner())).collect();
        assert_eq!(of, [(journal.of_boot.join(FILE).as_path(), Some(("pod-uid", "a-uid")))]);
        // An admin chooses the DEL.
        fs::remove_file(journal.of_boot.join(FILE)).expect("removed");
        assert_eq!(journal.load().expect("loads").records, [adding]);
    }

    #[test]
    fn a_pod_is_in_the_journal_whichever_folder_has_it() {
        let (_dir, journal) = journal();
        let [planned, adding, ..] = life();
        for record in [&planned, &adding] {
            journal.write(record).expect("writes");
            assert!(journal.has_pod("pod-uid").expect("reads"));
            assert_eq!(journal.load_pod("pod-uid").expect("loads").records.len(), 1);
        }
        fs::remove_dir_all(&journal.of_boot).expect("removed");
        assert!(journal.has_pod("pod-uid").expect("reads"));
    }

    #[test]
    fn an_emptied_run_directory_is_made_again_by_the_next_write() {
        let (dir, journal) = journal();
        fs::remove_dir_all(dir.path().join("run")).expect("removed");
        let [planned, ..] = life();
        journal.write(&planned).expect("writes");
        assert_eq!(journal.load().expect("loads").records, [planned]);
        assert_eq!(fs::metadata(&journal.of_boot).expect("there").permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn only_the_owner_can_open_the_files_of_the_journal() {
        let (dir, journal) = journal();
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        let [_, adding, attached, _] = life();
        journal.write(&adding).expect("writes");
        journal.write(&attached).expect("writes");
        let lock = journal.lock_file().expect("opens");
        let looked = |journal: &Journal<Claimant>| {
            let Journal { durable, of_boot, .. } = journal;
            [durable, of_boot, &durable.join(FILE), &of_boot.join(FILE), &durable.join(LOCK)]
                .map(|path| mode(path))
        };
        assert_eq!(looked(&journal), [0o700, 0o700, 0o600, 0o600, 0o600]);
        // As another program may have made them.
        for dir in [&journal.durable, &journal.of_boot] {
            fs::set_permissions(dir, Permissions::from_mode(0o755)).expect("set");
        }
        lock.set_permissions(Permissions::from_mode(0o644)).expect("set");
        assert_eq!(looked(&opened(dir.path())), [0o700, 0o700, 0o600, 0o600, 0o600]);
        let above = dir.path().join("state");
        Journal::<Claimant>::open(above.join("journal"), above.join("run")).expect("opens");
        assert_eq!(mode(&above), 0o700);
    }

    #[test]
    fn damaged_foreign_and_newer_files_are_reported_and_kept() {
        let (_dir, journal) = journal();
        let record = Record::new(plan("a", 0));
        journal.write(&record).expect("writes");
        let path = journal.of_boot.join(FILE);
        let good = fs::read_to_string(&path).expect("a file");
        let bad = [
            ("torn", good[..good.len() / 2].to_owned()),
            ("changed", good.replace("storage", "storagf")),
            ("newer", good.replace("\"version\":1", "\"version\":3")),
            ("foreign", "hello".to_owned()),
            ("empty", String::new()),
        ];
        for (name, content) in &bad {
            fs::write(journal.durable.join(format!("{name}.json")), content).expect("writes");
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
    fn a_field_that_is_not_set_is_not_written() {
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
        let halves = [&journal.durable, &journal.of_boot].map(|dir| dir.join(".pod-uid_a-uid.0.tmp"));
        for half in &halves {
            fs::write(half, "{\"version\":").expect("writes");
        }
        let Loaded { records, unreadable } = journal.load().expect("loads");
        assert!(records.is_empty() && unreadable.is_empty());
        assert!(halves.iter().all(|half| !half.exists()));
    }

    #[test]
    fn a_failed_write_leaves_the_old_record() {
        let (_dir, journal) = journal();
        let [planned, adding, ..] = life();
        journal.write(&planned).expect("writes");
        // A directory in the way of the temporary file: works for root too, unlike permissions.
        for dir in [&journal.durable, &journal.of_boot] {
            fs::create_dir(dir.join(".pod-uid_a-uid.0.tmp")).expect("made");
        }
        for changed in [adding, Record { error: Some("x".into()), ..planned.clone() }] {
            let error = journal.write(&changed).expect_err("cannot write");
            assert!(error.to_string().starts_with("cannot create"), "{error}");
            assert_eq!(journal.load().expect("loads").records, std::slice::from_ref(&planned));
        }
    }

    #[test]
    fn trouble_with_either_folder_is_told_until_both_work() {
        let (_dir, journal) = journal();
        let [planned, adding, ..] = life();
        let health = journal.health();
        for (dir, fails, works) in
            [(&journal.durable, &adding, Some(&planned)), (&journal.of_boot, &planned, None)]
        {
            fs::create_dir(dir.join(".pod-uid_a-uid.0.tmp")).expect("made");
            journal.write(fails).expect_err("cannot write");
            if let Some(works) = works {
                journal.write(works).expect("writes");
            }
            assert!(health.borrow().as_ref().is_some_and(|why| why.starts_with("cannot create")));
            fs::create_dir(dir.join(".probe.tmp")).expect("made");
            journal.probe().expect_err("cannot write");
            assert!(health.borrow().as_ref().is_some_and(|why| why.starts_with("cannot write")));
            fs::remove_dir(dir.join(".probe.tmp")).expect("removed");
            journal.probe().expect("works for other files");
            assert_eq!(*health.borrow(), None);
        }
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
    fn a_journal_has_one_owner_until_its_last_descriptor_is_closed() {
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

    /// The files of a folder with their content.
    type Files = BTreeMap<OsString, Vec<u8>>;

    fn content(dir: &Path) -> Files {
        let listed = files(dir, |name| name.ends_with(".json")).expect("reads");
        listed.into_iter().map(|(name, path)| (name, fs::read(path).expect("reads"))).collect()
    }

    /// What is so, whatever the journal says.
    #[derive(Debug, Clone, Default)]
    struct Truth {
        /// The plan was journalled, and its record is not being removed.
        prepared: bool,
        /// The sandbox of an ADD that was begun and whose DEL has not ended.
        owed: Option<String>,
        /// The sandbox in which the interface is whole.
        whole: Option<String>,
        /// The journal has said so.
        told: bool,
        /// The journal has said that nothing is owed.
        clear: bool,
    }

    /// The folders after a step, and what is so then.
    struct Moment {
        durable: Files,
        /// Without what was not synced.
        synced: Files,
        of_boot: Files,
        truth: Truth,
    }

    impl Moment {
        /// What an agent reads that starts with these folders.
        fn read(durable: &Files, of_boot: Option<&Files>) -> Option<Record<Claimant>> {
            let (dir, journal) = journal();
            let none = Files::new();
            for (dir, files) in [(&journal.durable, durable), (&journal.of_boot, of_boot.unwrap_or(&none))] {
                for (name, bytes) in files {
                    fs::write(dir.join(name), bytes).expect("writes");
                }
            }
            let Loaded { mut records, unreadable } = journal.load().expect("loads");
            assert!(unreadable.is_empty() && records.len() <= 1, "{records:?}, {unreadable:?}");
            drop(dir);
            records.pop()
        }

        fn check(&self) -> Result<(), TestCaseError> {
            let Self { durable, synced, of_boot, truth } = self;
            let crash = Self::read(durable, Some(of_boot));
            let emptied = Self::read(durable, None);
            let power_cuts = [Self::read(synced, None), emptied.clone()];
            let at = |record: &Option<Record<Claimant>>| {
                record.as_ref().and_then(|record| Some(record.phase.sandbox()?.id.clone()))
            };
            for found in [&crash, &emptied].into_iter().chain(&power_cuts) {
                if truth.owed.is_some() {
                    prop_assert_eq!(&at(found), &truth.owed, "a DEL is forgotten: {:?}, {:?}", truth, found);
                }
            }
            for found in [&crash, &emptied] {
                if let Some(Record { phase: Phase::Attached { sandbox, .. }, .. }) = found {
                    prop_assert_eq!(Some(&sandbox.id), truth.whole.as_ref(), "not attached: {:?}", truth);
                }
            }
            prop_assert!(!truth.clear || at(&crash).is_none(), "a DEL is invented: {:?}", crash);
            let phase = crash.map(|record| record.phase);
            prop_assert!(phase.is_some() || !truth.prepared, "the plan is forgotten");
            let attached = matches!(phase, Some(Phase::Attached { .. } | Phase::Deleting { .. }));
            prop_assert!(attached || !truth.told, "a crash detaches a running pod: {:?}", phase);
            Ok(())
        }
    }

    /// A journal whose every moment is kept.
    struct Watched {
        dir: tempfile::TempDir,
        journal: Journal<Claimant>,
        record: Option<Record<Claimant>>,
        truth: Rc<RefCell<Truth>>,
        moments: Rc<RefCell<Vec<Moment>>>,
        /// Keeps a moment.
        look: Rc<RefCell<durable::trace::Watcher>>,
    }

    impl Watched {
        fn new() -> Self {
            let (dir, journal) = journal();
            let (truth, moments) = (Rc::<RefCell<Truth>>::default(), Rc::<RefCell<Vec<Moment>>>::default());
            let (of_journal, now, kept) = (journal.clone(), Rc::clone(&truth), Rc::clone(&moments));
            let mut synced = Files::new();
            let look: durable::trace::Watcher = Box::new(move |step| {
                let durable = content(&of_journal.durable);
                let moment = Moment {
                    durable: durable.clone(),
                    synced: synced.clone(),
                    of_boot: content(&of_journal.of_boot),
                    truth: now.borrow().clone(),
                };
                kept.borrow_mut().push(moment);
                if step == "sync journal" {
                    synced = durable;
                }
            });
            let look = Rc::new(RefCell::new(look));
            let watcher = Rc::clone(&look);
            durable::trace::watch(Some(Box::new(move |step| watcher.borrow_mut()(step))));
            Self { dir, journal, record: None, truth, moments, look }
        }

        /// Moves the record on, and writes it.
        fn write(&mut self, event: Event) {
            let Some(record) = &mut self.record else { return };
            record.phase = after(record.phase.clone(), event).expect("legal");
            self.journal.write(record).expect("writes");
        }

        /// A step of the record's life, of those that can follow.
        fn step(&mut self, choice: u8, id: u8) {
            let phase = self.record.as_ref().map(|record| record.phase.clone());
            let truth = Rc::clone(&self.truth);
            match phase {
                None => {
                    let record = Record::new(plan("a", 0));
                    self.journal.write(&record).expect("writes");
                    self.record = Some(record);
                    *truth.borrow_mut() = Truth { prepared: true, clear: true, ..Truth::default() };
                }
                Some(Phase::Planned) if choice == 0 => self.forget(),
                Some(Phase::Planned) => {
                    let id = format!("s{id}");
                    truth.borrow_mut().clear = false;
                    self.write(Event::AddDue(sandbox(&id)));
                    *truth.borrow_mut() =
                        Truth { owed: Some(id), ..Truth { prepared: true, ..Truth::default() } };
                }
                Some(Phase::Adding { .. }) if choice == 0 => {
                    truth.borrow_mut().owed = None;
                    self.write(Event::AddMadeNothing);
                    truth.borrow_mut().clear = true;
                }
                Some(Phase::Adding { .. }) if choice == 1 => self.write(Event::AddFailed(None)),
                Some(Phase::Adding { .. }) if choice == 2 => self.write(Event::DelDue),
                Some(Phase::Adding { sandbox }) => {
                    truth.borrow_mut().whole = Some(sandbox.id);
                    self.write(added());
                    truth.borrow_mut().told = true;
                }
                Some(Phase::Attached { .. }) => {
                    self.write(Event::DelDue);
                    truth.borrow_mut().told = false;
                    truth.borrow_mut().whole = None;
                }
                Some(Phase::Deleting { .. }) => {
                    *truth.borrow_mut() = Truth { prepared: true, ..Truth::default() };
                    if choice == 0 {
                        self.forget();
                    } else {
                        self.write(Event::Deleted);
                        truth.borrow_mut().clear = true;
                    }
                }
            }
        }

        fn forget(&mut self) {
            self.truth.borrow_mut().prepared = false;
            if let Some(record) = self.record.take() {
                self.journal.remove(&record).expect("removes");
            }
        }

        /// The next agent goes on with what the journal says, after an orderly end or a crash, or when
        /// the run directory was emptied.
        fn restart(&mut self, choice: u8) {
            match choice {
                0 => self.journal.move_to_disk().expect("moves"),
                1 => {
                    fs::remove_dir_all(self.dir.path().join("run")).expect("removed");
                    self.journal = opened(self.dir.path());
                    self.truth.borrow_mut().told = false;
                }
                _ => {}
            }
            self.record = self.journal.load().expect("loads").records.pop();
            // What it may have owed for nothing, it owes: the next agent knows no better.
            let phase = self.record.as_ref().map(|record| record.phase.clone());
            let mut truth = self.truth.borrow_mut();
            truth.prepared = self.record.is_some();
            truth.owed = phase.as_ref().and_then(Phase::sandbox).map(|sandbox| sandbox.id.clone());
            truth.told = matches!(phase, Some(Phase::Attached { .. }));
            truth.clear = phase == Some(Phase::Planned);
            if !truth.told {
                truth.whole = truth.whole.take().filter(|whole| truth.owed.as_ref() == Some(whole));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_crash_or_a_power_cut_at_any_step_forgets_no_del_and_invents_no_attachment(
            history in prop::collection::vec((0..10u8, 0..4u8, 0..3u8), 1..30)
        ) {
            let mut node = Watched::new();
            for (what, choice, id) in history {
                if what == 0 { node.restart(choice) } else { node.step(choice, id) }
                node.look.borrow_mut()("between two steps");
            }
            durable::trace::watch(None);
            for moment in node.moments.take() {
                moment.check()?;
            }
        }
    }
}
