//! The syntax of names (RFC 1123), as `apimachinery/pkg/util/validation` checks it.

/// Whether `text` is a DNS label: at most 63 lower-case letters, digits and `-`, with a letter or digit at
/// both ends.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether `text` is a DNS subdomain, as the names of most objects are: at most 253 bytes, and parts as of a
/// [label](is_dns_label) between dots. Kubernetes does not limit the length of a part.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

/// Whether `text` may stand between two dots of a DNS subdomain.
fn is_part(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let edge = |c: Option<&u8>| c.is_some_and(|c| *c != b'-');
    let bytes = text.as_bytes();
    bytes.iter().all(|c| inner(*c)) && edge(bytes.first()) && edge(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_short_and_has_no_dots() {
        for good in ["a", "0", "eth1", "x--y", &"a".repeat(63)] {
            assert!(is_dns_label(good) && is_dns_subdomain(good), "{good:?}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a b", "a\n", "\u{e9}", "a.b", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_subdomain_has_parts_of_any_length() {
        for good in ["a.b", "web-0.net", &"a".repeat(253)] {
            assert!(is_dns_subdomain(good), "{good:?}");
        }
        for bad in ["", ".", "..", "a..b", "a.-b", "a.", ".a", "a/b", "A.b", &"a".repeat(254)] {
            assert!(!is_dns_subdomain(bad), "{bad:?}");
        }
    }
}
