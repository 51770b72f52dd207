//! Networks that the pods of a namespace get without asking (`spec.default` of a ClaimNetwork).
//!
//! ```text
//!   reconciler ── Wanted: accepted defaults ──┐
//!   watch of Namespaces ──────────────────────┼─> plan ──> templates, created and deleted
//!   watch of templates with our label ────────┤    └──> Reports: condition Defaulted ──> reconciler
//!   lists of pods, once a minute ── pods ─────┘
//! ```
//!
//! The API server adds the claim to a pod, by a policy of the chart. The controller keeps the template of
//! that claim in each namespace, before it is needed and until no pod names it: a template is immutable, so
//! that another default is another template, and running pods keep the claims that they have.

mod keeper;
mod plan;
mod pods;

pub(crate) use self::keeper::run;
pub(crate) use self::plan::{Defaulted, DefaultsAreOff, Kept, Reports, Wanted};
