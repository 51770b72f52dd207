//! Doors for fuzz targets to parsers that are not called from outside otherwise. Not part of the API: only
//! with the feature `fuzzing`, and free to change.

use crate::attach::journal;
use crate::attach::plan::Owner;
use crate::attach::record::Record;

/// Reads a file of the journal.
pub fn read_record<O: Owner>(bytes: &[u8]) -> Result<Record<O>, String> {
    journal::decode(bytes)
}

/// The content of a file of the journal.
pub fn write_record<O: Owner>(record: &Record<O>) -> serde_json::Result<Vec<u8>> {
    journal::encode(record)
}
