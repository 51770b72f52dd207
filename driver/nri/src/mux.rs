//! NRI's trunk: two virtual connections over one socket, without IO.
//!
//! A frame is a connection number and a payload length, both 32 bit big endian, then the payload. Frames are
//! not messages: a message may have many frames, and a frame many messages. So payload is passed on as it
//! arrives, and not buffered. Source: `pkg/net/multiplex` of github.com/containerd/nri.

use crate::ttrpc;

/// Longest frame to send, header included. The Go peer has a buffer of this size, and ends the connection on
/// a longer frame.
const MAX_SENT: usize = 4096;

/// Longest payload that the protocol allows in a frame.
const MAX_PAYLOAD: usize = ttrpc::HEADER + ttrpc::MAX_PAYLOAD;

const HEADER: usize = 8;

/// A virtual connection of the trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// The runtime calls the plugin.
    Plugin,
    /// The plugin calls the runtime.
    Runtime,
}

impl Connection {
    fn id(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }

    fn from_id(id: u32) -> Option<Self> {
        [Self::Plugin, Self::Runtime].into_iter().find(|connection| connection.id() == id)
    }
}

/// A frame longer than the protocol allows: the stream is not NRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the runtime sent an NRI frame of {length} bytes for connection {connection}, more than the {MAX_PAYLOAD} allowed"
)]
pub(crate) struct OversizedFrame {
    connection: u32,
    length: usize,
}

/// Encodes a message as frames for the trunk.
pub(crate) fn frames(connection: Connection, message: &[u8]) -> Vec<u8> {
    let payloads = message.chunks(MAX_SENT - HEADER);
    let mut trunk = Vec::with_capacity(message.len() + payloads.len() * HEADER);
    for payload in payloads {
        trunk.extend(connection.id().to_be_bytes());
        // A chunk is shorter than `MAX_SENT`.
        trunk.extend((payload.len() as u32).to_be_bytes());
        trunk.extend(payload);
    }
    trunk
}

/// Separates the trunk's bytes by connection.
#[derive(Debug, Default)]
pub(crate) struct Demultiplexer {
    header: [u8; HEADER],
    /// Bytes of `header` that have arrived.
    filled: usize,
    /// The connection of the payload that follows. Payload of unknown connections is dropped.
    connection: Option<Connection>,
    /// Bytes of payload still to come.
    remaining: usize,
}

impl Demultiplexer {
    /// Removes the next piece of payload from the front of `input`. `None` after all of it is read.
    ///
    /// # Errors
    /// On a frame longer than the protocol allows. The trunk is unusable after that.
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<(Connection, &'a [u8])>, OversizedFrame> {
        while !input.is_empty() {
            if self.remaining == 0 {
                self.read_header(input)?;
                continue;
            }
            let (payload, rest) = input.split_at(self.remaining.min(input.len()));
            *input = rest;
            self.remaining -= payload.len();
            if let Some(connection) = self.connection {
                return Ok(Some((connection, payload)));
            }
        }
        Ok(None)
    }

    fn read_header(&mut self, input: &mut &[u8]) -> Result<(), OversizedFrame> {
        let (bytes, rest) = input.split_at((HEADER - self.filled).min(input.len()));
        self.header[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        *input = rest;
        if self.filled < HEADER {
            return Ok(());
        }
        let [c0, c1, c2, c3, l0, l1, l2, l3] = self.header;
        let connection = u32::from_be_bytes([c0, c1, c2, c3]);
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD {
            return Err(OversizedFrame { connection, length });
        }
        self.filled = 0;
        self.connection = Connection::from_id(connection);
        self.remaining = length;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(connection: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = connection.to_be_bytes().to_vec();
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Reads `trunk` in pieces of the given lengths, in turn. Returns the payload of each connection.
    fn demultiplex(trunk: &[u8], pieces: &[usize]) -> Result<(Vec<u8>, Vec<u8>), OversizedFrame> {
        let mut demultiplexer = Demultiplexer::default();
        let (mut plugin, mut runtime) = (Vec::new(), Vec::new());
        let mut rest = trunk;
        for length in pieces.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (mut piece, after) = rest.split_at((*length).clamp(1, rest.len()));
            rest = after;
            while let Some((connection, payload)) = demultiplexer.next(&mut piece)? {
                match connection {
                    Connection::Plugin => plugin.extend(payload),
                    Connection::Runtime => runtime.extend(payload),
                }
            }
        }
        Ok((plugin, runtime))
    }

    proptest! {
        #[test]
        fn payload_arrives_whole_and_in_order_in_any_pieces(
            sent in prop::collection::vec((0u32..5, prop::collection::vec(any::<u8>(), 0..300)), 0..20),
            pieces in prop::collection::vec(1usize..50, 1..10),
        ) {
            let trunk: Vec<u8> = sent.iter().flat_map(|(id, payload)| frame(*id, payload)).collect();
            let of = |wanted: u32| -> Vec<u8> {
                sent.iter().filter(|(id, _)| *id == wanted).flat_map(|(_, payload)| payload.clone()).collect()
            };
            prop_assert_eq!(demultiplex(&trunk, &pieces), Ok((of(1), of(2))));
        }

        #[test]
        fn a_message_survives_the_split_into_frames(
            message in prop::collection::vec(any::<u8>(), 0..20_000),
            pieces in prop::collection::vec(1usize..6000, 1..10),
        ) {
            let trunk = frames(Connection::Runtime, &message);
            prop_assert_eq!(demultiplex(&trunk, &pieces), Ok((Vec::new(), message)));
        }

        #[test]
        fn no_input_causes_a_panic(
            trunk in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..2000),
            pieces in prop::collection::vec(1usize..50, 1..10),
        ) {
            let _ = demultiplex(&trunk, &pieces);
        }
    }

    #[test]
    fn no_sent_frame_is_longer_than_the_peer_can_read() {
        let trunk = frames(Connection::Plugin, &[7; 10_000]);
        let mut rest = trunk.as_slice();
        let mut lengths = Vec::new();
        while let Some(length) = rest.get(4..8) {
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            lengths.push(HEADER + length);
            rest = &rest[HEADER + length..];
        }
        assert_eq!(lengths, [4096, 4096, 1832]);
    }

    #[test]
    fn the_longest_frame_of_the_protocol_is_read() {
        let payload = vec![1; (4 << 20) + 10];
        assert_eq!(demultiplex(&frame(1, &payload), &[1 << 20]).unwrap().0.len(), payload.len());
    }

    #[test]
    fn a_frame_that_is_too_long_is_an_error_after_its_header() {
        let length = (4 << 20) + 11;
        let mut header = 9u32.to_be_bytes().to_vec();
        header.extend((length as u32).to_be_bytes());
        assert_eq!(demultiplex(&header, &[8]), Err(OversizedFrame { connection: 9, length }));
    }
}
