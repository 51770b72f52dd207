//! Which pods a node has attached, and when, as its agent answers `netclaimctl who`.
//!
//! Agent and command may be of different versions: a field that one of them does not know is left out.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use netclaim_cni::MacAddr;
use serde::{Deserialize, Serialize};

/// Whom to look for: all that had an address, or a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Subject {
    /// An IP address.
    Address(IpAddr),
    /// A hardware address.
    Mac(MacAddr),
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// A text that is no [`Subject`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an IP address, nor a MAC address, nor NAMESPACE/POD")]
pub struct InvalidSubject(pub(crate) String);

impl FromStr for Subject {
    type Err = InvalidSubject;

    fn from_str(text: &str) -> Result<Self, InvalidSubject> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if let Ok(mac) = text.to_owned().try_into() {
            return Ok(Self::Mac(mac));
        }
        let is_name = |name: &str, longest: usize, others: &[u8]| {
            let allowed =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || others.contains(&byte);
            !name.is_empty() && name.len() <= longest && name.bytes().all(allowed)
        };
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace, 63, b"-") && is_name(name, 253, b"-.") => {
                Ok(Self::Pod { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(InvalidSubject(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Subject {
    type Error = InvalidSubject;

    fn try_from(text: String) -> Result<Self, InvalidSubject> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.to_string()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
            Self::Pod { namespace, name } => write!(f, "{namespace}/{name}"),
        }
    }
}

impl Subject {
    /// Whether this is a pod with these addresses, each with or without the length of its prefix.
    pub fn is_of(
        &self,
        (namespace, pod): (&str, &str),
        addresses: impl IntoIterator<Item = impl AsRef<str>>,
        mac: Option<&str>,
    ) -> bool {
        match self {
            Self::Address(wanted) => addresses.into_iter().any(|address| {
                let address = address.as_ref().split('/').next().unwrap_or_default();
                address.parse() == Ok(*wanted)
            }),
            Self::Mac(wanted) => mac.and_then(|mac| mac.to_owned().try_into().ok()).as_ref() == Some(wanted),
            Self::Pod { namespace: wanted, name } => wanted == namespace && name == pod,
        }
    }
}

/// An attachment of a pod, from the end of its ADD to the begin of its DEL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HistoryEntry {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// Its claim.
    pub claim: String,
    /// The ClaimNetwork.
    pub network: String,
    /// The interface in the pod.
    pub interface: String,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<String>,
    /// Its hardware address.
    pub mac: Option<String>,
    /// When it was attached (RFC 3339); `None` if that is not known.
    pub from: Option<String>,
    /// When it was detached (RFC 3339); `None` while it is attached.
    pub until: Option<String>,
}

impl HistoryEntry {
    /// Whether it is of the same interface with the same addresses, whenever.
    pub fn has_same(&self, other: &Self) -> bool {
        let without_times = |entry: &Self| Self { from: None, until: None, ..entry.clone() };
        without_times(self) == without_times(other)
    }

    /// Whether it is of the subject.
    pub fn is_of(&self, subject: &Subject) -> bool {
        subject.is_of((&self.namespace, &self.pod), &self.addresses, self.mac.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_an_address_or_a_pod_with_its_namespace() {
        for text in ["10.0.0.7", "fd00::7", "02:00:5e:10:00:01", "shop/web-0"] {
            let subject: Subject = text.parse().unwrap();
            assert_eq!(subject.to_string(), text);
            assert_eq!(serde_json::from_value::<Subject>(serde_json::json!(text)).unwrap(), subject);
        }
        assert!(matches!("fd00:0::7".parse(), Ok(Subject::Address(_))));
        for text in ["", "web-0", "/web", "shop/", "shop/web/0", "shop/Web", "10.0.0.7/24", "a b/c"] {
            assert!(text.parse::<Subject>().unwrap_err().to_string().contains("NAMESPACE/POD"), "{text}");
        }
    }

    #[test]
    fn an_entry_is_found_by_what_the_pod_has() {
        let entry = HistoryEntry {
            namespace: "shop".to_owned(),
            pod: "web".to_owned(),
            addresses: vec!["10.0.0.7/24".to_owned(), "fd00:0::7/64".to_owned()],
            mac: Some("02:00:5E:10:00:01".to_owned()),
            ..HistoryEntry::default()
        };
        let is_of = |text: &str| entry.is_of(&text.parse().unwrap());
        for text in ["10.0.0.7", "fd00::7", "02:00:5e:10:00:01", "shop/web"] {
            assert!(is_of(text), "{text}");
        }
        for text in ["10.0.0.70", "fd00::", "02:00:5e:10:00:02", "bank/web", "shop/web-0"] {
            assert!(!is_of(text), "{text}");
        }
    }
}
