//! The words of the [CNI specification](https://www.cni.dev/docs/spec/): names, versions, the keys of a network
//! configuration, and [`validate`], which says everything that is wrong with one.
//!
//! What a node does with them is the driver's.

pub mod keys;
pub mod names;
pub mod validate;
pub mod version;

pub use names::{ContainerId, IfName, NameError, NameKind, NetworkName, PluginType};
pub use version::{SpecVersion, VersionError};

/// The CNI plugin of netclaim's own, which limits the bandwidth of any interface; every agent has it.
pub const SHAPER: &str = "netclaim-bandwidth";
