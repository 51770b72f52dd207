//! Files of the cache, ours and libcni's.
//!
//! A fuzzer gets nowhere inside base64, so an entry whose `config` is an object is encoded first; the entry
//! as it is is tried too.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use netclaim_cni::Cached;
use serde_json::value::{RawValue, to_raw_value};

pub fn cache(data: &[u8]) {
    entry(data);
    if let Some(encoded) = with_encoded_config(data) {
        entry(&encoded);
    }
}

fn entry(bytes: &[u8]) {
    let Ok(cached) = Cached::from_slice(bytes) else { return };
    let written = cached.to_vec().expect("what was read can be written");
    let again = Cached::from_slice(&written).expect("what was written can be read");
    assert_eq!(again, cached);
    assert_eq!(again.to_vec().expect("and written again"), written);
    assert_eq!(again.list.version(), cached.list.version());
    for name in [again.list.name().as_str(), again.attachment.container_id.as_str()] {
        assert!(!name.contains('/') && !name.starts_with('.'), "{name} would lead elsewhere");
    }
    assert!(!again.attachment.if_name.as_str().contains('/'));
}

fn with_encoded_config(data: &[u8]) -> Option<Vec<u8>> {
    let mut object: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(data).ok()?;
    let config = object.get("config").filter(|config| config.get().starts_with('{'))?;
    let encoded = to_raw_value(&STANDARD.encode(config.get())).expect("a string");
    object.insert("config".to_owned(), encoded);
    serde_json::to_vec(&object).ok()
}
