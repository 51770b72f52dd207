//! Decodes JSON, and refuses objects with repeated keys.
//!
//! Admission policies and most decoders see only the last of repeated keys, so such a document could mean two things.

use netclaim_cni::refuse_duplicate_keys;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Invalid;

/// Decodes `value` as `T`, which decides whether unknown fields are refused.
///
/// # Errors
/// [`Invalid`] that names the field.
pub(crate) fn decode<T: DeserializeOwned>(value: Value) -> Result<T, Invalid> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        Invalid::new(if path == "." { String::new() } else { path }, error.into_inner().to_string())
    })
}

/// Parses `text` as one JSON document without repeated keys.
///
/// # Errors
/// [`Invalid`] with the line and column.
pub(crate) fn parse(text: &str) -> Result<Value, Invalid> {
    let parsed = refuse_duplicate_keys(text).and_then(|()| serde_json::from_str(text));
    parsed.map_err(|error| Invalid::new("", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
