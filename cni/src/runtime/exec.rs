//! One plugin process, from start to end.
//!
//! A plugin gets a new environment, pipes for its three standard descriptors and a process group of its own.
//! It has ended when [`run`] returns. Dropping the future kills its process group; in this process, the
//! container stays locked until the group has ended.

use std::ffi::OsString;
use std::fs;
use std::future::poll_fn;
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, close};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::deadline::Deadline;
use super::error::{CallPhase, ErrorKind};
use super::launcher::Launcher;
use super::locks::AttachmentGuard;
use super::reply::{Reply, STDOUT_LIMIT};
use crate::request::Request;

/// How much of the end of a plugin's standard error is kept, in bytes.
pub const STDERR_TAIL: usize = 64 << 10;

/// How long a plugin has between SIGTERM and SIGKILL.
pub const TERM_GRACE: Duration = Duration::from_secs(2);

/// How long output is waited for after a plugin has exited: a process it left behind may hold the pipes open.
pub const DRAIN_AFTER_EXIT: Duration = Duration::from_millis(500);

/// How often to look whether a killed process is still there.
const KILL_INTERVAL: Duration = Duration::from_millis(2);

/// How long a killed process may take to disappear before it is left to the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a process that has ended is left unreaped; see [`reap_later`].
const REAP_DELAY: Duration = Duration::from_millis(50);

/// First and longest pause before a binary that is being written is tried again.
const BUSY_DELAYS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Closes every descriptor above standard error that a plugin would inherit.
///
/// Descriptors that Rust opens are closed on exec; those that this program inherited are not. Call it once,
/// at the start of the program.
///
/// # Errors
/// `/proc/self` cannot be read.
pub fn close_inherited_descriptors() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let name = entry?.file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse::<i32>().ok()).filter(|fd| *fd > 2) else {
            continue;
        };
        // It was closed meanwhile.
        let Ok(info) = fs::read_to_string(Path::new("/proc/self/fdinfo").join(&name)) else {
            continue;
        };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or_default();
        if !OFlag::from_bits_retain(flags).contains(OFlag::O_CLOEXEC) {
            close(fd)?;
        }
    }
    Ok(())
}

/// The outcome of a call, with the end of its standard error.
pub(crate) struct Ended {
    pub(crate) outcome: Result<Reply, ErrorKind>,
    pub(crate) stderr: String,
}

/// Runs the binary at `path`, which `launcher` sees, with `env` and the request's variables.
pub(crate) async fn run(
    launcher: &Launcher,
    path: &Path,
    env: &[(OsString, OsString)],
    request: &Request,
    deadline: Deadline,
    lock: Option<Arc<AttachmentGuard>>,
) -> Ended {
    // A plugin that is killed at once does more harm than one that never started.
    if Instant::now() >= deadline.at() {
        return Ended { outcome: Err(deadline.passed(CallPhase::Spent)), stderr: String::new() };
    }
    let (mut child, rest) = match spawn(launcher, path, env, request, deadline).await {
        Ok(spawned) => spawned,
        Err(kind) => {
            return Ended { outcome: Err(kind), stderr: String::new() };
        }
    };
    let mut group = Group::of(&child, lock);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut printed = Vec::new();
    let mut overflow = false;
    let mut logged = Vec::new();

    let status = {
        let pipes = pin!(async {
            tokio::join!(
                feed(rest),
                read(stdout, |bytes| {
                    let room = STDOUT_LIMIT - printed.len();
                    overflow |= bytes.len() > room;
                    printed.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
                }),
                read(stderr, |bytes| keep_tail(&mut logged, bytes)),
            );
        });
        supervise(&mut child, &mut group, Pipes { io: pipes, open: true }, deadline).await
    };

    reap_later(child);
    logged.drain(..logged.len().saturating_sub(STDERR_TAIL));
    Ended {
        outcome: status.map(|status| Reply { status, stdout: printed, overflow }),
        stderr: String::from_utf8_lossy(&logged).into_owned(),
    }
}

/// Starts the plugin. Returns the input that is still to be written.
async fn spawn<'a>(
    launcher: &Launcher,
    path: &Path,
    env: &[(OsString, OsString)],
    request: &'a Request,
    deadline: Deadline,
) -> Result<(Child, Rest<'a>), ErrorKind> {
    let failed = |source| ErrorKind::Spawn { path: path.to_owned(), source };
    let (mut pause, longest) = BUSY_DELAYS;
    loop {
        let (stdin, rest) = Rest::of(&request.stdin).map_err(failed)?;
        let mut command = Command::new(path);
        command
            .env_clear()
            .envs(env.iter().map(|(key, value)| (key, value)))
            .envs(request.env.iter().map(|(key, value)| (key, value)))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        match launcher.spawn(command).await {
            Ok(child) => return Ok((child, rest)),
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                if Instant::now() + pause >= deadline.at() {
                    return Err(deadline.passed(CallPhase::Busy));
                }
                sleep(pause).await;
                pause = longest.min(pause * 2);
            }
            Err(source) => return Err(failed(source)),
        }
    }
}

/// The transfer over all three pipes, to be driven while the process is waited for.
struct Pipes<'a, F> {
    io: Pin<&'a mut F>,
    open: bool,
}

impl<F: Future<Output = ()>> Pipes<'_, F> {
    /// Moves data until the process exits (`Some`) or `until` (`None`).
    async fn drive(&mut self, child: &mut Child, until: Instant) -> Option<io::Result<ExitStatus>> {
        let over = sleep_until(until);
        let mut over = pin!(over);
        loop {
            tokio::select! {
                status = ended(child) => return Some(status),
                () = &mut self.io, if self.open => self.open = false,
                () = &mut over => return None,
            }
        }
    }

    /// Moves the rest. False if another process holds the pipes open.
    async fn drain(&mut self) -> bool {
        !self.open || timeout(DRAIN_AFTER_EXIT, &mut self.io).await.is_ok()
    }
}

