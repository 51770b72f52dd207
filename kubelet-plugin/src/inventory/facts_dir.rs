//! A watched directory in which root on the node states facts, by one small JSON file for each subject:
//! `SUBJECT.json`. A file that is gone states nothing.
//!
//! A program writes a whole file under another name and renames it into place. The agent reads a file once
//! for each of its changes, off the async threads. It opens nothing but regular files.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use netclaim_api::{Invalid, one_line, shorten};
use netclaim_cni::dir_changes::DirChanges;
use netclaim_cni::error_chain;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use super::shared::Shared;

/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 32 << 10;
/// Most files that are read, the first ones by name.
const MAX_FILES: usize = 1024;
/// Longest text in the log about one file, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Least time between looks: a program that writes without a pause costs no more.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of looks at a directory that cannot be watched.
const UNWATCHED_LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// The content of a file of facts.
pub(crate) trait Facts: Clone + PartialEq + Send + Sync + Sized + 'static {
    /// The subject of the file, which has its name.
    type Subject: FromStr<Err: Error + Send + Sync + 'static> + Ord + Clone + Send + Sync + 'static;

    /// Reads the text of a file.
    fn read(text: &str, file: &Origin) -> Result<Self, Refused>;
}

/// Where facts come from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Origin {
    pub(crate) path: PathBuf,
    pub(crate) version: Version,
}

/// What differs after each change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Version {
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            length: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    #[cfg(test)]
    pub(super) fn of_length(length: u64) -> Self {
        Self { length, ..Self::default() }
    }
}

/// Why a file is ignored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the file's name is not that of anything it could be about")]
    Name(#[source] Box<dyn Error + Send + Sync>),
    #[error("cannot read the file")]
    Io(#[from] io::Error),
    #[error("it is not a regular file")]
    NotAFile,
    #[error("the file is longer than {MAX_FILE} bytes")]
    TooLong,
    #[error("the file is not as documented")]
    Json(#[from] serde_json::Error),
    #[error("{}", Invalid::list(.0))]
    Invalid(Vec<Invalid>),
}

/// Changes in directories of facts: one watch for all, since a user has few.
pub(crate) struct Changes {
    dirs: Vec<PathBuf>,
    watch: Option<DirChanges>,
    ticked: Instant,
}

impl Changes {
    /// Watches `dirs`, which are created if they are missing.
    pub(crate) fn new(dirs: &[&Path]) -> Self {
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| dir.to_path_buf()).collect();
        let made = dirs.iter().try_for_each(std::fs::create_dir_all);
        let watch = made.and_then(|()| DirChanges::subscribe(dirs.clone()));
        let mut changes = Self { dirs, watch: None, ticked: Instant::now() };
        changes.watch = watch.map_err(|error| changes.are_unwatched(&error)).ok();
        changes
    }

    /// Waits for a change, or for the time of a look without one. Cancel safe.
    pub(crate) async fn tick(&mut self) {
        match &mut self.watch {
            Some(watch) => {
                if let Err(error) = watch.tick().await {
                    self.are_unwatched(&error);
                    self.watch = None;
                }
            }
            None => sleep_until(self.ticked + UNWATCHED_LOOK_INTERVAL).await,
        }
        self.ticked = Instant::now();
    }

    fn are_unwatched(&self, error: &io::Error) {
        let dirs: Vec<_> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        tracing::warn!(dirs = dirs.join(", "), %error, "cannot watch directories of facts, looking every 30 s");
    }
}

/// The directory, and its files at the last look.
pub(crate) struct FactsDir<T: Facts> {
    dir: PathBuf,
    known: ReadFiles<T>,
    /// When the last look began.
    looked: Instant,
    has_changed: bool,
    look: Option<JoinHandle<ReadFiles<T>>>,
    /// Whether the files state something else than was taken.
    has_news: bool,
}

/// The files of one look.
#[derive(Clone)]
struct ReadFiles<T: Facts> {
    /// By name without `.json`, those that are ignored included.
    versions: BTreeMap<String, Version>,
    stated: Shared<BTreeMap<T::Subject, T>>,
    has_too_many: bool,
}

impl<T: Facts> FactsDir<T> {
    /// The facts in `dir`, without having read one.
    pub(crate) fn new(dir: &Path) -> Self {
        let stated = BTreeMap::new().into();
        Self {
            dir: dir.to_owned(),
            known: ReadFiles { versions: BTreeMap::new(), stated, has_too_many: false },
            looked: Instant::now(),
            has_changed: false,
            look: None,
            has_news: false,
        }
    }

    /// Returns what the files stated at the last look.
    pub(crate) fn stated(&self) -> &Shared<BTreeMap<T::Subject, T>> {
        &self.known.stated
    }

    /// Notes that files may have changed.
    pub(crate) fn touch(&mut self) {
        self.has_changed = true;
    }

    /// Whether files may have changed since the last look.
    pub(crate) fn is_behind(&self) -> bool {
        self.has_changed || self.look.is_some()
    }

    /// Looks if it [is behind](Self::is_behind), but not too often. Cancel safe.
    pub(crate) async fn catch_up(&mut self) {
        if !self.is_behind() {
            return;
        }
        if self.look.is_none() {
            sleep_until(self.looked + LOOK_INTERVAL).await;
        }
        let before = self.known.stated.clone();
        self.look().await;
        self.has_news |= self.known.stated != before;
    }

    /// Whether the files state something else than when this was asked last.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Reads the files that have changed. Cancel safe.
    pub(crate) async fn look(&mut self) {
        let look = self.look.get_or_insert_with(|| {
            (self.has_changed, self.looked) = (false, Instant::now());
            let (dir, known) = (self.dir.clone(), self.known.clone());
            spawn_blocking(move || known.after_look(&dir))
        });
        let found = look.await;
        self.look = None;
        match found {
            Ok(found) => self.known = found,
            Err(error) => {
                tracing::error!(dir = %self.dir.display(), %error, "cannot read a directory of facts")
            }
        }
    }
}

impl<T: Facts> ReadFiles<T> {
    /// Reads the files of `dir`.
    fn after_look(self, dir: &Path) -> Self {
        let (names, has_too_many) = names(dir);
        if has_too_many && !self.has_too_many {
            let dir = dir.display();
            tracing::warn!(%dir, "ignoring all but the first {MAX_FILES} files of facts by name");
        }
        let (mut versions, mut stated) = (BTreeMap::new(), BTreeMap::new());
        for name in names {
            let path = dir.join(format!("{name}.json"));
            // Taken before the file is read: one that changes meanwhile is read again.
            let Ok(metadata) = path.symlink_metadata() else { continue };
            let version = Version::of(&metadata);
            if self.versions.get(&name) == Some(&version) {
                let known = name.parse().ok().and_then(|subject| self.stated.get_key_value(&subject));
                stated.extend(known.map(|(subject, facts)| (subject.clone(), facts.clone())));
            } else {
                let origin = Origin { path, version };
                match read(&name, &origin, &metadata) {
                    Ok((subject, facts)) => {
                        stated.insert(subject, facts);
                    }
                    Err(error) => {
                        let error = shorten(one_line(&error_chain(&error)), MAX_MESSAGE);
                        tracing::warn!(file = %origin.path.display(), error, "ignoring a file of facts");
                    }
                }
            }
            versions.insert(name, version);
        }
        Self { versions, stated: stated.into(), has_too_many }
    }
}

/// Returns the names of the directory's files without `.json`, and whether they are not all. Other names are
/// temporary files of programs.
fn names(dir: &Path) -> (BTreeSet<String>, bool) {
    let (mut names, mut has_too_many) = (BTreeSet::new(), false);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        names.extend(
            entry.file_name().to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned),
        );
        if names.len() > MAX_FILES {
            names.pop_last();
            has_too_many = true;
        }
    }
    (names, has_too_many)
}

