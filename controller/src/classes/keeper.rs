//! Writes the DeviceClasses of ClaimNetworks.

use std::error::Error;

use kube::api::{DeleteParams, DynamicObject, PostParams, Preconditions, ResourceExt as _};
use kube::{Api, Client};
use netclaim_api::reasons::{ClassEvent, Reason as _};

use super::{Classes, Step, owners, resource};
use crate::objects::conditions::CONTROLLER;
use crate::objects::events::Events;
use crate::objects::owner::reference;

/// Has the classes be as ClaimNetworks want them.
#[derive(Debug)]
pub(crate) struct Keeper {
    api: Api<DynamicObject>,
    pub(crate) classes: Classes,
}

impl Keeper {
    /// Writes classes that select devices of `driver`.
    pub(crate) fn new(client: Client, driver: &str) -> Self {
        Self { api: Api::all_with(client, &resource()), classes: Classes::new(driver) }
    }

    /// Writes each class that is wrong. Returns whether all writes succeeded; `None` if nothing was wrong.
    pub(crate) async fn write(&mut self, events: &Events) -> Option<bool> {
        let mut done = None;
        for step in self.classes.steps() {
            let name = step.class().name_any();
            let result = self.take(&step).await;
            match &result {
                Ok(_) => {
                    report(&step, events).await;
                    done = done.or(Some(true));
                }
                Err(error) => {
                    tracing::warn!(
                        error = error as &dyn Error,
                        name,
                        "cannot write a DeviceClass, will retry"
                    );
                    done = Some(false);
                }
            }
            self.classes.noted(&step, result.map_err(|error| message(&error)));
        }
        done
    }

    /// Returns the class as the API server has it then.
    async fn take(&self, step: &Step) -> kube::Result<Option<DynamicObject>> {
        let params = PostParams { field_manager: Some(CONTROLLER.to_owned()), ..PostParams::default() };
        match step {
            Step::Create(class) => self.api.create(&params, class).await.map(Some),
            // The version in it keeps what somebody else has written meanwhile.
            Step::Replace { class, .. } => {
                self.api.replace(&class.name_any(), &params, class).await.map(Some)
            }
            Step::Delete(class) => {
                let preconditions =
                    Preconditions { uid: class.uid(), resource_version: class.resource_version() };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                match self.api.delete(&class.name_any(), &params).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                    result => result.map(|_| None),
                }
            }
        }
    }
}

/// Returns what the API server says.
fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Logs a step, with an event of the ClaimNetwork if somebody else has changed the class.
async fn report(step: &Step, events: &Events) {
    let name = step.class().name_any();
    match step {
        Step::Create(_) => tracing::info!(name, "made a DeviceClass"),
        Step::Delete(_) => tracing::info!(name, "deleted a DeviceClass that its ClaimNetwork does not want"),
        Step::Replace { by_others: false, .. } => tracing::info!(name, "updated a DeviceClass"),
        Step::Replace { class, by_others: true } => {
            tracing::info!(name, "put back a DeviceClass");
            let note = format!(
                "DeviceClass {name} was changed, and is as the ClaimNetwork says again: change spec.deviceClasses, or write \
                 spec.deviceClass: None and a DeviceClass of your own"
            );
            for owner in owners(class) {
                events
                    .warn(
                        &reference(owner),
                        ClassEvent::DeviceClassRestored.as_str(),
                        "Restore",
                        note.clone(),
                    )
                    .await;
            }
        }
    }
}
