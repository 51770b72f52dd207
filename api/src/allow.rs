//! What an admin lets tenants decide.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Invalid;
use crate::template::Place;

/// What claims may set in their [`AttachmentConfig`](crate::AttachmentConfig). Everything is off by default but
/// the interface's name, which concerns nobody else. DeviceClasses are the admin's and not bound by this.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allow {
    /// Claims may ask for addresses (`ips`).
    #[serde(skip_serializing_if = "is_false")]
    pub ips: bool,
    /// Claims may choose the MAC address (`mac`).
    #[serde(skip_serializing_if = "is_false")]
    pub mac: bool,
    /// Claims may set rates (`bandwidth`), up to the bandwidth they were granted as capacity.
    #[serde(skip_serializing_if = "is_false")]
    pub bandwidth: bool,
    /// Claims may open ports of the node (`portMappings`).
    #[serde(skip_serializing_if = "is_false")]
    pub port_mappings: bool,
    /// Claims may pass CNI_ARGS to the plugins (`args`).
    #[serde(skip_serializing_if = "is_false")]
    pub args: bool,
    /// Parameters that claims may set, by name, each within bounds; used in the configuration
    /// as `${parameters.NAME}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ParameterRule>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// Bounds of one tenant parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParameterRule {
    /// What the value is.
    pub r#type: ParameterType,
    /// Smallest integer allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum: Option<i64>,
    /// Largest integer allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum: Option<i64>,
    /// The only values allowed. A string parameter needs this list: free text from tenants does not belong
    /// into a configuration that root runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "scalars")]
    pub r#enum: Vec<Value>,
    /// Used where neither class nor claim sets the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "scalar")]
    pub default: Option<Value>,
}

fn scalar(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

fn scalars(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true}})
}

/// Types of a tenant parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ParameterType {
    /// A whole number.
    Integer,
    /// Text, one of the values of `enum`.
    String,
    /// `true` or `false`.
    Boolean,
}

impl ParameterRule {
    /// Checks the rule itself; paths are relative to the rule.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let mut problems = Vec::new();
        if self.r#type != ParameterType::Integer && (self.minimum.is_some() || self.maximum.is_some()) {
            problems.push(Invalid::new("minimum", "only integers have a minimum or maximum"));
        }
        if let (Some(min), Some(max)) = (self.minimum, self.maximum)
            && min > max
        {
            problems.push(Invalid::new("minimum", format!("is above maximum ({min} > {max})")));
        }
        if self.r#type == ParameterType::String && self.r#enum.is_empty() {
            problems
                .push(Invalid::new("enum", "a string parameter needs the list of the values it may have"));
        }
        for (i, value) in self.r#enum.iter().enumerate() {
            if let Err(problem) = self.check_type(value) {
                problems.push(Invalid::new(format!("enum[{i}]"), problem));
            }
        }
        if let Some(value) = &self.default
            && let Err(problem) = self.check(value)
        {
            problems.push(Invalid::new("default", problem));
        }
        problems
    }

    /// Whether `value` is within the bounds; the error says which are not kept.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        self.check_type(value)?;
        if !self.r#enum.is_empty() && !self.r#enum.contains(value) {
            let allowed = self.r#enum.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
            return Err(format!("{value} is not allowed: use one of {allowed}"));
        }
        if let Some(number) = value.as_i64() {
            if let Some(min) = self.minimum.filter(|min| number < *min) {
                return Err(format!("{number} is too small: the minimum is {min}"));
            }
            if let Some(max) = self.maximum.filter(|max| number > *max) {
                return Err(format!("{number} is too large: the maximum is {max}"));
            }
        }
        Ok(())
    }

    /// What is known of the parameter's value.
    pub(crate) fn place(&self) -> Place {
        if !self.r#enum.is_empty() {
            return Place::OneOf(
                self.r#enum.iter().filter(|value| self.check(value).is_ok()).cloned().collect(),
            );
        }
        match self.r#type {
            ParameterType::Integer => {
                Place::Between(self.minimum.unwrap_or(i64::MIN), self.maximum.unwrap_or(i64::MAX))
            }
            ParameterType::Boolean => Place::OneOf(vec![Value::Bool(true), Value::Bool(false)]),
            ParameterType::String => Place::Text,
        }
    }

    fn check_type(&self, value: &Value) -> Result<(), String> {
        let (fits, name) = match self.r#type {
            ParameterType::Integer => (value.is_i64(), "an integer"),
            ParameterType::String => (value.is_string(), "a string"),
            ParameterType::Boolean => (value.is_boolean(), "true or false"),
        };
        if fits { Ok(()) } else { Err(format!("{value} is not {name}")) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(value: Value) -> ParameterRule {
        serde_json::from_value(value).expect("a rule")
    }

    #[test]
    fn bounds_are_kept() {
        let vlan = rule(json!({"type": "integer", "minimum": 100, "maximum": 199}));
        assert_eq!(vlan.check(&json!(100)), Ok(()));
        assert_eq!(vlan.check(&json!(200)), Err("200 is too large: the maximum is 199".into()));
        assert_eq!(vlan.check(&json!("100")), Err("\"100\" is not an integer".into()));
        let mode = rule(json!({"type": "string", "enum": ["bridge", "vepa"]}));
        assert_eq!(
            mode.check(&json!("passthru")),
            Err("\"passthru\" is not allowed: use one of \"bridge\", \"vepa\"".into())
        );
    }

    #[test]
    fn a_rule_that_allows_nothing_or_anything_is_refused() {
        let fields = |value| rule(value).problems().into_iter().map(|p| p.field).collect::<Vec<_>>();
        assert_eq!(fields(json!({"type": "integer", "minimum": 2, "maximum": 1})), ["minimum"]);
        assert_eq!(fields(json!({"type": "string"})), ["enum"]);
        assert_eq!(fields(json!({"type": "boolean", "default": 1})), ["default"]);
        assert_eq!(fields(json!({"type": "boolean", "minimum": 1})), ["minimum"]);
    }
}
