//! What kinds of objects have in common: how they are watched and reviewed, and how their status and events
//! are written.

pub(crate) mod catalog;
pub(crate) mod conditions;
pub(crate) mod events;
pub(crate) mod kind;
pub(crate) mod listing;
pub(crate) mod nodes;
pub(crate) mod owner;
pub(crate) mod schedule;
pub(crate) mod watches;
