//! Who publishes, which slices that covers, and how fast.

use std::{num::NonZeroU32, time::Duration};

use thiserror::Error;

/// The slices of its driver that a publisher looks after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those with `spec.nodeName` of this node.
    Node(String),
    /// Those without `spec.nodeName`.
    Cluster,
}

impl Scope {
    fn node_name(&self) -> &str {
        match self {
            Self::Node(name) => name,
            Self::Cluster => "",
        }
    }
}

/// How many writes a publisher may send: a bucket of `burst`, refilled evenly. A rewrite of more than ten slices takes as much
/// as ten, and dry runs take nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBudget {
    /// Writes per second in the long run.
    pub per_second: NonZeroU32,
    /// Writes at once after a pause.
    pub burst: NonZeroU32,
}

/// Settings of a publisher.
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    pub(crate) driver: String,
    pub(crate) publisher: String,
    pub(crate) scope: Scope,
    pub(crate) quiet: Duration,
    pub(crate) max_delay: Duration,
    pub(crate) budget: WriteBudget,
}

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The API server refuses such a driver name.
    #[error("driver name {0:?} must be a lower-case DNS subdomain of at most 63 bytes")]
    Driver(String),
    /// The name goes into a label.
    #[error("publisher name {0:?} must be a label value: 1 to 63 letters, digits, `-`, `_` or `.`")]
    Publisher(String),
    /// No node has such a name.
    #[error("node name {0:?} must be a lower-case DNS subdomain of at most 253 bytes")]
    Node(String),
}

const fn budget(per_second: u32, burst: u32) -> WriteBudget {
    // `NonZeroU32::new` of a literal: the fallback is never taken, and spares an unwrap.
    let per_second = match NonZeroU32::new(per_second) {
        Some(n) => n,
        None => NonZeroU32::MIN,
    };
    let burst = match NonZeroU32::new(burst) {
        Some(n) => n,
        None => NonZeroU32::MIN,
    };
    WriteBudget { per_second, burst }
}

impl PublisherConfig {
    /// Settings with defaults: changes gathered for 100 ms (1 s if they go on and on), and a write budget
    /// of 2/s (burst 20) for a node, of which there may be thousands, or 50/s (burst 200) for the cluster.
    ///
    /// `publisher` tells publishers of one driver name in one scope apart; it has to stay the same across restarts.
    ///
    /// # Errors
    /// [`ConfigError`] for a name that the API server would refuse.
    pub fn new(
        driver: impl Into<String>,
        publisher: impl Into<String>,
        scope: Scope,
    ) -> Result<Self, ConfigError> {
        let (driver, publisher) = (driver.into(), publisher.into());
        if driver.len() > 63 || !is_dns_subdomain(&driver) {
            return Err(ConfigError::Driver(driver));
        }
        if !is_label_value(&publisher) {
            return Err(ConfigError::Publisher(publisher));
        }
        let budget = match &scope {
            Scope::Node(node) if !is_dns_subdomain(node) => return Err(ConfigError::Node(node.clone())),
            Scope::Node(_) => budget(2, 20),
            Scope::Cluster => budget(50, 200),
        };
        Ok(Self {
            driver,
            publisher,
            scope,
            quiet: Duration::from_millis(100),
            max_delay: Duration::from_secs(1),
            budget,
        })
    }

    /// Changes are gathered until there was none for `quiet`, at most for `max_delay`.
    #[must_use]
    pub fn gather(mut self, quiet: Duration, max_delay: Duration) -> Self {
        (self.quiet, self.max_delay) = (quiet, max_delay);
        self
    }

    /// Limits the writes.
    #[must_use]
    pub fn budget(mut self, budget: WriteBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Selects the slices of this scope. An empty node name selects those without one.
    pub(crate) fn field_selector(&self) -> String {
        format!("spec.driver={},spec.nodeName={}", self.driver, self.scope.node_name())
    }
}

/// RFC 1123 label, as the API server checks device names.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-')
}

/// RFC 1123 subdomain; the API server does not limit the length of its labels.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    let label = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn is_label_value(text: &str) -> bool {
    let alphanumeric = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_server_would_refuse_are_refused_here() {
        let node = || Scope::Node("n1".into());
        assert!(PublisherConfig::new("netclaim.dev", "agent", node()).is_ok());
        for driver in ["", "Net.dev", "a..b", "-a", "a,spec.nodeName=x", &"a".repeat(64)] {
            let error = PublisherConfig::new(driver, "agent", node()).unwrap_err();
            assert_eq!(error, ConfigError::Driver(driver.into()));
        }
        for publisher in ["", "a b", "-a", &"a".repeat(64)] {
            let error = PublisherConfig::new("netclaim.dev", publisher, node()).unwrap_err();
            assert_eq!(error, ConfigError::Publisher(publisher.into()));
        }
        let error = PublisherConfig::new("netclaim.dev", "agent", Scope::Node(String::new())).unwrap_err();
        assert_eq!(error, ConfigError::Node(String::new()));
    }

    #[test]
    fn the_cluster_scope_selects_slices_without_a_node() {
        let config = PublisherConfig::new("netclaim.dev", "controller", Scope::Cluster).unwrap();
        assert_eq!(config.field_selector(), "spec.driver=netclaim.dev,spec.nodeName=");
    }
}
