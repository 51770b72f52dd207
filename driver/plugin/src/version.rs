//! Versions of the CNI specification.

/// The supported versions, oldest first.
pub(crate) const SUPPORTED: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", NEWEST];
pub(crate) const NEWEST: &str = "1.1.0";
