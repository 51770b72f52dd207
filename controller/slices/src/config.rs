//! Who publishes, which slices it manages, and how fast it writes.

use netclaim_kubernetes::labels::is_label_name;
use netclaim_kubernetes::names::is_dns_subdomain;
use thiserror::Error;

/// The slices of its driver that a publisher manages.
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

/// Limits the writes of a publisher: a bucket of `burst` tokens, refilled evenly. A rewrite of more than ten
/// slices costs ten tokens; dry runs are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteBudget {
    /// Writes per second in the long run.
    pub(crate) per_second: u32,
    /// Writes at once after an idle time.
    pub(crate) burst: u32,
}

/// Settings of a publisher.
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    pub(crate) driver: String,
    pub(crate) publisher: String,
    pub(crate) scope: Scope,
    pub(crate) budget: WriteBudget,
}

/// Why a publisher cannot have these settings.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The driver's name, which the API server would refuse.
    #[error("driver name {0:?} must be a lower-case DNS subdomain of at most 63 bytes")]
    Driver(String),
    /// The publisher's name, which becomes a label.
    #[error("publisher name {0:?} must be a label value: 1 to 63 letters, digits, `-`, `_` or `.`")]
    Publisher(String),
    /// The node's name, which no node can have.
    #[error("node name {0:?} must be a lower-case DNS subdomain of at most 253 bytes")]
    Node(String),
}

impl PublisherConfig {
    /// Returns settings with a write budget of 2/s (burst 20) for one of possibly thousands of nodes, or
    /// 50/s (burst 200) for the cluster.
    ///
    /// `publisher` distinguishes publishers of one driver name in one scope, and must stay the same across
    /// restarts.
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
        if !is_label_name(&publisher) {
            return Err(ConfigError::Publisher(publisher));
        }
        let budget = match &scope {
            Scope::Node(node) if !is_dns_subdomain(node) => return Err(ConfigError::Node(node.clone())),
            Scope::Node(_) => WriteBudget { per_second: 2, burst: 20 },
            Scope::Cluster => WriteBudget { per_second: 50, burst: 200 },
        };
        Ok(Self { driver, publisher, scope, budget })
    }

    /// Returns the field selector of this scope. An empty node name selects slices without one.
    pub(crate) fn field_selector(&self) -> String {
        format!("spec.driver={},spec.nodeName={}", self.driver, self.scope.node_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_server_would_refuse_is_an_error() {
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
