//! Warnings of the controller, as events of objects.

use std::error::Error;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use netclaim_api::shorten;

use crate::objects::conditions::CONTROLLER;

/// The longest note of an event, in bytes (`events.k8s.io/v1`).
pub(crate) const MAX_NOTE: usize = 1024;

/// Writes events. Clones do the same.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    reporter: Reporter,
}

impl Events {
    /// Reports as this replica.
    pub(crate) fn new(client: Client, identity: String) -> Self {
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(identity) };
        Self { client, reporter }
    }

    /// Writes a warning, and returns whether that succeeded. A failure is logged.
    pub(crate) async fn warn(
        &self,
        about: &ObjectReference,
        reason: impl Into<String>,
        action: &str,
        note: String,
    ) -> bool {
        let event = Event {
            type_: EventType::Warning,
            reason: reason.into(),
            note: Some(shorten(note, MAX_NOTE)),
            action: action.to_owned(),
            secondary: None,
        };
        // A new recorder each time: one that knows the last event counts it up and drops the new note.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        let written = recorder.publish(&event, about).await;
        if let Err(error) = &written {
            tracing::warn!(error = error as &dyn Error, "cannot write an event");
        }
        written.is_ok()
    }
}
