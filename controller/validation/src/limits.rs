//! What bounds the work of a review: lengths of lists, and time.

use serde_json::Value;
use thiserror::Error;

use crate::review::Review;

/// The time of a review is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the review takes too long: make the object smaller")]
pub struct Late;

/// What becomes of an object; `None` if it is not for netclaim.
pub(crate) type Judged = Result<Option<Review>, Late>;

/// Says when the time of a review is over. It is asked between steps, each of which takes a time that is
/// linear in the object.
#[derive(Clone, Copy)]
pub struct Limit<'a>(&'a dyn Fn() -> bool);

impl<'a> Limit<'a> {
    /// Ends a review when `is_over` returns true.
    pub fn new(is_over: &'a dyn Fn() -> bool) -> Self {
        Self(is_over)
    }

    pub(crate) fn check(&self) -> Result<(), Late> {
        if (self.0)() { Err(Late) } else { Ok(()) }
    }
}

/// Adds an error if a list has more than `max` items.
pub(crate) fn too_many(list: &Value, field: &str, max: usize, review: &mut Review) {
    let count = list.as_array().map_or(0, Vec::len);
    if count > max {
        review.error(field, format!("has {count} items: write at most {max}"));
    }
}
