//! Writes the DeviceClasses of ClaimNetworks.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, PostParams, Preconditions, ResourceExt as _};
use kube::{Api, Client};
use netclaim_api::reasons::{ClassEvent, Reason as _};
use serde_json::Value;
use tokio::time::Instant;

use super::{Classes, Step, owners, resource};
use crate::objects::conditions::CONTROLLER;
use crate::objects::events::Events;
use crate::objects::owner::reference;

/// Classes that are written at once: what the reconciler does beside them waits meanwhile.
const AT_ONCE: usize = 20;

/// Time until what could not be written is tried again.
const PUT_OFF: Duration = Duration::from_secs(60);

/// Has the classes be as ClaimNetworks want them.
#[derive(Debug)]
pub(crate) struct Keeper {
    api: Api<DynamicObject>,
    pub(crate) classes: Classes,
    /// What could not be written, by the name of the class, and when it is tried again.
    put_off: BTreeMap<String, (Value, Instant)>,
}

impl Keeper {
    /// Writes classes that select devices of `driver`.
    pub(crate) fn new(client: Client, driver: &str) -> Self {
        let api = Api::all_with(client, &resource());
        Self { api, classes: Classes::new(driver), put_off: BTreeMap::new() }
    }

    /// Writes classes that are wrong: not too many, and none after the API server has not answered. Returns
    /// whether all were written; `None` if there was nothing to write.
    pub(crate) async fn write(&mut self, events: &Events) -> Option<bool> {
        let now = Instant::now();
        self.put_off.retain(|_, (_, until)| *until > now);
        let mut steps = self.classes.steps();
        steps.retain(|step| !self.is_put_off(step));
        let mut done = (steps.len() > AT_ONCE).then_some(false);
        for step in steps.into_iter().take(AT_ONCE) {
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
                    if !is_outdated(&step, error) {
                        let tried = (step.class().data.clone(), Instant::now() + PUT_OFF);
                        self.put_off.insert(name, tried);
                    }
                }
            }
            let is_last = result.as_ref().is_err_and(|error| !is_answer(error));
            self.classes.noted(&step, result.map_err(|error| message(&error)));
            if is_last {
                break;
            }
        }
        done
    }

    /// Returns when to write what was put off.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.put_off.values().map(|(_, until)| *until).min()
    }

    fn is_put_off(&self, step: &Step) -> bool {
        let class = step.class();
        self.put_off.get(&class.name_any()).is_some_and(|(tried, _)| *tried == class.data)
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

/// Whether the error is about one class. The API server says what a webhook that is down has not said, too.
fn is_answer(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code < 500)
}

/// Whether somebody else was faster, so that the class is another one by now.
fn is_outdated(step: &Step, error: &kube::Error) -> bool {
    let is_conflict = matches!(error, kube::Error::Api(status) if status.code == 409);
    is_conflict && !matches!(step, Step::Create(_))
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

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use netclaim_api::NetworkName;
    use netclaim_api::network::ClaimNetworkSpec;
    use serde_json::json;
    use tower_test::mock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn few_classes_are_written_at_once_and_those_that_cannot_be_are_put_off() {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let server = tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some((request, reply)) = requests.next_request().await {
                let body = request.into_body().collect_bytes().await.unwrap();
                let class: Value = serde_json::from_slice(&body).unwrap();
                let name = class["metadata"]["name"].as_str().unwrap().to_owned();
                let code: u16 = match name.as_str() {
                    "n00" => 403,
                    "n01" => 500,
                    _ => 201,
                };
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "no", "reason": "X", "code": code});
                let body = if code == 201 { body.to_vec() } else { status.to_string().into_bytes() };
                reply.send_response(Response::builder().status(code).body(Body::from(body)).unwrap());
                seen.push(name);
            }
            seen
        });
        let client = Client::new(service, "default");
        let events = Events::new(client.clone(), "pod-1".to_owned());
        let mut keeper = Keeper::new(client, "netclaim.dev");
        let spec = json!({"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}});
        let spec: ClaimNetworkSpec = serde_json::from_value(spec).unwrap();
        let names: Vec<NetworkName> =
            (0..24).map(|number| format!("n{number:02}").parse().unwrap()).collect();
        keeper.classes.want(names.iter().map(|name| (name, &spec, name.as_str())));
        assert_eq!(keeper.write(&events).await, Some(false), "n00 is refused, n01 has no answer");
        assert_eq!(keeper.write(&events).await, Some(false), "there are more");
        assert_eq!(keeper.write(&events).await, Some(true));
        assert_eq!(keeper.write(&events).await, None);
        tokio::time::advance(keeper.next().unwrap() - Instant::now()).await;
        assert_eq!(keeper.write(&events).await, Some(false), "they are tried again");
        drop((keeper, events));
        let seen = server.await.unwrap();
        let expected: Vec<String> = (0..24).chain([0, 1]).map(|number| format!("n{number:02}")).collect();
        assert_eq!(seen, expected);
    }
}
