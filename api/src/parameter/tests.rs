use proptest::prelude::*;
use serde_json::json;

use super::*;

fn rule(value: Value) -> ParameterRule {
    serde_json::from_value(value).expect("a rule")
}

fn fields(value: Value) -> Vec<String> {
    rule(value).problems().into_iter().map(|p| p.field).collect()
}

/// What a rule without problems says of a value.
fn check(schema: Value, value: Value) -> Result<(), String> {
    let rule = rule(schema);
    assert_eq!(rule.problems(), []);
    rule.check(&value).map_err(|e| e.to_string())
}

fn refused(schema: Value, value: Value) -> String {
    check(schema, value).expect_err("refused")
}

#[test]
fn bounds_are_kept() {
    let vlan = json!({"type": "integer", "minimum": 100, "maximum": 199});
    assert_eq!(check(vlan.clone(), json!(100)), Ok(()));
    assert_eq!(refused(vlan.clone(), json!(200)), "200 is too large: the maximum is 199");
    assert_eq!(refused(vlan.clone(), json!(99)), "99 is too small: the minimum is 100");
    assert_eq!(refused(vlan.clone(), json!("100")), "\"100\" is not an integer");
    for value in [json!(100.5), json!(null), json!([100]), json!(u64::MAX), json!({})] {
        assert!(check(vlan.clone(), value).is_err());
    }
    let mode = json!({"type": "string", "enum": ["bridge", "vepa"]});
    assert_eq!(
        refused(mode, json!("passthru")),
        "\"passthru\" is not allowed: use one of \"bridge\", \"vepa\""
    );
}

