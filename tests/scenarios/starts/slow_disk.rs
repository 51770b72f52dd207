//! netclaim's pods beside plain ones on a node whose disk is slow to flush. The kubelet, containerd and
//! netclaim sync files while a pod starts, and the pod waits for them.
//!
//! The disk is ext4 on a loop device, whose file is in a FUSE file system that this program serves. A flush
//! of the disk is an fsync of that file, which takes [`DELAY`] and is counted. dm-delay would do the same,
//! but many kernels lack it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use fuser::{
    BackgroundSession, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use netclaim_tests::{Cluster, Test, output};

use crate::contestants::netclaim_runs;
use crate::interval::Difference;
use crate::measure::{GONE, NO_VOLUMES, ONE_BARE, Turn, slowest_of};
use crate::own::{conditions, contestant, count, log_marks, order, rounds};
use crate::picture;
use crate::pods::Pods;
use crate::samples::{Samples, short, table};

/// How long each flush of the disk takes.
const DELAY: Duration = Duration::from_millis(10);
/// The size of the disk. Its file is sparse.
const SIZE: u64 = 8 << 30;
/// The name of the file.
const NAME: &str = "disk";
/// The file's inode.
const INODE: INodeNo = INodeNo(2);
/// How long the kernel may remember what it knows of the file: nothing of it changes.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Requests that are served at once: reads and writes do not wait for a flush.
const THREADS: usize = 4;
/// The node that has the disk.
const NODE: &str = "node0";
const WHO: [&str; 2] = ["without", "netclaim"];
const KINDS: [&str; 2] = [ONE_BARE, NO_VOLUMES];

/// The flushes of the disk for the life of a pod of this kind.
fn flushes_of(kind: &str) -> String {
    format!("{kind}: flushes")
}

/// A file system with one file, whose content is another file's.
struct OneFile {
    backing: File,
    flushes: Arc<AtomicU64>,
}

fn attributes(inode: INodeNo) -> FileAttr {
    let is_file = inode == INODE;
    FileAttr {
        ino: inode,
        size: if is_file { SIZE } else { 0 },
        blocks: if is_file { SIZE / 512 } else { 0 },
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_file { FileType::RegularFile } else { FileType::Directory },
        perm: if is_file { 0o600 } else { 0o700 },
        nlink: if is_file { 1 } else { 2 },
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&REMEMBERED, &attributes(INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&REMEMBERED, &attributes(inode));
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&REMEMBERED, &attributes(inode));
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut content = vec![0; size as usize];
        match self.backing.read_at(&mut content, offset) {
            Ok(read) => reply.data(content.get(..read).unwrap_or_default()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        content: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.backing.write_all_at(content, offset) {
            // The kernel writes at most some megabytes at once.
            Ok(()) => reply.written(content.len().try_into().unwrap_or(u32::MAX)),
            Err(error) => reply.error(error.into()),
        }
    }

    /// The backing file is not synced: how long the machine's own disk takes differs from run to run.
    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _file: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(DELAY);
        reply.ok();
    }
}

/// The slow disk, which has the first node's files while this value lives. The node reboots at both ends.
struct SlowDisk<'a> {
    cluster: &'a Cluster,
    server: Option<BackgroundSession>,
    flushes: Arc<AtomicU64>,
}

impl<'a> SlowDisk<'a> {
    /// Makes the disk, and boots the node with a copy of its files there.
    fn new(cluster: &'a Cluster) -> Result<Self> {
        let folder = cluster.dir().join("slow-disk");
        let (mounted, backing) = (folder.join("fuse"), folder.join("backing"));
        fs::create_dir_all(&mounted)?;
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&backing)?;
        file.set_len(SIZE)?;
        // Nothing is left to be initialized in the background, beside what is measured.
        let options = ["-q", "-i", "65536", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        output(Command::new("mkfs.ext4").args(options).arg(&backing))?;
        let flushes = Arc::<AtomicU64>::default();
        let mut config = fuser::Config::default();
        config.n_threads = Some(THREADS);
        let one_file = OneFile { backing: file, flushes: Arc::clone(&flushes) };
        let server =
            fuser::spawn_mount(one_file, &mounted, &config).context("cannot mount with /dev/fuse")?;
        let disk = Self { cluster, server: Some(server), flushes };
        cluster.power_off(NODE)?;
        // The shell stays in the folder that is mounted over, and copies from there. The loop device goes
        // when the disk is unmounted.
        let script = r#"cd "$2"; mount -o loop "$1" "$2"; cp -a . "$2"; sync -f "$2""#;
        let shell = ["-euc", script, "-"];
        output(Command::new("sh").args(shell).arg(mounted.join(NAME)).arg(disk.files()))?;
        cluster.power_on(NODE)?;
        Ok(disk)
    }

    /// The folder of the node's files (`tests/node/machine.sh`).
    fn files(&self) -> PathBuf {
        self.cluster.dir().join("node")
    }

