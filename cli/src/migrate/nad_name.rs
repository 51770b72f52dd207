//! The name of a NetworkAttachmentDefinition.

use std::fmt;

use netclaim_whereabouts::ObjectRef;

/// The kind of what Multus reads.
pub(super) const NAD: &str = "NetworkAttachmentDefinition";

/// The namespace and name of a NetworkAttachmentDefinition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NadName {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for NadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl NadName {
    /// Returns the reference by which messages name it.
    pub(super) fn object(&self) -> ObjectRef {
        ObjectRef { kind: NAD.to_owned(), namespace: self.namespace.clone(), name: self.name.clone() }
    }
}
