//! Classes and claims keep the opaque parameters as they were written, as long as the objects exist: the
//! API server stores them as they are. The `parameters` of each file in `stored/` are such a text. They are
//! read for ever and mean the same: a later version adds files, and may give another spelling to `means`, but
//! changes no `parameters` (decision 20).
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
fn stored_parameters_decode_to_the_same_values() {
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

/// The paths of a schema's fields, such as `allow.parameters.*.items.enum`.
fn of_schema(schema: &Value, root: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        of_schema(field, root, &format!("{path}."), found);
        found.insert(path);
    }
    if schema["additionalProperties"].is_object() {
        of_schema(&schema["additionalProperties"], root, &format!("{prefix}*."), found);
    }
    if schema["items"].is_object() {
        of_schema(&schema["items"], root, prefix, found);
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        of_schema(&root["$defs"][name], root, prefix, found);
    }
    for choice in ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| schema[*key].as_array()).flatten() {
        of_schema(choice, root, prefix, found);
    }
}

/// The paths of a text's fields. The name of a declared parameter is `*`.
fn of_text(text: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    for (name, field) in text.as_object().into_iter().flatten() {
        let name = if prefix == "allow.parameters." { "*" } else { name };
        let path = format!("{prefix}{name}");
        of_text(field, &format!("{path}."), found);
        found.insert(path);
    }
    text.as_array().into_iter().flatten().for_each(|item| of_text(item, prefix, found));
}

#[test]
fn every_field_is_in_a_stored_file() {
    for kind in ["AttachmentConfig", "CNIConfig"] {
        let schema = root().join("deploy/schemas").join(kind.to_lowercase()).with_extension("json");
        let schema: Value =
            serde_json::from_str(&fs::read_to_string(schema).expect("readable")).expect("JSON");
        let (mut fields, mut shown) = (BTreeSet::new(), BTreeSet::new());
        of_schema(&schema, &schema, "", &mut fields);
        assert!(fields.len() > 10, "{fields:?}");
        let files = stored();
        let of_kind = files.values().map(|file| &file["parameters"]).filter(|text| text["kind"] == kind);
        of_kind.for_each(|text| of_text(text, "", &mut shown));
        let missing: Vec<_> = fields.difference(&shown).collect();
        assert!(missing.is_empty(), "no file of api/tests/stored has {missing:?} of {kind}: add one");
    }
}
