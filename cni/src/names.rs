//! Names that the specification restricts, each a type that cannot hold a forbidden one.
//!
//! They become file names, environment values or kernel names: a value is never empty, never a path, and has
//! at most 255 bytes (an interface name: 15).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest container ID, network name or plugin type in bytes: plugins and runtimes use them as file names.
const MAX_LEN: usize = 255;

/// Which kind of name was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// `CNI_CONTAINERID`.
    ContainerId,
    /// The network's `name`.
    ListName,
    /// `CNI_IFNAME`.
    IfName,
    /// A plugin's `type`, or the `type` of its `ipam`.
    PluginType,
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ContainerId => "container id",
            Self::ListName => "network name",
            Self::IfName => "interface name",
            Self::PluginType => "plugin type",
        })
    }
}

/// A name that the specification or the kernel does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value:?} {reason}")]
pub struct NameError {
    /// The kind of name.
    pub kind: NameKind,
    /// The name as given.
    pub value: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

macro_rules! name {
    ($(#[$attr:meta])* $name:ident, $check:ident) => {
        $(#[$attr])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(value: String) -> Result<Self, NameError> {
                match $check(&value) {
                    Ok(()) => Ok(Self(value)),
                    Err(reason) => Err(NameError { kind: NameKind::$name, value, reason }),
                }
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(value: &str) -> Result<Self, NameError> {
                Self::try_from(value.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// Identifies a container towards plugins (specification, section 2, `CNI_CONTAINERID`): a letter or
    /// digit, then letters, digits, `_`, `.` and `-`.
    ContainerId,
    check_identifier
);
name!(
    /// Names a network on this host (specification, section 1, `name`): spelt as a [`ContainerId`] is.
    ListName,
    check_identifier
);
name!(
    /// Name of a network interface: a letter or digit, then letters, digits, `_`, `.` and `-`, at most 15
    /// bytes. The kernel and the CNI specification ("Parameters") take more, but names end up in shells, logs
    /// and terminals.
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "schemars", schemars(extend("minLength" = 1, "maxLength" = 15, "pattern" = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")))]
    IfName,
    check_if_name
);
name!(
    /// Names a plugin's binary (specification, section 1, `type`): a file name, not a path.
    PluginType,
    check_plugin_type
);

impl IfName {
    /// The longest name the kernel takes, in bytes (`IFNAMSIZ` less the closing zero).
    pub const MAX: usize = 15;
}

fn check_identifier(value: &str) -> Result<(), &'static str> {
    check_letters(value)?;
    check_length(value)
}

fn check_letters(value: &str) -> Result<(), &'static str> {
    let Some(first) = value.bytes().next() else {
        return Err("is empty");
    };
    if !first.is_ascii_alphanumeric() {
        return Err("must start with a letter or digit");
    }
    if !value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-')) {
        return Err("may only contain letters, digits, `_`, `.` and `-`");
    }
    Ok(())
}

fn check_if_name(value: &str) -> Result<(), &'static str> {
    check_letters(value)?;
    if value.len() > IfName::MAX { Err("is longer than 15 bytes") } else { Ok(()) }
}

fn check_plugin_type(value: &str) -> Result<(), &'static str> {
    match value {
        "" => Err("is empty"),
        "." | ".." => Err("is a directory's name"),
        _ if value.contains(['/', '\\', '\0']) => Err("must be a file name, without `/`, `\\` and NUL"),
        _ => check_length(value),
    }
}

fn check_length(value: &str) -> Result<(), &'static str> {
    if value.len() > MAX_LEN { Err("is longer than 255 bytes") } else { Ok(()) }
}

/// Whether the text has exactly this number of hexadecimal digits. Rust's number parser would also accept a
/// sign.
pub fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_starts_with_a_letter_or_digit() {
        for good in ["a", "0", "a.b", "A-_.9", &"x".repeat(255)] {
            assert!(good.parse::<ContainerId>().is_ok(), "{good}");
            assert!(good.parse::<ListName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "-a", "_a", "a b", "a/b", "ä", "a\n", &"x".repeat(256)] {
            assert!(bad.parse::<ContainerId>().is_err(), "{bad}");
            assert!(bad.parse::<ListName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interface_name_is_safe_wherever_it_is_written() {
        for good in ["e", "eth0", "net-1.100", "lab_0", "123456789012345"] {
            assert!(good.parse::<IfName>().is_ok(), "{good}");
        }
        for bad in
            ["", ".", "..", "1234567890123456", "a/b", "a:b", "a b", "a\u{a0}b", "a\tb", "eth%d", "a\0", "ü"]
        {
            assert!(bad.parse::<IfName>().is_err(), "{bad}");
        }
        for hostile in ["-rf", "--help", "_a", ".a", "a\u{1b}[2J", "$(id)", "`id`", "a;b", "a\"b", "a\nb"] {
            assert!(hostile.parse::<IfName>().is_err(), "{hostile}");
        }
    }

    #[test]
    fn a_plugin_type_is_a_file_name() {
        for good in ["bridge", "host-local", "my plugin", ".hidden"] {
            assert!(good.parse::<PluginType>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "../bridge", "/bin/sh", "a\\b", "a\0b"] {
            assert!(bad.parse::<PluginType>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_error_says_what_is_wrong_with_which_name() {
        let error = "eth0:1".parse::<IfName>().unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"interface name "eth0:1" may only contain letters, digits, `_`, `.` and `-`"#
        );
    }

    #[test]
    fn a_stored_name_is_checked_when_it_is_read_back() {
        assert!(serde_json::from_str::<IfName>("\"net1\"").is_ok());
        assert!(serde_json::from_str::<IfName>("\"a/b\"").is_err());
    }
}
