//! Decodes what people write, strictly, and says everything that is wrong with it at once.
//!
//! Admission policies and most decoders see only the last of repeated keys, so such a document could mean two
//! things.

use std::collections::BTreeMap;

use netclaim_cni::refuse_duplicate_keys;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::Invalid;

/// The most errors of one object: people do not correct more at once.
const MAX_ERRORS: usize = 32;

/// Decodes `value` as `T`, which decides whether unknown fields are refused.
///
/// # Errors
/// Every field that is unknown, missing or wrong.
pub(crate) fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, Vec<Invalid>> {
    let mut errors: Vec<Invalid> = Vec::new();
    let (mut rest, mut removed) = (value.clone(), Removed::default());
    loop {
        let error = match serde_path_to_error::deserialize::<_, T>(&rest) {
            Ok(value) if errors.is_empty() => return Ok(value),
            Ok(_) => return Err(errors),
            Err(error) => error,
        };
        let field = removed.written(error.path());
        let problem = error.inner().to_string();
        // A field that is missing because it was wrong has its error already.
        let missing = problem.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        let is_known = missing.is_some_and(|name| {
            let missing = Invalid::new(name, "").within(&field).field;
            errors.iter().any(|error| error.field == missing)
        });
        if !is_known {
            errors.push(Invalid::new(field, in_words(&problem).unwrap_or(problem)));
        }
        // What is wrong is taken out, to find what else is.
        if errors.len() == MAX_ERRORS || !removed.remove(&mut rest, error.path()) {
            return Err(errors);
        }
    }
}

/// Says in the words of YAML what serde says in those of Rust; `None` if it does not.
fn in_words(problem: &str) -> Option<String> {
    let (problem, wanted) = problem.split_once(", expected ")?;
    let range = match wanted {
        "u8" => Some("0 to 255"),
        "u16" => Some("0 to 65535"),
        "u32" => Some("0 to 4294967295"),
        "i64" => Some("-9223372036854775808 to 9223372036854775807"),
        _ => None,
    };
    if let Some((value, range)) = problem.strip_prefix("invalid value: integer ").zip(range) {
        return Some(format!("{} is out of range: write a number from {range}", value.trim_matches('`')));
    }
    let wanted = match wanted {
        "a sequence" => "a list",
        "a map" => "an object",
        // An enum of texts.
        "string or map" => "a string",
        "a boolean" => "true or false",
        "a string" => "a string",
        _ if range.is_some() => "a whole number",
        _ if wanted.starts_with("struct ") => "an object",
        _ => return None,
    };
    let found = match problem.strip_prefix("invalid type: ") {
        Some("sequence") => "a list",
        None if problem.starts_with("invalid length ") => "a list",
        Some("map") => "an object",
        Some("null") => "null",
        Some(found) if found.starts_with("string ") => "a string",
        Some(found) if found.starts_with("boolean ") => "a boolean",
        Some(found) if found.starts_with("integer ") || found.starts_with("floating point ") => "a number",
        _ => return None,
    };
    Some(format!("must be {wanted}, not {found}"))
}

/// Parses `text` as one JSON document without repeated keys.
///
/// # Errors
/// [`Invalid`] with the line and column.
pub(crate) fn parse(text: &str) -> Result<Value, Invalid> {
    let parsed = refuse_duplicate_keys(text).and_then(|()| serde_json::from_str(text));
    parsed.map_err(|error| Invalid::new("", error.to_string()))
}

/// What has been taken out of a document.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// How many items of each list, by its path as written. They are decoded in order, so all come before the
    /// next error.
    items: BTreeMap<String, usize>,
}

impl Removed {
    /// Returns the path as it is written in the document, in the form `a.b[0].c`.
    fn written(&self, path: &Path) -> String {
        path.iter().fold(String::new(), |parent, segment| {
            let key = match segment {
                Segment::Seq { index } => format!("[{}]", index + self.items.get(&parent).unwrap_or(&0)),
                Segment::Map { key } => key.clone(),
                // The variant is the key of the value.
                Segment::Enum { variant } => variant.clone(),
                Segment::Unknown => "?".to_owned(),
            };
            Invalid::new(key, "").within(&parent).field
        })
    }

