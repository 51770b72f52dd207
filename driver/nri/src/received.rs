//! The messages that arrive on a trunk, one by one.

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::OwnedReadHalf;

use crate::mux::{Connection, Demultiplexer};
use crate::session_end::SessionEnd;
use crate::ttrpc::{Decoder, Message};

/// How much is read from the socket at once. An event fits; a synchronization comes in pieces.
const READ: usize = 16 << 10;

/// The receiving end of a trunk.
pub(crate) struct Received {
    trunk: OwnedReadHalf,
    buffer: Vec<u8>,
    demultiplexer: Demultiplexer,
    plugin: Decoder,
    runtime: Decoder,
}

impl From<OwnedReadHalf> for Received {
    fn from(trunk: OwnedReadHalf) -> Self {
        Self {
            trunk,
            buffer: vec![0; READ],
            demultiplexer: Demultiplexer::default(),
            plugin: Decoder::default(),
            runtime: Decoder::default(),
        }
    }
}

impl Received {
    /// Waits for the next message. Those of one connection stay in order. May be cancelled.
    ///
    /// # Errors
    /// When the trunk has ended or the peer does not speak NRI. The trunk is unusable after that.
    pub(crate) async fn next(&mut self) -> Result<(Connection, Message), SessionEnd> {
        loop {
            if let Some(message) = self.plugin.next()? {
                return Ok((Connection::Plugin, message));
            }
            if let Some(message) = self.runtime.next()? {
                return Ok((Connection::Runtime, message));
            }
            let length = self.trunk.read(&mut self.buffer).await.map_err(SessionEnd::Read)?;
            if length == 0 {
                return Err(SessionEnd::Closed);
            }
            let mut input = &self.buffer[..length];
            while let Some((connection, payload)) = self.demultiplexer.next(&mut input)? {
                match connection {
                    Connection::Plugin => self.plugin.push(payload),
                    Connection::Runtime => self.runtime.push(payload),
                }
            }
        }
    }
}
