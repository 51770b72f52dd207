//! Placeholders such as `${uplink.name}` in a CNI configuration: typed, without logic.
//!
//! A string that is only a placeholder becomes the value itself (`"${parameters.vlan}"` -> `100`); in a
//! longer string, scalars are written out. `$${` stands for a literal `${`. Keys are never templates.

use std::collections::BTreeSet;

use netclaim_kubernetes::labels::is_label_key;
use serde_json::{Map, Value};

use netclaim_cni::placeholder::{Part, PlaceholderValue, parse};
use netclaim_cni::validate::{Finding, UnknownPlaceholder, validate_template};

use crate::allow::NAMED_PARAMETERS;
use crate::attribute::AttributeName;
use crate::invalid::first_of;
use crate::{Allow, Invalid, ParameterRule, segmentation};

/// Values of placeholders, by name.
pub type Scope = Map<String, Value>;

/// The placeholders that netclaim itself fills. Claims and classes fill `parameters.NAME`.
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
    "uplink.name",
    "uplink.mac",
    "uplink.mtu",
];

/// Placeholders that end with the key of a label of the Node.
pub const NODE_LABELS: &str = "node.labels.";
/// Placeholders that end with the name of an attribute that is declared of the uplink.
pub const UPLINK_ATTRIBUTES: &str = "uplink.attributes.";

/// Returns the facts about a placeholder that netclaim itself fills; `None` if there is no such placeholder.
pub fn place(name: &str) -> Option<PlaceholderValue> {
    if let Some(key) = name.strip_prefix(NODE_LABELS) {
        return is_label_key(key).then_some(PlaceholderValue::Text);
    }
    if let Some(attribute) = name.strip_prefix(UPLINK_ATTRIBUTES) {
        return AttributeName::try_from(attribute.to_owned()).is_ok().then_some(PlaceholderValue::Any);
    }
    PLACES.contains(&name).then_some(match name {
        // What the kernel gives an Ethernet link, in bytes.
        "uplink.mtu" => PlaceholderValue::Between(68, 65535),
        "segmentation.id" => PlaceholderValue::Between(1, segmentation::MAX_ID.into()),
        _ => PlaceholderValue::Text,
    })
}

/// Returns the facts about a placeholder if claims may set the parameters of `allow`.
pub(crate) fn place_with(name: &str, allow: &Allow) -> Result<PlaceholderValue, UnknownPlaceholder> {
    let parameter = || allow.parameters.get(name.strip_prefix("parameters.")?).map(ParameterRule::place);
    place(name).or_else(parameter).ok_or_else(|| {
        let parameters = allow.parameters.keys().map(|name| format!("parameters.{name}"));
        let parameters = first_of(parameters, NAMED_PARAMETERS, ", ");
        unknown(name, Some(parameters).filter(|parameters| !parameters.is_empty()))
    })
}

fn unknown(name: &str, parameters: Option<String>) -> UnknownPlaceholder {
    let named = [format!("{NODE_LABELS}KEY"), format!("{UPLINK_ATTRIBUTES}NAME")];
    let known: Vec<String> = PLACES.map(str::to_owned).into_iter().chain(named).chain(parameters).collect();
    UnknownPlaceholder {
        problem: format!("${{{name}}} is unknown"),
        advice: format!("use one of {}", known.join(", ")),
    }
}

/// Returns everything that is wrong with a configuration whose parameters are not known: any
/// `${parameters.NAME}` is accepted.
pub fn validate(json: &[u8]) -> Vec<Finding> {
    validate_template(json, &|name| {
        let parameter = name.strip_prefix("parameters.").map(|_| PlaceholderValue::Any);
        place(name).or(parameter).ok_or_else(|| unknown(name, Some("parameters.NAME".to_owned())))
    })
}

/// Returns `value` with every placeholder filled from `scope`.
///
/// # Errors
/// Names the path in `value` and the placeholder that has no value.
pub fn resolve(value: &Value, scope: &Scope) -> Result<Value, Invalid> {
    map_strings(value, &mut |text| fill(text, scope))
}

