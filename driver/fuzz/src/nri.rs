//! What a container runtime sends over NRI's trunk: it means the same in whatever pieces it arrives, and
//! every call is answered.

use std::sync::LazyLock;

use netclaim_nri::fuzzing::Heard;
use tokio::runtime::{Builder, Runtime};

/// Length of a ttrpc header: payload length, stream, kind and flags.
const HEADER: usize = 10;

const RESPONSE: u8 = 2;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

pub fn nri(trunk: &[u8]) {
    let heard = Heard::read(trunk, usize::MAX);
    for piece in [1, 3, 11, 64] {
        assert_eq!(Heard::read(trunk, piece), heard, "in pieces of {piece}");
    }
    for answer in RUNTIME.block_on(heard.answer()) {
        let (header, payload) = answer.split_at(HEADER);
        assert_eq!(header[..4], (payload.len() as u32).to_be_bytes());
        assert_eq!(header[8], RESPONSE);
    }
}
