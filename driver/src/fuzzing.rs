//! Doors for fuzz targets to parsers that are not called from outside otherwise. Not part of the API: only
//! with the feature `fuzzing`, and free to change.

use std::net::IpAddr;

use crate::attach::journal;
use crate::attach::plan::Owner;
use crate::attach::record::Record;
use crate::links::Ping;
use crate::links::fuzzing::{Run, neighbour_in};

/// Reads a file of the journal.
pub fn read_record<O: Owner>(bytes: &[u8]) -> Result<Record<O>, String> {
    journal::decode(bytes)
}

/// The content of a file of the journal.
pub fn write_record<O: Owner>(record: &Record<O>) -> serde_json::Result<Vec<u8>> {
    journal::encode(record)
}

/// Has a run of probes hear these frames. Returns how many frames it sends in a round then, and how many
/// senders it knows.
pub fn hear_probes<'a>(frames: impl IntoIterator<Item = &'a [u8]>) -> (usize, usize) {
    let ping = Ping { run: 7, place: 1, many: 3, vlan: Some(100), mtu: 1500, has_second_mac: true };
    let mut run = Run::new(ping, [2, 0, 0, 0, 0, 1]);
    frames.into_iter().for_each(|frame| run.hear(frame));
    run.size()
}

/// Reads who has an address by what a frame says, or wants it.
pub fn read_neighbour(frame: &[u8]) -> Option<IpAddr> {
    neighbour_in(frame)
}
