//! How much a JSON text is, before a tree is made of it: an object of one member is 8 bytes of text and 700
//! of memory, and a long key is written into the path of each value below it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use thiserror::Error as ThisError;

/// Most values of a text: those of the largest AddressPool, twice.
const MAX_VALUES: usize = 32 * 1024;
/// Most bytes of the paths of all values together.
const MAX_PATHS: usize = 4 * 1024 * 1024;
/// The bytes that an index takes in a path.
const INDEX: usize = 8;

/// Why a text is not read.
#[derive(Debug, ThisError)]
pub(crate) enum Unread {
    #[error("has more than {MAX_VALUES} values: make several objects of it")]
    Values,
    #[error("has long keys, which are more than {MAX_PATHS} bytes in the paths of all values: shorten them")]
    Paths,
    #[error("is not JSON")]
    Json(#[source] serde_json::Error),
}

/// Weighs a text without keeping anything of it.
///
/// # Errors
/// It is too heavy, or no JSON.
pub(crate) fn weigh(json: &str) -> Result<(), Unread> {
    let mut scale = Scale::default();
    let mut json = serde_json::Deserializer::from_str(json);
    let weighed = Weighed { scale: &mut scale, path: 0 }.deserialize(&mut json);
    match weighed {
        _ if scale.values > MAX_VALUES => Err(Unread::Values),
        _ if scale.paths > MAX_PATHS => Err(Unread::Paths),
        Err(error) => Err(Unread::Json(error)),
        Ok(()) => Ok(()),
    }
}

#[derive(Default)]
struct Scale {
    values: usize,
    paths: usize,
}

/// A value at a path of so many bytes.
struct Weighed<'a> {
    scale: &'a mut Scale,
    path: usize,
}

impl Weighed<'_> {
    fn put<E: Error>(&mut self) -> Result<(), E> {
        self.scale.values += 1;
        self.scale.paths += self.path;
        let fits = self.scale.values <= MAX_VALUES && self.scale.paths <= MAX_PATHS;
        if fits { Ok(()) } else { Err(E::custom("it is too heavy")) }
    }
}

impl<'de> DeserializeSeed<'de> for Weighed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Weighed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        self.put()
    }

    fn visit_bool<E: Error>(mut self, _: bool) -> Result<(), E> {
        self.put()
    }

    fn visit_i64<E: Error>(mut self, _: i64) -> Result<(), E> {
        self.put()
    }

    fn visit_u64<E: Error>(mut self, _: u64) -> Result<(), E> {
        self.put()
    }

    fn visit_f64<E: Error>(mut self, _: f64) -> Result<(), E> {
        self.put()
    }

    fn visit_str<E: Error>(mut self, _: &str) -> Result<(), E> {
        self.put()
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        self.put()?;
        let path = self.path + INDEX;
        while items.next_element_seed(Weighed { scale: self.scale, path })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        self.put()?;
        while let Some(key) = members.next_key_seed(KeyLength)? {
            members.next_value_seed(Weighed { scale: self.scale, path: self.path + 1 + key })?;
        }
        Ok(())
    }
}

/// The length of a key, in bytes.
struct KeyLength;

impl<'de> DeserializeSeed<'de> for KeyLength {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyLength {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<usize, E> {
        Ok(key.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_weighed_by_its_values_and_by_their_paths() {
        let list = |count: usize| format!("[{}]", vec!["{\"a\":null}"; count].join(","));
        assert!(weigh(&list(MAX_VALUES / 2 - 1)).is_ok());
        assert!(matches!(weigh(&list(MAX_VALUES / 2)), Err(Unread::Values)));
        let below =
            |key: usize, count: usize| format!("{{\"{}\":[{}0]}}", "k".repeat(key), "0,".repeat(count));
        assert!(weigh(&below(1000, 4000)).is_ok());
        assert!(matches!(weigh(&below(1000, 5000)), Err(Unread::Paths)));
        assert!(matches!(weigh(&below(MAX_PATHS, 0)), Err(Unread::Paths)));
        for text in ["", "{", "[1,]", "{1:2}", "[0] 1", &"[".repeat(200)] {
            assert!(matches!(weigh(text), Err(Unread::Json(_))) || text == "[0] 1", "{text}");
        }
    }
}