async fn supervise<F: Future<Output = ()>>(
    child: &mut Child,
    group: &mut Group,
    mut pipes: Pipes<'_, F>,
    deadline: Deadline,
) -> Result<ExitStatus, ErrorKind> {
    if let Some(status) = pipes.drive(child, deadline.at()).await {
        group.release();
        if !pipes.drain().await {
            tracing::warn!("CNI plugin exited and left a process that holds its output open");
        }
        return status.map_err(ErrorKind::Wait);
    }
    group.signal(Signal::SIGTERM);
    let exited = pipes.drive(child, Instant::now() + TERM_GRACE).await.is_some();
    // Also if the plugin has ended: its children must not outlive it.
    group.signal(Signal::SIGKILL);
    let end = Instant::now() + KILL_TIMEOUT;
    if !exited && pipes.drive(child, end).await.is_none() {
        tracing::warn!(pid = child.id(), "killed CNI plugin does not end");
    }
    // Reaped at once: a process that is not reaped still counts as one of its group.
    let _ = timeout_at(end, child.wait()).await;
    group.ended(end).await;
    pipes.drain().await;
    Err(deadline.passed(CallPhase::Running))
}

/// Waits until the process has ended, and leaves it to [`reap_later`].
async fn ended(child: &mut Child) -> io::Result<ExitStatus> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let mut reaped = pin!(child.wait());
    poll_fn(|context| {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match pid.map(|pid| waitid(Id::Pid(pid), look)) {
            Some(Ok(WaitStatus::Exited(_, code))) => Poll::Ready(Ok(ExitStatus::from_raw(code << 8))),
            Some(Ok(WaitStatus::Signaled(_, signal, _))) => {
                Poll::Ready(Ok(ExitStatus::from_raw(signal as i32)))
            }
            _ => reaped.as_mut().poll(context),
        }
    })
    .await
}

/// Reaps a process that has ended, when its last thread has had the time to leave the kernel.
///
/// The end of a process with threads, as every Go program is one, is reported before the last of them has
/// removed its directory from `/proc` (`release_task`: first `do_notify_parent`, then `proc_flush_pid`).
/// Reaping the process at once would spin until the directory is removed (`shrink_dcache_parent`): on busy
/// processors, for milliseconds after each plugin of an attachment.
fn reap_later(mut child: Child) {
    tokio::spawn(async move {
        sleep(REAP_DELAY).await;
        let _ = child.wait().await;
    });
}

/// The plugin's process group; killed when dropped, unless the plugin has ended.
struct Group {
    leader: Option<Pid>,
    /// Keeps other operations on the container waiting.
    lock: Option<Arc<AttachmentGuard>>,
}

impl Group {
    fn of(child: &Child, lock: Option<Arc<AttachmentGuard>>) -> Self {
        Self { leader: child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw), lock }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.leader {
            // The only failure is that the group is gone already.
            let _ = killpg(pid, signal);
        }
    }

    /// Waits until no process of the killed group is left. From then on the number may belong to another one.
    async fn ended(&mut self, end: Instant) {
        if let Some(leader) = self.leader.take() {
            gone(leader, end).await;
        }
    }

    /// From now on the number may belong to another process.
    fn release(&mut self) {
        self.leader = None;
    }
}

impl Drop for Group {
    /// A killed process ends only when the kernel has finished its system call, such as making a link: an
    /// earlier DEL would not find the link.
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let Some(leader) = self.leader.take() else { return };
        if let (Some(lock), Ok(runtime)) = (self.lock.take(), Handle::try_current()) {
            runtime.spawn(async move {
                gone(leader, Instant::now() + KILL_TIMEOUT).await;
                drop(lock);
            });
        }
    }
}

/// Waits until no process of the group is left, or `end`.
async fn gone(leader: Pid, end: Instant) {
    while killpg(leader, None).is_ok() && Instant::now() < end {
        sleep(KILL_INTERVAL).await;
    }
}

/// The part of a plugin's input that its pipe did not take at once.
struct Rest<'a>(Option<(PipeWriter, &'a [u8])>);

impl<'a> Rest<'a> {
    /// Fills a pipe before the plugin starts: nearly every input fits, so that neither side waits for the
    /// other.
    fn of(bytes: &'a [u8]) -> io::Result<(PipeReader, Self)> {
        let (reader, mut writer) = io::pipe()?;
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let written = match writer.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            written => written?,
        };
        let rest = bytes.get(written..).filter(|rest| !rest.is_empty());
        Ok((reader, Self(rest.map(|rest| (writer, rest)))))
    }
}

/// A broken pipe is not a failure: a plugin need not read its input.
async fn feed(Rest(rest): Rest<'_>) {
    if let Some((writer, bytes)) = rest
        && let Ok(mut pipe) = pipe::Sender::from_owned_fd(writer.into())
    {
        let _ = pipe.write_all(bytes).await;
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, mut keep: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 8 << 10];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        keep(buffer.get(..length).unwrap_or_default());
    }
}

/// Appends, and cuts the front now and then, so that the buffer stays below twice the limit.
fn keep_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    tail.extend_from_slice(bytes);
    if tail.len() >= 2 * STDERR_TAIL {
        tail.drain(..tail.len() - STDERR_TAIL);
    }
}
