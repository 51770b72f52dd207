//! Reports when to read a new snapshot.

use std::fmt;
use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, TokioSocket};
use nix::errno::Errno;
use nix::libc;
use tokio::time::Instant;

use super::error::Error;
use super::netlink;

/// One `ip link add` or one carrier that comes up is several messages, which become one tick.
const COALESCE: Duration = Duration::from_millis(50);

/// A subscription to the changes of a namespace's links, their addresses and the node's routes.
///
/// It reports that something changed since it was opened, never what. A caller that opens it before the first
/// snapshot and reads another after every tick misses nothing. If the kernel drops messages (`ENOBUFS`), the
/// subscription ticks, too, and goes on.
pub struct Changes {
    socket: TokioSocket,
    buffer: Vec<u8>,
    /// When the next tick is due, if a change was read.
    due: Option<Instant>,
}

impl Changes {
    pub(super) fn subscribe() -> Result<Self, Error> {
        let subscribe = || {
            let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
            socket.socket_mut().bind_auto()?;
            let groups = [
                libc::RTNLGRP_LINK,
                libc::RTNLGRP_IPV4_IFADDR,
                libc::RTNLGRP_IPV6_IFADDR,
                libc::RTNLGRP_IPV4_ROUTE,
                libc::RTNLGRP_IPV6_ROUTE,
            ];
            for group in groups {
                socket.socket_ref().add_membership(group)?;
            }
            Ok(Self { socket, buffer: Vec::new(), due: None })
        };
        subscribe().map_err(Error::Socket)
    }

    /// Waits for the next change. Changes within 50 ms of the first are one tick.
    ///
    /// Cancel safe: the next call returns a tick that a cancelled call did not.
    ///
    /// # Errors
    /// [`Error::Socket`] if the socket failed: open another subscription and read a snapshot.
    pub async fn tick(&mut self) -> Result<(), Error> {
        let due = loop {
            if let Some(due) = self.due {
                break due;
            }
            self.buffer.clear();
            self.buffer.reserve(netlink::DATAGRAM);
            let received = self.socket.recv(&mut self.buffer).await;
            if is_change(received, &self.buffer).map_err(Error::Socket)? {
                self.due = Some(Instant::now() + COALESCE);
            }
        };
        tokio::time::sleep_until(due).await;
        // The snapshot that follows this tick includes all changes until now.
        loop {
            match netlink::receive(self.socket.socket_ref(), &mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                received => is_change(received, &self.buffer).map_err(Error::Socket)?,
            };
        }
        self.due = None;
        Ok(())
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("due", &self.due).finish_non_exhaustive()
    }
}

/// Whether the received messages, or those that the kernel dropped, can change a snapshot.
fn is_change(received: io::Result<()>, datagram: &[u8]) -> io::Result<bool> {
    match received {
        Ok(()) => Ok(netlink::messages(datagram).any(|message| netlink::is_change(&message))),
        Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => Ok(true),
        Err(error) => Err(error),
    }
}