    /// Removes the field or item at the path, or the one that has it. Returns whether there was one.
    pub(crate) fn remove(&mut self, value: &mut Value, path: &Path) -> bool {
        let is_place = |segment: &&Segment| matches!(segment, Segment::Map { .. } | Segment::Seq { .. });
        let segments: Vec<&Segment> = path.iter().take_while(is_place).collect();
        let Some((last, parents)) = segments.split_last() else { return false };
        let (mut at, mut written) = (value, String::new());
        for segment in parents {
            let (next, key) = match segment {
                Segment::Seq { index } => {
                    (at.get_mut(*index), format!("[{}]", index + self.items.get(&written).unwrap_or(&0)))
                }
                Segment::Map { key } => (at.get_mut(key), key.clone()),
                Segment::Enum { .. } | Segment::Unknown => (None, String::new()),
            };
            let Some(next) = next else { return false };
            (at, written) = (next, Invalid::new(key, "").within(&written).field);
        }
        match (last, at) {
            (Segment::Map { key }, Value::Object(fields)) => fields.remove(key).is_some(),
            (Segment::Seq { index }, Value::Array(items)) if *index < items.len() => {
                items.remove(*index);
                *self.items.entry(written).or_default() += 1;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::network::ClaimNetworkSpec;
    use crate::uplink_policy::UplinkPolicySpec;

    fn fields<T: DeserializeOwned>(value: &Value) -> Vec<String> {
        let errors = decode::<T>(value).err().expect("errors");
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn a_repeated_key_is_refused_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"x":[{"a":{"b":1,"b":2}}]}"#] {
            let error = parse(text).expect_err(text);
            assert!(error.to_string().contains("occurs twice"), "{error}");
        }
    }

    #[test]
    fn everything_else_is_kept() {
        let text = r#"{"a":[1,-2,3.5,18446744073709551615,true,null,"x"],"b":{"a":{}}}"#;
        assert_eq!(parse(text).expect("valid").to_string(), text);
    }

    #[test]
    fn every_fault_is_reported_where_it_was_written() {
        let network = json!({"cni": {}, "uplnk": {}, "uplink": {"links": ["eth0", 7, "eth1", "a b", 8]},
            "scope": "node", "addresses": {"ranges": [{}, {"subnet": "10.0.0.0/24", "gateway": 1}]},
            "attributes": {"a": {"int": "1"}, "b": {"real": 1}, "c-": {"int": 1}}});
        assert_eq!(
            fields::<ClaimNetworkSpec>(&network),
            [
                "addresses.ranges[0]",
                "addresses.ranges[1].gateway",
                "attributes.a.int",
                "attributes.b",
                "attributes.c-",
                "scope",
                "uplink.links[1]",
                "uplink.links[3]",
                "uplink.links[4]",
                "uplnk",
            ]
        );
    }

    #[test]
    fn a_field_that_is_wrong_is_not_also_missing() {
        assert_eq!(fields::<UplinkPolicySpec>(&json!({"links": 7, "publish": 1})), ["links", "publish"]);
        assert_eq!(fields::<UplinkPolicySpec>(&json!({"publish": "Never"})), [""]);
        assert_eq!(fields::<UplinkPolicySpec>(&json!([])).len(), 1);
        assert_eq!(fields::<ClaimNetworkSpec>(&Value::Null), [""]);
    }

    #[test]
    fn wrong_types_are_named_as_in_yaml() {
        let network = json!({"cni": [], "uplink": 7, "scope": 1.5, "allow": {"ips": "yes", "parameters": {
            "a": {"type": "string", "maxLength": -1}}}, "nodeSelector": {"matchLabels": {"a": null}}});
        let errors = decode::<ClaimNetworkSpec>(&network).expect_err("errors");
        assert_eq!(
            errors.iter().map(|error| error.problem.as_str()).collect::<Vec<_>>(),
            [
                "must be an object, not a string",
                "-1 is out of range: write a number from 0 to 4294967295",
                "must be an object, not a list",
                "must be a string, not null",
                "must be a string, not a number",
                "must be an object, not a number",
            ]
        );
    }

    #[test]
    fn errors_without_end_are_cut() {
        let many: Vec<u32> = (0..10_000).collect();
        assert_eq!(
            fields::<ClaimNetworkSpec>(&json!({"cni": {}, "uplink": {"links": many}})).len(),
            MAX_ERRORS
        );
    }
}
