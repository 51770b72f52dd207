//! Why a pool is not published.

use std::{fmt, time::Duration};

use thiserror::Error;

use crate::validate::Fault;

/// What was asked of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// To store a new slice.
    Create,
    /// To replace a slice.
    Update,
    /// To remove a slice.
    Delete,
    /// To say whether it would store a slice.
    DryRun,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::DryRun => "dry-run",
        })
    }
}

/// Why a pool is not published as asked. What was published before stays, and all but the first are tried again.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The pool was not sent, since it would do harm.
    #[error("{}", list(.faults))]
    Invalid {
        /// Everything found, at least one.
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
        /// What was asked.
        verb: Verb,
        /// The pool.
        pool: String,
        /// The slice.
        slice: String,
        /// The answer.
        #[source]
        source: kube::Error,
    },
    /// The API server did not answer; whether it acted, the watch will tell.
    #[error("no answer within {} s: {verb} resource slice {slice} of pool {pool}", .after.as_secs())]
    Timeout {
        /// What was asked.
        verb: Verb,
        /// The pool.
        pool: String,
        /// The slice.
        slice: String,
        /// How long it was waited for.
        after: Duration,
    },
}

impl PublishError {
    /// Someone else was faster; the next try starts from what they did.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source: kube::Error::Api(status), .. } if status.code == 409)
    }
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("; ")
}
