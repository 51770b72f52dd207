//! Publishes pools of devices as ResourceSlices and keeps them as published.
//!
//! A caller says what should be there ([`PublisherHandle::publish`]); the [`Publisher`] makes the API server say the
//! same and watches that it stays so: slices that the kubelet wipes at its start, or after a plugin was gone for 30 s,
//! come back; foreign edits are undone; nothing is written while nothing changes.
//!
//! Invariants:
//! * Whatever write a crash or a refusal is followed by, the scheduler never sees a complete pool whose devices lack
//!   their counters or appear twice: module `plan` says how.
//! * A device that [`validate()`] finds fault with, or that the API server names as the cause of its refusal, is left out. A pool
//!   that is refused as a whole keeps what was published of it before.
//! * Only slices of this driver, in this [`Scope`], are ever touched, and of these none that bears the label
//!   [`PUBLISHER_LABEL`] with another publisher's name. A slice without the label belongs to whoever publishes a pool
//!   of its name; one of an unknown pool is left alone. So several publishers may share a driver name as long as
//!   they publish different pools.

mod canonical;
mod config;
mod dropped;
mod error;
mod fitted;
mod kubernetes_version;
mod layout;
mod plan;
mod pool;
mod publisher;
mod quantity;
mod validate;

pub use config::{ConfigError, PublisherConfig, Scope, WriteBudget};
pub use dropped::{DroppedField, ServerFeatures};
pub use error::{PublishError, Verb};
pub use kubernetes_version::{KubernetesVersion, NoVersion};
pub use plan::PUBLISHER_LABEL;
pub use pool::{Placement, Pool};
pub use publisher::{PoolStatus, PublishStatus, Publisher, PublisherHandle, Revision};
pub use validate::{Fault, Problem, validate};
