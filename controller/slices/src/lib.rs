//! Publishes pools of devices as ResourceSlices and keeps them as published.
//!
//! ```text
//!   PublisherHandle::publish ── desired pools ──> validate ──> layout ──> plan ──> writes ──> API server
//!                                                               observed slices ──┘             │
//!                                                                     └────────── watch ────────┘
//! ```
//!
//! A caller sets the desired pools with [`PublisherHandle::publish`]. The [`Publisher`] writes the slices and
//! watches them: it restores slices that the kubelet deletes when it starts or when a plugin was gone for 30
//! s, and undoes foreign edits. It writes nothing while nothing changes.
//!
//! Invariants:
//! * The scheduler never sees a complete pool whose devices lack their counters or appear twice, even if the
//!   publisher crashes or is refused between two writes. Module `plan` says how.
//! * A device is left out if [`validate()`] finds a fault, or if the API server names it as the cause of a
//!   refusal. A pool that is refused as a whole keeps its last slices.
//! * The publisher touches only slices of its driver in its [`Scope`], and none whose label
//!   [`PUBLISHER_LABEL`] names another publisher. A slice without the label belongs to the program that
//!   publishes a pool of its name; one of an unknown pool is left alone. So several publishers can share a
//!   driver name if they publish different pools.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod canonical;
mod config;
mod dropped;
mod error;
mod kubernetes_version;
mod layout;
mod plan;
mod pool;
mod publisher;
mod validate;

pub use config::{ConfigError, PublisherConfig, Scope};
pub use dropped::{DroppedField, ServerFeatures};
pub use error::{ApiVerb, PublishError};
pub use kubernetes_version::{InvalidVersion, KubernetesVersion};
pub use layout::specs;
pub use plan::PUBLISHER_LABEL;
pub use pool::{EmptyPool, Placement, Pool};
pub use publisher::{PoolStatus, PublishStatus, Publisher, PublisherHandle, Revision};
pub use validate::{Fault, Problem, validate};