    /// How often the disk was flushed.
    fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    /// How long an fsync of a new file takes, and how many flushes it is; fails if the disk is not slow.
    fn fsync(&self) -> Result<(Duration, u64)> {
        let path = self.files().join("probe");
        let mut file = File::create(&path)?;
        file.write_all(b"probe")?;
        let (before, begin) = (self.flushes(), Instant::now());
        file.sync_all()?;
        let (took, flushes) = (begin.elapsed(), self.flushes() - before);
        fs::remove_file(&path)?;
        ensure!(took >= DELAY && flushes > 0, "the disk is not slow: {took:?} and {flushes} flushes");
        Ok((took, flushes))
    }

    /// Boots the node with its files of before. Each step is taken even if one before it has failed.
    fn remove(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        let off = self.cluster.power_off(NODE);
        let folder = self.cluster.dir().join("slow-disk");
        // A copy of the mount in another namespace keeps it busy.
        let script = r#"for d; do ! mountpoint -q "$d" || umount "$d" || umount -l "$d"; done"#;
        let shell = ["-euc", script, "-"];
        let mounts = [self.files(), folder.join("fuse")];
        let unmounted = output(Command::new("sh").args(shell).args(mounts)).map(drop);
        drop(server);
        let removed = fs::remove_dir_all(&folder).context("cannot remove the slow disk");
        let on = self.cluster.power_on(NODE);
        off.and(unmounted).and(removed).and(on)
    }
}

impl Drop for SlowDisk<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("the slow disk stays: {error:#}");
        }
    }
}

pub fn pods_start_on_a_slow_disk(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "slow-disk")?;
    let pods = Pods::of(test)?;
    let count = count()?;
    let mut disk = SlowDisk::new(test.cluster)?;
    log_marks(test)?;
    let (took, flushes) = disk.fsync()?;
    for _ in 0..rounds(3)? {
        let round = samples.next_round();
        for name in order(round, WHO) {
            let who = contestant(test, name, &samples)?;
            eprintln!("         round {round}: {name}");
            let mut turn = Turn { test, pods: &pods, samples: &mut samples, who: &*who, round };
            turn.warm_up()?;
            for kind in KINDS {
                let before = disk.flushes();
                turn.measure_warm(&[kind], count)?;
                let each = (disk.flushes() - before) as f64 / count as f64;
                turn.add(&flushes_of(kind), "pod", each);
            }
            samples.save()?;
        }
    }
    // Still slow at the end.
    disk.fsync()?;
    disk.remove()?;
    netclaim_runs(test, true)?;
    // The kubelet has not reported yet that the reboot ended this one.
    test.cluster.delete_agent_pod()?;
    test.cluster.agent_ready()?;
    let slow = format!(
        "a flush of the node's disk takes {} ms, an fsync of a new file {} ms ({flushes} flushes)",
        DELAY.as_millis(),
        took.as_millis()
    );
    summarize(test, &samples, slow)
}

fn summarize(test: &Test<'_>, samples: &Samples, slow: String) -> Result<()> {
    let [without, netclaim] = WHO;
    let row = |title: String, what: &str, cell: &dyn Fn(&str) -> String| {
        let difference = if what.starts_with(ONE_BARE) && what.ends_with(" ms") {
            Difference::of(&samples.values(netclaim, what), &samples.values(without, what))
        } else {
            // The pods of a burst are slow together.
            Difference::by_round(&samples.by_round(netclaim, what), &samples.by_round(without, what))
        };
        let difference = difference.map_or_else(|| "–".to_owned(), |difference| difference.to_string());
        vec![title, cell(without), cell(netclaim), difference]
    };
    let of_pods = |title: String, what: &str| row(title, what, &|who| samples.cell(who, what));
    let mut rows = Vec::new();
    for kind in KINDS {
        rows.push(of_pods(format!("{kind}: create to Running, ms"), &format!("{kind} ms")));
    }
    rows.push(of_pods(format!("{NO_VOLUMES}: slowest pod of a burst, ms"), &slowest_of(NO_VOLUMES)));
    rows.push(of_pods("deleted at once: gone, ms".to_owned(), GONE));
    for kind in KINDS {
        let what = flushes_of(kind);
        let median = |who: &str| samples.median(who, &what).map_or_else(|| "–".to_owned(), short);
        rows.push(row(format!("{kind}: flushes of the disk for a pod's life"), &what, &median));
    }
    let number = samples.values(without, &format!("{ONE_BARE} ms")).len();
    let head = ["", without, netclaim, "difference (95 % interval)"];
    let mut page = format!("{}\n\n{}", conditions(test, number, &[slow])?, table(&head, rows));
    for kind in KINDS {
        page += &format!("\n{kind}: median of each mark, ms after the request\n\n");
        page += &table(&["", without, netclaim], picture::rows(samples, kind, &WHO));
    }
    samples.publish("table.md", &page)
}
