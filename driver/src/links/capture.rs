//! Copies the frames that pass through a link to a file in the format of tcpdump (pcap).
//!
//! Frames are hostile input: they are copied and never read.

use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime};

use nix::libc;

use super::error::Error;
use super::netns::Netns;
use super::packets::{LinkSocket, address_of};

/// The most bytes of a frame that can be copied, as tcpdump has it.
pub const MAX_SNAPLEN: u32 = 262_144;
/// Bytes of frames that may wait while others are written; what comes then is dropped.
const WAITING: usize = 4 << 20;
/// How often a link without traffic is left to see whether to go on.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What is copied.
#[derive(Debug, Clone, Copy)]
pub struct Capture {
    /// Bytes of each frame that are copied, from the first one.
    pub snaplen: u32,
    /// The most frames.
    pub count: u64,
    /// The longest time.
    pub time: Duration,
}

/// What a link's frames begin with (<https://www.tcpdump.org/linktypes.html>).
const LINKTYPE_ETHERNET: u32 = 1;
const LINKTYPE_RAW: u32 = 101;

impl Netns {
    /// Copies frames that a link of the namespace receives and sends to `out`, each as soon as it comes, for
    /// as long as `goes_on` says so. Needs `CAP_NET_RAW`. Returns how many.
    ///
    /// The kernel keeps VLAN tags beside the frame, so the copies have none. There is no check for frames
    /// that came faster than they were written.
    ///
    /// # Errors
    /// [`Error::Capture`], also if `out` takes no more. As of [`Netns::links`].
    pub async fn capture(
        &self,
        link: String,
        what: Capture,
        out: impl Write + Send + 'static,
        goes_on: impl Fn() -> bool + Send + 'static,
    ) -> Result<u64, Error> {
        let capture =
            move || copy(&link, what, out, goes_on).map_err(|source| Error::Capture { link, source });
        self.run(capture).await?
    }
}

/// Copies frames of a link of the calling thread's namespace.
fn copy(link: &str, what: Capture, mut out: impl Write, goes_on: impl Fn() -> bool) -> io::Result<u64> {
    let (socket, linktype) = open(link)?;
    let snaplen = what.snaplen.min(MAX_SNAPLEN);
    out.write_all(&file_header(snaplen, linktype))?;
    out.flush()?;
    let (until, mut copied) = (Instant::now() + what.time, 0);
    let mut buffer = vec![0; usize::try_from(MAX_SNAPLEN).unwrap_or(usize::MAX)];
    while copied < what.count && goes_on() {
        let now = Instant::now();
        match socket.receive(&mut buffer, until.min(now + LOOK_INTERVAL))? {
            Some(frame) => {
                out.write_all(&record_header(SystemTime::now(), frame.len(), snaplen))?;
                out.write_all(kept(frame, snaplen))?;
                out.flush()?;
                copied += 1;
            }
            // A link that is gone does not come back.
            None if now >= until || !socket.is_on(link) => break,
            None => {}
        }
    }
    Ok(copied)
}

/// Opens a socket that gets the frames of a link, and returns what these begin with, too.
fn open(link: &str) -> io::Result<(LinkSocket, u32)> {
    let (address, _) =
        address_of(link)?.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the link is gone"))?;
    let linktype = match address.hatype() {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => LINKTYPE_ETHERNET,
        libc::ARPHRD_NONE => LINKTYPE_RAW,
        other => {
            let what = format!("its hardware type {other} is neither Ethernet nor IP alone");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
    };
    let socket = LinkSocket::open(&address)?;
    socket.keep(WAITING)?;
    Ok((socket, linktype))
}

/// The part of a frame that is copied.
fn kept(frame: &[u8], snaplen: u32) -> &[u8] {
    frame.get(..usize::try_from(snaplen).unwrap_or(usize::MAX)).unwrap_or(frame)
}

/// The beginning of a file (<https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/>, section 4), in the
/// order of bytes of this machine, which its first number tells.
fn file_header(snaplen: u32, linktype: u32) -> [u8; 24] {
    const MICROSECONDS: u32 = 0xa1b2_c3d4;
    const VERSION: (u16, u16) = (2, 4);
    let mut header = [0; 24];
    let fields = MICROSECONDS.to_ne_bytes().into_iter();
    let fields = fields.chain(VERSION.0.to_ne_bytes()).chain(VERSION.1.to_ne_bytes()).chain([0; 8]);
    let fields = fields.chain(snaplen.to_ne_bytes()).chain(linktype.to_ne_bytes());
    header.iter_mut().zip(fields).for_each(|(to, byte)| *to = byte);
    header
}

/// What stands before a frame (section 5).
fn record_header(at: SystemTime, length: usize, snaplen: u32) -> [u8; 16] {
    let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Until the year 2106.
    let seconds = u32::try_from(at.as_secs()).unwrap_or(u32::MAX);
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let mut header = [0; 16];
    let fields =
        [seconds, at.subsec_micros(), length.min(snaplen), length].into_iter().flat_map(u32::to_ne_bytes);
    header.iter_mut().zip(fields).for_each(|(to, byte)| *to = byte);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_as_the_draft_says() {
        let header = file_header(262_144, LINKTYPE_ETHERNET);
        let number = |at: usize| u32::from_ne_bytes(*header[at..].first_chunk().unwrap());
        assert_eq!(
            [number(0), number(8), number(12), number(16), number(20)],
            [0xa1b2_c3d4, 0, 0, 262_144, 1]
        );
        assert_eq!(header[4..8], [2_u16.to_ne_bytes(), 4_u16.to_ne_bytes()].concat());
    }

    #[test]
    fn a_frame_that_is_cut_has_its_length() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(7_000_009);
        let header = record_header(at, 1514, 96);
        let numbers: Vec<u32> =
            header.chunks(4).map(|field| u32::from_ne_bytes(field.try_into().unwrap())).collect();
        assert_eq!(numbers, [7, 9, 96, 1514]);
        assert_eq!((kept(&[1; 200], 96).len(), kept(&[1; 64], 96).len()), (96, 64));
    }
}
