//! Keeps a snapshot of the links, and reports changes of it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, TokioSocket};
use nix::errno::Errno;
use nix::libc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::address::LinkAddress;
use super::error::Error;
use super::link::Link;
use super::netlink::{self, Route};
use super::read::{Links, read_all, read_sysfs};
use super::snapshot::Snapshot;
use super::table::{Dump, Table, Unread};

/// One `ip link add` or one carrier that comes up is several messages, which become one change. What comes
/// and goes within this time is none.
const COALESCE: Duration = Duration::from_millis(50);

/// Everything is read again so often, because sysfs changes without messages: the NUMA node, for example, or
/// the number of virtual functions that have no links.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

/// Room for the messages of [`COALESCE`] in a burst of pods; the kernel may allow less.
const RECEIVE_BUFFER: u32 = 1 << 20;

/// A watch of a namespace's links, their addresses and the node's routes.
///
/// It reads all of them once, and from then on what the kernel's messages say. If the kernel drops messages
/// (`ENOBUFS`), it reads everything again.
pub struct LinkWatch {
    sysfs: PathBuf,
    /// Subscribed before the first read, so that no later change is missed.
    socket: Option<TokioSocket>,
    buffer: Vec<u8>,
    /// `None` before the first read, and after a failure.
    table: Option<Table>,
    /// The read that goes on, if the caller was cancelled meanwhile.
    reading: Option<JoinHandle<Result<Read, Error>>>,
    /// When to apply the messages; the buffer has the first ones.
    due: Option<Instant>,
    refresh: Instant,
    dumps: u64,
}

/// What was read.
enum Read {
    All(Dump),
    Parts { routes: Option<Vec<Route>>, links: Vec<Link> },
}

impl Links {
    /// Returns a watch of all links, addresses and routes.
    pub fn watch(&self) -> LinkWatch {
        LinkWatch {
            sysfs: self.sysfs.clone(),
            socket: None,
            buffer: Vec::new(),
            table: None,
            reading: None,
            due: None,
            refresh: Instant::now(),
            dumps: 0,
        }
    }
}

impl LinkWatch {
    /// Returns the links as they were when the kernel's last message was read. Later changes are new ones for
    /// [`changed`](Self::changed). Cancel safe.
    ///
    /// # Errors
    /// As of [`Links::snapshot`](super::Links::snapshot), and [`Error::Socket`]: try again a little later.
    pub async fn snapshot(&mut self) -> Result<&Snapshot, Error> {
        if let Err(error) = self.settle().await {
            self.start_again();
            return Err(error);
        }
        let table = self.table.get_or_insert_default();
        table.forget_changes();
        Ok(table.snapshot())
    }

    /// Waits until readers see a change of the last [`snapshot`](Self::snapshot). They read the links that
    /// lead out of the node or have a default route, those of which `is_read`, which gets a link with its
    /// addresses, and what is stacked on them or enslaved together with them. Changes within 50 ms of the
    /// first are one. Cancel safe.
    ///
    /// # Errors
    /// As of `snapshot`.
    pub async fn changed(&mut self, is_read: impl Fn(&Link, &[LinkAddress]) -> bool) -> Result<(), Error> {
        let changed = async {
            loop {
                self.settle().await?;
                if self.table.as_mut().is_some_and(|table| table.take_change(&is_read)) {
                    return Ok(());
                }
                self.receive().await?;
            }
        };
        let changed = changed.await;
        if changed.is_err() {
            self.start_again();
        }
        changed
    }

    /// Returns how often everything was read.
    pub fn dumps(&self) -> u64 {
        self.dumps
    }