/// Reads the file of this name.
fn read<T: Facts>(name: &str, origin: &Origin, metadata: &Metadata) -> Result<(T::Subject, T), Refused> {
    let subject = name.parse().map_err(|error| Refused::Name(Box::new(error)))?;
    if !metadata.is_file() {
        return Err(Refused::NotAFile);
    }
    // It may have become another one: opening a FIFO must not block.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(&origin.path)?;
    if !file.metadata()?.is_file() {
        return Err(Refused::NotAFile);
    }
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(Refused::TooLong);
    }
    Ok((subject, T::read(&text, origin)?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use netclaim_api::NetworkName;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use tokio::time::timeout;

    use super::*;
    use crate::inventory::facts::NetworkFacts;
    use crate::inventory::uplink::Provided;

    /// Writes a file as programs do.
    fn write(dir: &Path, name: &str, text: &str) {
        let (file, new) = (dir.join(name), dir.join(format!(".{name}")));
        fs::write(&new, text).expect("written");
        fs::rename(new, file).expect("renamed");
    }

    fn names<T: Facts<Subject: ToString>>(dir: &FactsDir<T>) -> Vec<String> {
        dir.stated().keys().map(ToString::to_string).collect()
    }

    /// Waits until the files state something else.
    async fn changed<T: Facts>(dir: &mut FactsDir<T>, changes: &mut Changes) {
        loop {
            if !dir.is_behind() {
                changes.tick().await;
                dir.touch();
            }
            dir.catch_up().await;
            if dir.take_news() {
                return;
            }
        }
    }

    #[tokio::test]
    async fn valid_files_are_followed_and_invalid_ones_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        let provided = r#"{"attributes": {"switch": {"string": "tor-7"}}, "capacity": {"bandwidth": "10G"}}"#;
        write(dir.path(), "eth1.json", provided);
        write(dir.path(), "eth2.json", r#"{"attributes": {"mtu": {"int": 1}}}"#);
        write(dir.path(), "eth3.json", r#"{"attribute": {}}"#);
        write(dir.path(), "README", "no file of facts");
        let mut changes = Changes::new(&[dir.path()]);
        let mut links = FactsDir::<Provided>::new(dir.path());
        links.look().await;
        assert_eq!((names(&links), links.known.versions.len()), (vec!["eth1".to_owned()], 3));
        write(dir.path(), "eth3.json", "{}");
        timeout(Duration::from_secs(5), changed(&mut links, &mut changes)).await.expect("noticed");
        assert_eq!(names(&links), ["eth1", "eth3"]);
        // What a file stated before it became invalid is not known to be true any more.
        write(dir.path(), "eth1.json", "{");
        timeout(Duration::from_secs(5), changed(&mut links, &mut changes)).await.expect("noticed");
        fs::remove_file(dir.path().join("eth3.json")).expect("removed");
        timeout(Duration::from_secs(5), changed(&mut links, &mut changes)).await.expect("noticed");
        assert_eq!(names(&links), [""; 0]);
    }

    #[tokio::test]
    async fn a_change_is_seen_within_a_second_also_after_one_that_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut changes = Changes::new(&[dir.path()]);
        let mut networks = FactsDir::<NetworkFacts>::new(dir.path());
        networks.look().await;
        for addresses in 1..=3 {
            write(dir.path(), "other.json", &format!("{{ {}", " ".repeat(addresses)));
            write(dir.path(), "lab.json", &format!(r#"{{"capacity": {{"addresses": {addresses}}}}}"#));
            // Cancelled again and again, as by other inputs of the inventory.
            let seen = async {
                let is_new = |dir: &FactsDir<NetworkFacts>| {
                    let facts = dir.stated().values().next()?;
                    facts.capacity.addresses.filter(|stated| stated.value() == addresses as u64)
                };
                while is_new(&networks).is_none() {
                    let _ = timeout(Duration::from_millis(1), changed(&mut networks, &mut changes)).await;
                }
            };
            timeout(Duration::from_secs(1), seen).await.expect("within a second");
        }
    }

    #[tokio::test]
    async fn hostile_files_are_ignored_and_block_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        mkfifo(&at("fifo.json"), Mode::S_IRWXU).expect("a FIFO");
        write(dir.path(), "target", "{}");
        symlink(at("target"), at("link.json")).expect("a link");
        symlink("/dev/zero", at("device.json")).expect("a link");
        fs::create_dir(at("folder.json")).expect("a folder");
        let _socket = UnixListener::bind(at("socket.json")).expect("a socket");
        fs::write(at("binary.json"), [0xff; 9]).expect("written");
        write(dir.path(), "long.json", &format!("{{}}{}", " ".repeat(MAX_FILE as usize)));
        write(dir.path(), "deep.json", &"[".repeat(20_000));
        write(dir.path(), "Not_A_Name.json", "{}");
        write(dir.path(), ".json", "{}");
        write(dir.path(), "good.json", "{}");
        let mut networks = FactsDir::<NetworkFacts>::new(dir.path());
        timeout(Duration::from_secs(5), networks.look()).await.expect("nothing blocks");
        assert_eq!((names(&networks), networks.known.versions.len()), (vec!["good".to_owned()], 11));
    }

    #[test]
    fn a_file_that_becomes_a_fifo_while_it_is_read_does_not_block() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("lab.json");
        fs::write(&path, "{}").expect("written");
        let metadata = path.symlink_metadata().expect("there");
        fs::remove_file(&path).expect("removed");
        mkfifo(&path, Mode::S_IRWXU).expect("a FIFO");
        let origin = Origin { path, version: Version::of(&metadata) };
        assert!(matches!(read::<NetworkFacts>("lab", &origin, &metadata), Err(Refused::NotAFile)));
    }

    #[tokio::test]
    async fn too_many_files_are_read_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().expect("a directory");
        for number in 0..MAX_FILES + 100 {
            fs::write(dir.path().join(format!("n{number:05}.json")), "{}").expect("written");
        }
        let mut networks = FactsDir::<NetworkFacts>::new(dir.path());
        networks.look().await;
        assert_eq!((networks.stated().len(), networks.known.has_too_many), (MAX_FILES, true));
        assert!(networks.stated().contains_key(&"n00000".parse::<NetworkName>().expect("a name")));
    }
}
