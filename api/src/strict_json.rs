//! Decodes JSON, and refuses objects with repeated keys.
//!
//! Admission policies and most decoders see only the last of repeated keys, so such a document could mean two things.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

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
    serde_json::from_str::<Unique>(text)
        .map(|Unique(value)| value)
        .map_err(|e| Invalid::new("", e.to_string()))
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let Unique(value) = entries.next_value()?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} stands twice in one object")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_is_refused_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"x":[{"a":{"b":1,"b":2}}]}"#] {
            let error = parse(text).expect_err(text);
            assert!(error.to_string().contains("stands twice"), "{error}");
        }
    }

    #[test]
    fn everything_else_is_kept() {
        let text = r#"{"a":[1,-2,3.5,18446744073709551615,true,null,"x"],"b":{"a":{}}}"#;
        assert_eq!(parse(text).expect("valid").to_string(), text);
    }
}
