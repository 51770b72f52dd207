//! The API of netclaim: what admins and tenants write, and what the driver publishes.
//!
//! ```text
//!   UplinkPolicy (CRD) ──────────────────────────┐
//!   ClaimNetwork (CRD) ──────┐                     ├── attributes, capacities, device names
//!   CNIConfig (class) ───────┼─> merge, validate ──┤
//!   AttachmentConfig         │   resolve templates └── a conflist and its capability arguments
//!   (class, then claim) ─────┘
//! ```
//!
//! Invariants:
//! * Nothing here does IO. The agent, the controller and the command line use the same functions.
//! * Decoding is strict: an unknown field or a repeated key is an error that names it. Only [`stored`] is
//!   lenient.
//! * A parsed value is valid: [`IfName`], [`MacAddr`] and [`Quantity`] cannot hold an invalid one.
//! * The admin's [`Allow`] alone decides what a tenant may set, see [`merge`].

pub mod addresses;
mod allow;
mod attachment_config;
pub mod attribute;
pub mod attributes;
mod capability;
mod cni_config;
pub mod configuration;
pub mod conflist;
mod decode;
pub mod device;
pub mod dry_run;
pub mod history;
mod invalid;
pub mod labels;
mod link_use;
pub mod merge;
mod names;
pub mod network;
pub mod network_attachment;
pub mod node_selector;
pub mod opaque;
mod parameter;
pub mod ping;
#[cfg(feature = "crd")]
pub mod published;
pub mod quantity;
pub mod question;
pub mod reasons;
pub mod segmentation;
mod setting;
pub mod stored;
pub mod taints;
pub mod template;
pub mod traffic;
pub mod uplink_policy;
mod written;

pub use allow::{Allow, Allowed, AllowedArgs};
pub use attachment_config::{AttachmentConfig, Bandwidth, PortMapping, Protocol};
pub use cni_config::CniConfig;
pub use invalid::{Invalid, one_line, shorten};
pub use link_use::LinkUse;
pub use names::{NetworkName, ObjectName};
pub use netclaim_cni::{IfName, IpRequest, MacAddr};
pub use parameter::{Format, ItemRule, ItemType, ParameterRule, ParameterType};
pub use quantity::Quantity;
pub use setting::Setting;

/// The driver's name, if `--driver-name` does not set another one. It is also the domain of the driver's
/// attributes.
pub const DRIVER_NAME: &str = "netclaim.dev";

/// The API group of netclaim's objects.
pub const GROUP: &str = "netclaim.dev";

/// The only API version so far.
pub const API_VERSION: &str = "netclaim.dev/v1alpha1";
