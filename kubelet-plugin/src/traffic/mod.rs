//! What attachments receive and send: the counters of their interfaces in the pods' network namespaces.
//!
//! | module | what it does |
//! |---|---|
//! | `look` | reads the counters once |
//! | `measure` | reads them twice, when somebody asks |
//! | `metrics` | reads them for a scrape of the agent's metrics, where ClaimNetworks ask for it |

mod look;
mod measure;
pub(crate) mod metrics;

pub(crate) use measure::measure;
