//! `${…}` places in a CNI configuration: typed, without logic.
//!
//! A string that is nothing but a place becomes the value itself (`"${parameters.vlan}"` -> `100`); inside a
//! longer string scalars are written out. `$${` stands for a literal `${`. Keys are never templates.

use serde_json::{Map, Value};

use crate::{Format, Invalid, segmentation};

/// Values for the places of a configuration, by name.
pub type Scope = Map<String, Value>;

/// The names that netclaim itself gives a value, besides `parameters.NAME`.
pub const PLACES: [&str; 12] = [
    "claim.name",
    "claim.namespace",
    "claim.uid",
    "network.name",
    "node.name",
    "pod.name",
    "pod.namespace",
    "pod.uid",
    "segmentation.id",
    "uplink.ifName",
    "uplink.mac",
    "uplink.mtu",
];

/// What is known beforehand of the value that a place gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// Nothing.
    Any,
    /// It is a text.
    Text,
    /// It is a whole number from one to the other, both included.
    Between(i64, i64),
    /// It is one of these.
    OneOf(Vec<Value>),
    /// It is a text of this form.
    Formatted(Format),
    /// It is a list of these.
    List(Box<Place>),
}

/// What is known of a place that netclaim itself gives a value; `None` if there is no such place.
pub fn place(name: &str) -> Option<Place> {
    PLACES.contains(&name).then_some(match name {
        // What the kernel gives an Ethernet link, in bytes.
        "uplink.mtu" => Place::Between(68, 65535),
        "segmentation.id" => Place::Between(1, segmentation::MAX_ID.into()),
        _ => Place::Text,
    })
}

/// `value` with every place filled from `scope`.
///
/// # Errors
/// Names the path in `value` and the place that has no value.
pub fn resolve(value: &Value, scope: &Scope) -> Result<Value, Invalid> {
    map_strings(value, &mut |text| fill(text, scope))
}

/// A piece of a text.
pub(crate) enum Part<'a> {
    /// Stands for itself.
    Text(&'a str),
    /// The name in a `${…}`.
    Place(&'a str),
}

/// The pieces of a text; none of them is the empty text.
///
/// # Errors
/// A place has no end.
pub(crate) fn parse(text: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = pieces(text)?;
    parts.retain(|part| !matches!(part, Part::Text("")));
    Ok(parts)
}

fn pieces(text: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let before = rest.get(..start).unwrap_or_default();
        let after = rest.get(start + 2..).unwrap_or_default();
        if let Some(escaped) = before.strip_suffix('$') {
            parts.extend([Part::Text(escaped), Part::Text("${")]);
            rest = after;
            continue;
        }
        let end = after.find('}').ok_or_else(|| {
            format!("{text:?} has a place without an end: write ${{NAME}}, or $${{ for the text")
        })?;
        parts.extend([Part::Text(before), Part::Place(after.get(..end).unwrap_or_default())]);
        rest = after.get(end + 1..).unwrap_or_default();
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

fn fill(text: &str, scope: &Scope) -> Result<Value, String> {
    let value = |name: &str| scope.get(name).ok_or_else(|| format!("${{{name}}} has no value here"));
    let parts = parse(text)?;
    if let [Part::Place(name)] = parts.as_slice() {
        return value(name).cloned();
    }
    parts
        .into_iter()
        .map(|part| match part {
            Part::Text(text) => Ok(text.to_owned()),
            Part::Place(name) => match value(name)? {
                Value::String(text) => Ok(text.clone()),
                number_or_bool @ (Value::Number(_) | Value::Bool(_)) => Ok(number_or_bool.to_string()),
                _ => Err(format!("${{{name}}} is a list or object and cannot stand inside a text")),
            },
        })
        .collect::<Result<String, String>>()
        .map(Value::String)
}

fn map_strings(value: &Value, f: &mut impl FnMut(&str) -> Result<Value, String>) -> Result<Value, Invalid> {
    Ok(match value {
        Value::String(text) => f(text).map_err(|problem| Invalid::new("", problem))?,
        Value::Array(items) => {
            let item = |(i, item)| map_strings(item, f).map_err(|e: Invalid| e.within(&format!("[{i}]")));
            Value::Array(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                Ok((key.clone(), map_strings(value, f).map_err(|e: Invalid| e.within(key))?))
            };
            Value::Object(map.iter().map(entry).collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope() -> Scope {
        let Value::Object(scope) = json!({"uplink.ifName": "eth1", "parameters.vlan": 100, "list": []})
        else {
            unreachable!()
        };
        scope
    }

    #[test]
    fn a_lone_place_keeps_its_type_and_a_mixed_one_becomes_text() {
        let template = json!({"master": "${uplink.ifName}", "vlanId": "${parameters.vlan}", "x": ["a-${uplink.ifName}.${parameters.vlan}"]});
        let resolved = resolve(&template, &scope()).expect("resolves");
        assert_eq!(resolved, json!({"master": "eth1", "vlanId": 100, "x": ["a-eth1.100"]}));
    }

    #[test]
    fn a_doubled_dollar_is_literal() {
        assert_eq!(
            resolve(&json!("$${a} $x ${uplink.ifName}"), &scope()).expect("resolves"),
            json!("${a} $x eth1")
        );
    }

    #[test]
    fn errors_say_where_and_what() {
        let error = |value| resolve(&value, &scope()).expect_err("no value").to_string();
        assert_eq!(error(json!({"a": [{"b": "${nope}"}]})), "a[0].b: ${nope} has no value here");
        assert_eq!(error(json!("x${list}")), "${list} is a list or object and cannot stand inside a text");
        assert!(error(json!("${open")).contains("without an end"));
    }

    #[test]
    fn values_are_not_templates_themselves() {
        let scope = Scope::from_iter([("a".into(), json!("${b}"))]);
        assert_eq!(resolve(&json!("${a}"), &scope).expect("resolves"), json!("${b}"));
        let scope = Scope::from_iter([("a".into(), json!(["${b}", "$${c}"])), ("b".into(), json!("secret"))]);
        let resolved = resolve(&json!({"x": "${a}", "y": "${b}"}), &scope).expect("resolves");
        assert_eq!(resolved, json!({"x": ["${b}", "$${c}"], "y": "secret"}));
    }
}
