//! Why a pool is not published.

use std::{fmt, time::Duration};

use thiserror::Error;

use crate::validate::Fault;

/// A request to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiVerb {
    /// Stores a new slice.
    Create,
    /// Replaces a slice.
    Update,
    /// Removes a slice.
    Delete,
    /// Checks a slice without storing it.
    DryRun,
}

impl fmt::Display for ApiVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::DryRun => "dry-run",
        })
    }
}

/// Why a pool is not published as desired. Its last slices stay. All errors but [`Self::Invalid`] are
/// retried.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The pool was not sent, because the scheduler could not use it.
    #[error("{}", list(.faults))]
    Invalid {
        /// All faults, at least one.
        faults: Vec<Fault>,
    },
    /// Another publisher has a pool of this name.
    #[error(
        "pool {pool} is published by {publisher:?} as well (slice {slice}): give one of them another name"
    )]
    Taken {
        /// The pool.
        pool: String,
        /// A slice of the other publisher.
        slice: String,
        /// The other publisher.
        publisher: String,
    },
    /// The API server refused, or could not be reached.
    #[error("cannot {verb} resource slice {slice} of pool {pool}")]
    Api {
        /// The request.
        verb: ApiVerb,
        /// The pool.
        pool: String,
        /// The slice.
        slice: String,
        /// The answer.
        #[source]
        source: kube::Error,
    },
    /// The API server did not answer. The watch will show whether it acted.
    #[error("no answer within {} s: {verb} resource slice {slice} of pool {pool}", .after.as_secs())]
    Timeout {
        /// The request.
        verb: ApiVerb,
        /// The pool.
        pool: String,
        /// The slice.
        slice: String,
        /// The time limit.
        after: Duration,
    },
}

impl PublishError {
    /// Whether someone else wrote first. The next try starts from what they wrote.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source: kube::Error::Api(status), .. } if status.code == 409)
    }
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("; ")
}
