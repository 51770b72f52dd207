//! The keys of a network configuration that the runtime reads or writes, and JSON pointers to values.

/// Keys of a plugin object that the runtime reads or writes.
pub const PROTOCOL: [&str; 8] =
    ["type", "name", "cniVersion", "capabilities", "ipam", "runtimeConfig", "args", "prevResult"];

/// Key of a list, which the runtime writes when it settles it: the types that daemons serve.
pub const SOCKETS: &str = "netclaim.dev/sockets";

/// Reserved for the runtime, which writes such keys itself (specification, section 1).
const RESERVED_PREFIX: &str = "cni.dev/";

/// Whether only the runtime may write this key of a plugin object. The prefix counts in any case, because
/// plugins written in Go ignore case. Other misspelt keys are refused.
pub fn is_reserved(key: &str) -> bool {
    let prefix = key.get(..RESERVED_PREFIX.len());
    matches!(key, "runtimeConfig" | "args" | "prevResult")
        || prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(RESERVED_PREFIX))
}

/// Whether a reader that folds case, as Go's `encoding/json` does, takes `found` for `known` although it is
/// spelt differently.
pub fn is_misspelt(found: &str, known: &str) -> bool {
    // U+017F and U+212A are the only other characters that Go folds into ASCII letters.
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    found != known && found.chars().map(fold).eq(known.chars().map(fold))
}

/// Pointer to the member `key` of the object at `pointer` (RFC 6901, section 3).
pub fn member(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_another_case_is_recognised_as_go_would() {
        assert!(is_misspelt("Type", "type"));
        assert!(is_misspelt("arg\u{17f}", "args"));
        assert!(!is_misspelt("type", "type"));
        assert!(!is_misspelt("types", "type"));
    }

    #[test]
    fn keys_that_the_runtime_writes_are_reserved() {
        assert!(
            ["args", "prevResult", "runtimeConfig", "cni.dev/valid-attachments"]
                .iter()
                .all(|k| is_reserved(k))
        );
        assert!(!["type", "ipam", "cni.development"].iter().any(|k| is_reserved(k)));
    }

    #[test]
    fn a_pointer_escapes_what_it_uses_itself() {
        assert_eq!(member("/plugins/0", "a/b~c"), "/plugins/0/a~1b~0c");
    }
}