    /// Reads what is unread.
    async fn settle(&mut self) -> Result<(), Error> {
        loop {
            if self.reading.is_none() {
                let unread = match &mut self.table {
                    Some(table) => table.unread(),
                    None => Some(Unread::All),
                };
                let Some(unread) = unread else { return Ok(()) };
                if self.socket.is_none() {
                    self.socket = Some(subscribe().map_err(Error::Socket)?);
                }
                let sysfs = self.sysfs.clone();
                self.reading = Some(tokio::task::spawn_blocking(move || read(unread, &sysfs)));
            }
            let Some(reading) = &mut self.reading else { continue };
            let read = reading.await;
            self.reading = None;
            match read.map_err(Error::Aborted)?? {
                Read::All(dump) => {
                    match &mut self.table {
                        Some(table) => table.replace(dump),
                        None => self.table = Some(Table::new(dump)),
                    }
                    self.refresh = Instant::now() + REFRESH_INTERVAL;
                    self.dumps += 1;
                    // Some of them are older than the dump; see `Table`.
                    self.apply_received()?;
                }
                Read::Parts { routes, links } => self.table.get_or_insert_default().fill(routes, links),
            }
        }
    }

    /// Waits for messages and applies them, or has everything read if that is due.
    async fn receive(&mut self) -> Result<(), Error> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let due = match self.due {
            Some(due) => due,
            None => {
                self.buffer.clear();
                self.buffer.reserve(netlink::DATAGRAM);
                let received = tokio::select! {
                    received = socket.recv(&mut self.buffer) => received,
                    () = tokio::time::sleep_until(self.refresh) => {
                        self.table.get_or_insert_default().doubt();
                        return Ok(());
                    }
                };
                if let Err(error) = received {
                    self.lost(error)?;
                }
                *self.due.insert(Instant::now() + COALESCE)
            }
        };
        tokio::time::sleep_until(due).await;
        self.apply_received()
    }

    /// Applies the messages in the buffer and in the socket.
    fn apply_received(&mut self) -> Result<(), Error> {
        if self.due.take().is_some() {
            apply(self.table.get_or_insert_default(), &self.buffer);
        }
        while let Some(socket) = &self.socket {
            match netlink::receive(socket.socket_ref(), &mut self.buffer) {
                Ok(()) => apply(self.table.get_or_insert_default(), &self.buffer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.lost(error)?,
            }
        }
        Ok(())
    }

    /// Forgets everything. Messages are of no use without those before them.
    fn start_again(&mut self) {
        (self.table, self.socket, self.due) = (None, None, None);
    }

    /// Messages were lost, or the socket failed.
    fn lost(&mut self, error: io::Error) -> Result<(), Error> {
        if error.raw_os_error() != Some(Errno::ENOBUFS as i32) {
            return Err(Error::Socket(error));
        }
        self.table.get_or_insert_default().doubt();
        Ok(())
    }
}

impl fmt::Debug for LinkWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkWatch").field("due", &self.due).finish_non_exhaustive()
    }
}

fn subscribe() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    socket.socket_mut().bind_auto()?;
    socket.socket_ref().set_rx_buf_sz(RECEIVE_BUFFER)?;
    let groups = [
        libc::RTNLGRP_LINK,
        libc::RTNLGRP_IPV4_IFADDR,
        libc::RTNLGRP_IPV6_IFADDR,
        libc::RTNLGRP_IPV4_ROUTE,
        libc::RTNLGRP_IPV6_ROUTE,
        libc::RTNLGRP_NEXTHOP,
    ];
    for group in groups {
        socket.socket_ref().add_membership(group)?;
    }
    Ok(socket)
}

/// Applies the messages of a datagram.
fn apply(table: &mut Table, datagram: &[u8]) {
    let mut length = 0;
    for message in netlink::messages(datagram) {
        length += (message.length() as usize).next_multiple_of(4);
        match netlink::event(&message) {
            Ok(event) => event.into_iter().for_each(|event| table.apply(event)),
            Err(netlink::Malformed) => table.doubt(),
        }
    }
    if length < datagram.len() {
        table.doubt();
    }
}

/// Reads what is unread. Blocks.
fn read(unread: Unread, sysfs: &Path) -> Result<Read, Error> {
    Ok(match unread {
        Unread::All => Read::All(read_all(sysfs)?),
        Unread::Parts { routes, sysfs: mut links } => {
            read_sysfs(&mut links, sysfs);
            let routes = if routes { Some(netlink::Socket::open()?.routes()?) } else { None };
            Read::Parts { routes, links }
        }
    })
}
