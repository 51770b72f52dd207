//! What a plugin leaves behind. The first two bytes are the wait status, except that bit 8 of it says whether
//! the plugin printed more than is kept; the rest is what it printed.

use std::collections::BTreeMap;

use netclaim_cni::error_chain;
use netclaim_cni::fuzzing::Finished;
use netclaim_cni::{ErrorKind, SpecVersion};
use serde_json::value::RawValue;

pub fn reply(data: &[u8]) {
    let [signal, status, stdout @ ..] = data else { return };
    let overflow = signal & 0x80 != 0;
    let wait = i32::from(signal & 0x7f) | i32::from(*status) << 8;
    let finished = Finished::new(wait, stdout.to_vec(), overflow);

    match finished.success() {
        Ok(()) => assert_eq!(wait, 0),
        Err(error) => {
            assert_ne!(wait, 0);
            told(&error);
            let text = String::from_utf8_lossy(stdout);
            match &error {
                ErrorKind::Plugin(error) => {
                    assert!(error.code != 0 || !error.msg.is_empty() || text.contains("\"code\""));
                }
                ErrorKind::Silent { .. } => assert!(text.trim().is_empty()),
                ErrorKind::Garbage { stdout, .. } => assert!(!stdout.is_empty() && stdout.len() <= 3 * 512),
                ErrorKind::Signal { signal } => assert_eq!(*signal, wait & 0x7f),
                other => panic!("not a failed plugin's: {other:?}"),
            }
        }
    }
    for version in SpecVersion::ALL {
        match finished.result(version) {
            Ok(result) => {
                assert!(!overflow);
                assert_eq!(result.version(), version);
                let object: Option<BTreeMap<String, Box<RawValue>>> =
                    serde_json::from_slice(stdout).expect("one object, or null");
                let code = object.as_ref().and_then(|object| object.get("code"));
                let code = code.and_then(|code| code.get().parse::<u64>().ok());
                assert_eq!(code.unwrap_or_default(), 0, "an error taken for a result");
            }
            Err(error) => told(&error),
        }
    }
    match finished.versions() {
        Ok(_) => assert!(!overflow && serde_json::from_slice::<Box<RawValue>>(stdout).is_ok()),
        Err(error) => told(&error),
    }
}

fn told(error: &ErrorKind) {
    assert!(!error_chain(error).is_empty());
}
