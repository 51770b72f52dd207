//! JSON objects that keep the bytes of their values, and a check for duplicate keys.
//!
//! `serde_json::Value` would sort keys and round large numbers, and plugins would get another configuration
//! than the administrator wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON object whose keys keep their order and whose values keep their bytes.
///
/// When a key occurs twice the later value counts, as it does for plugins written in Go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Object(Vec<(String, Box<RawValue>)>);

impl Object {
    pub(crate) fn get(&self, key: &str) -> Option<&RawValue> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| &**v)
    }

    /// Replaces the value of `key` in its place, or appends the key.
    pub(crate) fn set(&mut self, key: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.0.retain(|(key, _)| keep(key));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), &**value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut pairs: Vec<(String, Box<RawValue>)> = Vec::new();
                let mut places = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    match places.get(&key).and_then(|place: &usize| pairs.get_mut(*place)) {
                        Some((_, old)) => *old = value,
                        None => {
                            places.insert(key.clone(), pairs.len());
                            pairs.push((key, value));
                        }
                    }
                }
                Ok(Object(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// Turns anything serialisable into JSON that can be placed in an [`Object`].
pub(crate) fn raw<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, serde_json::Error> {
    serde_json::value::to_raw_value(value)
}

/// Reads one JSON document without keeping it, and refuses a key that occurs twice in one object, at any
/// depth.
///
/// Two readers may pick different ones of two equal keys, so that a policy would see another value than the
/// plugin.
///
/// # Errors
/// Names the key, or what is not JSON, with the line and column.
pub fn refuse_duplicate_keys(text: &str) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Distinct.deserialize(&mut deserializer)?;
    deserializer.end()
}

#[derive(Clone, Copy)]
struct Distinct;

impl<'de> DeserializeSeed<'de> for Distinct {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Distinct {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format_args!("key `{key}` occurs twice in one object")));
            }
            keys.insert(key);
            map.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_keeps_order_numbers_and_white_space_inside_values() {
        let text = r#"{"z":12345678901234567890123,"a":1.0e+2,"m":[1,  2],"<":"\u003c"}"#;
        let object: Object = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&object).unwrap(), text);
    }

    #[test]
    fn setting_a_key_keeps_its_place_and_a_new_one_goes_last() {
        let mut object: Object = serde_json::from_str(r#"{"a":1,"b":2}"#).unwrap();
        object.set("a", raw("x").unwrap());
        object.set("c", raw(&3).unwrap());
        assert_eq!(serde_json::to_string(&object).unwrap(), r#"{"a":"x","b":2,"c":3}"#);
    }

    #[test]
    fn the_later_of_two_equal_keys_counts() {
        let object: Object = serde_json::from_str(r#"{"a":1,"b":2,"a":3}"#).unwrap();
        assert_eq!(serde_json::to_string(&object).unwrap(), r#"{"a":3,"b":2}"#);
    }

    #[test]
    fn duplicate_keys_are_found_at_any_depth() {
        assert!(
            refuse_duplicate_keys(r#"{"a":{"b":1},"b":[{"b":1},{"b":2}],"c":null,"d":[1.5,-1,true,"x"]}"#)
                .is_ok()
        );
        let error = refuse_duplicate_keys(r#"{"a":[{"b":{"c":1,"c":2}}]}"#).unwrap_err();
        assert!(error.to_string().starts_with("key `c` occurs twice in one object at line 1"), "{error}");
        assert!(refuse_duplicate_keys(r#"{"a":1,"\u0061":2}"#).is_err());
    }
}
