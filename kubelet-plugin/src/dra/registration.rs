//! Registration: the kubelet finds the socket in its registry directory and asks for the driver's name and
//! endpoint.
//!
//! The socket's file name has an `@`: the kubelet's client puts the escaped path into the `:authority` of its
//! request, where HTTP allows `%` only in front of an `@`. Without it the request does not arrive.

use std::path::PathBuf;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::proto::registration::registration_server::Registration as RegistrationService;
use super::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// `v1.DRAResourceHealth` is known since 1.37.
const VERSIONS: [&str; 3] = ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

/// The registration of one driver.
#[derive(Debug)]
pub(crate) struct Registration {
    driver: String,
    endpoint: PathBuf,
    registered: watch::Sender<bool>,
}

impl Registration {
    /// Registers `driver`, which serves its calls at `endpoint`. `registered` follows the kubelet's
    /// notifications.
    pub(crate) fn new(driver: &str, endpoint: PathBuf, registered: watch::Sender<bool>) -> Self {
        Self { driver: driver.to_owned(), endpoint, registered }
    }

    /// Returns the file name of the registration socket of an instance of `driver`, which may be the nameless
    /// one.
    pub(crate) fn socket_name(driver: &str, instance: &str) -> String {
        match instance {
            "" => format!("{driver}@reg.sock"),
            instance => format!("{driver}-{instance}@reg.sock"),
        }
    }

    /// Returns whether a file has the name of a registration socket of an instance of `driver`.
    pub(crate) fn is_of(driver: &str, name: &str) -> bool {
        let instance = name.strip_prefix(driver).and_then(|rest| rest.strip_suffix("@reg.sock"));
        instance.is_some_and(|instance| instance.is_empty() || instance.starts_with('-'))
    }
}

#[tonic::async_trait]
impl RegistrationService for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        self.registered.send_replace(plugin_registered);
        if plugin_registered {
            tracing::info!("registered with the kubelet");
            Ok(Response::new(RegistrationStatusResponse {}))
        } else {
            tracing::error!(error, "the kubelet refused to register the driver");
            Err(Status::failed_precondition(format!("registration failed: {error}")))
        }
    }
}
