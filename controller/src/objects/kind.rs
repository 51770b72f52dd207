//! The objects of one kind: what the controller says of each, and how their status is written.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ApiResource, DynamicObject, ResourceExt as _};
use kube::{Api, Client, Resource as _};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use super::catalog::{Catalog, Review, Reviewed};
use super::conditions::{Status as _, apply};
use super::events::Events;
use super::schedule::{Cause, Schedule};

/// The objects of one kind, each with what the controller says of it and when its status may be written.
#[derive(Debug)]
pub(crate) struct Kind<J: Review> {
    api: Api<DynamicObject>,
    catalog: Catalog<J>,
    schedule: Schedule,
}

impl<J: Review> Kind<J> {
    pub(crate) fn new(client: Client) -> Self {
        let api = Api::all_with(client, &ApiResource::erase::<J::Kind>(&()));
        Self { api, catalog: Catalog::default(), schedule: Schedule::default() }
    }

    /// Replaces the objects. Returns whether objects have come or gone, or specs have changed.
    pub(crate) fn update(&mut self, objects: Vec<Arc<DynamicObject>>) -> bool {
        let updated = self.catalog.update(objects);
        self.schedule.retain(|name| self.catalog.has(name));
        updated.statuses.iter().for_each(|name| self.schedule.mark(name, Cause::Nodes));
        updated.specs
    }

    /// Returns the objects.
    pub(crate) fn catalog(&self) -> &Catalog<J> {
        &self.catalog
    }

    /// Has the status of this object be looked at.
    pub(crate) fn mark(&mut self, name: &str, cause: Cause) {
        self.schedule.mark(name, cause);
    }

    /// Has the status of all objects be looked at.
    pub(crate) fn mark_all(&mut self, cause: Cause) {
        self.catalog.names().for_each(|name| self.schedule.mark(name, cause));
    }

    /// Returns when the next status is to be looked at.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.schedule.next()
    }

    /// Writes each status that is wrong, as far as it is due, and counts it in `writes`. `derive` returns the
    /// status that an object should have, or `None` if it has it. Returns whether all writes succeeded.
    pub(crate) async fn write(
        &mut self,
        events: &Events,
        writes: &Counter,
        derive: impl Fn(&str, &J) -> Option<J::Status>,
    ) -> bool {
        let mut done = true;
        for (name, cause) in self.schedule.take_due(Instant::now()) {
            let Some(reviewed) = self.catalog.get_mut(&name) else { continue };
            let Some(status) = derive(&name, &reviewed.review) else { continue };
            let is_urgent = cause == Cause::Spec && reviewed.review.before().differs_for_people(&status);
            if !is_urgent && !self.schedule.may_write(&name, Instant::now()) {
                self.schedule.mark(&name, Cause::Nodes);
                continue;
            }
            match apply::<J::Kind>(&self.api, &reviewed.object, &status).await {
                Ok(true) => {
                    writes.inc();
                    self.schedule.wrote(&name, Instant::now());
                    report(reviewed, &status, events).await;
                    *reviewed.review.before() = status;
                }
                // The object was deleted; the watch is about to report it.
                Ok(false) => {}
                Err(error) => {
                    let (error, kind) = (&error as &dyn std::error::Error, J::Kind::kind(&()));
                    tracing::warn!(error, %kind, name, "cannot write a status, will retry");
                    self.schedule.mark(&name, cause);
                    done = false;
                }
            }
        }
        done
    }

    /// Notes that the status of this object was written.
    #[cfg(test)]
    pub(crate) fn wrote(&mut self, name: &str) {
        self.schedule.wrote(name, Instant::now());
    }
}

/// Logs a written status, with an event if it says something new on which people have to act.
async fn report<J: Review>(reviewed: &mut Reviewed<J>, status: &J::Status, events: &Events) {
    let (kind, name) = (J::Kind::kind(&()), reviewed.object.name_any());
    let says = |condition: &Condition| (condition.status.clone(), condition.message.clone());
    let before = reviewed.review.before().accepted().map(says);
    let Some(now) = status.accepted().filter(|now| before != Some(says(now))).cloned() else {
        tracing::debug!(%kind, name, "status written");
        return;
    };
    if !J::is_for_people(&now) {
        tracing::info!(%kind, name, "accepted");
        return;
    }
    tracing::info!(%kind, name, reason = now.reason, problems = now.message, "acceptance changed");
    let about = reviewed.object.object_ref(&ApiResource::erase::<J::Kind>(&()));
    // The status says the same, so a failure is not retried.
    events.warn(&about, now.reason, "Accept", now.message).await;
}
