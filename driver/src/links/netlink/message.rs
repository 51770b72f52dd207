//! Netlink messages and attributes as bytes.

use netlink_packet_core::{NetlinkBuffer, NlasIterator};

const HEADER: usize = 16;

/// Returns the messages of a datagram, up to the first malformed one.
pub(in crate::links) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        let length = message.length() as usize;
        let (this, _) = datagram.split_at_checked(length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkBuffer::new(this))
    })
}

/// Returns the attributes in `bytes` with their kinds, up to the first malformed one.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).filter_map(move |attribute| {
        // The value borrows from the iterator's item, so it is cut out of the whole slice again.
        let length = attribute.value_length();
        let kind = attribute.kind();
        let inner: &[u8] = attribute.into_inner();
        Some((kind, inner.get(4..4 + length)?))
    })
}

/// Encodes a request.
pub(super) fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
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

pub(super) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|four| u32::from_ne_bytes(*four))
}

pub(super) fn i32_at(bytes: &[u8], offset: usize) -> Option<i32> {
    bytes.get(offset..)?.first_chunk().map(|four| i32::from_ne_bytes(*four))
}

/// Reads a string that ends with a NUL. The kernel allows any bytes in names; those that are not UTF-8 are
/// replaced.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_of_a_truncated_datagram_are_the_whole_ones(cut in 0_usize..96) {
            let message = request(16, 0, 7, &[0; 16]);
            let datagram = [message.clone(), message.clone(), message].concat();
            prop_assert_eq!(messages(&datagram[..cut]).count(), cut / 32);
        }
    }
}
