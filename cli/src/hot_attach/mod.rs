//! `netclaimctl attach` and `detach`: networks for a pod that runs.
//!
//! ```text
//!   attach ──> NetworkAttachment ──> controller, agent ──> its conditions ──> --wait
//!   detach ──> deleted ────────────> agent, controller ──> it is gone ──────> --wait
//! ```
//!
//! They write one object, with the rights of the user who runs them.

mod state;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt as _};
use netclaim_api::network_attachment::{NetworkAttachment, NetworkAttachmentSpec};
use netclaim_api::{IfName, ObjectName};
use netclaim_cni::error_chain;
use tokio::time::{Instant, sleep};

pub(crate) use self::state::State;
use crate::cluster::Connection;
use crate::print::failed;
use crate::printable::printable;

/// Time between two looks at an object.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// `netclaimctl attach`.
#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// The pod
    pub pod: ObjectName,
    /// The ResourceClaimTemplate that says what to ask for
    #[arg(long, short, value_name = "NAME")]
    pub template: ObjectName,
    /// Name of the interface in the pod, for a template that asks for one device [default: that of the
    /// template, or the first free netN]
    #[arg(long, value_name = "NAME")]
    pub interface_name: Option<IfName>,
    /// Name of the NetworkAttachment [default: POD-TEMPLATE]
    #[arg(long)]
    pub name: Option<ObjectName>,
    /// Where it is, and how long it is waited for
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `netclaimctl detach`.
#[derive(Debug, clap::Args)]
pub struct DetachArgs {
    /// The NetworkAttachment
    pub name: ObjectName,
    /// Where it is, and how long it is waited for
    #[command(flatten)]
    pub waiting: Waiting,
}

/// What both commands have.
#[derive(Debug, clap::Args)]
pub struct Waiting {
    /// The pod's namespace [default: that of the context]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Waits until that is done
    #[arg(long)]
    pub wait: bool,
    /// How long it is waited, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    pub timeout: u32,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

/// Creates a NetworkAttachment. Fails if it cannot be created or, if it is waited for, if nothing comes of it
/// in time.
pub async fn attach(
    args: AttachArgs,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> ExitCode {
    let AttachArgs { pod, template, interface_name, name, waiting } = args;
    let api = match waiting.api().await {
        Ok(api) => api,
        Err(error) => return failed(err, error),
    };
    let name = name.map_or_else(|| format!("{pod}-{template}"), |name| name.to_string());
    let spec = NetworkAttachmentSpec {
        pod_name: pod,
        pod_uid: None,
        resource_claim_template_name: template,
        interface_name,
    };
    let object = NetworkAttachment {
        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
        spec,
        status: None,
    };
    if let Err(error) = api.create(&PostParams::default(), &object).await {
        return failed(err, refused(&format!("cannot create NetworkAttachment {name}"), &error));
    }
    // A reader that has closed the pipe has what it wants.
    let _ = writeln!(out, "networkattachment.netclaim.dev/{name} created");
    if !waiting.wait {
        return ExitCode::SUCCESS;
    }
    match waiting.is_attached(&api, &name).await {
        Ok(text) => {
            let _ = writeln!(out, "{}", printable(&text));
            ExitCode::SUCCESS
        }
        Err(error) => failed(err, printable(&error)),
    }
}

/// Deletes a NetworkAttachment. Fails if it cannot be deleted or, if that is waited for, is not gone in time.
pub async fn detach(
    args: DetachArgs,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> ExitCode {
    let DetachArgs { name, waiting } = args;
    let api = match waiting.api().await {
        Ok(api) => api,
        Err(error) => return failed(err, error),
    };
    if let Err(error) = api.delete(name.as_str(), &DeleteParams::default()).await {
        return failed(err, refused(&format!("cannot delete NetworkAttachment {name}"), &error));
    }
    let _ = writeln!(out, "networkattachment.netclaim.dev/{name} deleted");
    if !waiting.wait {
        return ExitCode::SUCCESS;
    }
    match waiting.is_gone(&api, name.as_str()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(err, printable(&error)),
    }
}

/// Why the API server did not do it. Without the kind it says only that something is not found.
fn refused(what: &str, error: &kube::Error) -> String {
    let no_kind = matches!(error, kube::Error::Api(status) if status.code == 404 && status.details.is_none());
    let hint =
        if no_kind { ": the cluster has no NetworkAttachments, which netclaim's CRDs define" } else { "" };
    format!("{what}: {}{hint}", error_chain(error))
}

impl Waiting {
    async fn api(&self) -> Result<Api<NetworkAttachment>, String> {
        let client: Client = self.connection.client().await.map_err(|error| error_chain(&error))?;
        let namespace = self.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Api::namespaced(client, &namespace))
    }

    /// Waits until the pod has the interfaces; returns which.
    async fn is_attached(&self, api: &Api<NetworkAttachment>, name: &str) -> Result<String, String> {
        let deadline = self.deadline();
        loop {
            let object = read(api, name, deadline).await?;
            let object = object.ok_or_else(|| format!("NetworkAttachment {name} was deleted meanwhile"))?;
            let State { is_attached, is_refused, text } = State::of(&object);
            if is_attached {
                return Ok(text);
            }
            if is_refused || Instant::now() >= deadline {
                return Err(format!("NetworkAttachment {name} {text}"));
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits until the object is gone, which is when nothing is attached any more.
    async fn is_gone(&self, api: &Api<NetworkAttachment>, name: &str) -> Result<(), String> {
        let deadline = self.deadline();
        let mut uid = None;
        loop {
            let object = read(api, name, deadline).await?;
            let Some(object) = object else { return Ok(()) };
            if uid.get_or_insert_with(|| object.uid()) != &object.uid() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(State::named(&object));
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.timeout.into())
    }
}

/// Reads the object. What fails is tried again until the deadline.
async fn read(
    api: &Api<NetworkAttachment>,
    name: &str,
    deadline: Instant,
) -> Result<Option<NetworkAttachment>, String> {
    loop {
        match api.get_opt(name).await {
            Ok(object) => return Ok(object),
            Err(_) if Instant::now() < deadline => sleep(LOOK_INTERVAL).await,
            Err(error) => {
                return Err(format!("cannot read NetworkAttachment {name}: {}", error_chain(&error)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
