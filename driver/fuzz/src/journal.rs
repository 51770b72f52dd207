//! Files of the journal. A fuzzer cannot guess a checksum, so any bytes are also taken for the record in a
//! sound file.

use netclaim_driver::attach::testing::Claimant;
use netclaim_driver::fuzzing::{read_record, write_record};
use sha2::{Digest as _, Sha256};

type Record = netclaim_driver::attach::Record<Claimant>;

pub fn journal(data: &[u8]) {
    file(data);
    let text = data.trim_ascii();
    let sum: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut sealed = format!(r#"{{"version":1,"sha256":"{sum}","record":"#).into_bytes();
    sealed.extend_from_slice(text);
    sealed.push(b'}');
    let read = file(&sealed);
    // By way of `str`, since serde_json takes anything for the text of a key that it skips.
    if let Some(record) =
        std::str::from_utf8(text).ok().and_then(|text| serde_json::from_str::<Record>(text).ok())
    {
        assert_eq!(read, Some(record), "a record in a sound file is read");
    }
}

fn file(bytes: &[u8]) -> Option<Record> {
    let record = read_record(bytes).ok()?;
    let written = write_record(&record).expect("what was read can be written");
    let again = read_record(&written).expect("what was written can be read");
    assert_eq!(again, record);
    assert_eq!(again.key(), record.key());
    assert_eq!(write_record(&again).expect("and written again"), written);
    Some(record)
}
