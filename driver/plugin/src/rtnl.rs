//! Requests over rtnetlink in the calling thread's network namespace, their attributes, and the kernel's
//! errors.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NlasIterator,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use nix::libc;

/// The kernel makes datagrams of at most 32 KiB unless one message needs more, and no message needs this
/// much.
const DATAGRAM: usize = 64 * 1024;
const HEADER: usize = 16;
/// linux/netlink.h: the attribute of an error that has its text.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A blocking rtnetlink socket.
#[derive(Debug)]
pub struct Rtnl {
    socket: Socket,
    sequence: u32,
}

impl Rtnl {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        // Error texts in addition to error numbers.
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request and waits until it is done. Returns the bodies of the answer's messages.
    pub fn ask(&mut self, kind: u16, flags: u16, body: &Body) -> io::Result<Vec<Vec<u8>>> {
        loop {
            if let Some(found) = self.ask_once(kind, flags, body.as_bytes())? {
                return Ok(found);
            }
        }
    }

    /// Returns `None` for a list that changed while the kernel wrote it: it may lack entries.
    fn ask_once(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&message(kind, flags | NLM_F_REQUEST | NLM_F_ACK, self.sequence, body), 0)?;
        let (mut found, mut complete) = (Vec::new(), true);
        let mut datagram = Vec::with_capacity(DATAGRAM);
        loop {
            datagram.clear();
            match self.socket.recv(&mut datagram, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            for message in messages(&datagram).filter(|message| message.sequence_number() == self.sequence) {
                complete &= message.flags() & NLM_F_DUMP_INTR == 0;
                match i32::from(message.message_type()) {
                    // Both start with an error number, negative or 0.
                    libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                        return match i32_at(message.payload(), 0) {
                            Some(code) if code < 0 => Err(kernel_error(code, &message)),
                            _ => Ok(complete.then_some(found)),
                        };
                    }
                    _ => found.push(message.payload().to_vec()),
                }
            }
        }
    }
}

/// Returns the kernel's error, with its text if it has one.
fn kernel_error(code: i32, message: &NetlinkBuffer<&[u8]>) -> io::Error {
    let number = io::Error::from_raw_os_error(-code);
    let reported = (message.flags() & NLM_F_ACK_TLVS != 0 && message.flags() & NLM_F_CAPPED != 0)
        .then(|| message.payload().get(4 + HEADER..))
        .flatten()
        .and_then(|attributes| attribute(attributes, NLMSGERR_ATTR_MSG));
    match reported {
        // `errno` still reads the number.
        Some(reported) => io::Error::new(number.kind(), KernelError { number: -code, text: text(reported) }),
        None => number,
    }
}

/// An error number with the kernel's text.
#[derive(Debug, thiserror::Error)]
#[error("{text} ({})", io::Error::from_raw_os_error(*number))]
struct KernelError {
    number: i32,
    text: String,
}

/// Returns the error number of a failed [`Rtnl::ask`].
pub fn errno(error: &io::Error) -> Option<Errno> {
    let with_text = || error.get_ref()?.downcast_ref::<KernelError>().map(|error| error.number);
    error.raw_os_error().or_else(with_text).map(Errno::from_raw)
}

fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let length = NetlinkBuffer::new_checked(datagram).ok()?.length() as usize;
        let (this, _) = datagram.split_at_checked(length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkBuffer::new(this))
    })
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message.extend_from_slice(body);
    let length = message.len() as u32;
    let mut header = NetlinkBuffer::new(&mut message);
    header.set_length(length);
    header.set_message_type(kind);
    header.set_flags(flags);
    header.set_sequence_number(sequence);
    message
}

/// Attributes after a fixed header.
#[derive(Debug, Clone, Default)]
pub struct Body(Vec<u8>);

impl Body {
    /// A body that starts with these bytes.
    pub fn new(header: &[u8]) -> Self {
        Self(header.to_vec())
    }

    /// Adds an attribute.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a string that ends with a NUL, as the kernel expects names.
    pub fn with_name(self, kind: u16, name: &str) -> Self {
        self.with(kind, &[name.as_bytes(), &[0]].concat())
    }

    /// Adds attributes as the value of one attribute.
    pub fn with_nested(self, kind: u16, nested: Self) -> Self {
        self.with(kind, &nested.0)
    }

    /// The body as the kernel reads it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the value of the first attribute of a kind.
pub fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let found = NlasIterator::new(attributes).map_while(Result::ok).find(|found| found.kind() == kind)?;
    let (length, inner): (usize, &[u8]) = (found.value_length(), found.into_inner());
    inner.get(4..4 + length)
}

/// Returns the number of 32 bits at an offset.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|four| u32::from_ne_bytes(*four))
}

/// Returns the number of 64 bits at an offset.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|eight| u64::from_ne_bytes(*eight))
}

fn i32_at(bytes: &[u8], offset: usize) -> Option<i32> {
    bytes.get(offset..)?.first_chunk().map(|four| i32::from_ne_bytes(*four))
}

/// A string that the kernel ends with a NUL.
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
