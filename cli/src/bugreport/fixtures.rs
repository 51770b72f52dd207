//! What tests share.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;

/// Returns the files of an archive, by their paths in its folder.
pub(super) fn unpacked(archive: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    let entries = archive.entries().unwrap();
    let files = entries.map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().strip_prefix("netclaim-bugreport").unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path, text)
    });
    files.collect()
}
