//! The syntax of labels, and what selectors require of them.

use std::collections::BTreeMap;

use crate::names::is_dns_subdomain;

/// Whether `text` can be the key of a label: a [name](is_label_name), with a DNS subdomain and `/` in front
/// or without.
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(text),
    }
}

/// Whether `text` can be the name part of a label's key: 1 to 63 letters, digits, `-`, `_` or `.`, with a
/// letter or digit at both ends.
pub fn is_label_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |c: &u8| c.is_ascii_alphanumeric() || b"-_.".contains(c);
    bytes.len() <= 63 && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}

/// Whether `text` can be the value of a label: empty, or as a [name](is_label_name).
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

/// Whether `labels` has every one of `wanted`.
pub fn has_all(wanted: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether a node with this value of a label or field meets a requirement of Kubernetes' `NodeSelector`
/// (`component-helpers/scheduling/corev1/nodeaffinity`). A requirement that
/// Kubernetes rejects as invalid matches no node.
pub fn meets_node_requirement(operator: &str, values: &[String], value: Option<&str>) -> bool {
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let numbers = || match values {
        [bound] => Some((value?.parse::<i64>().ok()?, bound.parse::<i64>().ok()?)),
        _ => None,
    };
    match operator {
        "In" => is_listed,
        "NotIn" => !values.is_empty() && !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_name_with_or_without_a_domain() {
        for good in ["rack", "Rack_1", "example.com/rack", "a/b", "1", &format!("{}.b/c", "a".repeat(64))] {
            assert!(is_label_key(good), "{good:?}");
        }
        for bad in ["", "/", "a/", "/a", "a/b/c", "A.b/c", "a b", "-a", &"a".repeat(64)] {
            assert!(!is_label_key(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_value_may_be_empty() {
        assert!(is_label_value("") && is_label_value("a.b_c-1") && !is_label_name(""));
        for bad in ["a/b", "a ", ".a", "a-", &"a".repeat(64)] {
            assert!(!is_label_value(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_node_meets_a_requirement_as_the_scheduler_says() {
        let meets = |operator: &str, values: &[&str], value: Option<&str>| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            meets_node_requirement(operator, &values, value)
        };
        assert!(meets("In", &["6", "7"], Some("7")) && !meets("In", &["6"], Some("7")));
        assert!(!meets("In", &[], None));
        assert!(meets("NotIn", &["6"], Some("7")) && meets("NotIn", &["6"], None));
        assert!(!meets("NotIn", &["7"], Some("7")) && !meets("NotIn", &[], Some("7")));
        assert!(meets("Exists", &[], Some("")) && !meets("Exists", &[], None));
        assert!(meets("DoesNotExist", &[], None) && !meets("DoesNotExist", &[], Some("")));
        assert!(meets("Gt", &["6"], Some("7")) && !meets("Gt", &["7"], Some("7")));
        assert!(meets("Lt", &["10"], Some("7")), "as numbers");
        assert!(!meets("Lt", &["10", "11"], Some("7")) && !meets("Gt", &["a"], Some("7")));
        assert!(!meets("Resembles", &["7"], Some("7")));
    }
}
