//! Rules for the parameters of claims: a closed subset of JSON Schema.
//!
//! A keyword means the same as in JSON Schema (draft 2020-12, "Validation") and in the structural schemas of
//! Kubernetes; if it means less here, its description says so. Invariants:
//! * A valid rule accepts neither free text nor unbounded lists, because plugins run as root on what tenants
//!   write.
//! * A keyword that does not apply to the rule's type is refused, not ignored.
//! * An invalid rule refuses every value that it cannot check.
//!
//! CNI configurations need neither `number` (they have no fractions), `object` (tenants would choose its
//! keys), lists in lists, `multipleOf`, nor exclusive bounds.

mod format;
mod pattern;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use format::Format;
use pattern::Pattern;

use crate::invalid::first_of;
use crate::{Invalid, shorten};
use netclaim_cni::placeholder::PlaceholderValue;

/// The most items that a rule may allow.
const MAX_ITEMS: u32 = 256;
/// The most values that a rule may list.
const MAX_VALUES: usize = 256;
/// How many of the values a message names.
const NAMED_VALUES: usize = 10;

/// The values that a parameter may have, as a JSON schema. Other keywords than these are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParameterRule {
    /// What the parameter is for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Type of the value.
    pub r#type: ParameterType,
    /// Smallest integer allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum: Option<i64>,
    /// Largest integer allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum: Option<i64>,
    /// The values that are allowed. A string needs this list, a `pattern` or a `format`, because plugins run
    /// as root on what claims set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "scalars")]
    pub r#enum: Vec<Value>,
    /// Regular expression (RE2 syntax) that the whole string must match. It must begin with `^` and end with
    /// `$`, such as `^[a-z]+$`. The string must also be printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = pattern::MAX_LENGTH))]
    pub pattern: Option<String>,
    /// Smallest number of characters of a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count")]
    pub min_length: Option<u32>,
    /// Largest number of characters of a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count")]
    pub max_length: Option<u32>,
    /// Format of a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The values that an item of an array may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<ItemRule>,
    /// Smallest number of items of an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count")]
    pub min_items: Option<u32>,
    /// Largest number of items of an array, at most 256. It is required for an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count")]
    pub max_items: Option<u32>,
    /// Whether the items of an array must differ from each other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unique_items: bool,
    /// The value if neither the class nor the claim sets the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub default: Option<Value>,
}

/// The values that an item of an array may have, as a JSON schema with the keywords of a single value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ItemRule {
    /// Type of the item.
    pub r#type: ItemType,
    /// Smallest integer allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum: Option<i64>,
    /// Largest integer allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum: Option<i64>,
    /// The values that are allowed. A string needs this list, a `pattern` or a `format`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "scalars")]
    pub r#enum: Vec<Value>,
    /// Regular expression (RE2 syntax) that the whole string must match. It must begin with `^` and end with
    /// `$`, such as `^[a-z]+$`. The string must also be printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = pattern::MAX_LENGTH))]
    pub pattern: Option<String>,
    /// Smallest number of characters of a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count")]
    pub min_length: Option<u32>,
    /// Largest number of characters of a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count")]
    pub max_length: Option<u32>,
    /// Format of a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
}

fn any_value(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// A 32-bit number, without the format `uint32`, which the API server does not know.
fn count(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "integer", "minimum": 0, "maximum": u32::MAX})
}

fn scalars(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array", "maxItems": MAX_VALUES, "items": {"x-kubernetes-preserve-unknown-fields": true},
    })
}

/// Types of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ParameterType {
    /// A whole number.
    Integer,
    /// A text that `enum`, `pattern` or `format` allows.
    String,
    /// `true` or `false`.
    Boolean,
    /// A list of values that `items` allows.
    Array,
}

/// Types of an item of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ItemType {
    /// A whole number.
    Integer,
    /// A text that `enum`, `pattern` or `format` allows.
    String,
    /// `true` or `false`.
    Boolean,
}

