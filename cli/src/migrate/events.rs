//! Says of an object that it is not translated, in an event: whoever writes it may not read the importer's log.

use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use netclaim_api::reasons::{ImportEvent, Reason as _};
use netclaim_api::shorten;

use super::apply::MANAGER;
use super::cache::Cache;
use super::report::Finding;
use crate::cluster::Refusal;

/// The longest note of an event, in bytes (`events.k8s.io/v1`).
const MAX_NOTE: usize = 1024;

/// The most events that are written in one round: a definition that is refused concerns each workload that names it.
const EVENTS: usize = 50;

/// The findings without an event.
#[derive(Debug, Default)]
pub(super) struct Unreported(Vec<Finding>);

/// Why a finding has no event yet.
#[derive(Debug, thiserror::Error)]
#[error("cannot write an event on {0}")]
pub(super) struct ReportError(String, #[source] Refusal);

impl Unreported {
    /// Adds new findings, and drops those that hold no more.
    pub(super) fn update(&mut self, new: &[Finding], refused: &[Finding]) {
        self.0.extend_from_slice(new);
        self.0.retain(|finding| refused.contains(finding));
    }

    /// Whether there may be another event to write.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the next events. Those that cannot be written are written later, after the others.
    pub(super) async fn write(&mut self, client: &Client, cache: &Cache) -> Vec<ReportError> {
        let mut errors = Vec::new();
        let next: Vec<Finding> = self.0.drain(..self.0.len().min(EVENTS)).collect();
        for finding in next {
            // An object that is not watched is named in what is printed.
            let Some(object) = cache.reference(&finding.object) else { continue };
            let event = warning(&finding);
            let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
            // A new recorder each time: one that knows the last event counts it up and drops the new note.
            if let Err(error) = Recorder::new(client.clone(), reporter).publish(&event, &object).await {
                errors.push(ReportError(finding.object.to_string(), error.into()));
                self.0.push(finding);
            }
        }
        errors
    }
}

fn warning(finding: &Finding) -> Event {
    Event {
        type_: EventType::Warning,
        reason: ImportEvent::NotTranslated.as_str().to_owned(),
        note: Some(shorten(format!("{}: {}", finding.field, finding.reason), MAX_NOTE)),
        action: "Translate".to_owned(),
        secondary: None,
    }
}
