//! Which object is to be explained, with kubectl's names of its type.

use std::str::FromStr;

/// Returns the object of a name.
type Of = fn(String) -> Object;

/// A type of object, by its singular, its plural or kubectl's short name.
const TYPES: [(&str, Of); 16] = [
    ("pod", Object::Pod),
    ("pods", Object::Pod),
    ("po", Object::Pod),
    ("claim", Object::Claim),
    ("resourceclaim", Object::Claim),
    ("resourceclaims", Object::Claim),
    ("resourceclaims.resource.k8s.io", Object::Claim),
    ("network", Object::Network),
    ("claimnetwork", Object::Network),
    ("claimnetworks", Object::Network),
    ("claimnetworks.netclaim.dev", Object::Network),
    ("attachment", Object::Attachment),
    ("netatt", Object::Attachment),
    ("networkattachment", Object::Attachment),
    ("networkattachments", Object::Attachment),
    ("networkattachments.netclaim.dev", Object::Attachment),
];

/// An object that can be explained, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// Why it waits, why it does not start, or which networks it has.
    Pod(String),
    /// Why it is not allocated, or what it has.
    Claim(String),
    /// What an attachment to the ClaimNetwork would be.
    Network(String),
    /// Why a NetworkAttachment waits, or what its pod has by it.
    Attachment(String),
}

/// The first word: `TYPE`, or `TYPE/NAME`.
#[derive(Debug, Clone)]
pub struct First {
    of: Of,
    name: Option<String>,
}

impl FromStr for First {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once('/').map_or((text, None), |(kind, name)| (kind, Some(name)));
        let of = TYPES.into_iter().find(|(known, _)| kind.eq_ignore_ascii_case(known));
        let (_, of) = of.ok_or_else(|| {
            format!(
                "{kind:?} is neither pod, claim, network nor attachment: write pod/NAME, claim/NAME, network/NAME or attachment/NAME"
            )
        })?;
        match name {
            Some("") => Err("there is no name after the slash".to_owned()),
            name => Ok(Self { of, name: name.map(str::to_owned) }),
        }
    }
}

impl First {
    /// Returns the object; the second word may be its name.
    ///
    /// # Errors
    /// Says so if there is no name, or a second one.
    pub(crate) fn object(&self, second: Option<&str>) -> Result<Object, &'static str> {
        match (self.name.as_deref(), second) {
            (Some(name), None) | (None, Some(name)) => Ok((self.of)(name.to_owned())),
            (None, None) => {
                Err("the name is missing: write pod NAME, claim NAME, network NAME or attachment NAME")
            }
            (Some(_), Some(_)) => Err("there are two names, and one object is explained at a time"),
        }
    }
}
