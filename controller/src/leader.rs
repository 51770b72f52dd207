//! Which of several replicas is the active one: the holder of a lease.
//!
//! Invariant: from [`Candidate::elected`] until [`Candidate::lost`] this process holds the lease, or could not yet
//! know better. The end of it is final: the process is to exit, since nothing is as sure to have stopped.
//!
//! Two leaders for a moment would do no harm, for all they write is derived from what the API server has; the lease
//! spares them to undo each other's work.

use std::time::Duration;

use kube::{Client, Config};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

/// How long the lease of a leader that died is respected.
const DURATION: Duration = Duration::from_secs(20);

/// How long before its end the lease is renewed: the time there is to try again.
const GRACE: Duration = Duration::from_secs(10);

/// A request about the lease that takes longer counts as failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Between a failure and the next try.
const PAUSE: Duration = Duration::from_secs(1);

/// Which lease, and by which name.
#[derive(Debug, Clone)]
pub(crate) struct Candidacy {
    /// Namespace of the lease.
    pub(crate) namespace: String,
    /// Name of the lease; it is created where there is none.
    pub(crate) lease: String,
    /// Name of this replica; no two may have the same.
    pub(crate) identity: String,
}

/// Why this process does not lead.
#[derive(Debug, Error)]
pub enum LeaderError {
    /// No client for the API server.
    #[error("cannot set up the client for the lease")]
    Client(#[source] kube::Error),
    /// The lease cannot be read or created.
    #[error(
        "cannot use lease {namespace}/{lease}: get, create and patch on leases of coordination.k8s.io are needed"
    )]
    Lease {
        /// Its namespace.
        namespace: String,
        /// Its name.
        lease: String,
        /// The answer.
        #[source]
        source: LeaseManagerError,
    },
    /// Another replica has the lease now.
    #[error("another replica took over the lease")]
    TakenOver,
    /// The lease ran out.
    #[error("the lease could not be renewed in time")]
    NotRenewed(#[source] LeaseManagerError),
}

/// A replica that leads, or waits for its turn.
pub(crate) struct Candidate {
    manager: LeaseManager,
}

impl Candidate {
    /// Becomes a candidate. `config` says how to reach the API server.
    ///
    /// # Errors
    /// [`LeaderError::Client`], which is final, or [`LeaderError::Lease`], which may pass.
    pub(crate) async fn register(mut config: Config, candidacy: &Candidacy) -> Result<Self, LeaderError> {
        // A client of its own: watches must wait for minutes, and a renewal must not.
        config.connect_timeout = Some(REQUEST_TIMEOUT);
        config.read_timeout = Some(REQUEST_TIMEOUT);
        config.write_timeout = Some(REQUEST_TIMEOUT);
        config.default_retry = false;
        let client = Client::try_from(config).map_err(LeaderError::Client)?;
        let Candidacy { namespace, lease, identity } = candidacy;
        let manager = LeaseManagerBuilder::new(client, lease)
            .with_namespace(namespace)
            .with_identity(identity)
            .with_duration(DURATION.as_secs())
            .with_grace(GRACE.as_secs())
            .build()
            .await
            .map_err(|source| LeaderError::Lease {
                namespace: namespace.clone(),
                lease: lease.clone(),
                source,
            })?;
        Ok(Self { manager })
    }

    /// Waits until this replica leads, however long that takes.
    pub(crate) async fn elected(&self) {
        loop {
            match self.manager.changed().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot read the lease");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Renews the lease, and returns when it is lost.
    ///
    /// The lease manager itself goes on believing in its lease as long as it cannot renew it, and does not tell when
    /// it could. But it renews every `DURATION - GRACE`, and tries fail within less than that: two failures that are
    /// further apart are not of one series.
    pub(crate) async fn lost(&self) -> LeaderError {
        let mut series: Option<(Instant, Instant)> = None;
        loop {
            match self.manager.changed().await {
                Ok(true) => {}
                Ok(false) => return LeaderError::TakenOver,
                Err(error) => {
                    let now = Instant::now();
                    let first = match series {
                        Some((first, last)) if now - last < DURATION - GRACE => first,
                        _ => now,
                    };
                    // The first try began one timeout before it failed, at the latest.
                    if now - first >= GRACE - REQUEST_TIMEOUT {
                        return LeaderError::NotRenewed(error);
                    }
                    series = Some((first, now));
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot renew the lease");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Gives the lease back, so that the next leader need not wait for its end.
    pub(crate) async fn resign(self) {
        match timeout(REQUEST_TIMEOUT, self.manager.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot give the lease back");
            }
            Err(_) => tracing::warn!("cannot give the lease back: no answer"),
        }
    }
}