#[test]
fn a_rule_that_allows_nothing_or_anything_is_refused() {
    assert_eq!(fields(json!({"type": "integer", "minimum": 2, "maximum": 1})), ["minimum"]);
    assert_eq!(fields(json!({"type": "string"})), ["enum"]);
    assert_eq!(fields(json!({"type": "string", "minLength": 1, "maxLength": 5})), ["enum"]);
    assert_eq!(
        fields(json!({"type": "string", "format": "cidr", "minLength": 2, "maxLength": 1})),
        ["minLength"]
    );
    assert_eq!(fields(json!({"type": "boolean", "default": 1})), ["default"]);
    assert_eq!(fields(json!({"type": "boolean", "minimum": 1})), ["minimum"]);
    assert_eq!(fields(json!({"type": "array"})), ["items", "maxItems"]);
    assert_eq!(
        fields(json!({"type": "array", "items": {"type": "string"}, "maxItems": 257})),
        ["items.enum", "maxItems"]
    );
    assert_eq!(
        fields(json!({"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 2})),
        ["minItems"]
    );
}

#[test]
fn a_keyword_of_another_type_is_refused_by_name() {
    let integer = json!({"type": "integer", "pattern": "^a$", "minLength": 1, "maxLength": 2, "format": "mac",
        "items": {"type": "integer"}, "minItems": 1, "maxItems": 1, "uniqueItems": true});
    assert_eq!(
        fields(integer),
        ["pattern", "minLength", "maxLength", "format", "items", "minItems", "maxItems", "uniqueItems"]
    );
    assert_eq!(fields(json!({"type": "string", "enum": ["a"], "maximum": 1})), ["maximum"]);
    let array = rule(
        json!({"type": "array", "items": {"type": "integer"}, "maxItems": 3, "minimum": 1, "enum": [[1]]}),
    );
    assert_eq!(
        Invalid::list(&array.problems()),
        "minimum: says nothing of an array: write it below items, for each item; \
         enum: says nothing of an array: write it below items, for each item"
    );
}

#[test]
fn a_keyword_that_is_not_known_is_refused() {
    for keyword in ["title", "multipleOf", "exclusiveMinimum", "anyOf", "properties", "$ref", "const", "not"]
    {
        let mut schema = json!({"type": "integer"});
        schema[keyword] = json!(1);
        let error = serde_json::from_value::<ParameterRule>(schema).expect_err(keyword).to_string();
        assert!(error.contains(&format!("unknown field `{keyword}`")), "{error}");
    }
    for schema in [
        json!({"type": "number"}),
        json!({"type": "object"}),
        json!({"type": "string", "format": "uri"}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        json!({"type": "array", "items": {"type": "integer", "default": 1}}),
        json!({"type": ["integer", "string"]}),
    ] {
        assert!(serde_json::from_value::<ParameterRule>(schema.clone()).is_err(), "{schema}");
    }
}

#[test]
fn a_pattern_holds_for_the_whole_text() {
    let zone = || json!({"type": "string", "pattern": "^[a-z][a-z0-9-]*$", "maxLength": 17});
    assert_eq!(check(zone(), json!("lab-1")), Ok(()));
    assert_eq!(refused(zone(), json!("Lab")), "\"Lab\" does not match ^[a-z][a-z0-9-]*$");
    assert_eq!(refused(zone(), json!("lab\n")), "\"lab\\n\" does not match ^[a-z][a-z0-9-]*$");
    assert_eq!(refused(zone(), json!("a".repeat(18))), "has 18 characters: the maximum is 17");
    let problem = rule(json!({"type": "string", "pattern": "[a-z]+"})).problems();
    assert_eq!(Invalid::list(&problem), "pattern: matches parts of a text, too: write it as ^(…)$");
}

#[test]
fn a_rule_with_a_pattern_that_is_none_lets_nothing_through() {
    let broken = rule(json!({"type": "string", "pattern": "^(a$", "enum": ["a"], "default": "a"}));
    assert_eq!(
        Invalid::list(&broken.problems()),
        "pattern: is not a regular expression: unclosed group; default: cannot be set: the pattern of the parameter is not a \
         regular expression: unclosed group"
    );
    for value in ["a", "", "(a"] {
        assert!(broken.check(&json!(value)).is_err());
    }
    assert!(rule(json!({"type": "string"})).check(&json!("a")).is_err());
    assert!(rule(json!({"type": "array"})).check(&json!([])).is_err());
    let many = rule(json!({"type": "array", "items": {"type": "integer"}, "maxItems": 100_000}));
    assert!(many.check(&json!(vec![1; 257])).is_err());
}

#[test]
fn lengths_are_counted_in_characters() {
    let word = |min, max| json!({"type": "string", "enum": ["äöü"], "minLength": min, "maxLength": max});
    assert_eq!(check(word(3, 3), json!("äöü")), Ok(()));
    assert_eq!(fields(word(4, 6)), ["enum[0]"]);
}

#[test]
fn a_string_keeps_all_of_its_keywords() {
    let lab = || json!({"type": "string", "format": "cidr", "pattern": r"^10\.20\..*$"});
    assert_eq!(check(lab(), json!("10.20.4.0/24")), Ok(()));
    assert_eq!(refused(lab(), json!("10.21.4.0/24")), r#""10.21.4.0/24" does not match ^10\.20\..*$"#);
    assert_eq!(
        refused(lab(), json!("10.20.4.0")),
        "\"10.20.4.0\" is not an address with prefix length: write for example 10.20.0.0/24"
    );
    assert_eq!(
        fields(json!({"type": "string", "format": "ipv4", "enum": ["10.0.0.1", "x", 1]})),
        ["enum[1]", "enum[2]"]
    );
}

#[test]
fn a_list_is_judged_as_a_whole_and_item_by_item() {
    let servers = || {
        json!({"type": "array", "items": {"type": "string", "format": "ipv4"}, "minItems": 1, "maxItems": 2,
            "uniqueItems": true})
    };
    assert_eq!(check(servers(), json!(["10.0.0.1", "10.0.0.2"])), Ok(()));
    assert_eq!(refused(servers(), json!([])), "has 0 items: the minimum is 1");
    assert_eq!(refused(servers(), json!(["1", "2", "3"])), "has 3 items: the maximum is 2");
    assert_eq!(
        refused(servers(), json!(["10.0.0.1", "10.0.0"])),
        "[1]: \"10.0.0\" is not an IPv4 address: write for example 10.20.0.5"
    );
    assert_eq!(
        refused(servers(), json!(["10.0.0.1", "10.0.0.1"])),
        "[1]: \"10.0.0.1\" stands twice: remove one"
    );
    assert_eq!(refused(servers(), json!("10.0.0.1")), "\"10.0.0.1\" is not a list");
    assert_eq!(refused(servers(), json!([["10.0.0.1"]])), "[0]: [\"10.0.0.1\"] is not a string");
    assert_eq!(refused(servers(), json!([{"a": 1}])), "[0]: {\"a\":1} is not a string");
    let vlans = json!({"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3, "default": [1, 100]});
    assert_eq!(Invalid::list(&rule(vlans).problems()), "default[1]: 100 is too large: the maximum is 99");
}

#[test]
fn a_value_that_is_very_long_is_refused_in_few_words() {
    let long = "a".repeat(1_000_000);
    let nested = json!([[[long]]]);
    for schema in [
        json!({"type": "string", "enum": ["a"]}),
        json!({"type": "string", "pattern": "^(a|b){1,9}$"}),
        json!({"type": "string", "format": "hostname"}),
        json!({"type": "string", "format": "mac"}),
        json!({"type": "integer"}),
        json!({"type": "array", "items": {"type": "integer"}, "maxItems": 9}),
    ] {
        for value in [json!(long), nested.clone()] {
            assert!(refused(schema.clone(), value).len() < 500, "{schema}");
        }
    }
}

#[test]
fn a_rule_tells_the_facts_about_a_value() {
    let place = |schema| rule(schema).place();
    assert_eq!(place(json!({"type": "string", "pattern": "^a$"})), PlaceholderValue::Text);
    assert_eq!(place(json!({"type": "string", "pattern": "^a.$", "format": "mac"})), Format::Mac.place());
    assert_eq!(
        place(json!({"type": "integer", "minimum": 1, "enum": [0, 1]})),
        PlaceholderValue::OneOf(vec![json!(1)])
    );
    let vlans =
        json!({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "maxItems": 2});
    assert_eq!(place(vlans), PlaceholderValue::List(Box::new(PlaceholderValue::Between(1, 9))));
}

fn schemas() -> impl Strategy<Value = Value> {
    let item = prop_oneof![
        Just(json!({"type": "integer"})),
        (any::<i8>(), any::<i8>()).prop_map(|(a, b)| json!({"type": "integer", "minimum": a, "maximum": b})),
        Just(json!({"type": "boolean"})),
        "[\\^$.a|*()\\[\\]?-]{0,6}"
            .prop_map(|text| json!({"type": "string", "pattern": format!("^{text}$")})),
        proptest::collection::vec("\\PC{0,3}", 0..3)
            .prop_map(|texts| json!({"type": "string", "enum": texts})),
        proptest::sample::select(vec!["ipv4", "ipv6", "cidr", "mac", "hostname"])
            .prop_map(|format| json!({"type": "string", "format": format, "maxLength": 20})),
    ];
    let array = (item.clone(), 0_u32..4, proptest::option::of(0_u32..300), any::<bool>()).prop_map(
        |(items, min, max, unique)| {
            let mut array = json!({"type": "array", "items": items, "minItems": min, "uniqueItems": unique});
            if let Some(max) = max {
                array["maxItems"] = json!(max);
            }
            array
        },
    );
    prop_oneof![item, array]
}

fn values() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        "[a.]{0,3}|\\PC{0,6}|10\\.0\\.[0-9]{1,3}\\.1(/[0-9]{1,2})?".prop_map(Value::from),
        Just(Value::Null),
    ];
    scalar.prop_recursive(2, 8, 4, |inner| proptest::collection::vec(inner, 0..4).prop_map(Value::from))
}

proptest! {
    #[test]
    fn a_rule_that_is_written_and_read_again_is_the_same(schema in schemas()) {
        let rule = rule(schema);
        let written = serde_json::to_value(&rule).expect("can be written");
        prop_assert_eq!(serde_json::from_value::<ParameterRule>(written).expect("can be read"), rule);
    }

    #[test]
    fn a_rule_allows_no_more_than_it_says(
        schema in schemas(),
        values in proptest::collection::vec(values(), 20),
    ) {
        let rule = rule(schema);
        let format = rule.format.or_else(|| rule.items.as_ref()?.format);
        for value in values.iter().filter(|value| rule.check(value).is_ok()) {
            let (items, place) = match (value, rule.place()) {
                (Value::Array(items), PlaceholderValue::List(place)) => (items.as_slice(), *place),
                (single, place) => (std::slice::from_ref(single), place),
            };
            prop_assert!(items.len() <= size(MAX_ITEMS));
            for item in items {
                prop_assert!(may_come(item, &place, format), "{item} is not {place:?}");
            }
        }
    }
}

fn may_come(value: &Value, place: &PlaceholderValue, format: Option<Format>) -> bool {
    let text = value.as_str();
    match place {
        PlaceholderValue::Between(min, max) => {
            value.as_i64().is_some_and(|number| (*min..=*max).contains(&number))
        }
        PlaceholderValue::OneOf(values) => values.contains(value),
        PlaceholderValue::Like { .. } => {
            format.is_some_and(|format| text.is_some_and(|text| format.check(text).is_ok()))
        }
        PlaceholderValue::Text => {
            text.is_some_and(|text| text.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
        }
        PlaceholderValue::Any | PlaceholderValue::List(_) => false,
    }
}