fn fill(text: &str, scope: &Scope) -> Result<Value, String> {
    let value = |name: &str| scope.get(name).ok_or_else(|| format!("${{{name}}} has no value here"));
    let parts = parse(text).map_err(|error| error.to_string())?;
    if let [Part::Placeholder(name)] = parts.as_slice() {
        return value(name).cloned();
    }
    parts
        .into_iter()
        .map(|part| match part {
            Part::Text(text) => Ok(text.to_owned()),
            Part::Placeholder(name) => match value(name)? {
                Value::String(text) => Ok(text.clone()),
                number_or_bool @ (Value::Number(_) | Value::Bool(_)) => Ok(number_or_bool.to_string()),
                _ => Err(format!("${{{name}}} is a list or object and cannot stand inside a text")),
            },
        })
        .collect::<Result<String, String>>()
        .map(Value::String)
}

/// Returns the names of the placeholders in these values.
pub fn names<'a>(values: impl IntoIterator<Item = &'a Value>) -> BTreeSet<&'a str> {
    let mut left: Vec<&Value> = values.into_iter().collect();
    let mut names = BTreeSet::new();
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => {
                let name = |part| match part {
                    Part::Placeholder(name) => Some(name),
                    Part::Text(_) => None,
                };
                names.extend(parse(text).into_iter().flatten().filter_map(name));
            }
            Value::Array(items) => left.extend(items),
            Value::Object(map) => left.extend(map.values()),
            _ => {}
        }
    }
    names
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
                Ok::<_, Invalid>((key.clone(), map_strings(value, f).map_err(|e: Invalid| e.within(key))?))
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
        let Value::Object(scope) = json!({"uplink.name": "eth1", "parameters.vlan": 100, "list": []}) else {
            unreachable!()
        };
        scope
    }

    #[test]
    fn a_lone_place_keeps_its_type_and_a_mixed_one_becomes_text() {
        let template = json!({"master": "${uplink.name}", "vlanId": "${parameters.vlan}", "x": ["a-${uplink.name}.${parameters.vlan}"]});
        let resolved = resolve(&template, &scope()).expect("resolves");
        assert_eq!(resolved, json!({"master": "eth1", "vlanId": 100, "x": ["a-eth1.100"]}));
    }

    #[test]
    fn a_doubled_dollar_is_literal() {
        assert_eq!(
            resolve(&json!("$${a} $x ${uplink.name}"), &scope()).expect("resolves"),
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
    fn an_unknown_placeholder_is_named_with_those_that_there_are() {
        let conflist =
            json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "x", "m": "${uplink.ifname}"}]});
        let findings = validate(conflist.to_string().as_bytes());
        let [finding] = findings.as_slice() else { panic!("{findings:?}") };
        assert_eq!(
            (finding.pointer.as_str(), finding.problem.as_str()),
            ("/plugins/0/m", "${uplink.ifname} is unknown")
        );
        assert!(finding.advice.contains("uplink.name, uplink.mac"), "{finding}");
    }

    #[test]
    fn labels_and_attributes_are_named_with_dots_and_slashes() {
        for name in ["node.labels.topology.kubernetes.io/zone", "node.labels.rack"] {
            assert_eq!(place(name), Some(PlaceholderValue::Text), "{name}");
        }
        for name in ["uplink.attributes.switch", "uplink.attributes.example.com/vlan"] {
            assert_eq!(place(name), Some(PlaceholderValue::Any), "{name}");
        }
        for name in ["node.labels.", "node.labels.a b", "node.labels.a/b/c", "uplink.attributes.a-b"] {
            assert_eq!(place(name), None, "{name}");
        }
        let scope = Scope::from_iter([
            ("node.labels.topology.kubernetes.io/zone".to_owned(), json!("eu-1a")),
            ("uplink.attributes.example.com/vlan".to_owned(), json!(100)),
        ]);
        let conf = json!({"x": "z-${node.labels.topology.kubernetes.io/zone}", "vlan": "${uplink.attributes.example.com/vlan}"});
        assert_eq!(resolve(&conf, &scope), Ok(json!({"x": "z-eu-1a", "vlan": 100})));
        let more = json!(["$${no}", "${uplink.name}", "${open"]);
        let found = names([&conf, &more]);
        let expected =
            ["node.labels.topology.kubernetes.io/zone", "uplink.attributes.example.com/vlan", "uplink.name"];
        assert_eq!(found, expected.into());
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
