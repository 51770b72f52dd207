//! Frames of the network: whoever is on it can send any.

use netclaim_driver::fuzzing::{hear_probes, read_neighbour};

/// The longest frame of a packet that the kernel passes on, in bytes.
const CUT: usize = 96;
/// The most frames that one sends in a round: each length, each kind, and one for each who takes part.
const MOST: usize = 24;

pub fn frames(data: &[u8]) {
    let _ = read_neighbour(data);
    let (round, senders) = hear_probes(data.chunks(CUT).chain([data, data.get(..64).unwrap_or_default()]));
    assert!(round <= MOST && senders == 3, "frames of others make the agent send {round} to {senders}");
}
