//! Classes and claims keep the opaque parameters that somebody wrote once, as long as the objects exist: the API server stores
//! them as they are. The `parameters` of each file in `stored/` are such a text. They are read for ever and mean the same:
//! a later version adds files, and may give another spelling to `means`, but changes no `parameters` (decision 20).
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use netclaim_api::opaque::Opaque;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files, by name.
fn stored() -> BTreeMap<String, Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stored");
    let files = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("readable");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, serde_json::from_str(&text).expect("JSON"))
    };
    files.map(read).collect()
}

#[test]
fn what_was_stored_once_is_read_for_ever() {
    let stored = stored();
    assert!(stored.len() >= 4, "a file is missing: {:?}", stored.keys());
    for (name, file) in stored {
        let read = Opaque::decode(&file["parameters"].to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let means = match read {
            Opaque::Attachment(config) => serde_json::to_value(config),
            Opaque::Cni(config) => serde_json::to_value(config),
        };
        assert_eq!(means.expect("JSON"), file["means"], "{name}");
    }
}

#[test]
fn every_field_is_in_a_stored_file() {
    for kind in ["AttachmentConfig", "CNIConfig"] {
        let schema = root().join("deploy/schemas").join(kind.to_lowercase()).with_extension("json");
        let schema: Value =
            serde_json::from_str(&fs::read_to_string(schema).expect("readable")).expect("JSON");
        let fields = schema["properties"].as_object().expect("fields").keys();
        let files = stored();
        let of_kind = files.values().map(|file| &file["parameters"]).filter(|text| text["kind"] == kind);
        let shown: BTreeSet<&String> =
            of_kind.filter_map(Value::as_object).flat_map(|text| text.keys()).collect();
        let missing: Vec<_> = fields.filter(|field| !shown.contains(field)).collect();
        assert!(missing.is_empty(), "no file of api/tests/stored has {missing:?} of {kind}: add one");
    }
}
