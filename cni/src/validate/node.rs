//! JSON values for the checks: keys in order, duplicates kept, and values that a template leaves open.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use crate::keys::{is_misspelt, member};
use crate::placeholder::PlaceholderValue;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    /// Written without fraction and exponent: what plugins read into an integer.
    Int(i128),
    Float,
    Text(String),
    List(Vec<Node>),
    Object(Members),
    /// A text with a `${…}` in it, in a template: another value comes instead.
    Open(Open),
}

/// A text whose value comes later.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Open {
    /// As it is written.
    pub(super) text: String,
    /// The possible values.
    pub(super) value: PlaceholderValue,
}

/// The members of an object, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Members(Vec<(String, Node)>);

impl Node {
    /// The same with `change` made to every text; it gets the text's pointer, too.
    pub(super) fn map_texts(self, at: &str, change: &mut impl FnMut(String, &str) -> Self) -> Self {
        match self {
            Self::Text(text) => change(text, at),
            Self::List(items) => {
                let item = |(index, item): (usize, Self)| item.map_texts(&format!("{at}/{index}"), change);
                Self::List(items.into_iter().enumerate().map(item).collect())
            }
            Self::Object(Members(members)) => {
                let member = |(key, node): (String, Self)| {
                    let node = node.map_texts(&member(at, &key), change);
                    (key, node)
                };
                Self::Object(Members(members.into_iter().map(member).collect()))
            }
            other => other,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// The kind of value, for a message.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "a number",
            Self::Float => "a number with a fraction or exponent",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
            Self::Open(_) => "a template",
        }
    }

    pub(super) fn object(&self) -> Option<&Members> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Int(number) => number.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
            other => f.write_str(other.kind()),
        }
    }
}

impl Members {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(key, node)| (key.as_str(), node))
    }

    /// The value of exactly this key.
    pub(super) fn exact(&self, key: &str) -> Option<&Node> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, node)| node)
    }

    /// The member that a plugin written in Go takes for `key`: of the keys that differ in case at most, the
    /// last one that is not null.
    fn find(&self, key: &str) -> Option<&(String, Node)> {
        let same = |found: &str| found == key || is_misspelt(found, key);
        self.0.iter().rev().find(|(k, node)| same(k) && *node != Node::Null)
    }

    /// The value a plugin takes for `key`.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.find(key).map(|(_, node)| node)
    }

    /// Where the value that a plugin takes for `key` is, and where there is none, the object, which is `at`.
    pub(super) fn pointer(&self, at: &str, key: &str) -> String {
        self.find(key).map_or_else(|| at.to_owned(), |(spelt, _)| member(at, spelt))
    }

    /// All but the keys for which `left_out` holds.
    pub(super) fn without(&self, left_out: impl Fn(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(key, _)| !left_out(key)).cloned().collect())
    }

    /// A text that is not empty.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Node::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    pub(super) fn int(&self, key: &str) -> Option<i128> {
        if let Node::Int(number) = self.get(key)? { Some(*number) } else { None }
    }

    pub(super) fn on(&self, key: &str) -> bool {
        self.get(key) == Some(&Node::Bool(true))
    }

    /// Whether the key has a value other than the empty text: an open value counts.
    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|node| *node != Node::Text(String::new()))
    }

    pub(super) fn list(&self, key: &str) -> &[Node] {
        if let Some(Node::List(items)) = self.get(key) { items } else { &[] }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Float)
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Node::Object(Members(members)))
    }
}

/// Returns the problem of a value whose JSON type is not `expected`.
pub(super) fn wrong(expected: &str, found: &Node) -> String {
    format!("must be {expected}, not {}", found.kind())
}