impl ParameterRule {
    /// Returns that more values are listed than are compared with what claims set; the path is relative to
    /// the rule.
    pub(crate) fn too_much(&self) -> Option<Invalid> {
        let of_items = self.items.as_ref().map_or(0, |items| items.r#enum.len());
        Invalid::too_many("enum", self.r#enum.len(), MAX_VALUES)
            .or_else(|| Invalid::too_many("items.enum", of_items, MAX_VALUES))
    }

    /// Returns every problem of the rule itself; paths are relative to the rule.
    pub(crate) fn problems(&self) -> Vec<Invalid> {
        let mut problems = match self.item_type() {
            Some(r#type) => {
                let mut problems = self.as_item(r#type).problems();
                let of_arrays = [
                    ("items", self.items.is_some()),
                    ("minItems", self.min_items.is_some()),
                    ("maxItems", self.max_items.is_some()),
                    ("uniqueItems", self.unique_items),
                ];
                let misplaced = of_arrays.into_iter().filter(|(_, written)| *written);
                problems
                    .extend(misplaced.map(|(keyword, _)| Invalid::new(keyword, "is for type array only")));
                problems
            }
            None => self.array_problems(),
        };
        if let Some(Err(problem)) = self.default.as_ref().map(|value| self.check(value)) {
            problems.push(problem.within("default"));
        }
        problems
    }

    fn array_problems(&self) -> Vec<Invalid> {
        let keywords = self.as_item(ItemType::String).keywords();
        let misplaced = keywords.into_iter().filter(|(_, written, _)| *written);
        let mut problems: Vec<_> = misplaced
            .map(|(keyword, ..)| {
                Invalid::new(keyword, "says nothing of an array: write it below items, for each item")
            })
            .collect();
        match &self.items {
            Some(items) => problems.extend(items.problems().into_iter().map(|p| p.within("items"))),
            None => problems.push(Invalid::new(
                "items",
                "is missing: say what an item may be, for example {type: string, format: ipv4}",
            )),
        }
        match self.max_items {
            None => problems.push(Invalid::new(
                "maxItems",
                format!("is missing: say how many items a claim may list, at most {MAX_ITEMS}"),
            )),
            Some(max) if max > MAX_ITEMS => {
                problems.push(Invalid::new("maxItems", format!("is too large: write at most {MAX_ITEMS}")));
            }
            Some(_) => {}
        }
        problems.extend(crossed("minItems", self.min_items, "maxItems", self.max_items));
        problems
    }

    /// Checks that the rule allows `value`; paths are relative to the value.
    pub(crate) fn check(&self, value: &Value) -> Result<(), Invalid> {
        match self.item_type() {
            Some(r#type) => self.as_item(r#type).check(value).map_err(|problem| Invalid::new("", problem)),
            None => self.check_array(value),
        }
    }

    fn check_array(&self, value: &Value) -> Result<(), Invalid> {
        let wrong = |problem: String| Err(Invalid::new("", problem));
        let Value::Array(items) = value else { return wrong(format!("{} is not a list", shown(value))) };
        let Some(rule) = &self.items else {
            return wrong("cannot be set: the rule of the parameter has no items".to_owned());
        };
        let (min, max) = (self.min_items.unwrap_or(0), self.max_items.unwrap_or(MAX_ITEMS).min(MAX_ITEMS));
        match items.len() {
            count if count < size(min) => return wrong(format!("has {count} items: the minimum is {min}")),
            count if count > size(max) => return wrong(format!("has {count} items: the maximum is {max}")),
            _ => {}
        }
        for (i, item) in items.iter().enumerate() {
            rule.check(item).map_err(|problem| Invalid::new(format!("[{i}]"), problem))?;
            if self.unique_items && items.iter().take(i).any(|earlier| earlier == item) {
                let problem = format!("{} stands twice: remove one", shown(item));
                return Err(Invalid::new(format!("[{i}]"), problem));
            }
        }
        Ok(())
    }

    /// The facts about the parameter's value before a claim sets it.
    pub(crate) fn place(&self) -> PlaceholderValue {
        match self.item_type() {
            Some(r#type) => self.as_item(r#type).place(),
            None => PlaceholderValue::List(Box::new(
                self.items.as_ref().map_or(PlaceholderValue::Any, ItemRule::place),
            )),
        }
    }

    /// `None` for arrays.
    fn item_type(&self) -> Option<ItemType> {
        match self.r#type {
            ParameterType::Integer => Some(ItemType::Integer),
            ParameterType::String => Some(ItemType::String),
            ParameterType::Boolean => Some(ItemType::Boolean),
            ParameterType::Array => None,
        }
    }

    /// The keywords that bound a single value.
    fn as_item(&self, r#type: ItemType) -> ItemRule {
        ItemRule {
            r#type,
            minimum: self.minimum,
            maximum: self.maximum,
            r#enum: self.r#enum.clone(),
            pattern: self.pattern.clone(),
            min_length: self.min_length,
            max_length: self.max_length,
            format: self.format,
        }
    }
}

impl ItemRule {
    /// Every keyword, whether it is written, and the type that it is for; none if it is for all.
    fn keywords(&self) -> [(&'static str, bool, Option<ItemType>); 7] {
        [
            ("minimum", self.minimum.is_some(), Some(ItemType::Integer)),
            ("maximum", self.maximum.is_some(), Some(ItemType::Integer)),
            ("enum", !self.r#enum.is_empty(), None),
            ("pattern", self.pattern.is_some(), Some(ItemType::String)),
            ("minLength", self.min_length.is_some(), Some(ItemType::String)),
            ("maxLength", self.max_length.is_some(), Some(ItemType::String)),
            ("format", self.format.is_some(), Some(ItemType::String)),
        ]
    }

    fn problems(&self) -> Vec<Invalid> {
        let mut problems = Vec::new();
        for (keyword, _, whose) in self.keywords().into_iter().filter(|(_, written, _)| *written) {
            if let Some(whose) = whose.filter(|whose| *whose != self.r#type) {
                let name = if whose == ItemType::Integer { "integer" } else { "string" };
                problems.push(Invalid::new(keyword, format!("is for type {name} only")));
            }
        }
        problems.extend(crossed("minimum", self.minimum, "maximum", self.maximum));
        problems.extend(crossed("minLength", self.min_length, "maxLength", self.max_length));
        if self.is_free_text() {
            let problem = "a string needs the list of the values it may have here, or a pattern or format: \
                           text as tenants like does not belong into a configuration that root runs";
            problems.push(Invalid::new("enum", problem));
        }
        let pattern = self.parse_pattern();
        let is_broken = matches!(pattern, Some(Err(_)));
        if let Some(Err(problem)) = &pattern {
            problems.push(Invalid::new("pattern", problem));
        }
        for (i, value) in self.r#enum.iter().enumerate() {
            // An integer of the list that is out of bounds counts as one that is not in the list.
            let judged = match self.r#type {
                ItemType::String if !is_broken => self.check_listed(value, pattern.as_ref()),
                _ => self.check_type(value),
            };
            if let Err(problem) = judged {
                problems.push(Invalid::new(format!("enum[{i}]"), problem));
            }
        }
        problems
    }

    /// Whether the rule would allow any text.
    fn is_free_text(&self) -> bool {
        self.r#type == ItemType::String
            && self.r#enum.is_empty()
            && self.pattern.is_none()
            && self.format.is_none()
    }

    fn parse_pattern(&self) -> Option<Result<Pattern, String>> {
        self.pattern.as_deref().map(Pattern::parse)
    }

    /// Checks that the rule allows `value`; the error says what the keyword demands.
    fn check(&self, value: &Value) -> Result<(), String> {
        self.check_type(value)?;
        if !self.r#enum.is_empty() && !self.r#enum.contains(value) {
            let allowed = first_of(self.r#enum.iter().map(shown), NAMED_VALUES, ", ");
            return Err(format!("{} is not allowed: use one of {allowed}", shown(value)));
        }
        self.check_listed(value, self.parse_pattern().as_ref())
    }

    /// As [`check`](Self::check) for a value of the list, with the pattern parsed: that takes much longer
    /// than to match a value.
    fn check_listed(&self, value: &Value, pattern: Option<&Result<Pattern, String>>) -> Result<(), String> {
        self.check_type(value)?;
        if let Some(number) = value.as_i64() {
            if let Some(min) = self.minimum.filter(|min| number < *min) {
                return Err(format!("{number} is too small: the minimum is {min}"));
            }
            if let Some(max) = self.maximum.filter(|max| number > *max) {
                return Err(format!("{number} is too large: the maximum is {max}"));
            }
        }
        value.as_str().map_or(Ok(()), |text| self.check_text(text, pattern))
    }

    fn check_text(&self, text: &str, pattern: Option<&Result<Pattern, String>>) -> Result<(), String> {
        if self.is_free_text() {
            return Err("cannot be set: the rule of the parameter has no enum, pattern or format".to_owned());
        }
        let count = text.chars().count();
        if let Some(min) = self.min_length.filter(|min| count < size(*min)) {
            return Err(format!("has {count} characters: the minimum is {min}"));
        }
        if let Some(max) = self.max_length.filter(|max| count > size(*max)) {
            return Err(format!("has {count} characters: the maximum is {max}"));
        }
        if let Some(format) = self.format {
            format.check(text)?;
        }
        match pattern {
            None => Ok(()),
            Some(Err(problem)) => Err(format!("cannot be set: the pattern of the parameter {problem}")),
            Some(Ok(parsed)) if parsed.matches(text) => Ok(()),
            Some(Ok(_)) => {
                let pattern = self.pattern.as_deref().unwrap_or_default();
                Err(format!("{} does not match {pattern}", shown(&text.into())))
            }
        }
    }

    /// The facts about a value that the rule allows.
    fn place(&self) -> PlaceholderValue {
        if !self.r#enum.is_empty() {
            let pattern = self.parse_pattern();
            let allowed = |value: &&Value| self.check_listed(value, pattern.as_ref()).is_ok();
            return PlaceholderValue::OneOf(self.r#enum.iter().filter(allowed).cloned().collect());
        }
        match self.r#type {
            ItemType::Integer => {
                PlaceholderValue::Between(self.minimum.unwrap_or(i64::MIN), self.maximum.unwrap_or(i64::MAX))
            }
            ItemType::Boolean => PlaceholderValue::OneOf(vec![Value::Bool(true), Value::Bool(false)]),
            ItemType::String => self.format.map_or(PlaceholderValue::Text, Format::place),
        }
    }

    fn check_type(&self, value: &Value) -> Result<(), String> {
        let (fits, name) = match self.r#type {
            ItemType::Integer => (value.is_i64(), "an integer"),
            ItemType::String => (value.is_string(), "a string"),
            ItemType::Boolean => (value.is_boolean(), "true or false"),
        };
        if fits { Ok(()) } else { Err(format!("{} is not {name}", shown(value))) }
    }
}

/// The problem of two bounds between which there is nothing.
fn crossed<T: PartialOrd + std::fmt::Display>(
    min_keyword: &str,
    min: Option<T>,
    max_keyword: &str,
    max: Option<T>,
) -> Option<Invalid> {
    let (min, max) = min.zip(max).filter(|(min, max)| min > max)?;
    Some(Invalid::new(min_keyword, format!("is above {max_keyword} ({min} > {max})")))
}

fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A value in a message: values of claims can be long.
fn shown(value: &Value) -> String {
    /// In bytes; all of a DNS name.
    const MAX: usize = 256;
    shorten(value.to_string(), MAX)
}

#[cfg(test)]
mod tests;
